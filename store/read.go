package store

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxScan bounds how many records one List looks at; a page may therefore be
	// short, even empty, and still have a Next.
	maxScan = 20000
	// scanChunk is how many records are looked at in one read transaction.
	scanChunk = 256
)

// LookupKey implements jobs.Store.
func (s *Store) LookupKey(ctx context.Context, key jobs.Key) (record jobs.KeyRecord, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		raw := tx.Bucket([]byte(bucketKeys)).Get(keyPlace(key))
		if raw == nil {
			return jobs.Errorf(jobs.CodeJobNotFound, "the key is not used")
		}
		return decodeInto("the record of a key", raw, &record)
	})
	return record, err
}

// Get implements jobs.Store.
func (s *Store) Get(ctx context.Context, id string) (*jobs.Job, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	if snap := s.cache.get(id); snap != nil {
		return snap.decoded()
	}
	snap, err := s.fill(id)
	if err != nil {
		return nil, err
	}
	return snap.decoded()
}

// fill reads one record into the cache. It holds the gate's read side all the
// while, so that no commit can come between reading the record and keeping it.
func (s *Store) fill(id string) (snap *snapshot, err error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	tx, err := s.beginRead()
	if err != nil {
		return nil, err
	}
	err = s.read(tx, func(tx *bbolt.Tx) error {
		raw := tx.Bucket([]byte(bucketJobs)).Get([]byte(id))
		if raw == nil {
			return jobNotFound(id)
		}
		snap = &snapshot{id: id, raw: bytes.Clone(raw)}
		s.cache.put(snap)
		return nil
	})
	return snap, err
}

// Open implements jobs.Store.
func (s *Store) Open(ctx context.Context) (open []*jobs.Job, broken map[string]error, err error) {
	broken = map[string]error{}
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte(bucketJobs))
		return tx.Bucket([]byte(bucketOpen)).ForEach(func(id, _ []byte) error {
			if job, err := s.decode(string(id), records.Get(id)); err != nil {
				broken[string(id)] = err
			} else {
				open = append(open, job)
			}
			return nil
		})
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(open, func(a, b *jobs.Job) int { return cmp.Compare(a.Seq, b.Seq) })
	return open, broken, nil
}

// decode returns the job of a record, from the cache if that is the same record.
func (s *Store) decode(id string, raw []byte) (*jobs.Job, error) {
	if raw == nil {
		return nil, damaged("job "+id, "its record is missing").WithJob(id)
	}
	if snap := s.cache.get(id); snap != nil && bytes.Equal(snap.raw, raw) {
		return snap.decoded()
	}
	return decodeJob(id, raw)
}

// List implements jobs.Store.
func (s *Store) List(ctx context.Context, q jobs.Query) (jobs.Page, error) {
	switch {
	case q.Limit < 0 || q.Limit > maxPage:
		return jobs.Page{}, jobs.Errorf(jobs.CodeRequestInvalid, "a page has 1 to %d jobs, not %d", maxPage, q.Limit)
	case q.Limit == 0:
		q.Limit = defaultPage
	}
	l := listing{s: s, q: q, needles: needles(q), page: jobs.Page{Damaged: map[string]error{}, Next: q.After}}
	if q.Key != "" && q.Principal != "" {
		return l.page, l.one(ctx)
	}
	for more := true; more; {
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			more = l.chunk(tx)
			return nil
		})
		if err != nil {
			return jobs.Page{}, err
		}
	}
	return l.page, nil
}

// listing is a page in the making. page.Next is the last id that was looked at.
type listing struct {
	s       *Store
	q       jobs.Query
	needles [][]byte
	page    jobs.Page
	scanned int
}

// one looks up the only job that a principal's key can have.
func (l *listing) one(ctx context.Context) error {
	after := l.q.After
	l.page.Next = ""
	record, err := l.s.LookupKey(ctx, jobs.Key{Principal: l.q.Principal, Text: l.q.Key})
	switch {
	case jobs.CodeOf(err) == jobs.CodeJobNotFound:
		return nil
	case err != nil:
		return err
	case record.Kind != jobs.KeyJob, after != "" && record.JobID >= after:
		return nil
	}
	job, err := l.s.Get(ctx, record.JobID)
	switch {
	case jobs.CodeOf(err) == jobs.CodeRecordDamaged:
		l.page.Damaged[record.JobID] = err
	case err != nil:
		return err
	case l.q.Matches(job):
		l.page.Jobs = append(l.page.Jobs, job)
	}
	return nil
}

// chunk looks at the next records and reports whether to go on.
func (l *listing) chunk(tx *bbolt.Tx) (more bool) {
	records := tx.Bucket([]byte(bucketJobs))
	from := records
	if onlyOpen(l.q.States) {
		from = tx.Bucket([]byte(bucketOpen))
	}
	c := from.Cursor()
	for k := below(c, l.page.Next); k != nil; k, _ = c.Prev() {
		switch {
		case len(l.page.Jobs)+len(l.page.Damaged) >= l.q.Limit || l.scanned >= maxScan:
			return false
		case l.scanned%scanChunk == scanChunk-1:
			more = true
		}
		l.look(string(k), records.Get(k))
		if more {
			return true
		}
	}
	l.page.Next = ""
	return false
}

func (l *listing) look(id string, raw []byte) {
	l.scanned++
	l.page.Next = id
	for _, needle := range l.needles {
		if !bytes.Contains(raw, needle) {
			return
		}
	}
	job, err := l.s.decode(id, raw)
	switch {
	case err != nil:
		l.page.Damaged[id] = err
	case l.q.Matches(job):
		l.page.Jobs = append(l.page.Jobs, job)
	}
}

// below places the cursor on the greatest key below id, or on the last key of all.
func below(c *bbolt.Cursor, id string) []byte {
	if id == "" {
		k, _ := c.Last()
		return k
	}
	if k, _ := c.Seek([]byte(id)); k == nil {
		k, _ = c.Last()
		return k
	}
	k, _ := c.Prev()
	return k
}

// onlyOpen reports whether only jobs that are not terminal are wanted.
func onlyOpen(states []jobs.State) bool {
	return len(states) > 0 && !slices.ContainsFunc(states, jobs.State.Terminal)
}

// needles returns texts that the record of every job that matches contains, so
// that most others need not be decoded.
func needles(q jobs.Query) (out [][]byte) {
	for _, field := range []struct{ name, value string }{
		{"run_id", q.RunID},
		{"parent_run_id", q.ParentRunID},
		{"thread_id", q.ThreadID},
		{"context_id", q.ContextID},
		{"tool_call_id", q.ToolCall},
		{"parent_call_id", q.ParentCall},
		{"name", q.Tool},
		{"principal", q.Principal},
		{"key", q.Key},
	} {
		if field.value == "" {
			continue
		}
		if raw, err := encodeRecord(map[string]string{field.name: field.value}); err == nil {
			out = append(out, raw[1:len(raw)-1])
		}
	}
	return out
}
