package engine

import (
	"context"
	"slices"
	"time"

	"github.com/macexec/macexec/jobs"
)

// recoverAll looks at every job that an earlier engine left open, once, before
// anything new is taken. A damaged record stops nothing else (promise G13).
//
//	awaiting approval, queued   wait on, with the locks if the call does not wait for them
//	running, no intent stored   nothing was started: queued again
//	running, plan stored        the plan is finished, not repeated
//	running, intent stored      the keeper's records decide, under the lock
//	unknown                     keeps its locks; what it left is watched, or else its record read and its probe asked again
//	ended with something left   that is watched
//
// One whose run was cancelled is stopped, if the cancel had not come to that; those that
// wait are only left out here, and stopped while the engine answers already (endLeftOut).
// Nothing new starts before all locks are where they were, nor, of a store that may have
// forgotten what it did last, anything with outside effects before somebody's word.
func (e *Engine) recoverAll(ctx context.Context) error {
	open, damaged, err := e.store.Open(ctx)
	if err != nil {
		return err
	}
	for id, reason := range damaged {
		e.log.Error("a job's record is damaged and is left as it is", "job_id", id, "error", reason)
	}
	var waiting, unwatched []*jobs.Job
	for _, job := range open {
		e.sawID(job.ID)
		e.observer.Found(job)
		switch job.State {
		case jobs.StateRunning:
			e.closedMeanwhile(ctx, job)
			e.sched.expect(e.turnOf(ctx, job))
			e.retention.inherited = append(e.retention.inherited, job.ID)
			e.takeUp(job.ID)
		case jobs.StateUnknown:
			e.sched.keep(e.turnOf(ctx, job))
			if !e.takeUpLeft(job) {
				unwatched = append(unwatched, job)
			}
		default:
			waiting = append(waiting, job)
		}
	}
	left, err := e.store.LeftBehind(ctx)
	if err != nil {
		return err
	}
	for _, job := range left {
		e.takeUpLeft(job)
	}
	// Only those above may have their locks beside others: they are at work, or may be.
	var leftOut []*jobs.Job
	for _, job := range waiting {
		switch why, err := e.store.Closed(ctx, job); {
		case err == nil && why != "":
			leftOut = append(leftOut, job)
		case err != nil:
			e.log.Error("it cannot be told whether the run of a job was cancelled; it is asked again before a start", "job_id", job.ID, "error", err)
			fallthrough
		default:
			e.waitOn(ctx, job)
		}
	}
	if len(unwatched) > 0 {
		e.goRun(func() { e.lookAgain(unwatched) })
	}
	if len(leftOut) > 0 {
		e.goRun(func() { e.endLeftOut(leftOut) })
	}
	return nil
}

// endLeftOut stops waiting jobs of cancelled runs, which may be many. The scheduler does
// not know them, so none can start, also if somebody approves it meanwhile. One that
// cannot be stopped now waits like any other, and is asked again before its start.
func (e *Engine) endLeftOut(list []*jobs.Job) {
	ctx := context.Background()
	manyAtOnce(slices.Values(list), func(job *jobs.Job) {
		if e.stopped.Err() != nil {
			return // the next engine finds it again
		}
		if _, err := e.endClosed(ctx, job); err != nil {
			e.log.Error("a job of a cancelled run cannot be stopped yet", "job_id", job.ID, "error", err)
			t := e.turnOf(ctx, job)
			t.refuse = false
			e.sched.expect(t)
			e.wakeIn(e.retryDelay, job.ID)
		}
	})
}

// closedMeanwhile stops a running job whose run was cancelled. If it cannot be stopped
// or told now, it is asked again before its next start.
func (e *Engine) closedMeanwhile(ctx context.Context, job *jobs.Job) {
	if _, err := e.endClosed(ctx, job); err != nil {
		e.log.Error("a job of a cancelled run, if it is one, cannot be stopped yet", "job_id", job.ID, "error", err)
	}
}

// waitOn lets a job wait as it did before the restart. One that does not wait for locks
// takes them first; if others have one by now (a link leads elsewhere, say, or it had to
// give them up for that before), it waits like any other.
func (e *Engine) waitOn(ctx context.Context, job *jobs.Job) {
	t := e.turnOf(ctx, job)
	held := false
	if t.refuse {
		_, held = e.sched.hold(t)
	}
	if !held {
		t.refuse = false
		e.sched.expect(t)
	}
	e.queue(job, t)
}

// takeUp goes on with a job that was running, unless somebody attends to it. It has its
// slot already, whatever the limits are now.
func (e *Engine) takeUp(id string) {
	if e.sched.occupy(id) {
		e.attend(id, func() (next func()) { return e.seeThrough(id, (*attempt).resume) })
	}
}

// defaultRetryDelay is how long it takes until something that failed for this host's own
// reasons is tried again.
const defaultRetryDelay = 5 * time.Second

// tryAgain looks at a running job's records again after a fault of macexec or its
// host, which says nothing about the tool.
func (e *Engine) tryAgain(id string, fault error) {
	e.log.Error("an attempt could not be concluded; its records are looked at again", "job_id", id, "error", fault)
	e.wakeIn(e.retryDelay, id)
}

// resume finds the place where the earlier engine stopped.
func (a *attempt) resume() error {
	last, ok := a.job.LastAttempt()
	switch {
	case a.job.State != jobs.StateRunning:
		return errLeft // somebody else was first
	case a.job.Plan != nil:
		if err := a.load(); err != nil {
			a.e.log.Warn("the manifest of a job that is publishing cannot be read", "job_id", a.job.ID, "error", err)
		}
		return a.carry()
	case !ok || last.Intent == nil:
		return a.withoutIntent()
	default:
		return a.inspect()
	}
}
