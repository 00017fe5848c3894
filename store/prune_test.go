package store

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// prune removes what a query finds, a few jobs in a write.
func prune(t *testing.T, s *Store, q jobs.ExpiredQuery) (gone []string) {
	t.Helper()
	q.Limit = 64
	for more := true; more; {
		found, err := s.Expired(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		some, err := s.Prune(t.Context(), found.IDs, "that are old")
		if err != nil || len(some) != len(found.IDs) {
			t.Fatalf("%d of %d, %v", len(some), len(found.IDs), err)
		}
		gone = append(gone, some...)
		q.From, more = found.Next, found.Next != 0
	}
	return gone
}

func checked(t *testing.T, s *Store) {
	t.Helper()
	_ = s.Close()
	if problems, err := Check(s.path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// G2: of jobs that are pruned the keys stay used, whatever else is forgotten: the same
// call is answered that its result has expired, another one is a conflict, and both are
// told the job. What a job cost still counts, and no list shows it.
func TestG2PrunedKeysStayUsed(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"))
	const n = recentJobs + 200 // some in order, some among the newest
	for i := range n {
		submit(t, s, i)
		if i%10 == 3 {
			continue // it stays open
		}
		if _, err := s.Update(t.Context(), storetest.JobID(i), storetest.Cancel); err != nil {
			t.Fatal(err)
		}
	}
	before, err := s.SumUsage(t.Context(), jobs.UsageQuery{By: jobs.UsageByTool})
	if err != nil {
		t.Fatal(err)
	}
	spared := storetest.JobID(5)
	gone := prune(t, s, jobs.ExpiredQuery{State: jobs.StateCancelled, Keep: 50, Spare: map[string]bool{spared: true}})
	ended := n - (n+6)/10
	if len(gone) != ended-50 || gone[0] != storetest.JobID(0) {
		t.Errorf("pruned %d of %d, first %s", len(gone), ended, gone[0])
	}
	pruned := map[string]bool{}
	for _, id := range gone {
		pruned[id] = true
	}
	if pruned[spared] {
		t.Error("the spared job is gone")
	}
	for i := range n {
		j := storetest.NewJob(i)
		if pruned[j.ID] == (i%10 == 3) && pruned[j.ID] {
			t.Errorf("the open job %d is gone", i)
		}
		got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(i)))
		want := jobs.SubmitReplayed
		if pruned[j.ID] {
			want = jobs.SubmitExpired
		}
		if err != nil || got.Outcome != want || got.Key.JobID != j.ID {
			t.Fatalf("job %d again: %+v, %v", i, got, err)
		}
		page, err := s.List(t.Context(), jobs.Query{ToolCall: j.Call.Context.ToolCallID})
		if err != nil || len(page.Jobs) == 0 != pruned[j.ID] {
			t.Fatalf("job %d is listed: %+v, %v", i, page, err)
		}
	}
	other := storetest.NewJob(0)
	other.Fingerprint = "v1:other"
	other.ID = storetest.JobID(n + 1)
	got, err := s.Submit(t.Context(), storetest.Submission(other))
	if err != nil || got.Outcome != jobs.SubmitConflict || got.Job != nil || got.Key.JobID != storetest.JobID(0) {
		t.Errorf("another call: %+v, %v", got, err)
	}
	key := jobs.Key{Principal: other.Principal, Text: other.Key}
	if record, planted, err := s.FenceKey(t.Context(), key, jobs.Entry{}); err != nil || planted || record.Kind != jobs.KeyTombstone || record.JobID != storetest.JobID(0) {
		t.Errorf("fenced: %+v, %t, %v", record, planted, err)
	}
	_, err = s.Get(t.Context(), storetest.JobID(0))
	wantCode(t, err, jobs.CodeJobNotFound)
	_, err = s.Update(t.Context(), storetest.JobID(0), storetest.Cancel)
	wantCode(t, err, jobs.CodeJobNotFound)
	after, err := s.SumUsage(t.Context(), jobs.UsageQuery{By: jobs.UsageByTool})
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the sums were %+v and are %+v, %v", before, after, err)
	}
	if again, err := s.Prune(t.Context(), append(gone, storetest.JobID(3)), ""); err != nil || len(again) != 0 {
		t.Errorf("pruned again %v, %v", again, err)
	}
	checked(t, s)
}

// Jobs go when they ended before a time, not when they were accepted before it, nor when a
// clock that was set back said so.
func TestPruneByAge(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"))
	base := storetest.Time()
	for i := range 10 {
		j := storetest.NewJob(i)
		j.SubmittedAt = base.Add(time.Duration(i) * time.Hour)
		if _, err := s.Submit(t.Context(), storetest.Submission(j)); err != nil {
			t.Fatal(err)
		}
		_, err := s.Update(t.Context(), j.ID, func(j *jobs.Job) (jobs.Note, error) {
			note, err := storetest.Cancel(j)
			j.EndedAt = j.SubmittedAt.Add(time.Minute)
			switch i {
			case 2:
				j.EndedAt = base.Add(24 * time.Hour)
			case 4:
				j.EndedAt, j.Clock.Ended = base.AddDate(-1, 0, 0), -9000*time.Hour
			}
			return note, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := prune(t, s, jobs.ExpiredQuery{State: jobs.StateCancelled, Before: base.Add(5 * time.Hour)})
	if want := []string{storetest.JobID(0), storetest.JobID(1), storetest.JobID(3)}; fmt.Sprint(gone) != fmt.Sprint(want) {
		t.Errorf("pruned %v, want %v", gone, want)
	}
	if gone := prune(t, s, jobs.ExpiredQuery{State: jobs.StateCompleted, Before: base.AddDate(1, 0, 0)}); len(gone) > 0 {
		t.Errorf("pruned %v", gone)
	}
	checked(t, s)
}

// An entry that was written while the clock was set back makes those before it no older.
func TestDropWhatIsOldAlone(t *testing.T) {
	t.Parallel()
	var at atomic.Pointer[time.Time]
	set := func(when time.Time) { at.Store(&when) }
	set(storetest.Time())
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "store.db"), Now: func() time.Time { return *at.Load() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	submit(t, s, 1)
	for s.Head() <= segmentEntries+1 {
		if s.Head() == segmentEntries-1 {
			set(storetest.Time().AddDate(-1, 0, 0))
		}
		if _, err := s.Update(t.Context(), storetest.JobID(1), func(*jobs.Job) (jobs.Note, error) { return jobs.Note{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, before := range []time.Duration{-time.Hour, time.Hour} {
		want := map[bool]int{false: 0, true: segmentEntries}[before > 0]
		if n, err := s.DropJournal(t.Context(), storetest.Time().Add(before), 0); n != want || err != nil {
			t.Errorf("of before %s: dropped %d entries, %v; want %d", before, n, err, want)
		}
	}
}

// G12: the journal is dropped by whole segments. The chain is proved from the anchor on,
// a cursor from before it has expired, and an entry that is missing behind it is not
// taken for a dropped one.
func TestG12TheJournalGoesOnFromItsAnchor(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"))
	for i := range 3 {
		submit(t, s, i)
	}
	submitAgain(t, s, 0)
	for s.Head() < 2*segmentEntries+10 {
		if _, err := s.Update(t.Context(), storetest.JobID(1), func(*jobs.Job) (jobs.Note, error) { return jobs.Note{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	past, future := storetest.Time().Add(-time.Hour), storetest.Time().Add(time.Hour)
	would := func(want int, before time.Time, keep int) {
		t.Helper()
		if n, err := s.JournalToDrop(t.Context(), before, keep); n != want || err != nil {
			t.Errorf("%d entries would be dropped, %v; want %d", n, err, want)
		}
	}
	would(0, past, 0)
	would(0, past, 2*segmentEntries)
	would(segmentEntries, past, segmentEntries)
	would(2*segmentEntries, future, 0)
	if n, err := s.DropJournal(t.Context(), past, 0); n != 0 || err != nil {
		t.Errorf("dropped %d young entries, %v", n, err)
	}
	if n, err := s.DropJournal(t.Context(), past, 2*segmentEntries); n != 0 || err != nil {
		t.Errorf("dropped %d entries too many, %v", n, err)
	}
	if n, err := s.DropJournal(t.Context(), past, segmentEntries); n != segmentEntries || err != nil {
		t.Errorf("dropped %d entries, %v", n, err)
	}
	would(segmentEntries, future, 0)
	if n, err := s.DropJournal(t.Context(), future, 0); n != segmentEntries || err != nil {
		t.Errorf("dropped %d old entries, %v", n, err)
	}
	if n, err := s.DropJournal(t.Context(), future, 0); n != 0 || err != nil {
		t.Errorf("dropped %d entries of a segment that is not whole, %v", n, err)
	}
	would(0, future, 1)
	err := s.Journal(t.Context(), 7, 0, func(jobs.Entry) bool { return true })
	wantCode(t, err, jobs.CodeCursorExpired)
	if good, err := s.VerifyJournal(t.Context()); err != nil || good != s.Head()-2*segmentEntries {
		t.Errorf("%d good entries of %d, %v", good, s.Head(), err)
	}
	if got, err := entriesOf(t, s, storetest.JobID(0)); err != nil || len(got) != 0 {
		t.Errorf("of a job whose entries are gone: %v, %v", got, err)
	}
	if got, err := entriesOf(t, s, storetest.JobID(1)); err != nil || len(got) != 10 {
		t.Errorf("of a job whose newest entries are kept: %v, %v", got, err)
	}
	var saved []byte
	first := encodeU64(2*segmentEntries + 1)
	edit(t, s, func(tx *bbolt.Tx) error {
		saved = bytes.Clone(tx.Bucket([]byte(bucketJournal)).Get(first))
		return tx.Bucket([]byte(bucketJournal)).Delete(first)
	})
	_, err = s.VerifyJournal(t.Context())
	wantCode(t, err, jobs.CodeRecordDamaged)
	edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketJournal)).Put(first, saved) })
	checked(t, s)
}

// Whatever lies where a tombstone should, it is one or it is refused.
func FuzzTombstone(f *testing.F) {
	const host = "abcdefgh"
	f.Add(tombstone{secrets: true, jobID: "01jqxw6q2w8y4n0000000000zz-abcdefgh"}.encode(host))
	f.Add(tombstone{jobID: "odd"}.encode(host))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if stone, ok := decodeTombstone(raw, host); ok && !bytes.Equal(stone.encode(host), raw) {
			t.Errorf("%x is written as %x", raw, stone.encode(host))
		}
	})
}

// A tombstone of a job of this host is as small as the budget wants it.
func TestTombstoneIsSmall(t *testing.T) {
	t.Parallel()
	const host, id = "abcdefgh", "01jqxw6q2w8y4n0000000000zz-abcdefgh"
	raw := tombstoneOf(&jobs.Job{ID: id, Fingerprint: "v1:x"}).encode(host)
	if stone, ok := decodeTombstone(raw, host); !ok || stone.jobID != id || len(raw) != 29 {
		t.Errorf("%d bytes: %+v, %t", len(raw), stone, ok)
	}
	if stone, _ := decodeTombstone(raw, host); stone.fingerprint() != jobs.ShortFingerprint("v1:x") {
		t.Errorf("its fingerprint is %s", stone.fingerprint())
	}
	if stone, ok := decodeTombstone(raw, "zzzzzzzz"); !ok || stone.jobID == id {
		t.Errorf("%+v, %t", stone, ok)
	}
}
