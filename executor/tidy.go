package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/keeper"
)

// Tidy removes the tool's own folder of an attempt that has ended, and what was kept
// of its outputs unless that is wanted. The records and the log stay. It may be
// repeated.
func (x *Executor) Tidy(job string, n int, artifacts bool) error {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return err
	}
	var root *os.Root
	err = keeper.Restoring(d, func() (err error) {
		root, err = os.OpenRoot(string(d))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	err = removeAll(root, filepath.Base(d.Work()))
	if !artifacts {
		err = errors.Join(err, removeAll(root, files.ArtifactsFolder))
	}
	return err
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
