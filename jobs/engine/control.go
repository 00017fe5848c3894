package engine

import (
	"context"
	"errors"

	"github.com/macexec/macexec/jobs"
)

// Cancel ends a job that has not started, or stores the request to stop a running
// one before it answers. The job returned may still run: it is cancelled when its
// processes are proved to be gone.
func (e *Engine) Cancel(ctx context.Context, c Caller, id, reason string) (*jobs.Job, error) {
	if _, err := e.visible(ctx, c, id); err != nil {
		return nil, err
	}
	stop := jobs.StopRequest{Principal: c.Principal, Reason: reason, End: jobs.EndCancelledByCaller, At: e.now()}
	return e.stop(context.WithoutCancel(ctx), id, stop, "asked to stop: "+reason)
}

// stop ends a job that has not started, or stores the request to stop a running one.
// One that is to be stopped already is left as it is.
func (e *Engine) stop(ctx context.Context, id string, stop jobs.StopRequest, message string) (*jobs.Job, error) {
	var asked *jobs.Job
	job, err := e.store.Update(ctx, id, func(j *jobs.Job) (jobs.Note, error) {
		note := jobs.Note{Principal: stop.Principal, Message: message}
		switch {
		case j.State == jobs.StateQueued || j.State == jobs.StateAwaitingApproval:
			return note, j.Cancel(stop)
		case j.State == jobs.StateRunning && j.Stop != nil:
			asked = j
			return note, errAsked
		default:
			return note, j.RequestStop(stop)
		}
	})
	switch {
	case errors.Is(err, errAsked):
		job = asked
	case err != nil:
		return nil, err
	}
	if job.State.Settled() {
		e.forget(id)
		e.tidyJob(job)
		return job, nil
	}
	e.mu.Lock()
	l := e.live[id]
	e.mu.Unlock()
	if l != nil {
		l.requestStop()
	}
	return job, nil
}

// errAsked says that there is nothing to write: the job is to be stopped already.
var errAsked = errors.New("a stop was asked for before")

// Resolve ends an unknown job by a named principal's word.
func (e *Engine) Resolve(ctx context.Context, c Caller, id string, to jobs.State, reason string) (*jobs.Job, error) {
	if _, err := e.visible(ctx, c, id); err != nil {
		return nil, err
	}
	job, err := e.store.Update(context.WithoutCancel(ctx), id, func(j *jobs.Job) (jobs.Note, error) {
		note := jobs.Note{Principal: c.Principal, Message: "resolved as " + string(to) + ": " + reason}
		return note, j.Resolve(to, c.Principal, reason, e.now())
	})
	if err != nil {
		return nil, err
	}
	e.tidyAgain(job)
	return job, nil
}
