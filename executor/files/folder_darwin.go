package files

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func renameExclusive(from int, name string, to int, newName string) error {
	return unix.RenameatxNp(from, name, to, newName, unix.RENAME_EXCL)
}

func renameSwap(dir int, a, b string) error {
	return unix.RenameatxNp(dir, a, dir, b, unix.RENAME_SWAP)
}

// clone makes name in dir a copy-on-write twin of src, if the file system can;
// false and no error if it cannot, and then nothing is there.
func clone(src *os.File, dir folder, name string) (bool, error) {
	err := retry(func() error {
		return unix.Fclonefileat(int(src.Fd()), dir.fd(), name, unix.CLONE_NOOWNERCOPY)
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrExist):
		return false, err
	}
	return false, nil
}

// hasWriter says whether some process may still write to f. macOS cannot tell, and
// a clone costs next to nothing there, so the answer is always yes.
func hasWriter(*os.File) bool { return true }

// preallocate reserves need bytes after those that f has room for.
func preallocate(f *os.File, _, need int64) error {
	return unix.FcntlFstore(f.Fd(), unix.F_PREALLOCATE, &unix.Fstore_t{
		Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: need,
	})
}
