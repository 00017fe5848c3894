package keeper

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Restoring calls f, which works on an attempt's records. If that was not
// permitted, it takes the attempt's folders back and calls f once more: Landlock
// does not hold file modes, so a tool that may change metadata by path can close
// the folders that it cannot write to.
func Restoring(d Dir, f func() error) error {
	err := f()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if d.restore() != nil {
		return err
	}
	return f()
}

// restoring is Restoring for the path of a record.
func restoring(record string, f func() error) error {
	return Restoring(Dir(filepath.Dir(filepath.Dir(record))), f)
}

// restore gives the two folders and the records the modes they were made with.
func (d Dir) restore() error {
	for _, folder := range []string{string(d), d.Keeper()} {
		if err := os.Chmod(folder, 0o700); err != nil { //nolint:gosec // a folder
			return err
		}
	}
	entries, err := os.ReadDir(d.Keeper())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		// A temporary name may be gone by now.
		err := os.Chmod(filepath.Join(d.Keeper(), e.Name()), 0o600)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
