package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// world is a store and, beside it, all its jobs as a plain map.
type world struct {
	*rapid.T
	s    *Store
	path string
	jobs map[string]*jobs.Job
	n    int
}

func newWorld(t *rapid.T) *world {
	dir, err := os.MkdirTemp("", "list")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, path: filepath.Join(dir, "store.db"), jobs: map[string]*jobs.Job{}}
	t.Cleanup(func() {
		_ = w.s.Close()
		if problems, err := Check(w.path); err != nil || len(problems) > 0 {
			t.Errorf("Check: %q, %v", problems, err)
		}
		_ = os.RemoveAll(dir)
	})
	w.open()
	return w
}

func (w *world) open() {
	s, err := Open(context.Background(), Options{Path: w.path, Now: storetest.Time})
	if err != nil {
		w.Fatal(err)
	}
	w.s = s
}

func (w *world) close() {
	if err := w.s.Close(); err != nil {
		w.Fatal(err)
	}
}

// downgrade makes the store one of version 1.
func (w *world) downgrade() {
	err := w.s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{bucketPins, bucketClosed, bucketUsage, bucketOrder, bucketIndex, bucketRecent, bucketPrincipals} {
			if err := tx.DeleteBucket([]byte(name)); err != nil {
				return err
			}
		}
		open := tx.Bucket([]byte(bucketOpen))
		for id, j := range w.jobs {
			if !j.State.Terminal() {
				if err := open.Put([]byte(id), nil); err != nil {
					return err
				}
			}
		}
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaSchemaVersion), encodeU64(1))
	})
	if err != nil {
		w.Fatal(err)
	}
}

// name draws one of few names, so that many jobs share one.
func (w *world) name(what string) string {
	return rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(w.T, what)
}

func (w *world) labels() map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"x", "y"}), rapid.SampledFrom([]string{"", "1", "2"}), 0, 2).Draw(w.T, "labels")
}

func (w *world) context() jobs.CallContext {
	return jobs.CallContext{
		RunID: w.name("run"), ParentRunID: w.name("parent run"), ThreadID: w.name("thread"), ContextID: w.name("context"),
		ToolCallID: w.name("call"), ParentCallID: w.name("parent call"), Labels: w.labels(),
	}
}

// at draws a time at which something was accepted, often the same one.
func (w *world) at() time.Time {
	return storetest.Time().Add(time.Duration(rapid.IntRange(-3, 3).Draw(w.T, "hours"))*time.Hour + time.Duration(rapid.IntRange(0, 2).Draw(w.T, "nanoseconds")))
}

// submit stores a job whose id lies anywhere among the others, in a chunk of its own
// now and then.
func (w *world) submit() {
	w.n++
	j := storetest.NewJob(w.n)
	j.ID = fmt.Sprintf("01k%023d-testhost", rapid.IntRange(0, 99).Draw(w.T, "id")*1000+w.n)
	j.Principal = rapid.SampledFrom([]string{"p", "q"}).Draw(w.T, "principal")
	j.Key, j.Tool.Name, j.Call.Context, j.SubmittedAt = fmt.Sprint(w.name("key"), w.n/2), cmp.Or(w.name("tool"), "d"), w.context(), w.at()
	w.s.jobSeq += rapid.SampledFrom([]uint64{0, 0, 0, 1, chunkJobs - 2, 3 * chunkJobs}).Draw(w.T, "gap") // the writer is at rest
	got, err := w.s.Submit(context.Background(), storetest.Submission(j))
	if err != nil {
		w.Fatal(err)
	}
	if got.Outcome == jobs.SubmitAccepted {
		w.jobs[j.ID] = got.Job
	}
}

// step moves a job on, if there is one that can be.
func (w *world) step() {
	if len(w.jobs) == 0 {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(w.jobs))).Draw(w.T, "job")
	change := map[jobs.State]func(*jobs.Job) (jobs.Note, error){
		jobs.StateQueued: storetest.Start, jobs.StateRunning: storetest.Lose, jobs.StateUnknown: storetest.Resolve,
	}[w.jobs[id].State]
	if w.jobs[id].State == jobs.StateQueued && rapid.Bool().Draw(w.T, "cancel") {
		change = storetest.Cancel
	}
	if change == nil {
		return
	}
	j, err := w.s.Update(context.Background(), id, change)
	if err != nil {
		w.Fatal(err)
	}
	w.jobs[id] = j
}

// query draws any combination of filters.
func (w *world) query() (q jobs.Query) {
	if rapid.Bool().Draw(w.T, "by context") {
		c := w.context()
		q.RunID, q.ParentRunID, q.ThreadID, q.ContextID, q.ToolCall, q.ParentCall = c.RunID, c.ParentRunID, c.ThreadID, c.ContextID, c.ToolCallID, c.ParentCallID
		// Most combinations of seven would match nothing.
		for i, f := range []*string{&q.RunID, &q.ParentRunID, &q.ThreadID, &q.ContextID, &q.ToolCall, &q.ParentCall} {
			if i != rapid.IntRange(0, 7).Draw(w.T, "kept") {
				*f = ""
			}
		}
	}
	q.Labels = w.labels()
	q.Principal = rapid.SampledFrom([]string{"", "p", "q", "nobody"}).Draw(w.T, "of")
	q.Tool = w.name("tool")
	q.States = rapid.SliceOfNDistinct(rapid.SampledFrom(jobs.States()), 0, 3, rapid.ID).Draw(w.T, "states")
	if rapid.IntRange(0, 4).Draw(w.T, "by key") == 0 {
		q.Key = fmt.Sprint(w.name("key"), rapid.IntRange(0, w.n/2+1).Draw(w.T, "key number"))
	}
	if rapid.Bool().Draw(w.T, "since") {
		q.Since = w.at()
	}
	if rapid.Bool().Draw(w.T, "until") {
		q.Until = w.at()
	}
	if rapid.IntRange(0, 3).Draw(w.T, "all") == 0 {
		q = jobs.Query{}
	}
	q.Limit = rapid.IntRange(1, 7).Draw(w.T, "limit")
	return q
}

// matching is what a query selects, in its order.
func (w *world) matching(q jobs.Query) (ids []string) {
	for id, j := range w.jobs {
		if q.Matches(j) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids
}

// list follows the pages of a query and does something between them.
func (w *world) list(q jobs.Query, between func()) (ids []string) {
	for {
		page, err := w.s.List(context.Background(), q)
		if err != nil || len(page.Damaged) > 0 {
			w.Fatal(page.Damaged, err)
		}
		for _, j := range page.Jobs {
			if !q.Matches(j) {
				w.Fatalf("job %s does not match", j.ID)
			}
			ids = append(ids, j.ID)
		}
		if page.Next == "" {
			return ids
		}
		if len(page.Jobs) != q.Limit {
			w.Fatalf("a page that is not the last has %d jobs, not %d", len(page.Jobs), q.Limit)
		}
		q.After = page.Next
		between()
	}
}

// Whatever is in a store, a list of any filters in pages of any size is what a look at
// every job would give.
func TestListIsAPlainFilter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 30).Draw(t, "jobs") {
			w.submit()
			if rapid.Bool().Draw(t, "steps") {
				w.step()
			}
		}
		switch rapid.IntRange(0, 7).Draw(t, "restart") {
		case 0:
			w.close()
			w.open()
		case 1:
			w.downgrade()
			w.close()
			w.open()
		}
		for range 20 {
			q := w.query()
			got := w.list(q, func() {})
			if want := w.matching(q); !slices.Equal(want, got) {
				t.Fatalf("%+v lists\n%v\nwant\n%v", q, got, want)
			}
		}
	})
}

// Whatever happens between the pages of a list, nothing is listed twice, and what
// matches all the while is listed.
func TestListIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(5, 30).Draw(t, "jobs") {
			w.submit()
		}
		q := w.query()
		always := w.matching(q)
		got := w.list(q, func() {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				if rapid.Bool().Draw(t, "new") {
					w.submit()
				} else {
					w.step()
				}
			}
			always = slices.DeleteFunc(always, func(id string) bool { return !q.Matches(w.jobs[id]) })
		})
		if !slices.IsSortedFunc(got, func(a, b string) int { return cmp.Compare(b, a) }) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("%+v lists %v", q, got)
		}
		for _, id := range always {
			if !slices.Contains(got, id) {
				t.Fatalf("%+v misses job %s", q, id)
			}
		}
	})
}
