package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Recorded reports whether a keeper or a judge of an attempt of a job below a root has
// written anything down, so that a start of it was once decided. What cannot be looked at
// counts as written.
func Recorded(root, job string) bool {
	folder := filepath.Join(root, job)
	attempts, err := os.ReadDir(folder)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, e := range attempts {
		d := Dir(filepath.Join(folder, e.Name()))
		for _, record := range []string{d.Started(), d.Exit(), d.Fenced()} {
			if _, err := os.Lstat(record); e.IsDir() && !errors.Is(err, fs.ErrNotExist) {
				return true
			}
		}
	}
	return false
}
