package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// OldKeepers removes the copies of keepers that no attempt is started with any more, also
// such as were never finished, and returns how many they are, and their bytes. Whoever
// calls knows that no attempt of an earlier daemon lives: its keeper may need its own file.
func (x *Executor) OldKeepers(dry bool) (n int, size int64, err error) {
	if x.copies == "" {
		return 0, 0, nil
	}
	list, err := os.ReadDir(x.copies)
	if err != nil {
		return 0, 0, err
	}
	// What is not finished has the name that renameio gives it.
	ours := regexp.MustCompile(`^(\.)?[0-9a-f]{64}[0-9]*$`)
	for _, file := range list {
		info, unreadable := file.Info()
		if unreadable != nil || !info.Mode().IsRegular() || !ours.MatchString(file.Name()) || file.Name() == filepath.Base(x.keeper[0]) {
			continue
		}
		if !dry {
			if failed := os.Remove(filepath.Join(x.copies, file.Name())); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
				err = errors.Join(err, failed)
				continue
			}
		}
		n++
		size += info.Size()
	}
	return n, size, err
}
