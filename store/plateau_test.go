package store_test

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// The whole: go test ./store -run TestStoreStaysFlat -plateau 200000 -v
var plateau = flag.Int("plateau", 6000, "how many jobs TestStoreStaysFlat runs through a store")

// shortJob is a job of a store that ends at once.
func shortJob(s *store.Store, n int) *jobs.Job {
	j := storetest.NewJob(n)
	j.Host = s.HostID()
	j.ID = strings.ToLower(ulid.Make().String()) + "-" + j.Host
	j.Call.Context = jobs.CallContext{RunID: "campaign", ToolCallID: fmt.Sprint("call-", n)}
	return j
}

func runShort(ctx context.Context, s *store.Store, n int) error {
	j := shortJob(s, n)
	if _, err := s.Submit(ctx, storetest.Submission(j)); err != nil {
		return err
	}
	_, err := s.Update(ctx, j.ID, storetest.Cancel)
	return err
}

// G2: through a store that keeps a thousand jobs many more go. What it holds of them in
// the end is a tombstone for each key, of 96 bytes at most with all that bbolt needs; all
// else is as large as it was. No key starts anything a second time.
func TestStoreStaysFlat(t *testing.T) {
	t.Parallel()
	const keepJobs, keepEntries, callers, part = 1000, 5000, 64, 1000
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	type point struct{ jobs, used, stones, rest int64 }
	var points []point
	for done := 0; done < *plateau; done += part {
		var next atomic.Int64
		group, ctx := errgroup.WithContext(t.Context())
		for range callers {
			group.Go(func() error {
				for i := next.Add(1); i <= part; i = next.Add(1) {
					if err := runShort(ctx, s, done+int(i)-1); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		shrink(t, s, keepJobs, keepEntries)
		if done/part%max(1, *plateau/part/20) != 0 && done+part < *plateau {
			continue
		}
		d, err := s.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := point{jobs: int64(done + part), used: d.Size - d.Free}
		for _, b := range d.Buckets {
			if b.Name == "tombstones" {
				p.stones = b.Bytes
				if each := float64(b.Bytes) / float64(max(b.Rows, 1)); b.Rows > 2000 && each > 96 {
					t.Errorf("%d tombstones take %.1f bytes each", b.Rows, each)
				}
			} else {
				p.rest += b.Bytes
			}
		}
		if d.Tombstones != max(p.jobs-keepJobs, 0) {
			t.Errorf("after %d jobs there are %d tombstones", p.jobs, d.Tombstones)
		}
		points = append(points, p)
		t.Logf("after %d jobs: file %d, used %d, tombstones %d (%.1f each), all else %d", p.jobs, d.Size, p.used, p.stones, float64(p.stones)/float64(max(d.Tombstones, 1)), p.rest)
	}
	first, last := points[len(points)/3], points[len(points)-1]
	if float64(last.rest) > 1.25*float64(first.rest) {
		t.Errorf("without tombstones it grew from %d to %d bytes", first.rest, last.rest)
	}
	t.Logf("from %d to %d jobs, each grew what is used by %.1f bytes", first.jobs, last.jobs, float64(last.used-first.used)/float64(last.jobs-first.jobs))
	for n := range *plateau / part * part {
		key := jobs.Key{Principal: "orchestrator", Text: storetest.NewJob(n).Key}
		record, err := s.LookupKey(t.Context(), key)
		if err != nil || record.JobID == "" || n < *plateau/part*part-keepJobs-callers && record.Kind != jobs.KeyTombstone {
			t.Fatalf("key %d: %+v, %v", n, record, err)
		}
		if n%97 != 0 {
			continue
		}
		got, err := s.Submit(t.Context(), storetest.Submission(shortJob(s, n)))
		if err != nil || got.Outcome != jobs.SubmitExpired && got.Outcome != jobs.SubmitReplayed || got.Key.JobID != record.JobID {
			t.Fatalf("key %d again: %+v, %v", n, got, err)
		}
	}
	fresh, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "fresh.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fresh.Close() }()
	old, young := median(t, s), median(t, fresh)
	t.Logf("a submission takes %v, and %v in a fresh store: %.2f x", old, young, float64(old)/float64(young))
	_ = s.Close()
	if problems, err := store.Check(path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// shrink does what the engine's retention does.
func shrink(t *testing.T, s *store.Store, keepJobs, keepEntries int) {
	t.Helper()
	q := jobs.ExpiredQuery{State: jobs.StateCancelled, Keep: keepJobs, Limit: 64}
	for more := true; more; more = q.From != 0 {
		found, err := s.Expired(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Prune(t.Context(), found.IDs, "that are too many"); err != nil {
			t.Fatal(err)
		}
		q.From = found.Next
	}
	for n := 1; n > 0; {
		var err error
		if n, err = s.DropJournal(t.Context(), time.Time{}, keepEntries); err != nil {
			t.Fatal(err)
		}
	}
}

// median is how long a submission by one caller takes.
func median(t *testing.T, s *store.Store) time.Duration {
	t.Helper()
	var took []time.Duration
	for n := range 300 {
		sub := storetest.Submission(shortJob(s, 1<<30+n))
		begun := time.Now()
		if _, err := s.Submit(t.Context(), sub); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
