package store

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// manifestChunk is how many records of jobs are looked at in one transaction.
const manifestChunk = 4096

// CollectManifests implements jobs.Store. Between the look and the write no job can come
// that was accepted with one of them: those that calls are accepted with are spared.
func (s *Store) CollectManifests(ctx context.Context, q jobs.ManifestQuery) (n int, size int64, err error) {
	unused := map[string]int64{} // bytes by digest
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketManifests)).ForEach(func(digest, text []byte) error {
			if !q.Spare[string(digest)] {
				unused[string(digest)] = int64(len(text))
			}
			return nil
		})
	})
	// The newest come first: what is used at all was most likely used last.
	for before := []byte(nil); err == nil && len(unused) > 0; {
		err = s.view(ctx, func(tx *bbolt.Tx) error {
			before = stillUsed(tx.Bucket([]byte(bucketJobs)).Cursor(), before, q.Gone, unused)
			return nil
		})
		if before == nil {
			break
		}
	}
	if err != nil || len(unused) == 0 {
		return 0, 0, err
	}
	for _, bytes := range unused {
		size += bytes
	}
	if q.Dry {
		return len(unused), size, nil
	}
	return len(unused), size, s.do(ctx, func(b *batch) (func() error, error) {
		entry, err := b.seal(jobs.Entry{
			Kind: jobs.EntryHost, Message: fmt.Sprintf("removed the texts of manifests that no kept job was accepted with: %d", len(unused)),
		})
		if err != nil {
			return nil, err
		}
		return func() error {
			for digest := range unused {
				if err := b.bucket(bucketManifests).Delete([]byte(digest)); err != nil {
					return err
				}
			}
			return b.putEntry(entry)
		}, nil
	})
}

// stillUsed takes those manifests out of a set that records before an id name (nil: all),
// and returns where to go on, or nil.
func stillUsed(c *bbolt.Cursor, before []byte, gone map[string]bool, unused map[string]int64) []byte {
	id, raw := c.Last()
	if before != nil {
		if at, _ := c.Seek(before); at != nil {
			id, raw = c.Prev()
		}
	}
	for n := 0; id != nil && len(unused) > 0; id, raw = c.Prev() {
		if n++; n > manifestChunk {
			id, _ = c.Next()
			return bytes.Clone(id)
		}
		if !gone[string(id)] {
			takeNamed(raw, unused)
		}
	}
	return nil
}

// named is what stands before a manifest's digest in a record.
const named = `"manifest_digest":"`

// takeNamed does without the decoding of a whole record. It also finds what a damaged one
// still says, and what a caller has written like it, which only keeps a text for longer.
func takeNamed(raw []byte, unused map[string]int64) {
	for {
		_, rest, ok := bytes.Cut(raw, []byte(named))
		if !ok {
			return
		}
		digest, _, _ := bytes.Cut(rest[:min(len(rest), 65)], []byte(`"`))
		delete(unused, string(digest))
		raw = rest
	}
}
