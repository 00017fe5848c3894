package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

// A tool that has filled its disk can be stopped, and how it ended is recorded, although
// there is no room for either.
func TestStopOnAFullDisk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := unix.Mount("tmpfs", b.root, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := b.start("j", command("block"))
	b.ready("j", 1)
	rest, err := os.Create(filepath.Join(r.Dir().Work(), "rest"))
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	for err == nil {
		_, err = rest.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Stop("asked"); err != nil && !errors.Is(err, executor.ErrEnded) {
			t.Errorf("stop: %v", err)
			if err := os.Remove(rest.Name()); err != nil {
				t.Error(err)
			}
		}
	}
	if e := b.exited(r); e.StoppedFor != keeper.StoppedForRequest {
		t.Errorf("exit: %+v", e)
	}
}
