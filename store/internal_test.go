package store

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

func openAt(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(context.Background(), Options{Path: path, Now: storetest.Time})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func openNew(t testing.TB) *Store { return openAt(t, filepath.Join(t.TempDir(), "store.db")) }

func submit(t testing.TB, s *Store, n int) *jobs.Job {
	t.Helper()
	got, err := s.Submit(context.Background(), storetest.Submission(storetest.NewJob(n)))
	if err != nil {
		t.Fatal(err)
	}
	return got.Job
}

// edit changes a store behind its back.
func edit(t testing.TB, s *Store, fn func(tx *bbolt.Tx) error) {
	t.Helper()
	if err := s.db.Update(fn); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, want jobs.Code) {
	t.Helper()
	if got := jobs.CodeOf(err); got != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// G3: a read does not show a write before its commit is over. bbolt itself does
// show it then, which is what the gate is for.
func TestReadsWaitForTheCommit(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	submit(t, s, 1)
	key := jobs.Key{Principal: "orchestrator", Text: "key-2"}

	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	var readers sync.WaitGroup
	s.committed = func() {
		s.committed = nil
		err := s.db.View(func(tx *bbolt.Tx) error {
			if tx.Bucket([]byte(bucketKeys)).Get(keyPlace(key)) == nil {
				return errors.New("bbolt does not show the write yet, so this test tests nothing")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if s.Head() != 1 {
			t.Errorf("the head is %d already", s.Head())
		}
		ctx := context.Background()
		begun := make(chan struct{})
		for name, read := range map[string]func() error{
			"LookupKey": func() error { _, err := s.LookupKey(ctx, key); return err },
			"Get":       func() error { _, err := s.Get(ctx, storetest.JobID(2)); return err },
			"List": func() error {
				page, err := s.List(ctx, jobs.Query{})
				if len(page.Jobs) != 2 {
					t.Errorf("List shows %d jobs", len(page.Jobs))
				}
				return err
			},
			"Open": func() error { _, _, err := s.Open(ctx); return err },
		} {
			readers.Go(func() {
				begun <- struct{}{}
				if err := read(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				note(name)
			})
			<-begun
		}
		for range 10_000 { // every chance for a reader that is not held back
			runtime.Gosched()
		}
		note("committed")
	}
	submit(t, s, 2)
	readers.Wait()
	if len(order) != 5 || order[0] != "committed" {
		t.Errorf("order: %q", order)
	}
}

// What is unknown is told to everyone in the batch, and the store ends.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	submit(t, s, 1)
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(context.Background(), 1) }()
	_ = s.file.Close() // as if the disk had gone
	_, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(2)))
	wantCode(t, err, jobs.CodeCommitUnknown)
	if strings.Contains(errChain(err), "bbolt") {
		t.Errorf("an error of bbolt leaves: %s", errChain(err))
	}
	<-s.Failed()
	wantCode(t, <-waiting, jobs.CodeStoreFailed)
	_, err = s.Get(t.Context(), storetest.JobID(1))
	wantCode(t, err, jobs.CodeStoreFailed)
	_, err = s.Update(t.Context(), storetest.JobID(1), storetest.Start)
	wantCode(t, err, jobs.CodeStoreFailed)
	_, err = s.List(t.Context(), jobs.Query{})
	wantCode(t, err, jobs.CodeStoreFailed)
}

func errChain(err error) (out string) {
	for ; err != nil; err = errors.Unwrap(err) {
		out += err.Error() + "\n"
	}
	return out
}

// G13: one bad record is shown as damaged and stops nothing else.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	for n := range 5 {
		submit(t, s, n)
	}
	_ = s.Close()
	s = openAt(t, path) // with an empty cache
	bad, swapped := storetest.JobID(1), storetest.JobID(3)
	edit(t, s, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucketJobs))
		return errors.Join(
			b.Put([]byte(bad), []byte(`{"id":`)),
			b.Put([]byte(swapped), bytes.Clone(b.Get([]byte(storetest.JobID(4))))),
			tx.Bucket([]byte(bucketProjects)).Put([]byte("p"), []byte("{")),
		)
	})
	for _, id := range []string{bad, swapped} {
		_, err := s.Get(t.Context(), id)
		wantCode(t, err, jobs.CodeRecordDamaged)
		_, err = s.Update(t.Context(), id, storetest.Start)
		wantCode(t, err, jobs.CodeRecordDamaged)
	}
	_, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(1)))
	wantCode(t, err, jobs.CodeRecordDamaged)
	page, err := s.List(t.Context(), jobs.Query{})
	if err != nil || len(page.Jobs) != 3 || len(page.Damaged) != 2 {
		t.Errorf("List: %+v, %v", page, err)
	}
	open, broken, err := s.Open(t.Context())
	if err != nil || len(open) != 3 || len(broken) != 2 || broken[bad] == nil {
		t.Errorf("Open: %d open, %v, %v", len(open), broken, err)
	}
	if list, err := s.Projects(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("Projects: %v, %v", list, err)
	}
	if got := submit(t, s, 9); got.Seq != 6 {
		t.Errorf("the next job has the seq %d", got.Seq)
	}
	_ = s.Close()
	problems, err := Check(path)
	if err != nil || len(problems) != 3 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// A tombstone and a fence keep their key for ever (G2, G15).
func TestSpentKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	put := func(n int, kind jobs.KeyKind, fingerprint string) {
		j := storetest.NewJob(n)
		key := jobs.Key{Principal: j.Principal, Text: j.Key}
		raw, err := encodeRecord(jobs.KeyRecord{Key: key, Kind: kind, Fingerprint: fingerprint, JobID: map[jobs.KeyKind]string{jobs.KeyTombstone: j.ID}[kind]})
		if err != nil {
			t.Fatal(err)
		}
		edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketKeys)).Put(keyPlace(key), raw) })
	}
	put(1, jobs.KeyTombstone, storetest.NewJob(1).Fingerprint)
	put(2, jobs.KeyTombstone, "v1:other")
	put(3, jobs.KeyFence, "")
	for n, want := range map[int]jobs.SubmitOutcome{1: jobs.SubmitExpired, 2: jobs.SubmitConflict, 3: jobs.SubmitFenced} {
		got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(n)))
		if err != nil || got.Outcome != want || got.Job != nil {
			t.Errorf("key %d: %+v, %v", n, got, err)
		}
	}
	if s.Head() != 3 {
		t.Errorf("%d of 3 submissions are in the journal", s.Head())
	}
	_ = s.Close()
	if problems, err := Check(path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// An operation that stumbles while it writes takes nobody with it.
func TestStumblingWrite(t *testing.T) { //nolint:tparallel // its cases share one store, which is checked in the end
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	submit(t, s, 1)
	for name, stumble := range map[string]func(b *batch) error{
		"error": func(b *batch) error {
			return errors.Join(b.jobs.Put([]byte("half"), []byte("{}")), b.jobs.Put(nil, nil))
		},
		"panic": func(b *batch) error { _ = b.jobs.Put([]byte("half"), []byte("{}")); panic("a page is damaged") },
	} {
		t.Run(name, func(t *testing.T) {
			var runs int
			changed := make(chan error, 1)
			s.mu.Lock() // so that both are in one batch
			ops := []*operation{
				{done: make(chan struct{}), check: func(b *batch) (func() error, error) {
					_, write, err := b.update(&update{id: storetest.JobID(1), change: func(*jobs.Job) (jobs.Note, error) { runs++; return jobs.Note{}, nil }})
					return write, err
				}},
				{done: make(chan struct{}), check: func(b *batch) (func() error, error) { return func() error { return stumble(b) }, nil }},
			}
			head := s.Head()
			s.pending = append(s.pending, ops...)
			s.mu.Unlock()
			s.wake <- struct{}{}
			<-ops[1].done
			changed <- ops[0].err
			if err := <-changed; err != nil || runs != 2 || s.Head() != head+1 {
				t.Errorf("the other operation: %v after %d runs, head %d", err, runs, s.Head())
			}
			wantCode(t, ops[1].err, jobs.CodeRecordDamaged)
			_, err := s.Get(t.Context(), "half")
			wantCode(t, err, jobs.CodeJobNotFound)
		})
	}
	_ = s.Close()
	if problems, err := Check(path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// G12: a reader is told that entries were dropped, and of an entry that is damaged.
func TestJournalGaps(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	for n := range 10 {
		submit(t, s, n)
	}
	edit(t, s, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucketJournal))
		return errors.Join(b.Delete(encodeU64(1)), b.Delete(encodeU64(2)), b.Delete(encodeU64(3)))
	})
	if good, err := s.VerifyJournal(t.Context()); good != 0 || err == nil {
		t.Errorf("entries that are missing are taken for dropped ones: %d, %v", good, err)
	}
	edit(t, s, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaJournalAnchor), chainHead{seq: 3}.encode())
	})
	none := func(jobs.Entry) bool { t.Error("an entry came"); return true }
	err := s.Journal(t.Context(), 2, 0, none)
	wantCode(t, err, jobs.CodeCursorExpired)
	if e, ok := errors.AsType[*jobs.Error](err); !ok || e.Metadata["oldest"] != "4" {
		t.Errorf("got %+v", err)
	}
	if good, err := s.VerifyJournal(t.Context()); err != nil || good != 7 {
		t.Errorf("%d good entries, %v", good, err)
	}
	read := func(after uint64) (n int, err error) {
		err = s.Journal(t.Context(), after, 0, func(jobs.Entry) bool { n++; return true })
		return n, err
	}
	if n, err := read(3); n != 7 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	for name, spoil := range map[string]func(b *bbolt.Bucket) error{
		"changed": func(b *bbolt.Bucket) error {
			return b.Put(encodeU64(6), bytes.Replace(b.Get(encodeU64(6)), []byte("call-5"), []byte("call-6"), 1))
		},
		"not JSON": func(b *bbolt.Bucket) error { return b.Put(encodeU64(6), []byte("{")) },
		"missing":  func(b *bbolt.Bucket) error { return b.Delete(encodeU64(6)) },
	} {
		var before []byte
		edit(t, s, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucketJournal))
			before = bytes.Clone(b.Get(encodeU64(6)))
			return spoil(b)
		})
		good, err := s.VerifyJournal(t.Context())
		wantCode(t, err, jobs.CodeRecordDamaged)
		if e, ok := errors.AsType[*jobs.Error](err); good != 2 || !ok || e.Metadata["seq"] != "6" {
			t.Errorf("%s: %d good, %v", name, good, err)
		}
		if name != "changed" { // which only the chain shows
			n, err := read(3)
			wantCode(t, err, jobs.CodeRecordDamaged)
			if n != 2 {
				t.Errorf("%s: %d entries came before", name, n)
			}
		}
		if n, err := read(6); n != 4 || err != nil {
			t.Errorf("%s: behind it %d entries, %v", name, n, err)
		}
		edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketJournal)).Put(encodeU64(6), before) })
	}
}

// The cache holds what was used last, within its bounds.
func TestCacheBounds(t *testing.T) {
	t.Parallel()
	c := newCache()
	for n := range cacheMaxJobs + 10 {
		c.put(&snapshot{id: storetest.JobID(n), raw: make([]byte, 10)})
		c.get(storetest.JobID(0))
	}
	if len(c.items) != cacheMaxJobs || c.order.Len() != cacheMaxJobs || c.bytes != 10*cacheMaxJobs {
		t.Errorf("%d items, %d in order, %d bytes", len(c.items), c.order.Len(), c.bytes)
	}
	if c.get(storetest.JobID(0)) == nil || c.get(storetest.JobID(1)) != nil {
		t.Error("not the last used are kept")
	}
	c.put(&snapshot{id: storetest.JobID(0), raw: make([]byte, cacheMaxBytes)})
	if len(c.items) != 1 {
		t.Errorf("%d items beside a huge one", len(c.items)-1)
	}
}

// G8: the text of a manifest is the one that its digest is of, or it is damaged; keeping it
// again mends it.
func TestG8NoOtherManifestIsShown(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	text := []byte("tool: x\nrun: [a, b]\n")
	digest := hexDigest(text)
	keep := func() {
		t.Helper()
		if err := s.PutManifest(t.Context(), digest, text); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Manifest(t.Context(), digest); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%q, %v", got, err)
		}
	}
	keep()
	edit(t, s, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketManifests)).Put([]byte(digest), bytes.ReplaceAll(text, []byte("b"), []byte("c")))
	})
	_, err := s.Manifest(t.Context(), digest)
	wantCode(t, err, jobs.CodeRecordDamaged)
	keep()
	edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketManifests)).Put([]byte(digest), nil) })
	_ = s.Close()
	if problems, err := Check(s.path); err != nil || len(problems) != 1 || !strings.Contains(problems[0], digest) {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// G13: a write that stumbles while another operation of its batch looks something up takes
// nothing with it: neither is a part of it kept, nor is the batch lost.
func TestStumblingLookup(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	if _, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", Calls: []jobs.RunCall{{RunID: "elsewhere", CallID: "parent"}}}); err != nil {
		t.Fatal(err)
	}
	first, second := storetest.NewJob(1), storetest.NewJob(2)
	first.Call.Context.RunID, first.Call.Context.ToolCallID = second.Call.Context.RunID, "parent"
	second.Call.Context.ParentCallID = "parent" // so the index is asked whose call that is
	var ops []*operation
	stumbled := false
	for _, job := range []*jobs.Job{first, second} {
		p, err := s.prepare(storetest.Submission(job))
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, &operation{done: make(chan struct{}), check: func(b *batch) (func() error, error) {
			if job == second && !stumbled {
				stumbled = true
				b.marks.recent, b.broken = nil, errors.New("a page is damaged") // as of a flush that stumbles
				return nil, b.broken
			}
			_, write, err := b.submit(p)
			return write, err
		}})
	}
	s.mu.Lock() // so that both are in one batch
	s.pending = append(s.pending, ops...)
	s.mu.Unlock()
	s.wake <- struct{}{}
	for _, op := range ops {
		<-op.done
		if op.err != nil {
			t.Error(op.err)
		}
	}
	for _, job := range []*jobs.Job{first, second} {
		page, err := s.List(t.Context(), jobs.Query{ToolCall: job.Call.Context.ToolCallID})
		if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != job.ID {
			t.Errorf("of call %s: %+v, %v", job.Call.Context.ToolCallID, page, err)
		}
	}
	_ = s.Close()
	if problems, err := Check(s.path); err != nil || len(problems) > 0 || !stumbled {
		t.Errorf("Check: %q, %v", problems, err)
	}
}
