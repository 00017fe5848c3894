package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// G13: whatever lies where the store keeps something beside the jobs' records, a list
// is complete, a sum leaves out one row, and no write of anybody else is stopped.
func TestForeignBytesBesideTheRecords(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string][]byte{"empty": {}, "zero": {0}, "text": []byte("not that, I think"), "long": bytes.Repeat([]byte{0xA5}, 700), "JSON": []byte(`{"kind":3,"completed":-1}`)} {
		for _, noRows := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, all in sets: %t", name, noRows), func(t *testing.T) {
				t.Parallel()
				testForeignBytes(t, foreign, noRows)
			})
		}
	}
}

func testForeignBytes(t *testing.T, foreign []byte, noRows bool) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	s.noRows = noRows
	fill(t, s)
	spoiled := 0
	edit(t, s, func(tx *bbolt.Tx) error {
		var errs []error
		for _, name := range []string{bucketIndex, bucketRecent, bucketOpen, bucketUsage, bucketClosed, bucketBlobs} {
			b := tx.Bucket([]byte(name))
			var keys [][]byte
			errs = append(errs, b.ForEach(func(k, _ []byte) error { keys = append(keys, bytes.Clone(k)); return nil }))
			for _, k := range keys {
				spoiled++
				errs = append(errs, b.Put(k, foreign))
			}
		}
		errs = append(errs,
			tx.Bucket([]byte(bucketMeta)).Put([]byte(metaHostMode), foreign),
			tx.Bucket([]byte(bucketPins)).Put(append([]byte("x"), foreign...), nil),
		)
		return errors.Join(errs...)
	})
	for _, test := range []struct {
		q    jobs.Query
		want []string
	}{
		{jobs.Query{RunID: "run-1"}, []string{storetest.JobID(1)}},
		{jobs.Query{Principal: "orchestrator", States: []jobs.State{jobs.StateQueued}}, []string{storetest.JobID(3), storetest.JobID(2), storetest.JobID(1)}},
		{jobs.Query{States: []jobs.State{jobs.StateCancelled}, Since: storetest.Time()}, []string{storetest.JobID(0)}},
		{jobs.Query{Labels: map[string]string{"batch": "2"}, ToolCall: "call-2"}, []string{storetest.JobID(2)}},
		{jobs.Query{Until: storetest.Time()}, nil},
	} {
		for test.q.Limit = range 3 {
			var got []string
			for next := ""; ; {
				test.q.After = next
				page, err := s.List(t.Context(), test.q)
				if err != nil || len(page.Damaged) > 0 {
					t.Fatal(page.Damaged, err)
				}
				for _, j := range page.Jobs {
					got = append(got, j.ID)
				}
				if next = page.Next; next == "" {
					break
				}
			}
			if !slices.Equal(test.want, got) {
				t.Errorf("%+v lists %v, want %v", test.q, got, test.want)
			}
		}
	}

	by := jobs.UsageQuery{By: jobs.UsageByRun}
	if sum, err := s.SumUsage(t.Context(), by); err != nil || len(sum.Rows) != 0 {
		t.Errorf("a sum of foreign bytes: %+v, %v", sum, err)
	}
	again := storetest.NewJob(10) // of the same run as the job whose row is spoiled
	if _, err := s.Submit(t.Context(), storetest.Submission(again)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // ends one job, and then changes it once more
		_, err := s.Update(t.Context(), again.ID, func(j *jobs.Job) (jobs.Note, error) {
			if j.State.Terminal() {
				return jobs.Note{}, nil
			}
			return storetest.Cancel(j)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := s.SumUsage(t.Context(), by); err != nil || len(sum.Rows) != 1 || sum.Rows[0].Cancelled != 1 || sum.Rows[0].Name != "run-0" {
		t.Errorf("the row behind the foreign one: %+v, %v", sum, err)
	}

	closed := storetest.NewJob(11)
	closed.Call.Context.RunID = "run-x"
	_, err := s.Submit(t.Context(), storetest.Submission(closed))
	wantCode(t, err, jobs.CodeRecordDamaged)
	if _, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"run-x", "run-y"}}); err != nil {
		t.Error(err)
	}
	_, err = s.Mode(t.Context())
	wantCode(t, err, jobs.CodeRecordDamaged)
	if err := s.SetMode(t.Context(), jobs.HostMode{Mode: jobs.ModeOpen}); err != nil {
		t.Error(err)
	}
	if m, err := s.Mode(t.Context()); err != nil || m.Mode != jobs.ModeOpen {
		t.Errorf("%+v, %v", m, err)
	}
	if gone, err := s.CollectBlobs(t.Context(), storetest.Time().AddDate(100, 0, 0), 0); err != nil || len(gone) != 0 {
		t.Errorf("collected %+v, %v", gone, err)
	}
	reads := storetest.NewJob(12)
	reads.Inputs = []jobs.InputFile{{Reference: "sha256:" + strings.Repeat("ab", 32)}}
	_, err = s.Submit(t.Context(), storetest.Submission(reads))
	wantCode(t, err, jobs.CodeRecordDamaged)
	if _, err := s.Update(t.Context(), storetest.JobID(3), storetest.Cancel); err != nil {
		t.Errorf("the end of a job that reads a file whose record is foreign: %v", err)
	}
	_ = s.Close()
	if problems, err := Check(path); err != nil || len(problems) < spoiled/2 {
		t.Errorf("Check tells %d problems after %d things were spoiled: %q, %v", len(problems), spoiled, problems, err)
	}
}

// Whatever bucket order has of a job, each list shows it, and the log tells.
func TestForeignBytesInOrder(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "store.db"), Now: storetest.Time, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	var want []string
	for n := range 2 * chunkJobs / 32 { // so that a set is also read in one go
		want = append(want, submit(t, s, n).ID)
	}
	slices.Reverse(want)
	edit(t, s, func(tx *bbolt.Tx) error {
		order := tx.Bucket([]byte(bucketOrder))
		return errors.Join(order.Put(encodeU64(12), nil), order.Put(encodeU64(22), []byte("foreign")))
	})
	all := jobs.Query{Principal: "orchestrator", Limit: 7}
	one := jobs.Query{RunID: "run-1", ToolCall: "call-11"}
	for _, test := range []struct {
		q    jobs.Query
		want []string
	}{{all, want}, {one, []string{storetest.JobID(11)}}} {
		var got []string
		for {
			page, err := s.List(t.Context(), test.q)
			if err != nil || len(page.Damaged) > 0 {
				t.Fatal(page.Damaged, err)
			}
			for _, j := range page.Jobs {
				got = append(got, j.ID)
			}
			if test.q.After = page.Next; test.q.After == "" {
				break
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.q, diff)
		}
	}
	if !strings.Contains(said.String(), "order of jobs is damaged") {
		t.Errorf("the log says %q", said.String())
	}
}

// What is found does not depend on whether the values of jobs are in rows or in sets, nor
// on when they get from the ones into the others, or on whether a row could be read then.
func TestRowsBecomeSets(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	const number = 2*recentJobs + 100
	rows := func() (n int) {
		edit(t, s, func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(bucketRecent)).ForEach(func([]byte, []byte) error { n++; return nil })
		})
		return n
	}
	most := 0
	for n := range number {
		submit(t, s, n)
		if n == 100 {
			edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketRecent)).Put(encodeU64(50), []byte("foreign")) })
		}
		if n%50 != 0 && n%recentJobs > 3 {
			continue
		}
		most = max(most, rows())
		for back := range min(n+1, 3) {
			one := storetest.NewJob(n - back)
			q := jobs.Query{ToolCall: one.Call.Context.ToolCallID, RunID: one.Call.Context.RunID}
			if page, err := s.List(t.Context(), q); err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != one.ID {
				t.Fatalf("after %d jobs: %+v, %v", n+1, page, err)
			}
		}
	}
	if left := rows(); most != recentJobs || left != number%(recentJobs+1) {
		t.Errorf("up to %d rows, and in the end %d", most, left)
	}
	for n := range number {
		page, err := s.List(t.Context(), jobs.Query{ToolCall: fmt.Sprint("call-", n)})
		if err != nil || len(page.Jobs) != 1 {
			t.Fatalf("job %d: %+v, %v", n, page, err)
		}
	}
	_ = s.Close()
	if problems, err := Check(s.path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// Jobs that Open found damaged count in no state; a state that bucket open does not say
// is the record's.
func TestCountsOfDamage(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	for n := range 4 {
		submit(t, s, n)
	}
	_ = s.Close()
	s = openAt(t, s.path)
	edit(t, s, func(tx *bbolt.Tx) error {
		open, records := tx.Bucket([]byte(bucketOpen)), tx.Bucket([]byte(bucketJobs))
		return errors.Join(
			records.Put([]byte(storetest.JobID(0)), []byte("{")),
			open.Put([]byte(storetest.JobID(1)), nil),
			records.Put([]byte(storetest.JobID(2)), []byte("{")), open.Put([]byte(storetest.JobID(2)), nil),
		)
	})
	_, broken, err := s.Open(t.Context())
	if err != nil || len(broken) != 2 {
		t.Fatal(broken, err)
	}
	clear(broken) // it is the caller's
	counts, err := s.Counts(t.Context())
	if diff := cmp.Diff(map[jobs.State]int{jobs.StateQueued: 2}, counts); diff != "" || err != nil {
		t.Errorf("(-want +got):\n%s%v", diff, err)
	}
}

// Check tells when the rows of usage do not say what the ended jobs cost.
func TestCheckUsage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*usageRow)
		gone  bool // a job's record is gone, and its key a tombstone
		want  string
	}{
		"good":                    {func(*usageRow) {}, false, ""},
		"a job too many":          {func(r *usageRow) { r.Failed++ }, false, "1 failed"},
		"a job too few":           {func(r *usageRow) { r.Cancelled, r.Completed = 0, 1 }, false, "and the jobs 0 completed, 0 failed, 1 cancelled"},
		"another sum":             {func(r *usageRow) { r.Usage.Running += time.Second }, false, "Running:1s"},
		"more than jobs are left": {func(r *usageRow) { r.Failed++ }, true, ""},
		"less than jobs are left": {func(r *usageRow) { r.Cancelled, r.Completed = 0, 9 }, true, "9 completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openNew(t)
			submit(t, s, 1)
			if _, err := s.Update(t.Context(), storetest.JobID(1), storetest.Cancel); err != nil {
				t.Fatal(err)
			}
			edit(t, s, func(tx *bbolt.Tx) error {
				rows := tx.Bucket([]byte(bucketUsage))
				k, raw := rows.Cursor().First()
				row, err := decodeUsage(k, raw)
				if err != nil {
					return err
				}
				test.spoil(&row)
				if raw, err = encodeRecord(row); err != nil {
					return err
				}
				if test.gone {
					key := jobs.Key{Principal: "orchestrator", Text: "long ago"}
					spent, err := encodeRecord(jobs.KeyRecord{Key: key, Kind: jobs.KeyTombstone, JobID: storetest.JobID(77)})
					if err := errors.Join(err, tx.Bucket([]byte(bucketKeys)).Put(keyPlace(key), spent)); err != nil {
						return err
					}
				}
				return rows.Put(bytes.Clone(k), raw)
			})
			_ = s.Close()
			problems, err := Check(s.path)
			if err != nil || (len(problems) > 0) != (test.want != "") || !strings.Contains(strings.Join(problems, "\n"), test.want) {
				t.Errorf("got %q, %v; want %q", problems, err, test.want)
			}
		})
	}
}

// Foreign bytes are refused or mean exactly what would be written for them.
func FuzzBesideTheRecords(f *testing.F) {
	one, many := new(set), new(set)
	one.add(7)
	for i := range uint16(chunkJobs - 1) {
		many.add(i)
	}
	f.Add(one.encode(), []byte{})
	f.Add(many.encode(), []byte{})
	f.Add(summary{first: 1, last: 2, lowest: "a", highest: "b"}.encode(), []byte{})
	f.Add(encodeRecent(9, []recentJob{{9, 3, "a", []value{valueOf(ofTool, "t"), valueOf(ofRun, "r")}}, {11, 4, "b", nil}}), encodeU64(9))
	f.Add(withLink(7, []byte(`{"job_id":"a"}`)), []byte{})
	f.Add(encodeOrder(3, "id"), pinKey("digest", "id"))
	f.Add(openValue(4, jobs.StateQueued), []byte("k"))
	row, err := encodeRecord(usageRow{Principal: "p", Tool: "t", Completed: 1, Usage: jobs.Usage{Running: time.Second}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row, usageKey(hour(storetest.Time()), "p", "t", ""))
	f.Fuzz(func(t *testing.T, raw, key []byte) {
		if s, err := decodeSet(raw); err == nil && !bytes.Equal(s.encode(), raw) {
			t.Errorf("the set %x is written as %x", raw, s.encode())
		}
		if s, ok := decodeSummary(raw); ok && !bytes.Equal(s.encode(), raw) {
			t.Errorf("the summary %x is written as %x", raw, s.encode())
		}
		if list, ok := decodeRecent(5, raw); ok && !bytes.Equal(encodeRecent(5, list), raw) {
			t.Errorf("the row %x is written as %x", raw, encodeRecent(5, list))
		}
		if seq, record, ok := splitLink(raw); ok && !bytes.Equal(withLink(seq, record), raw) {
			t.Errorf("the linked record %x is written as %x", raw, withLink(seq, record))
		}
		if at, id, ok := decodeOrder(raw); ok && !bytes.Equal(encodeOrder(at, string(id)), raw) {
			t.Errorf("the place %x is written as %x", raw, encodeOrder(at, string(id)))
		}
		if seq, state, ok := splitOpenValue(raw); ok && !bytes.Equal(openValue(seq, state), raw) {
			t.Errorf("%x is written as %x", raw, openValue(seq, state))
		}
		if digest, id, ok := splitPinKey(key); ok && !bytes.Equal(pinKey(digest, id), key) {
			t.Errorf("the pin %x is written as %x", key, pinKey(digest, id))
		}
		if row, err := decodeUsage(key, raw); err == nil && row.problem() != "" {
			t.Errorf("the row %s is taken: %s", raw, row.problem())
		}
		if m, err := decodeMode(raw); err == nil && !slices.Contains(jobs.Modes(), m.Mode) {
			t.Errorf("the mode %q is taken", m.Mode)
		}
		_, _ = entrySize(key, raw)
	})
}

// G13: whatever Seq a row says that it is of, the other jobs are listed, and nobody looks
// through chunks that were never begun.
func TestFlippedSeqs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{bucketOrder, bucketRecent} {
		for _, newest := range []bool{false, true} {
			for bit := range 64 {
				t.Run(fmt.Sprintf("%s, newest: %t, bit %d", name, newest, bit), func(t *testing.T) {
					t.Parallel()
					testFlippedSeq(t, name, newest, bit)
				})
			}
		}
	}
}

func testFlippedSeq(t *testing.T, bucket string, newest bool, bit int) {
	s := openNew(t)
	s.noRows = bucket == bucketOrder
	const number = 6
	for n := range number {
		submit(t, s, n)
	}
	edit(t, s, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		k, raw := b.Cursor().First()
		if newest {
			k, raw = b.Cursor().Last()
		}
		k, raw = bytes.Clone(k), bytes.Clone(raw)
		flipped := encodeU64(decodeU64(k) ^ 1<<bit)
		if b.Get(flipped) != nil {
			return nil // of two rows at one place there is no telling
		}
		return errors.Join(b.Delete(k), b.Put(flipped, raw))
	})
	page, err := s.List(t.Context(), jobs.Query{Principal: "orchestrator"})
	if err != nil || len(page.Jobs) < number-1 {
		t.Errorf("listed %d jobs, %v", len(page.Jobs), err)
	}
	if _, err := s.Expired(t.Context(), jobs.ExpiredQuery{State: jobs.StateCompleted, Limit: 1, Before: storetest.Time()}); err != nil {
		t.Error(err)
	}
	submit(t, s, number)
	if page, err := s.List(t.Context(), jobs.Query{ToolCall: fmt.Sprint("call-", number)}); err != nil || len(page.Jobs) != 1 {
		t.Errorf("the next job: %d, %v", len(page.Jobs), err)
	}
}
