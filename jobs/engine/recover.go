package engine

import (
	"context"

	"github.com/macexec/macexec/jobs"
)

// recoverAll looks at every job that an earlier engine left open, once, before
// anything new is taken. A damaged record stops nothing else (promise G13).
//
//	awaiting approval, queued   wait on
//	running, no intent stored   nothing was started: queued again
//	running, plan stored        the plan is finished, not repeated
//	running, intent stored      the keeper's records decide, under the lock
//	unknown                     stays unknown
func (e *Engine) recoverAll(ctx context.Context) error {
	open, damaged, err := e.store.Open(ctx)
	if err != nil {
		return err
	}
	for id, reason := range damaged {
		e.log.Error("a job's record is damaged and is left as it is", "job_id", id, "error", reason)
	}
	for _, job := range open {
		switch job.State {
		case jobs.StateQueued, jobs.StateAwaitingApproval:
			e.admit(job, e.slotOf(job))
		case jobs.StateRunning:
			e.takeUp(job)
		default:
		}
	}
	return nil
}

// takeUp goes on with a job that was running. It has its slot already, whatever
// the limits are now.
func (e *Engine) takeUp(job *jobs.Job) {
	slot := e.slotOf(job)
	e.sched.occupy(slot)
	a := e.newAttempt(job)
	e.goRun(func() {
		defer func() {
			e.endLive(job.ID)
			e.sched.release(slot)
			e.dispatch()
		}()
		a.conclude(a.resume())
	})
}

// takeUpAgain goes on with a job that could not be concluded before.
func (e *Engine) takeUpAgain(id string) {
	job, err := e.store.Get(context.Background(), id)
	if err != nil {
		e.log.Error("a running job cannot be read", "job_id", id, "error", err)
		return
	}
	if job.State == jobs.StateRunning {
		e.takeUp(job)
	}
}

// resume finds the place where the earlier engine stopped.
func (a *attempt) resume() error {
	last, ok := a.job.LastAttempt()
	switch {
	case a.job.Plan != nil:
		if err := a.load(); err != nil {
			a.e.log.Warn("the manifest of a job that is publishing is gone", "job_id", a.job.ID, "error", err)
		}
		return a.carry()
	case !ok || last.Intent == nil:
		return a.neverBegan()
	default:
		return a.inspect()
	}
}

// neverBegan queues a job again whose attempt stored no intent.
func (a *attempt) neverBegan() error {
	return &over{event: jobs.EventRequeue, why: "the attempt had stored no intent", change: func(j *jobs.Job) error {
		return a.again(j, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "no intent was stored, so nothing was started", Attempt: a.n})
	}}
}

// slotOf is the class of slots that a job takes.
func (e *Engine) slotOf(job *jobs.Job) string {
	tool, ok := e.registry.Tool(job.Tool.Name, job.Tool.Version)
	if !ok || !runs(tool) {
		return publishSlot
	}
	if variant, _ := e.chooseVariant(tool); variant != nil {
		return variant.Slot
	}
	return publishSlot
}

// publishSlot is the class of jobs that start no process.
const publishSlot = "publish"
