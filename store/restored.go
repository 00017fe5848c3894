package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// readRestore returns the record of an adoption that nobody has confirmed yet, or nil.
func readRestore(tx *bbolt.Tx) (*jobs.Restore, error) {
	raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(metaRestored))
	if raw == nil {
		return nil, nil //nolint:nilnil // as a rule there is none
	}
	r := new(jobs.Restore)
	if err := decodeInto("the record of a restored store", raw, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Restored implements jobs.Store.
func (s *Store) Restored(ctx context.Context) (r *jobs.Restore, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		r, err = readRestore(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ConfirmRestore implements jobs.Store.
func (s *Store) ConfirmRestore(ctx context.Context, by, reason string) (r *jobs.Restore, err error) {
	err = s.do(ctx, func(b *batch) (func() error, error) {
		meta := b.bucket(bucketMeta)
		raw := meta.Get([]byte(metaRestored))
		if raw == nil {
			r = nil
			return nil, nil //nolint:nilnil // there is nothing to write
		}
		if r, err = readRestore(b.tx); err != nil {
			r = &jobs.Restore{Reason: "its record could not be read"}
		}
		return b.putWithEntry(meta, metaRestored, nil, jobs.Entry{
			Kind: jobs.EntryConfirmed, Principal: by, Message: "what the restored store has forgotten is dealt with; external calls may start: " + reason,
		})
	})
	return r, err
}

// adopt stores that what is here is to be used from now on, though it may have
// forgotten, and that some jobs are known to be.
func (s *Store) adopt(ctx context.Context, r jobs.Restore, forgotten []string) (jobs.Restore, error) {
	err := s.do(ctx, func(b *batch) (func() error, error) {
		r.At, r.Head = b.now, b.chain.seq
		raw, err := encodeRecord(r)
		if err != nil {
			return nil, err
		}
		write, err := b.putWithEntry(b.bucket(bucketMeta), metaRestored, raw, jobs.Entry{
			Kind: jobs.EntryAdopted, Principal: r.By, Message: "the store is used as it is; external calls wait for a word: " + r.Reason, Data: withoutSum(raw),
		})
		if err != nil {
			return nil, err
		}
		return func() error { return errors.Join(b.buryStrangers(forgotten), write()) }, nil
	})
	return r, err
}

// Adoption is a store that an operator decided to use.
type Adoption struct {
	jobs.Restore

	HostID string
	// Forgotten are the jobs with a folder of which the store knows nothing.
	Forgotten []string
	// Overtaken are the open jobs of a copy with outside effects of which the replaced store
	// knew that they were started or ended. They are not started again.
	Overtaken []string
	Unread    string // why the replaced store could not be read, or not all of it; empty: it was
}

// AdoptOptions say what is adopted, and why.
type AdoptOptions struct {
	Path   string
	By     string   // the principal whose word it is
	Reason string   // in words
	Empty  bool     // there is no store: begin with an empty one
	Jobs   []string // the names of the folders of jobs beside it
}

// Adopt takes the store at a path, which no process has open, for the one to use from
// now on, whatever its witness says. What it may have forgotten is not started again
// before somebody confirms that (jobs.Store).
func Adopt(ctx context.Context, o AdoptOptions) (a Adoption, err error) {
	if err := (Options{Path: o.Path}).checkFileSystem(); err != nil {
		return a, err
	}
	known, err := readWitness(o.Path)
	if err != nil {
		known = nil // adopting it is the way out
	}
	_, err = os.Lstat(o.Path)
	switch there := !errors.Is(err, fs.ErrNotExist); {
	case there && o.Empty:
		return a, jobs.Errorf(jobs.CodeRequestInvalid, "there is a store at %s; an empty one is made only where there is none", o.Path).With("path", o.Path)
	case !there && !o.Empty:
		return a, jobs.Errorf(jobs.CodeStoreMissing, "there is no store at %s; restore a copy, or with none left begin anew with an empty one", o.Path).With("path", o.Path)
	case !there:
		if pid, command := readHolder(o.Path); pid != 0 {
			return a, jobs.Errorf(jobs.CodeStoreFailed, "the store %s is gone, but %s may still use it; stop that first", o.Path, describeHolder(pid, command)).
				With("pid", strconv.Itoa(pid)).With("command", command).With("path", o.Path)
		}
		if err := create(o.Path, time.Now()); err != nil {
			return a, jobs.Errorf(jobs.CodeStoreFailed, "the store %s cannot be made: %v", o.Path, err).With("path", o.Path)
		}
	}
	s, err := openAs(ctx, Options{Path: o.Path, LockWait: checkLockWait}, adopted)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.adoption(ctx, o, known)
}

// adoption adopts an open store, and says what it has forgotten.
func (s *Store) adoption(ctx context.Context, o AdoptOptions, known *witness) (a Adoption, err error) {
	r := jobs.Restore{By: o.By, Reason: o.Reason}
	if known != nil {
		r.Known = known.standing()
	}
	a.HostID = s.hostID
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		a.Forgotten = strangers(tx, o.Jobs)
		return nil
	})
	if err != nil {
		return a, err
	}
	a.Restore, err = s.adopt(ctx, r, a.Forgotten)
	return a, err
}

// checkRestore is what store check says of the record.
func (c *checker) checkRestore(tx *bbolt.Tx) {
	if _, err := readRestore(tx); err != nil {
		c.problemf("%v", fmt.Errorf("meta: %w", err))
	}
}
