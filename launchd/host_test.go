package launchd_test

import (
	"testing"

	"github.com/macexec/macexec/launchd"
)

func TestHostFacts(t *testing.T) {
	t.Parallel()
	first, err := launchd.BootSession()
	if err != nil || len(first) != 36 {
		t.Fatalf("boot session %q, %v", first, err)
	}
	if again, _ := launchd.BootSession(); again != first {
		t.Errorf("the boot session changed from %q to %q", first, again)
	}
	if launchd.OSVersion() == "" || launchd.MemoryBytes() < 64<<20 {
		t.Errorf("version %q, memory %d", launchd.OSVersion(), launchd.MemoryBytes())
	}
}
