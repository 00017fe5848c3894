package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// compactBatch is how much is copied in one transaction of a compaction.
const compactBatch = 16 << 20

// Compaction is what a compaction has won.
type Compaction struct {
	Before, After int64 // bytes of the file
}

// Compact writes the store at a path, which no process may have open, anew without its
// free pages. The new file takes the old one's place in one step, when it is on the disk
// and has been compared with the old one, row by row.
func Compact(ctx context.Context, path string) (c Compaction, err error) {
	file, err := openLocked(ctx, path, os.O_RDWR, syscall.LOCK_EX, checkLockWait)
	if err != nil {
		return c, err
	}
	info, err := file.Stat()
	if err == nil {
		err = roomFor(path, info.Size())
	}
	if err != nil {
		_ = closeLocked(file)
		return c, err
	}
	c.Before = info.Size()
	if problems := append(checkHead(file), checkPages(file)...); len(problems) > 0 {
		_ = closeLocked(file)
		return c, jobs.Errorf(jobs.CodeStoreFailed, "the store %s is damaged and is left as it is: %s; macexec store check lists what is wrong", path, problems[0]).With("path", path)
	}
	sweepTemps(path)
	old, err := openBolt(file, true)
	if err != nil {
		return c, err
	}
	defer func() { _ = old.Close() }() // and with it the lock
	holder, _ := writeHolder(path)     // it is a remark
	defer removeHolder(holder)
	err = guarded(func() error {
		return old.View(func(tx *bbolt.Tx) error {
			return checkVersion(path, readSchemaVersion(tx), schemaVersion(migrations()))
		})
	})
	if err != nil {
		return c, err
	}
	temp, err := writeCompacted(ctx, path, old)
	if err != nil {
		return c, copyError(ctx, path, err)
	}
	defer os.Remove(temp) // it has its name by then, or is of no use
	if info, err = os.Stat(temp); err == nil {
		c.After = info.Size()
		err = errors.Join(os.Rename(temp, path), syncFolder(filepath.Dir(path)))
	}
	if err != nil {
		return c, jobs.Errorf(jobs.CodeStoreFailed, "the compacted store %s cannot be put in its place: %w", path, err).With("path", path)
	}
	return c, nil
}

// writeCompacted writes everything that a store has into a new file, and compares.
func writeCompacted(ctx context.Context, path string, old *bbolt.DB) (temp string, err error) {
	made, err := os.CreateTemp(filepath.Dir(path), tempPattern(path, compactTemp))
	if err != nil {
		return "", err
	}
	temp = made.Name()
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	if err := made.Close(); err != nil {
		return "", err
	}
	fresh, err := bbolt.Open(temp, 0o600, &bbolt.Options{
		FreelistType: bbolt.FreelistArrayType, PageSize: old.Info().PageSize,
		NoSync: true, // nothing counts before the sync at its end
	})
	if err != nil {
		return "", err
	}
	err = guarded(func() error {
		if err := bbolt.Compact(fresh, old, compactBatch); err != nil {
			return err
		}
		return sameContent(ctx, fresh, old)
	})
	if err := errors.Join(err, fresh.Close()); err != nil {
		return "", err
	}
	return temp, trim(temp)
}

// trim cuts off what a file has behind its last page, and syncs it.
func trim(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	head, err := inspectFile(f, info.Size())
	if err != nil {
		return err
	}
	if err := f.Truncate(int64(head.current.highWater) * head.current.pageSize); err != nil {
		return err
	}
	return f.Sync()
}

// sameContent compares two files row by row.
func sameContent(ctx context.Context, fresh, old *bbolt.DB) error {
	return fresh.View(func(now *bbolt.Tx) error {
		return old.View(func(was *bbolt.Tx) error {
			n := 0
			a := now.Cursor()
			bucket, _ := a.First()
			return was.ForEach(func(name []byte, rows *bbolt.Bucket) error {
				if !bytes.Equal(bucket, name) {
					return fmt.Errorf("the compacted store lacks bucket %q", name)
				}
				next := now.Bucket(name).Cursor()
				k, v := next.First()
				err := rows.ForEach(func(key, value []byte) error {
					if !bytes.Equal(k, key) || !bytes.Equal(v, value) {
						return fmt.Errorf("the compacted store lacks row %x of bucket %q", key, name)
					}
					if n++; n%4096 == 0 && ctx.Err() != nil {
						return ctx.Err()
					}
					k, v = next.Next()
					return nil
				})
				if err == nil && k != nil {
					err = fmt.Errorf("the compacted store has row %x of bucket %q, and the store has not", k, name)
				}
				bucket, _ = a.Next()
				return err
			})
		})
	})
}
