package engine

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/jobs"
)

// TestOutputThatDoesNotFitTwice: a file that has another name is kept as a copy. That there
// is no room for one says nothing of what the tool has made.
func TestOutputThatDoesNotFitTwice(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("make", "staged", "yes made | head -c 50000000 > out/made.txt && ln out/made.txt out/again", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
result: "{'ok': true}"`))
	if err := unix.Mount("tmpfs", h.exec.Root(), "tmpfs", 0, "size=80m,mode=0700"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no small file system: %v", err)
	}
	t.Cleanup(func() {
		h.Stop()
		if err := unix.Unmount(h.exec.Root(), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	job := h.await(h.mustCall(owner(), "make", "k", `{}`, jobs.Options{}).ID, settled)
	h.wantState(job, jobs.StateFailed, jobs.EndDiskFull)
}
