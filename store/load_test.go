package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// A store that was loaded is a store like any other.
func TestLoad(t *testing.T) {
	t.Parallel()
	const n = 9000 // more than one transaction and more than two chunks take
	path := newPath(t)
	err := store.Load(t.Context(), path, func(yield func(*jobs.Job) bool) {
		for i := range n {
			j := storetest.NewJob(i)
			if _, err := storetest.Cancel(j); err != nil || !yield(j) {
				t.Error(err)
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	wantClean(t, path)
	s := open(t, path)
	if next := submit(t, s, n); next.Seq != n+1 {
		t.Errorf("the next job has the seq %d", next.Seq)
	}
	again, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(17)))
	if err != nil || again.Outcome != jobs.SubmitReplayed || again.Job.Seq != 18 {
		t.Errorf("got %+v, %v", again, err)
	}
	page, err := s.List(t.Context(), jobs.Query{RunID: "run-7", States: []jobs.State{jobs.StateCancelled}, Until: storetest.Time().AddDate(1, 0, 0), Limit: 1000})
	if err != nil || len(page.Jobs) != n/10 || page.Next != "" {
		t.Errorf("%d jobs, next %q, %v", len(page.Jobs), page.Next, err)
	}
	sum, err := s.SumUsage(t.Context(), jobs.UsageQuery{By: jobs.UsageByTool})
	if err != nil || len(sum.Rows) != 1 || sum.Rows[0].Cancelled != n {
		t.Errorf("got %+v, %v", sum, err)
	}
}

// A load that is called off ends, and gives the store back.
func TestLoadIsCalledOff(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := store.Load(ctx, path, func(yield func(*jobs.Job) bool) {
		for i := 0; yield(storetest.NewJob(i)); i++ {
			if i == 5 {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	open(t, path)
}
