package files_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/files"
)

// On a file system of 4 MiB: what is reserved is not there for others, and is there
// again when it is given back.
func TestUploadOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no small file system: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	b := openBlobs(t, dir)
	id := func(owner string, size int64) files.UploadID {
		return files.UploadID{Owner: owner, SHA256: sha(owner), Size: size}
	}
	first := resume(t, b, id("a", 3<<20), 0)
	_, err := b.Resume(t.Context(), id("b", 2<<20), 0)
	room, ok := errors.AsType[*files.RoomError](err)
	if !ok || room.Missing < 1<<20 || room.Missing > 1<<20+1<<16 {
		t.Fatalf("beside a reservation: %v", err)
	}
	if len(incoming(t, dir)) != 2 {
		t.Errorf("left of the refused one: %q", incoming(t, dir))
	}
	// Without a reservation the end of the disk is met on the way.
	free, err := b.Create(1<<40, false)
	must(t, err)
	for err == nil {
		_, err = free.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	// But not by the one that reserved.
	if n, err := first.Write(make([]byte, 3<<20)); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
	free.Abort()
	first.Drop()
	resume(t, b, id("b", 2<<20), 0).Abort()
	if left, err := os.ReadDir(dir + "/incoming"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
