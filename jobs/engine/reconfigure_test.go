package engine

import (
	"testing"

	"github.com/macexec/macexec/jobs"
)

// TestReconfigureIsRecordedWhenItHappens: what cannot be used changes nothing, and the
// journal does not say that it did (G9).
func TestReconfigureIsRecordedWhenItHappens(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	before, dirs, limits := h.store.Head(), h.programs.Dirs(), h.limits()
	if err := h.Reconfigure(t.Context(), owner(), Limits{LogBytes: 1}, []string{"bin"}, []string{"/tool_path"}); jobs.CodeOf(err) != jobs.CodeRequestInvalid {
		t.Errorf("a folder that is not absolute: %v", err)
	}
	if h.store.Head() != before || h.limits().LogBytes != limits.LogBytes || h.programs.Dirs()[0] != dirs[0] {
		t.Error("a refused change is in force, or in the journal")
	}
	if err := h.Reconfigure(t.Context(), owner(), Limits{LogBytes: 1}, []string{"/bin"}, []string{"/tool_path"}); err != nil {
		t.Fatal(err)
	}
	if h.store.Head() != before+1 || h.limits().LogBytes != 1 || h.programs.Dirs()[0] != "/bin" {
		t.Error("a change is not in force, or not in the journal")
	}
}
