package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// firstSchema is the version that the first migration starts from.
const firstSchema = 1

// migration brings the bucket tree from one version to the next.
type migration struct {
	name string // of what it changes
	run  func(tx *bbolt.Tx, now time.Time) error
}

// migrations lists every step since version 1, in order: the first leads to
// version 2. A step is never changed once released. Each needs a test of its name
// and a store of the version before it in testdata.
func migrations() []migration {
	return []migration{
		{"derive the index, pins and usage from the jobs", derive},
		{"give the newest jobs a bucket of their own", moveRows},
	}
}

// schemaVersion is the version that this macexec writes.
func schemaVersion(list []migration) uint64 { return uint64(firstSchema + len(list)) }

// writeFirstSchema makes the buckets of a new store.
func writeFirstSchema(tx *bbolt.Tx, now time.Time) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	meta := tx.Bucket([]byte(bucketMeta))
	return errors.Join(
		meta.Put([]byte(metaSchemaVersion), encodeU64(schemaVersion(migrations()))),
		meta.Put([]byte(metaHostID), []byte(newHostID())),
		meta.Put([]byte(metaCreatedAt), []byte(now.UTC().Format(time.RFC3339))),
		meta.Put([]byte(metaJobSeq), encodeU64(0)),
		meta.Put([]byte(metaJournalHead), chainHead{}.encode()),
	)
}

// readSchemaVersion returns 0 if the file is no store of macexec.
func readSchemaVersion(tx *bbolt.Tx) uint64 {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return 0
	}
	return decodeU64(meta.Get([]byte(metaSchemaVersion)))
}

// checkVersion refuses what this macexec cannot read.
func checkVersion(path string, have, want uint64) error {
	switch {
	case have < firstSchema:
		return jobs.Errorf(jobs.CodeStoreFailed, "%s is a bbolt file but no store of macexec, and is left as it is; put the store there, or restore a copy: macexec store restore FILE", path).With("path", path)
	case have > want:
		return jobs.Errorf(jobs.CodeStoreFailed,
			"the store %s has version %d and this macexec knows versions up to %d; use the macexec that wrote it or a newer one", path, have, want).With("path", path)
	}
	return nil
}

// migrate brings a store to the newest version of list. Before the first step it
// saves a copy beside the store; each step is one transaction together with its
// version, so a crash between two steps is continued at the next start.
func migrate(path string, db *bbolt.DB, list []migration, now time.Time, log *slog.Logger) error {
	var have uint64
	err := guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			have = readSchemaVersion(tx)
			return nil
		})
	})
	if err != nil {
		return errDamaged(path, err)
	}
	want := schemaVersion(list)
	if err := checkVersion(path, have, want); err != nil || have == want {
		return err
	}
	backup := fmt.Sprintf("%s.v%d.bak", path, have)
	if err := saveCopy(path, db, backup); err != nil {
		return jobs.Errorf(jobs.CodeStoreFailed, "the store %s is not upgraded, since no copy of it could be saved: %v", path, err).With("path", path)
	}
	for version := have; version < want; version++ {
		step := list[version-firstSchema]
		log.Info("upgrading the store", "path", path, "step", step.name, "to_version", version+1, "copy", backup)
		err := guarded(func() error {
			return db.Update(func(tx *bbolt.Tx) error {
				if err := step.run(tx, now); err != nil {
					return err
				}
				return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaSchemaVersion), encodeU64(version+1))
			})
		})
		if err != nil {
			return jobs.Errorf(jobs.CodeStoreFailed, "the upgrade of the store %s to version %d (%s) failed: %v; a copy from before is %s",
				path, version+1, step.name, err, backup).With("path", path)
		}
	}
	return nil
}

// saveCopy writes the store to a file, durably and whole. A copy of that name from
// an upgrade that was cut short is left as it is: it is the older one.
func saveCopy(store string, db *bbolt.DB, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), tempPattern(store, upgradeTemp))
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	err = guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			_, err := tx.WriteTo(temp)
			return err
		})
	})
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
