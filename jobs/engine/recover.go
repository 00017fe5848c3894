package engine

import (
	"context"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/jobs"
)

// recoverAll looks at every job that an earlier engine left open, once, before
// anything new is taken. A damaged record stops nothing else (promise G13).
//
//	awaiting approval, queued   wait on, with the locks if they had them
//	running, no intent stored   nothing was started: queued again
//	running, plan stored        the plan is finished, not repeated
//	running, intent stored      the keeper's records decide, under the lock
//	unknown                     stays unknown, and keeps its locks
//
// One whose run was cancelled is stopped, if the cancel had not come to that.
// Nothing new starts before all locks are where they were.
func (e *Engine) recoverAll(ctx context.Context) error {
	open, damaged, err := e.store.Open(ctx)
	if err != nil {
		return err
	}
	for id, reason := range damaged {
		e.log.Error("a job's record is damaged and is left as it is", "job_id", id, "error", reason)
	}
	for _, job := range open {
		e.sawID(job.ID)
		e.observer.Found(job)
		if job.State != jobs.StateUnknown {
			ended, err := e.endClosed(ctx, job)
			if err != nil { // it is asked again before a start
				e.log.Error("it cannot be told whether a job's run was cancelled", "job_id", job.ID, "error", err)
			}
			if ended && job.State != jobs.StateRunning {
				continue
			}
		}
		switch job.State {
		case jobs.StateQueued, jobs.StateAwaitingApproval:
			if job.Call.Options.OnLock == jobs.OnLockRefuse {
				e.sched.keep(e.turnOfStored(job))
			} else {
				e.sched.expect(turn{id: job.ID, principal: job.Principal, class: e.slotOf(job), rank: rankOf(job)})
			}
			e.admit(job)
		case jobs.StateRunning:
			e.takeUp(job)
		case jobs.StateUnknown:
			e.sched.keep(e.turnOfStored(job))
		default:
		}
	}
	return nil
}

// takeUp goes on with a job that was running. It has its slot already, whatever
// the limits are now.
func (e *Engine) takeUp(job *jobs.Job) {
	e.sched.occupy(e.turnOfStored(job))
	e.attend(job.ID, func() {
		a, err := e.newAttempt(job.ID)
		if err != nil {
			e.tryAgain(job.ID, err)
			return
		}
		a.conclude(a.resume())
	})
}

// tryAgainAfter is the pause before something that failed for this host's own
// reasons is tried again.
const tryAgainAfter = 5 * time.Second

// tryAgain looks at a running job's records again after a fault of macexec or its
// host, which says nothing about the tool.
func (e *Engine) tryAgain(id string, fault error) {
	e.log.Error("an attempt could not be concluded; its records are looked at again", "job_id", id, "error", fault)
	e.at(e.now().Add(e.pause), id, func() {
		job, err := e.store.Get(context.Background(), id)
		switch code := jobs.CodeOf(err); {
		case code == jobs.CodeJobNotFound, code == jobs.CodeRecordDamaged:
			e.log.Error("a running job's record cannot be used", "job_id", id, "error", err)
		case err != nil:
			e.tryAgain(id, err)
		case job.State == jobs.StateRunning:
			e.takeUp(job)
		case job.State == jobs.StateQueued:
			e.admit(job)
		}
	})
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
		return a.requeue(jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "no intent was stored, so nothing was started", Attempt: a.n}, executor.Found{})
	default:
		return a.inspect()
	}
}

// slotOf is the class of slots that a job takes.
func (e *Engine) slotOf(job *jobs.Job) string {
	tool, err := e.toolOf(job.Tool)
	if err != nil || !runs(tool) {
		return publishSlot
	}
	if variant, _ := e.chooseVariant(tool); variant != nil {
		return variant.Slot
	}
	return publishSlot
}

// publishSlot is the class of jobs that start no process.
const publishSlot = "publish"
