package engine

import (
	"context"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/jobs"
)

// Probed is what a job's probe says.
type Probed struct {
	Job    *jobs.Job // afterwards
	Answer ProbeAnswer
	Detail string
}

// ProbeJob asks the tool's probe about an unknown job, or about one that a person has
// resolved; of that the answer is kept and changes nothing. That it is asked is in the
// journal before it is.
func (e *Engine) ProbeJob(ctx context.Context, c Caller, id string) (Probed, error) {
	job, err := e.visible(ctx, c, id)
	if err != nil {
		return Probed{}, err
	}
	if job.State != jobs.StateUnknown && job.EndReason != jobs.EndResolved {
		return Probed{}, jobs.Errorf(jobs.CodeStateConflict, "job %s is %s, and its records say so; only an unknown job, or one that a person has resolved, is probed", id, job.State).WithJob(id)
	}
	if told, err := e.readAgain(ctx, job); told != "" || err != nil {
		return e.probedByRecord(ctx, c, id, told, err)
	}
	if tool, err := e.toolOf(job.Tool); err == nil && !tool.HasProbe() {
		return Probed{}, jobs.Errorf(jobs.CodeStateConflict, "%s has no probe; look at what job %s may have done, and resolve it", job.Tool.Name, id).WithJob(id)
	}
	job, err = e.store.Update(ctx, id, func(*jobs.Job) (jobs.Note, error) {
		return jobs.Note{Principal: c.Principal, Message: "the probe is asked"}, nil
	})
	if err != nil {
		return Probed{}, err
	}
	p, err := e.probeAgain(ctx, job)
	if err != nil {
		return Probed{}, err
	}
	p.Job, err = e.Job(ctx, c, id)
	return p, err
}

// probedByRecord is the answer where a probe is not needed any more.
func (e *Engine) probedByRecord(ctx context.Context, c Caller, id, told string, err error) (Probed, error) {
	if err != nil {
		return Probed{}, err
	}
	job, err := e.Job(ctx, c, id)
	return Probed{Job: job, Answer: ProbeNoAnswer, Detail: told}, err
}

// probeAgain asks the probe of a lost attempt that nobody attends to.
func (e *Engine) probeAgain(ctx context.Context, job *jobs.Job) (Probed, error) {
	secrets, err := e.vault.openAll(job)
	a := &attempt{e: e, job: job, n: len(job.Attempts), secrets: secrets, sealed: err != nil}
	found, err := e.exec.Inspect(job.ID, a.n)
	if err != nil {
		return Probed{}, err
	}
	if err := a.reload(ctx); err != nil {
		return a.unanswered("it cannot be asked: " + plainMessage(err)), nil
	}
	return a.probe(ctx, a.mayLive(found)), nil
}

// probe asks the tool's own probe, a read-only command, whether an unknown job's
// effect happened. Its answer is evidence. That it did not happen counts only when
// nothing of the attempt lives that could still make it happen.
func (a *attempt) probe(ctx context.Context, alive bool) Probed {
	if a.variant == nil {
		return a.unanswered("its programs are not on this host any more")
	}
	step, _, err := a.tool.ProbeStep(ctx, a.vars)
	if err == nil {
		a.vars.Steps["probe"], err = a.look(ctx, step)
	}
	var happened, notHappened bool
	if err == nil {
		happened, notHappened, err = a.tool.ProbeAnswer(ctx, a.vars)
	}
	switch {
	case err != nil:
		return a.unanswered("it gave no answer: " + plainMessage(err))
	case happened:
		return a.answered(ProbeHappened, jobs.StateCompleted, jobs.SideEffectApplied, "the probe proves that it happened")
	case notHappened && alive:
		return a.unanswered("it did not happen so far, and processes of it may still live")
	case notHappened:
		return a.answered(ProbeNotHappened, jobs.StateFailed, jobs.SideEffectNone, "the probe proves that it did not happen")
	default:
		return a.unanswered("the probe proves nothing")
	}
}

func (a *attempt) unanswered(why string) Probed {
	a.e.log.Warn("a probe proves nothing", "job_id", a.job.ID, "why", why)
	a.e.observer.Probed(a.job, ProbeNoAnswer)
	return Probed{Answer: ProbeNoAnswer, Detail: why}
}

// answered settles an unknown job by a probe's answer. One that was resolved meanwhile
// keeps the answer as evidence that came later.
func (a *attempt) answered(answer ProbeAnswer, to jobs.State, side jobs.SideEffect, detail string) Probed {
	a.e.observer.Probed(a.job, answer)
	proof := jobs.Evidence{Kind: jobs.EvidenceProbe, Attempt: a.n, Detail: detail, At: a.e.now()}
	job, err := a.e.lasting(a.job.ID, detail, func(j *jobs.Job) error {
		if j.State.Terminal() {
			j.AddEvidence(proof)
			return nil
		}
		return j.Settle(to, jobs.EndProbed, side, proof, a.e.now())
	})
	if err != nil {
		a.e.log.Warn("what a probe proves was not stored", "job_id", a.job.ID, "error", err)
	} else {
		a.e.tidyJob(job)
	}
	return Probed{Answer: answer, Detail: detail}
}

// mayLive reports whether something of a lost attempt may still live. Where the records
// that would tell are gone, what the job knows of its process has to do.
func (a *attempt) mayLive(found executor.Found) bool {
	last, _ := a.job.LastAttempt()
	switch {
	case found.Kind == executor.Exited, found.Kind == executor.Rebooted, last.BootSession != a.e.boot:
		return false
	case found.Kind == executor.Lost && found.Started != nil:
		return false
	case found.Started == nil && last.Started != nil:
		return executor.Proc{Pid: last.Started.PID, StartTime: last.Started.StartTime}.Alive()
	default:
		return true
	}
}
