package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// GetBlob implements jobs.Store.
func (s *Store) GetBlob(ctx context.Context, sha256 string) (blob jobs.Blob, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		blob, err = blobOf(tx.Bucket([]byte(bucketBlobs)), sha256)
		return err
	})
	return blob, err
}

// PutBlob implements jobs.Store. Every upload is in the journal.
func (s *Store) PutBlob(ctx context.Context, blob jobs.Blob) error {
	if blob.SHA256 == "" || len(blob.Principals) == 0 {
		return jobs.Errorf(jobs.CodeInternal, "the record of a file needs its digest and a principal")
	}
	data, err := json.Marshal(map[string]any{"sha256": blob.SHA256, "size": blob.Size, "media_type": blob.MediaType})
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "the data of an entry cannot be written as JSON: %w", err)
	}
	return s.do(ctx, func(b *batch) (func() error, error) {
		record := blob
		record.Principals = slices.Clone(blob.Principals)
		if record.StoredAt.IsZero() {
			record.StoredAt = b.now
		}
		if b.bucket(bucketBlobs).Get([]byte(blob.SHA256)) != nil {
			old, err := blobOf(b.bucket(bucketBlobs), blob.SHA256)
			if err != nil {
				return nil, err
			}
			if old.Size != blob.Size {
				return nil, jobs.Errorf(jobs.CodeDigestMismatch, "the file sha256:%s has %d bytes, not %d", blob.SHA256, old.Size, blob.Size)
			}
			old.Principals = append(old.Principals, blob.Principals...)
			if record.StoredAt.After(old.LastUse()) {
				old.UsedAt = record.StoredAt
			}
			record = old
		}
		slices.Sort(record.Principals)
		record.Principals = slices.Compact(record.Principals)
		raw, err := encodeRecord(record)
		if err != nil {
			return nil, err
		}
		return b.putWithEntry(b.bucket(bucketBlobs), blob.SHA256, raw, jobs.Entry{
			Kind: jobs.EntryFile, Principal: blob.Principals[0], Owner: blob.Principals[0], Message: "stored sha256:" + blob.SHA256, Data: data,
		})
	})
}

// PutManifest implements jobs.Store. One that is damaged is replaced.
func (s *Store) PutManifest(ctx context.Context, digest string, text []byte) error {
	if err := wholeManifest(digest, text); err != nil {
		return jobs.Errorf(jobs.CodeInternal, "a manifest is kept by the digest of its text: %w", err)
	}
	if _, err := s.Manifest(ctx, digest); err == nil {
		return nil // nothing to write, so no reason to wait for a commit
	}
	return s.do(ctx, func(b *batch) (func() error, error) {
		return func() error { return b.bucket(bucketManifests).Put([]byte(digest), text) }, nil
	})
}

// Manifest implements jobs.Store.
func (s *Store) Manifest(ctx context.Context, digest string) ([]byte, error) {
	var text []byte
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		text = bytes.Clone(tx.Bucket([]byte(bucketManifests)).Get([]byte(digest)))
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case text == nil:
		return nil, jobs.Errorf(jobs.CodeToolNotFound, "no manifest %s is kept", digest)
	}
	if err := wholeManifest(digest, text); err != nil {
		return nil, err
	}
	return text, nil
}

// PutProject implements jobs.Store. The same project again changes nothing.
func (s *Store) PutProject(ctx context.Context, p jobs.Project, by string) error {
	if err := wholeProject(p); err != nil {
		return err
	}
	return s.do(ctx, func(b *batch) (func() error, error) {
		if raw := b.bucket(bucketProjects).Get([]byte(p.Name)); raw != nil {
			var old jobs.Project
			if err := decodeInto("the record of project "+p.Name, raw, &old); err != nil {
				return nil, err
			}
			if old.Root != p.Root {
				return nil, jobs.Errorf(jobs.CodeProjectExists, "the project %s is the folder %s", p.Name, old.Root)
			}
			return nil, nil
		}
		raw, err := encodeRecord(p)
		if err != nil {
			return nil, err
		}
		return b.putWithEntry(b.bucket(bucketProjects), p.Name, raw, jobs.Entry{
			Kind: jobs.EntryProject, Principal: by, Message: "added project " + p.Name, Data: withoutSum(raw),
		})
	})
}

func wholeProject(p jobs.Project) error {
	if p.Name == "" || p.Root == "" {
		return jobs.Errorf(jobs.CodeRequestInvalid, "a project needs a name and a folder")
	}
	return nil
}

// ReplaceProjects implements jobs.Store.
func (s *Store) ReplaceProjects(ctx context.Context, list []jobs.Project, by string, inUse func(*jobs.Job, []jobs.Project) error) error {
	for _, p := range list {
		if err := wholeProject(p); err != nil {
			return err
		}
	}
	return s.do(ctx, func(b *batch) (func() error, error) {
		projects, last := b.bucket(bucketProjects), b.chain
		var moved []jobs.Project // those that have another folder
		var writes []func() error
		for _, p := range list {
			message := "added project " + p.Name
			if raw := projects.Get([]byte(p.Name)); raw != nil {
				var old jobs.Project
				// A damaged record is replaced too: nobody can use that project.
				switch err := decodeInto("the record of project "+p.Name, raw, &old); {
				case err == nil && old.Root == p.Root:
					continue
				case err == nil:
					moved = append(moved, p)
				}
				message = "gave project " + p.Name + " another folder"
			}
			raw, err := encodeRecord(p)
			if err != nil {
				return nil, err
			}
			entry, err := b.sealAfter(last, jobs.Entry{Kind: jobs.EntryProject, Principal: by, Message: message, Data: withoutSum(raw)})
			if err != nil {
				return nil, err
			}
			last = entry.head
			writes = append(writes, func() error {
				return errors.Join(projects.Put([]byte(p.Name), raw), b.putEntry(entry))
			})
		}
		if err := b.unused(moved, inUse); err != nil || len(writes) == 0 {
			return nil, err
		}
		return func() error {
			for _, write := range writes {
				if err := write(); err != nil {
					return err
				}
			}
			return nil
		}, nil
	})
}

// unused asks about every job that is not settled. One whose record is damaged cannot
// run, and so needs no project.
func (b *batch) unused(changed []jobs.Project, inUse func(*jobs.Job, []jobs.Project) error) error {
	if len(changed) == 0 {
		return nil
	}
	return b.open.ForEach(func(id, _ []byte) error {
		snap, err := b.snapshot(string(id))
		if err != nil {
			return nil //nolint:nilerr // it is damaged, as Open says
		}
		job, err := decodeJob(snap.id, snap.raw)
		if err != nil {
			return nil //nolint:nilerr // it is damaged, as Open says
		}
		return inUse(job, changed)
	})
}

// DeleteProject implements jobs.Store.
func (s *Store) DeleteProject(ctx context.Context, name, by string) error {
	return s.do(ctx, func(b *batch) (func() error, error) {
		if name == "" || b.bucket(bucketProjects).Get([]byte(name)) == nil {
			return nil, jobs.Errorf(jobs.CodeProjectNotFound, "there is no project %s", name)
		}
		return b.putWithEntry(b.bucket(bucketProjects), name, nil, jobs.Entry{
			Kind: jobs.EntryProject, Principal: by, Message: "removed project " + name,
		})
	})
}

// putWithEntry returns a write of one record, or of its removal if raw is nil,
// together with its entry.
func (b *batch) putWithEntry(bucket *bbolt.Bucket, key string, raw []byte, e jobs.Entry) (func() error, error) {
	entry, err := b.seal(e)
	if err != nil {
		return nil, err
	}
	return func() error {
		if raw == nil {
			err = bucket.Delete([]byte(key))
		} else {
			err = bucket.Put([]byte(key), raw)
		}
		if err != nil {
			return err
		}
		return b.putEntry(entry)
	}, nil
}

// Projects implements jobs.Store. A damaged record is left out of the list and
// reported by Check.
func (s *Store) Projects(ctx context.Context) (out []jobs.Project, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketProjects)).ForEach(func(name, raw []byte) error {
			var p jobs.Project
			if err := decodeInto("the record of project "+string(name), raw, &p); err != nil {
				s.log.Error("a project is left out", "error", err)
				return nil
			}
			out = append(out, p)
			return nil
		})
	})
	return out, err
}
