package store

import (
	"path/filepath"

	"github.com/macexec/macexec/jobs"
)

// checkFileSystem refuses a place where a lock or a mapped file cannot be relied on: two
// daemons could write one store, each believing that it is alone, and a write that was
// answered could be lost.
func (o Options) checkFileSystem() error {
	look := o.FileSystem
	if look == nil {
		look = fileSystemOf
	}
	dir := filepath.Dir(o.Path)
	name, local, err := look(dir)
	switch {
	case err != nil:
		return jobs.Errorf(jobs.CodeStoreFailed, "the file system of %s cannot be told: %w", dir, err).With("path", o.Path)
	case !local:
		return jobs.Errorf(jobs.CodeStoreFailed,
			"%s lies on a file system of the kind %s, over a network or in another process, where the lock and the writes of a store cannot be relied on; keep the state folder on a local disk: --state DIR", dir, name).
			With("path", o.Path).With("file_system", name)
	}
	return nil
}
