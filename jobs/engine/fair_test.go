package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// TestFairShares: 1,000 jobs of five principals on two slots. Real processes, a real
// store: at every point each principal has had its share of the slot time, while jobs
// of one principal keep their rank; and at every sample each job that waits says so.
func TestFairShares(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: it starts 1,000 processes")
	}
	t.Parallel()
	const principals = 5
	each := 200
	if raceBuilt {
		each = 40 // make test runs all of them once more without the race detector
	}
	h := newHost(t, manifest("work", "none", ":", plainResult))
	if err := h.Reconfigure(t.Context(), owner(), Limits{Slots: map[string]int{"one": 2}}, nil, []string{"slots"}); err != nil {
		t.Fatal(err)
	}
	h.sched.pause(true)
	var submitting sync.WaitGroup
	for p := range principals {
		submitting.Go(func() {
			for n := range each {
				_, err := h.Submit(t.Context(), caller(p), Request{
					Tool: "work", Key: fmt.Sprint(n), Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction,
					Options: jobs.Options{Priority: int32(n%21) - 10},
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	submitting.Wait()
	h.sampleWaiting(t.Context(), principals, principals*each, jobs.WaitPaused, "")
	sampling, enough := context.WithCancel(t.Context())
	var samples sync.WaitGroup
	samples.Go(func() {
		// Every 50 changes; each sample reads hundreds of jobs.
		for head := h.store.Head(); h.store.Wait(sampling, head+50) == nil; head = h.store.Head() {
			h.sampleWaiting(sampling, principals, principals*each, jobs.WaitSlot, "one")
		}
	})
	h.sched.pause(false)
	h.dispatch()
	var all []*jobs.Job
	for p := range principals {
		for _, job := range h.all(t.Context(), caller(p), jobs.Query{}) {
			for !job.State.Settled() {
				var err error
				if job, err = h.WaitJob(t.Context(), caller(p), job.ID, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, job)
		}
	}
	enough()
	samples.Wait()
	for _, job := range all {
		h.wantState(job, jobs.StateCompleted, jobs.EndOK)
	}
	wantRank(t, all)
	wantShares(t, all, principals)
}

func caller(p int) Caller { return Caller{Principal: fmt.Sprint("p", p)} }

// all lists every job that the query selects.
func (h *host) all(ctx context.Context, c Caller, q jobs.Query) []*jobs.Job {
	var list []*jobs.Job
	for {
		page, err := h.Jobs(ctx, c, q)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				h.t.Error(err)
			}
			return list
		}
		list = append(list, page.Jobs...)
		if q.After = page.Next; q.After == "" {
			return list
		}
	}
}

// sampleWaiting holds what every queued job says that it waits for.
func (h *host) sampleWaiting(ctx context.Context, principals, most int, kind jobs.WaitKind, detail string) {
	h.t.Helper()
	for p := range principals {
		list := h.all(ctx, caller(p), jobs.Query{States: []jobs.State{jobs.StateQueued}, Limit: 1000})
		for _, job := range list {
			w := job.WaitingFor
			if w == nil || w.Kind != kind || w.Detail != detail || w.Position < 1 || w.Position > most {
				h.t.Errorf("job %s waits for %+v", job.ID, w)
			}
		}
	}
}

// wantRank holds that the jobs of each principal, which were all queued at once, were
// started by rank.
func wantRank(t *testing.T, all []*jobs.Job) {
	t.Helper()
	byStart := slices.SortedFunc(slices.Values(all), func(a, b *jobs.Job) int { return a.StartedAt.Compare(b.StartedAt) })
	last := map[string][]*jobs.Job{}
	for _, job := range byStart {
		// Two slots become free at once now and then, and the starts of the two jobs are
		// stored in any order.
		before := last[job.Principal]
		if len(before) > 1 && rankOf(before[len(before)-2]).compare(rankOf(job)) > 0 {
			t.Errorf("job %s was started after %s", job.ID, before[len(before)-2].ID)
		}
		last[job.Principal] = append(before, job)
	}
}

// wantShares holds that at the end of each job, after a warm-up and while everybody
// still has jobs waiting, each principal has had its share within a tenth.
func wantShares(t *testing.T, all []*jobs.Job, principals int) {
	t.Helper()
	lastStart := map[string]time.Time{}
	for _, job := range all {
		if job.StartedAt.After(lastStart[job.Principal]) {
			lastStart[job.Principal] = job.StartedAt
		}
	}
	backlog := time.Time{} // until when everybody has jobs waiting
	for _, at := range lastStart {
		if backlog.IsZero() || at.Before(backlog) {
			backlog = at
		}
	}
	byEnd := slices.SortedFunc(slices.Values(all), func(a, b *jobs.Job) int { return a.EndedAt.Compare(b.EndedAt) })
	warm := max(len(all)/4, 20*principals) // then one job is a twentieth of a share at most
	points, worst := 0, 0.0
	for i, end := range byEnd {
		if i < warm || end.EndedAt.After(backlog) {
			continue
		}
		used, total := map[string]time.Duration{}, time.Duration(0)
		for _, job := range all {
			if job.StartedAt.Before(end.EndedAt) {
				until := job.EndedAt
				if until.After(end.EndedAt) {
					until = end.EndedAt
				}
				used[job.Principal] += until.Sub(job.StartedAt)
				total += until.Sub(job.StartedAt)
			}
		}
		points++
		for p, had := range used {
			off := float64(had)*float64(principals)/float64(total) - 1
			worst = max(worst, off, -off)
			if off > 0.1 || off < -0.1 {
				t.Errorf("after %d jobs %s has had %.0f %% of its share", i+1, p, 100*(1+off))
				return
			}
		}
	}
	if points < (len(all)-warm)/2 {
		t.Errorf("only at %d points everybody had jobs waiting", points)
	}
	t.Logf("at %d points nobody was more than %.1f %% off its share", points, 100*worst)
}
