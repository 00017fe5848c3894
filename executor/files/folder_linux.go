package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func renameExclusive(from int, name string, to int, newName string) error {
	return unix.Renameat2(from, name, to, newName, unix.RENAME_NOREPLACE)
}

func renameSwap(dir int, a, b string) error {
	return unix.Renameat2(dir, a, dir, b, unix.RENAME_EXCHANGE)
}

// clone makes name in dir a file that shares the blocks of src, if the file system
// can; false and no error if it cannot, and then nothing is there.
func clone(src *os.File, dir folder, name string) (bool, error) {
	dst, err := dir.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o400)
	if err != nil {
		return false, err
	}
	defer dst.Close()
	if err := retry(func() error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) }); err == nil {
		return true, nil
	}
	return false, dir.unlink(name)
}

// hasWriter says whether some process may still write to f. A read lease is given
// only while nobody has the file open for writing; a file system that cannot tell
// is taken to say yes.
func hasWriter(f *os.File) bool {
	set := func(kind int) error {
		return retry(func() error {
			_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
			return err
		})
	}
	if err := set(unix.F_RDLCK); err != nil {
		return true
	}
	return errors.Is(set(unix.F_UNLCK), unix.EAGAIN)
}

// preallocate reserves the room for the first size bytes of f.
func preallocate(f *os.File, size, _ int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
}
