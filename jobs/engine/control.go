package engine

import (
	"context"

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
	job, err := e.store.Update(context.WithoutCancel(ctx), id, func(j *jobs.Job) (jobs.Note, error) {
		note := jobs.Note{Principal: c.Principal, Message: "asked to stop: " + reason}
		if j.State == jobs.StateQueued || j.State == jobs.StateAwaitingApproval {
			return note, j.Cancel(stop)
		}
		return note, j.RequestStop(stop)
	})
	if err != nil {
		return nil, err
	}
	if job.State.Terminal() {
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
	e.tidyJob(job)
	return job, nil
}
