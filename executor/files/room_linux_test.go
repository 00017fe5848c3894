package files_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/files"
)

// smallDisk is a folder that is a file system of 4 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no small file system: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// What is reserved is not there for others, and is there again when it is given back;
// and uploads leave a twentieth of the disk to everybody else.
//
//nolint:paralleltest // a process that another test is starting has every open file for a moment, and so the room of a removed one
func TestUploadOnAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	b := openBlobs(t, dir)
	id := func(owner string, size int64) files.UploadID {
		return files.UploadID{Owner: owner, SHA256: sha(owner), Size: size}
	}
	first := resume(t, b, id("a", 3<<20), 0)
	_, err := b.Resume(t.Context(), id("b", 2<<20), 0)
	room, ok := errors.AsType[*files.RoomError](err)
	if !ok || room.Missing < 1<<20 || room.Missing > 1<<20+1<<18 {
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
	if left, err := files.FreeBytes(dir); err != nil || left < 4<<20/20 {
		t.Errorf("%d bytes are left (%v)", left, err)
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

// A stream that ended leaves what came in and no more, and so does a process that
// ended; whoever goes on gets the room again.
//
//nolint:paralleltest // a process that another test is starting has every open file for a moment, and so the room of a removed one
func TestHalfUploadReservesNothing(t *testing.T) {
	dir := smallDisk(t)
	b, err := files.OpenBlobs(dir)
	must(t, err)
	whole, err := files.FreeBytes(dir)
	must(t, err)
	id := files.UploadID{Owner: "a", SHA256: sha("a"), Size: 3 << 20}
	free := func(when string, most, least int64) {
		t.Helper()
		if got, err := files.FreeBytes(dir); err != nil || got > whole-least || got < whole-most {
			t.Errorf("%s %d of %d bytes are free (%v)", when, got, whole, err)
		}
	}
	w := resume(t, b, id, 0)
	_, err = w.Write(make([]byte, 1<<20))
	must(t, err)
	free("while it comes in", 3<<20+1<<16, 3<<20)
	w.Abort()
	free("when the stream ended", 1<<20+1<<16, 1<<20)
	cut := resume(t, b, id, 1<<20)
	free("when it goes on", 3<<20+1<<16, 3<<20)
	data := dir + "/incoming/" + incoming(t, dir)[0]
	before, err := os.Stat(data)
	must(t, err)
	b.Close() // with the stream open, as after a crash
	b, err = files.OpenBlobs(dir)
	must(t, err)
	defer b.Close()
	free("after a crash", 1<<20+1<<16, 1<<20)
	wantOffset(t, b, id, 1<<20)
	if after, err := os.Stat(data); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("half an upload looks younger than it is: %v", err)
	}
	w = resume(t, b, id, 1<<20)
	if n, err := w.Write(make([]byte, 2<<20)); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
	w.Drop()
	cut.Abort()
	free("when it is dropped", 1<<16, 0)
}
