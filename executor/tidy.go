package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Tidy removes the tool's own folder of an attempt that has ended. The records, the
// log and the kept artifacts stay. It may be repeated.
func (x *Executor) Tidy(job string, n int) error {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return removeAll(root, filepath.Base(d.Work()))
}

// removeAll removes a tree below root, of which a tool may have left folders that
// even their owner cannot enter.
func removeAll(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if errors.Is(err, fs.ErrPermission) {
		_ = fs.WalkDir(root.FS(), name, func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = root.Chmod(path, 0o700)
			}
			return nil
		})
		err = root.RemoveAll(name)
	}
	return err
}
