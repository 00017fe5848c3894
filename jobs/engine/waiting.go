package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/macexec/macexec/jobs"
)

// admit lets a job that was stored before wait for its turn, or for a person.
func (e *Engine) admit(job *jobs.Job) {
	var t turn
	if job.State == jobs.StateQueued {
		t = e.turnOf(context.Background(), job)
	}
	e.queue(job, t)
}

func (e *Engine) queue(job *jobs.Job, t turn) {
	e.wakeWhenDue(job)
	if job.State == jobs.StateQueued {
		e.sched.add(t)
		e.dispatch()
	}
}

// waitAgain lets a job that its attempt has queued again wait for the next one, after a
// delay if there is to be one. What it returns comes when the slot is given back.
func (e *Engine) waitAgain(job *jobs.Job, delay time.Duration) (next func()) {
	if delay <= 0 {
		e.sched.queueAgain(job.ID)
		return func() { e.wakeWhenDue(job) }
	}
	e.sched.rest(job.ID)
	return func() {
		e.wakeWhenDue(job)
		e.wakeIn(delay, job.ID)
	}
}

// due says when a job that waits is to be ended if it still waits, and by what.
func (e *Engine) due(job *jobs.Job) (by time.Time, end func(id string), ok bool) {
	startBy := job.Call.Options.StartBy
	switch {
	case job.State == jobs.StateAwaitingApproval && (startBy.IsZero() || job.Approval.ExpiresAt.Before(startBy)):
		return job.Approval.ExpiresAt, e.expire, true
	case job.State == jobs.StateAwaitingApproval, job.State == jobs.StateQueued:
		return startBy, e.tooLate, !startBy.IsZero()
	default:
		return time.Time{}, nil, false
	}
}

func (e *Engine) wakeWhenDue(job *jobs.Job) {
	if by, _, ok := e.due(job); ok {
		e.wakeIn(e.deadlines.left(job, by), job.ID)
	}
}

// wake does what is to be done now about a job that nobody attends to. It goes by the
// job as it is, whatever it was woken for, and sees to the next time by itself; so it
// may be called at any time.
func (e *Engine) wake(id string) {
	job, err := e.store.Get(context.Background(), id)
	switch code := jobs.CodeOf(err); {
	case code == jobs.CodeJobNotFound, code == jobs.CodeRecordDamaged:
		e.log.Error("the record of a job that is to go on cannot be used", "job_id", id, "error", err)
		return
	case err != nil:
		e.log.Warn("a job that is to go on cannot be read; it is tried again", "job_id", id, "error", err)
		e.wakeIn(e.retryDelay, id)
		return
	}
	if by, end, ok := e.due(job); ok && e.deadlines.left(job, by) < 0 {
		end(id)
		return
	}
	if job.State == jobs.StateRunning {
		e.takeUp(id)
		return
	}
	e.admit(job)
}

// notTooLate refuses a start after start_by by the clock that nobody sets. What the wall
// clock says the job itself looks at.
func (e *Engine) notTooLate(j *jobs.Job) error {
	if by := j.Call.Options.StartBy; !by.IsZero() && e.deadlines.left(j, by) < 0 {
		return jobs.Errorf(jobs.CodeTooLate, "job %s may not start after %s", j.ID, by.Format(time.RFC3339)).WithJob(j.ID)
	}
	return nil
}

// inTime refuses a start after start_by by either clock.
func (e *Engine) inTime(j *jobs.Job) error {
	if err := e.notTooLate(j); err != nil {
		return err
	}
	return j.InTime(e.now())
}

// expire cancels a job that nobody decided in time.
func (e *Engine) expire(id string) {
	e.endWaiting(id, "nobody decided in time", func(j *jobs.Job) error {
		if j.State == jobs.StateAwaitingApproval && !e.deadlines.passed(j, j.Approval.ExpiresAt) {
			return errNotYet
		}
		return j.Expire(e.now())
	})
}

// tooLate cancels a job that has not started by its start_by (promise G15).
func (e *Engine) tooLate(id string) {
	e.endWaiting(id, "start_by has passed", func(j *jobs.Job) error {
		if !e.deadlines.passed(j, j.Call.Options.StartBy) {
			return errNotYet
		}
		if j.State == jobs.StateRunning {
			return jobs.Errorf(jobs.CodeStateConflict, "it has begun")
		}
		return j.TooLate(e.now())
	})
}

// errNotYet says that a deadline is not to be acted on yet: only the wall clock says that
// it has passed, or this process was suspended.
var errNotYet = errors.New("the time has not come")

// endWaiting ends a job that waits. If that cannot be stored now it is tried again;
// the job does not start meanwhile, since Begin looks at the time itself.
func (e *Engine) endWaiting(id, message string, end func(*jobs.Job) error) {
	job, err := e.change(id, message, end)
	switch {
	case err == nil:
		e.forget(id)
		e.tidyJob(job)
	case jobs.CodeOf(err) == jobs.CodeJobNotFound:
	case jobs.CodeOf(err) == jobs.CodeStateConflict:
		// Somebody decided, began or ended it meanwhile, and sees to what comes.
	default:
		e.wakeIn(e.retryDelay, id)
	}
}

// wakeup is when a job is looked at again.
type wakeup struct {
	at    time.Time // by a clock that nobody sets
	timer *time.Timer
}

// wakeIn has a job looked at again after a while, unless the engine stops or the job is
// forgotten before. A job has one wakeup, the first of those that were asked for:
// waking it sees to the others.
func (e *Engine) wakeIn(wait time.Duration, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped.Err() != nil {
		return
	}
	// Never at once: a clock that stands still must not keep a processor busy.
	wait = max(wait, time.Millisecond)
	w := &wakeup{at: time.Now().Add(wait)}
	if old := e.wakeups[id]; old != nil {
		if !w.at.Before(old.at) {
			return
		}
		old.timer.Stop()
	}
	w.timer = time.AfterFunc(wait, func() {
		if e.isDue(id, w) {
			e.goRun(func() {
				woken := false
				defer func() {
					if !woken { // a panic, which is told of elsewhere
						e.wakeIn(e.retryDelay, id)
					}
				}()
				e.wake(id)
				woken = true
			})
		}
	})
	e.wakeups[id] = w
}

// wakeAllIn has every job that has a wakeup looked at after a while.
func (e *Engine) wakeAllIn(wait time.Duration) {
	e.mu.Lock()
	ids := slices.Collect(maps.Keys(e.wakeups))
	e.mu.Unlock()
	for _, id := range ids {
		e.wakeIn(wait, id)
	}
}

// isDue takes a wakeup whose time has come off the list, if it still stands there.
func (e *Engine) isDue(id string, w *wakeup) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wakeups[id] != w {
		return false
	}
	delete(e.wakeups, id)
	return true
}

// forget drops the wakeup of a job that has gone on.
func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.wakeups[id]; w != nil {
		w.timer.Stop()
		delete(e.wakeups, id)
	}
}
