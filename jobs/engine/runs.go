package engine

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/macexec/macexec/jobs"
)

// RunCancellation says what the cancelling of a run reached.
type RunCancellation struct {
	Runs    []string // closed now: the run itself and those below it, in the order they were found
	Stopped []string // jobs that were asked to stop, or that ended at once
	TooLate []string // jobs whose result is being published
	Unknown []string // jobs of unknown outcome, which a stop cannot reach
}

// CancelRun closes a run of the caller's, and what came from it, and stops the jobs
// of all that. What came from a run:
//
//   - the runs of jobs whose parent run it is,
//   - the calls whose parent call is the tool call of a job of it, and theirs in turn.
//     Of such a job only the call is closed: its run may have other work. Which call a
//     job came from jobs.Store's Closed decides, for ids of calls repeat.
//
// First everything is closed, then the jobs are stopped. None of them starts after
// CancelRun has answered: a job of something closed is ended instead (see endClosed).
// So a cancel that a crash cuts short between the two holds all the same, and one that
// is cut short before is finished by a repeat.
func (e *Engine) CancelRun(ctx context.Context, c Caller, runID, reason string) (RunCancellation, error) {
	if runID == "" || len(runID) > maxContextBytes {
		return RunCancellation{}, jobs.Errorf(jobs.CodeRequestInvalid, "name the run, in at most %d bytes", maxContextBytes).With("field", "run_id")
	}
	if err := checkReason(reason); err != nil {
		return RunCancellation{}, err
	}
	ctx = context.WithoutCancel(ctx) // it must not be left half done because nobody listens
	r := closure{e: e, principal: c.Principal, reason: reason, runs: map[string]bool{}, calls: map[jobs.RunCall]bool{}, open: map[string]bool{}}
	r.addRun(runID)
	if err := r.close(ctx); err != nil {
		return RunCancellation{}, err
	}
	return r.stopAll(ctx)
}

// closure is a run with everything that came from it.
type closure struct {
	e                 *Engine
	principal, reason string

	runs     map[string]bool // found
	calls    map[jobs.RunCall]bool
	newRuns  []string // of these, what is not closed yet
	newCalls []jobs.RunCall
	order    []string        // the runs, as they were found
	open     map[string]bool // jobs that had not ended when they were found, by id
}

func (r *closure) addRun(id string) {
	if id != "" && !r.runs[id] {
		r.runs[id] = true
		r.newRuns, r.order = append(r.newRuns, id), append(r.order, id)
	}
}

// addJob adds a job that came from the run, and with it the call that it is.
func (r *closure) addJob(j *jobs.Job) {
	if !j.State.Terminal() {
		r.open[j.ID] = true
	}
	call := jobs.RunCall{RunID: j.Call.Context.RunID, CallID: j.Call.Context.ToolCallID}
	if call.CallID != "" && !r.calls[call] {
		r.calls[call] = true
		r.newCalls = append(r.newCalls, call)
	}
}

// closeAtOnce bounds how much is closed in one write.
const closeAtOnce = 256

// close closes what is found until nothing more is. Each is closed before its jobs
// are listed, so that none can be added to it behind the list.
func (r *closure) close(ctx context.Context) error {
	for len(r.newRuns)+len(r.newCalls) > 0 {
		runs, calls := cut(&r.newRuns), cut(&r.newCalls)
		_, err := r.e.store.CloseRuns(ctx, jobs.RunClosing{Principal: r.principal, RunIDs: runs, Calls: calls, Reason: r.reason})
		if err != nil {
			return err
		}
		for _, id := range runs {
			err := errors.Join(
				r.each(ctx, jobs.Query{RunID: id}, func(j *jobs.Job) error { r.addJob(j); return nil }),
				r.each(ctx, jobs.Query{ParentRunID: id}, func(j *jobs.Job) error {
					r.addRun(j.Call.Context.RunID)
					r.addJob(j)
					return nil
				}))
			if err != nil {
				return err
			}
		}
		for _, call := range calls {
			err := r.each(ctx, jobs.Query{ParentCall: call.CallID}, func(j *jobs.Job) error {
				// The call is closed, so what came from it came from something closed.
				why, err := r.e.store.Closed(ctx, j)
				if why != "" {
					r.addJob(j)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// cut takes the first closeAtOnce off a list.
func cut[T any](list *[]T) []T {
	n := min(len(*list), closeAtOnce)
	first := (*list)[:n:n]
	*list = (*list)[n:]
	return first
}

// each goes through the jobs that a query selects, ended ones too.
func (r *closure) each(ctx context.Context, q jobs.Query, found func(*jobs.Job) error) error {
	for q.Principal, q.Limit = r.principal, 200; ; {
		page, err := r.e.store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			if err := found(j); err != nil {
				return err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// stopAtOnce is how many jobs are stopped at a time: their writes share commits, with
// each other and with what else is written meanwhile.
const stopAtOnce = 64

// manyAtOnce calls stop for each of a list, and returns when all calls have.
func manyAtOnce[T any](list iter.Seq[T], stop func(T)) {
	var all sync.WaitGroup
	room := make(chan struct{}, stopAtOnce)
	for one := range list {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			stop(one)
		})
	}
	all.Wait()
}

// stopAll stops the jobs that had not ended.
func (r *closure) stopAll(ctx context.Context) (RunCancellation, error) {
	out := RunCancellation{Runs: r.order}
	var (
		mu    sync.Mutex
		fault error
	)
	stop := jobs.StopRequest{Principal: r.principal, Reason: r.reason, End: jobs.EndRunCancelled, At: r.e.now()}
	manyAtOnce(maps.Keys(r.open), func(id string) {
		reached := &out.Stopped
		job, err := r.e.stop(ctx, id, stop, "its run was cancelled: "+r.reason)
		switch {
		case jobs.CodeOf(err) == jobs.CodeStopTooLate:
			reached, err = r.missed(ctx, id, &out)
		case err == nil && job.State == jobs.StateUnknown: // it was restored (see Job.Overtaken)
			reached = &out.Unknown
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			fault = cmp.Or(fault, err)
		} else {
			*reached = append(*reached, id)
		}
	})
	for _, list := range [][]string{out.Stopped, out.TooLate, out.Unknown} {
		slices.Sort(list)
	}
	return out, fault
}

// missed says to which list a job belongs that could not be stopped: to one that nobody
// reads, if it has ended by itself since it was found.
func (r *closure) missed(ctx context.Context, id string, out *RunCancellation) (*[]string, error) {
	job, err := r.e.store.Get(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case job.State == jobs.StateUnknown:
		return &out.Unknown, nil
	case job.State == jobs.StateRunning:
		return &out.TooLate, nil
	default:
		return new([]string), nil
	}
}

// endClosed stops a job if its run, its parent run or its parent call was cancelled,
// and reports that. It is asked before each start, and of each job that an earlier
// engine left: a cancel may have come to its end after the closing only.
func (e *Engine) endClosed(ctx context.Context, job *jobs.Job) (ended bool, err error) {
	why, err := e.store.Closed(ctx, job)
	if err != nil || why == "" {
		return false, err
	}
	stop := jobs.StopRequest{Principal: job.Principal, Reason: why, End: jobs.EndRunCancelled, At: e.now()}
	if _, err = e.stop(ctx, job.ID, stop, why); jobs.CodeOf(err) == jobs.CodeStopTooLate {
		err = nil // what was published before is published
	}
	return true, err
}
