package engine

import (
	"context"

	"github.com/macexec/macexec/jobs"
)

// probe asks the tool's own probe, a read-only command, whether an unknown job's
// effect happened. Its answer is evidence. That it did not happen counts only when
// nothing of the attempt lives that could still make it happen.
func (a *attempt) probe(ctx context.Context, alive bool) {
	if a.variant == nil {
		return // the programs are not on this host any more
	}
	step, ok, err := a.tool.ProbeStep(ctx, a.vars)
	if !ok {
		return
	}
	if err == nil {
		a.vars.Steps["probe"], err = a.look(ctx, step)
	}
	var happened, notHappened bool
	if err == nil {
		happened, notHappened, err = a.tool.ProbeAnswer(ctx, a.vars)
	}
	proof := jobs.Evidence{Kind: jobs.EvidenceProbe, Attempt: a.n}
	switch {
	case err != nil:
		a.e.log.Warn("a probe gave no answer", "job_id", a.job.ID, "error", err)
		a.e.observer.Probed(a.job, ProbeNoAnswer)
	case happened && !notHappened:
		proof.Detail = "the probe proves that it happened"
		a.e.observer.Probed(a.job, ProbeHappened)
		a.settle(jobs.StateCompleted, jobs.SideEffectApplied, proof)
	case notHappened && !happened && !alive:
		proof.Detail = "the probe proves that it did not happen"
		a.e.observer.Probed(a.job, ProbeNotHappened)
		a.settle(jobs.StateFailed, jobs.SideEffectNone, proof)
	default:
		a.e.observer.Probed(a.job, ProbeNoAnswer)
	}
}

func (a *attempt) settle(to jobs.State, side jobs.SideEffect, proof jobs.Evidence) {
	job, err := a.e.lasting(a.job.ID, proof.Detail, func(j *jobs.Job) error {
		return j.Settle(to, jobs.EndProbed, side, proof, a.e.now())
	})
	if err != nil {
		a.e.log.Warn("what a probe proves was not stored", "job_id", a.job.ID, "error", err)
		return
	}
	a.e.tidyJob(job)
}
