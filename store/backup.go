package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/jobs"
)

// copyReserve is what stays free on the disk while a copy is made.
const copyReserve = 64 << 20

// Copy implements jobs.Store. The copy is made beside the store before anybody gets a
// byte of it, in a file without a name: bbolt cannot map a growing store anew, nor use
// its freed pages, while a copy is read, and whoever takes it may be slow.
func (s *Store) Copy(ctx context.Context) (jobs.StoreCopy, error) {
	if err := s.usable(); err != nil {
		return jobs.StoreCopy{}, err
	}
	size, _ := s.Size()
	if err := roomFor(s.path, size); err != nil {
		return jobs.StoreCopy{}, err
	}
	spool, err := os.CreateTemp(filepath.Dir(s.path), tempPattern(s.path, copyTemp))
	if err == nil {
		err = os.Remove(spool.Name())
	}
	if err != nil {
		return jobs.StoreCopy{}, jobs.Errorf(jobs.CodeStoreFailed, "no copy of the store %s can be begun: %w", s.path, err)
	}
	made := jobs.StoreCopy{ReadCloser: spool}
	err = s.view(ctx, func(tx *bbolt.Tx) (err error) {
		made.HostID, made.Head, made.Size, err = writeCopy(ctx, tx, spool)
		return err
	})
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = spool.Close()
		return jobs.StoreCopy{}, copyError(ctx, s.path, err)
	}
	return made, nil
}

// Backup writes a copy of a store that no process has open.
func Backup(ctx context.Context, path string, w io.Writer) (made jobs.StoreCopy, err error) {
	file, err := openLocked(ctx, path, os.O_RDONLY, syscall.LOCK_SH, checkLockWait)
	if err != nil {
		return made, err
	}
	if problems := checkPages(file); len(problems) > 0 {
		_ = closeLocked(file)
		return made, jobs.Errorf(jobs.CodeStoreFailed, "the store %s is damaged, and a copy of it would be, too: %s; macexec store check lists what is wrong", path, problems[0]).With("path", path)
	}
	db, err := openBolt(file, true)
	if err != nil {
		return made, err
	}
	defer func() { _ = db.Close() }()
	err = guarded(func() error {
		return db.View(func(tx *bbolt.Tx) (err error) {
			if err := checkVersion(path, readSchemaVersion(tx), schemaVersion(migrations())); err != nil {
				return err
			}
			made.HostID, made.Head, made.Size, err = writeCopy(ctx, tx, w)
			return err
		})
	})
	if err != nil {
		return made, copyError(ctx, path, err)
	}
	return made, nil
}

// writeCopy writes the store as a transaction sees it.
func writeCopy(ctx context.Context, tx *bbolt.Tx, w io.Writer) (hostID string, head uint64, size int64, err error) {
	meta := tx.Bucket([]byte(bucketMeta))
	newest, ok := decodeChainHead(meta.Get([]byte(metaJournalHead)))
	if !ok {
		return "", 0, 0, errors.New("it does not say where its journal ends")
	}
	size, err = tx.WriteTo(whileWanted{ctx, w})
	return string(meta.Get([]byte(metaHostID))), newest.seq, size, err
}

// whileWanted is a writer that ends with a context.
type whileWanted struct {
	ctx context.Context //nolint:containedctx // of the one copy that it writes
	w   io.Writer
}

func (w whileWanted) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}

func copyError(ctx context.Context, path string, err error) error {
	own, ok := errors.AsType[*jobs.Error](err)
	switch {
	case ctx.Err() != nil:
		return contextError(ctx)
	case ok:
		return own
	case isNoSpace(err):
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for a copy of the store %s", path).With("path", path)
	}
	return jobs.Errorf(jobs.CodeStoreFailed, "no copy of the store %s can be made: %w", path, err).With("path", path)
}

// roomFor refuses what would fill the disk that a file lies on.
func roomFor(path string, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return jobs.Errorf(jobs.CodeStoreFailed, "the room beside the store %s cannot be told: %w", path, err)
	}
	free := int64(st.Bavail) * int64(st.Bsize) // its types differ between systems
	if free-size < copyReserve {
		return jobs.Errorf(jobs.CodeDiskFull, "a copy of the store has %d bytes, and %d are free on its disk, of which %d stay free", size, free, copyReserve).
			With("needed", fmt.Sprint(size)).With("free", fmt.Sprint(free))
	}
	return nil
}
