package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// TestB08_NetworkFileSystemsAreRefused: before anything is made there. What the tests
// themselves lie on is local.
func TestB08_NetworkFileSystemsAreRefused(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	o := store.Options{Path: path, FileSystem: func(dir string) (string, bool, error) {
		if dir != filepath.Dir(path) {
			t.Errorf("asked about %s", dir)
		}
		return "nfs", false, nil
	}}
	_, err := store.Open(t.Context(), o)
	describe(t, err, filepath.Dir(path), "nfs", "--state DIR")
	o.FileSystem = func(string) (string, bool, error) { return "", false, errors.New("no answer") }
	if _, err := store.Open(t.Context(), o); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("of a kind that cannot be told: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("made there: %v, %v", left, err)
	}
	open(t, path)
}
