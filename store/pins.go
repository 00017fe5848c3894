package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// uploadPrefix begins the reference of an uploaded file.
const uploadPrefix = "sha256:"

// uploadsOf returns the digests of the uploaded files that a job reads, sorted. A
// job that has ended reads nothing any more.
func uploadsOf(j *jobs.Job) (digests []string) {
	if j.State.Terminal() {
		return nil
	}
	for _, in := range j.Inputs {
		if digest, ok := strings.CutPrefix(in.Reference, uploadPrefix); ok {
			digests = append(digests, digest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}

// usableUploads refuses a job whose uploaded files are not there for its principal.
func (b *batch) usableUploads(principal string, digests []string) error {
	for _, digest := range digests {
		blob, err := blobOf(b.bucket(bucketBlobs), digest)
		if err != nil {
			return err
		}
		if !slices.Contains(blob.Principals, principal) {
			return noSuchFile(digest)
		}
	}
	return nil
}

func noSuchFile(digest string) *jobs.Error {
	return jobs.Errorf(jobs.CodeFileNotFound, "there is no file sha256:%s", digest).With("reference", uploadPrefix+digest)
}

// blobOf reads the record of an uploaded file.
func blobOf(blobs *bbolt.Bucket, digest string) (blob jobs.Blob, err error) {
	raw := blobs.Get([]byte(digest))
	if raw == nil {
		return blob, noSuchFile(digest)
	}
	what := "the record of file sha256:" + digest
	if err := decodeInto(what, raw, &blob); err != nil {
		return blob, err
	}
	if blob.SHA256 != digest {
		return blob, damaged(what, "it is of another file")
	}
	return blob, nil
}

func pinKey(digest, jobID string) []byte { return []byte(digest + "\x00" + jobID) }

// splitPinKey is the inverse of pinKey.
func splitPinKey(key []byte) (digest, jobID string, ok bool) {
	d, id, ok := bytes.Cut(key, []byte{0})
	return string(d), string(id), ok
}

func pinned(pins *bbolt.Bucket, digest string) bool {
	prefix := pinKey(digest, "")
	k, _ := pins.Cursor().Seek(prefix)
	return bytes.HasPrefix(k, prefix)
}

// pin makes the pins of a job be those of what it reads now.
func (b *batch) pin(jobID string, was, now []string) error {
	for _, digest := range was {
		if slices.Contains(now, digest) {
			continue
		}
		if err := b.bucket(bucketPins).Delete(pinKey(digest, jobID)); err != nil {
			return err
		}
		if err := b.touch(digest); err != nil {
			return err
		}
	}
	for _, digest := range now {
		if slices.Contains(was, digest) {
			continue
		}
		if err := b.bucket(bucketPins).Put(pinKey(digest, jobID), nil); err != nil {
			return err
		}
	}
	return nil
}

// touch notes that a file was used until now. A record that cannot be read is left
// as it is: it stops nothing, and it is never collected.
func (b *batch) touch(digest string) error {
	blob, err := blobOf(b.bucket(bucketBlobs), digest)
	if err != nil || !blob.LastUse().Before(b.now) {
		return nil //nolint:nilerr // see above
	}
	blob.UsedAt = b.now
	raw, err := encodeRecord(blob)
	if err != nil {
		return err
	}
	return b.bucket(bucketBlobs).Put([]byte(digest), raw)
}

// collectChunk is how many records of files are looked at in one read.
const collectChunk = 1024

// CollectBlobs implements jobs.Store. The files are looked for by reading; only what
// is found is looked at again, and removed, by the writer. While it is not known what
// some open job reads, nothing is collected.
func (s *Store) CollectBlobs(ctx context.Context, unusedSince time.Time, limit int) (gone []jobs.Blob, err error) {
	found, err := s.findUnused(ctx, unusedSince, limit)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	unpinned, err := s.unpinned(ctx)
	if err != nil {
		return nil, err
	}
	if len(unpinned) > 0 {
		s.log.Warn("no uploaded files are removed, since it is not known which of them jobs with damaged records read", "jobs", unpinned)
		return nil, nil
	}
	err = s.do(ctx, func(b *batch) (write func() error, err error) {
		gone, write, err = b.collect(found, unusedSince)
		return write, err
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

// findUnused returns the digests of files that could be collected now.
func (s *Store) findUnused(ctx context.Context, unusedSince time.Time, limit int) (found []string, err error) {
	for after, more := []byte(nil), true; more; {
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			blobs, pins := tx.Bucket([]byte(bucketBlobs)), tx.Bucket([]byte(bucketPins))
			c, n := blobs.Cursor(), 0
			more = false
			for k, _ := c.Seek(after); k != nil && (limit <= 0 || len(found) < limit); k, _ = c.Next() {
				if n++; n > collectChunk {
					after, more = bytes.Clone(k), true
					return nil
				}
				if _, ok := collectable(blobs, pins, string(k), unusedSince); ok {
					found = append(found, string(k))
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// unpinned returns the open jobs that may read files without a pin: those whose records
// were damaged already when pins came to be, which is why bucket open does not say
// their states either. One that is damaged later has its pins.
func (s *Store) unpinned(ctx context.Context) (ids []string, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte(bucketJobs))
		return tx.Bucket([]byte(bucketOpen)).ForEach(func(id, raw []byte) error {
			if _, _, ok := splitOpenValue(raw); ok {
				return nil
			}
			if _, err := s.decode(string(id), records.Get(id)); err != nil {
				ids = append(ids, string(id))
			}
			return nil
		})
	})
	return ids, err
}

// collect removes the records of files that nothing uses, with one entry. That is for
// everybody to see, so it names no file.
func (b *batch) collect(digests []string, unusedSince time.Time) (gone []jobs.Blob, write func() error, err error) {
	var size int64
	for _, digest := range digests {
		if blob, ok := collectable(b.bucket(bucketBlobs), b.bucket(bucketPins), digest, unusedSince); ok {
			gone = append(gone, blob)
			size += blob.Size
		}
	}
	if len(gone) == 0 {
		return nil, nil, nil
	}
	entry, err := b.seal(jobs.Entry{
		Kind:    jobs.EntryHost,
		Message: fmt.Sprintf("removed %d uploaded files with %d bytes that nothing has used since %s", len(gone), size, unusedSince.UTC().Format(time.RFC3339)),
	})
	if err != nil {
		return nil, nil, err
	}
	return gone, func() error {
		for _, blob := range gone {
			if err := b.bucket(bucketBlobs).Delete([]byte(blob.SHA256)); err != nil {
				return err
			}
		}
		return b.putEntry(entry)
	}, nil
}

// collectable reports whether nothing uses a file, nor has since a time. A record
// that cannot be read is kept.
func collectable(blobs, pins *bbolt.Bucket, digest string, unusedSince time.Time) (jobs.Blob, bool) {
	blob, err := blobOf(blobs, digest)
	return blob, err == nil && blob.LastUse().Before(unusedSince) && !pinned(pins, digest)
}
