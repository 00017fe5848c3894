package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/store"
)

// million measures lists and submissions over a store with very many finished jobs,
// beside an empty one. The jobs are written by the store's own loader.
func (b *bench) million(ctx context.Context) error {
	var pattern *jobs.Job
	err := b.with(ctx, "n", func(d *daemon) error {
		_, err := d.finish(ctx, nothing("", nil))
		return err
	})
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, "n", "store.db")
	if pattern, err = onlyJob(ctx, path); err != nil {
		return err
	}
	begun := time.Now()
	if err := store.Load(ctx, path, finished(pattern, b.many)); err != nil {
		return err
	}
	b.table.add(row{what: fmt.Sprintf("writing %d finished jobs with the store's loader", b.many), figure: fmt.Sprintf("%.0f s", time.Since(begun).Seconds())})
	return b.with(ctx, "n", func(full *daemon) error {
		b.table.add(row{what: fmt.Sprintf("start with %d finished jobs, exec to ready", b.many), figure: ms(full.took)})
		if err := b.lists(ctx, full, pattern.SubmittedAt); err != nil {
			return err
		}
		return b.with(ctx, "o", func(empty *daemon) error {
			return b.submitBeside(ctx, full, empty, fmt.Sprintf("%d finished jobs", b.many), 1, 64)
		})
	})
}

func onlyJob(ctx context.Context, path string) (job *jobs.Job, err error) {
	s, err := store.Open(ctx, store.Options{Path: path})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	page, err := s.List(ctx, jobs.Query{Limit: 1})
	if err != nil || len(page.Jobs) != 1 {
		return nil, errors.Join(err, fmt.Errorf("the store has %d jobs, not one", len(page.Jobs)))
	}
	return page.Jobs[0], nil
}

// spread is the time over which the finished jobs were accepted.
const spread = 30 * 24 * time.Hour

// finished makes jobs like the pattern that were accepted before it. They differ in
// what a list selects by: some values have a job each, some a few, some half of all.
func finished(pattern *jobs.Job, n int) iter.Seq[*jobs.Job] {
	return func(yield func(*jobs.Job) bool) {
		var entropy [10]byte
		for i := range n {
			j := *pattern
			j.SubmittedAt = pattern.SubmittedAt.Add(-spread + spread/time.Duration(n)*time.Duration(i) - time.Second)
			var id ulid.ULID
			_ = id.SetTime(ulid.Timestamp(j.SubmittedAt)) // refuses only times of the year 10889 and later
			copy(entropy[:], fmt.Sprintf("%010d", i))
			_ = id.SetEntropy(entropy[:]) // refuses only other lengths
			j.ID = strings.ToLower(id.String()) + "-" + pattern.Host
			j.QueuedAt, j.StartedAt, j.EndedAt = j.SubmittedAt, j.SubmittedAt, j.SubmittedAt.Add(time.Second)
			j.Key, j.KeyMade = fmt.Sprintf("filled/%d", i), false
			j.Tool.Name = fmt.Sprintf("tool_%d", i%20)
			j.State = map[bool]jobs.State{true: jobs.StateFailed, false: jobs.StateCompleted}[i%10 == 4]
			if i%100 == 50 {
				j.State = jobs.StateCancelled
			}
			if i%10 == 7 {
				j.Principal = "another"
			}
			half := map[bool]string{true: "even", false: "odd"}[i%2 == 0]
			j.Call.Context = jobs.CallContext{
				RunID: fmt.Sprintf("run-%d", i/100), ParentRunID: fmt.Sprintf("run-%d", i/1000), ThreadID: fmt.Sprintf("thread-%d", i%20_000),
				ContextID: fmt.Sprintf("context-%d", i%5000), ToolCallID: fmt.Sprintf("call-%d", i), ParentCallID: fmt.Sprintf("call-%d", i/10*10),
				Labels: map[string]string{"half": half, "batch": fmt.Sprint(i / 5000)},
			}
			if !yield(&j) {
				return
			}
		}
	}
}

// lists measures the first page of lists by every filter, and by some of them together
// that have little or nothing in common although each alone has very much.
func (b *bench) lists(ctx context.Context, d *daemon, newest time.Time) error {
	n := b.many
	at := func(i int) *timestamppb.Timestamp {
		return timestamppb.New(newest.Add(-spread + spread/time.Duration(n)*time.Duration(i)))
	}
	states := func(list ...macexecv1.JobState) []macexecv1.JobState { return list }
	const (
		completed = macexecv1.JobState_JOB_STATE_COMPLETED
		failed    = macexecv1.JobState_JOB_STATE_FAILED
		cancelled = macexecv1.JobState_JOB_STATE_CANCELLED
		running   = macexecv1.JobState_JOB_STATE_RUNNING
	)
	for _, list := range []struct {
		what string
		of   func(i int) *macexecv1.ListJobsRequest // i is any job's number
	}{
		{"no filter", func(int) *macexecv1.ListJobsRequest { return &macexecv1.ListJobsRequest{} }},
		{"run", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{RunId: fmt.Sprintf("run-%d", i/100)}
		}},
		{"parent run", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{ParentRunId: fmt.Sprintf("run-%d", i/1000)}
		}},
		{"thread", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{ThreadId: fmt.Sprintf("thread-%d", i%20_000)}
		}},
		{"context", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{ContextId: fmt.Sprintf("context-%d", i%5000)}
		}},
		{"tool call", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{ToolCallId: fmt.Sprintf("call-%d", i)}
		}},
		{"parent call", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{ParentCallId: fmt.Sprintf("call-%d", i/10*10)}
		}},
		{"key", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{Key: fmt.Sprintf("filled/%d", i)}
		}},
		{"tool", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{Tool: fmt.Sprintf("tool_%d", i%20)}
		}},
		{"state", func(int) *macexecv1.ListJobsRequest { return &macexecv1.ListJobsRequest{States: states(cancelled)} }},
		{"state that no job is in", func(int) *macexecv1.ListJobsRequest { return &macexecv1.ListJobsRequest{States: states(running)} }},
		{"label", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{Labels: map[string]string{"batch": fmt.Sprint(i / 5000)}}
		}},
		{"since and until", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{Since: at(i / 2), Until: at(i/2 + 100)}
		}},
		{"tool (1 of 20) and label (half of all), nothing in common", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{Tool: fmt.Sprintf("tool_%d", i%10*2), Labels: map[string]string{"half": "odd"}}
		}},
		{"states (9 of 10) and tool (1 of 20), nothing in common", func(int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{States: states(completed, cancelled), Tool: "tool_4"}
		}},
		{"state, tool, label, parent run and time, few in common", func(i int) *macexecv1.ListJobsRequest {
			return &macexecv1.ListJobsRequest{
				States: states(failed), Tool: "tool_4", Labels: map[string]string{"half": "even"},
				ParentRunId: fmt.Sprintf("run-%d", i/1000), Until: at(n),
			}
		}},
	} {
		var took []time.Duration
		jobs := 0
		for k := range b.listCalls {
			req := list.of((k*7919 + 13) % n)
			begun := time.Now()
			resp, err := d.Jobs.ListJobs(ctx, req)
			if err != nil {
				return err
			}
			took = append(took, time.Since(begun))
			jobs += len(resp.GetJobs())
		}
		mid, late := median(took), percentile(took, 0.99)
		b.table.add(row{
			what: "first page by " + list.what, figure: ms(mid), ratio: fmt.Sprintf("p99 %s, %d jobs a page", ms(late), jobs/len(took)),
			floor: atMost(mid.Seconds()*1000, 20, "%.0f ms"),
		})
	}
	return nil
}

// submitBeside measures submissions to either daemon in turn, by each number of callers
// at once. what says what the full one has.
func (b *bench) submitBeside(ctx context.Context, full, empty *daemon, what string, atOnce ...int) error {
	for _, callers := range atOnce {
		var slow, quick []time.Duration
		rounds := max(b.listCalls*10/callers, 40)
		for i := range rounds {
			for _, at := range []struct {
				d    *daemon
				took *[]time.Duration
			}{{full, &slow}, {empty, &quick}} {
				took, err := submitAtOnce(ctx, at.d, callers, i)
				if err != nil {
					return err
				}
				if i*callers >= 20 { // the first ones meet cold caches
					*at.took = append(*at.took, took...)
				}
			}
		}
		over, under := median(slow), median(quick)
		b.table.add(row{what: fmt.Sprintf("durable SubmitJob, callers: %d, empty store, p50", callers), figure: ms(under), ratio: yardstick})
		b.table.add(row{
			what: "the same with " + what + ", in turn", figure: ms(over), ratio: times(float64(over), float64(under)),
			floor: atMost(float64(over)/float64(under), 1.2, "%.1f ×"),
		})
	}
	return nil
}

// submitAtOnce makes one call of each caller, all at once, and returns how long each took.
func submitAtOnce(ctx context.Context, d *daemon, callers, round int) ([]time.Duration, error) {
	took := make([]time.Duration, callers)
	var all errgroup.Group
	for c := range callers {
		all.Go(func() error {
			name := fmt.Sprintf("%d/%d/%d", callers, round, c)
			begun := time.Now()
			_, err := d.Submit(ctx, &macexecv1.SubmitJobRequest{
				IdempotencyKey: "beside/" + name, Tool: "bench_held", Arguments: []byte("{}"),
				Context: &macexecv1.CallContext{
					RunId: fmt.Sprintf("new-%d", round/100), ToolCallId: "new-" + name, ThreadId: fmt.Sprintf("new-%d", round%50),
					ContextId: "new", Labels: map[string]string{"batch": "new"},
				},
			})
			took[c] = time.Since(begun)
			return err
		})
	}
	return took, all.Wait()
}
