package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
)

// A tool with outside effects that outlives its keeper is not stopped: it may be in the
// middle of what it was asked to do. Its job is unknown. Its processes are watched, by
// proved identity, until none lives; that is recorded as evidence, and then the probe can
// be believed also when it says that nothing happened, so it is asked once more. How the
// tool ended nobody saw, so without a probe the job stays unknown. Meanwhile its processes
// are a tool's, and so no callers, also when a person has resolved the job and another
// engine goes on.
//
// An exit record that was not to be had when the job became unknown, because its disk was
// away, is read when it is there again: at the start of an engine, and when the probe is to
// be asked. It is evidence of the end and settles the job; of a resolved one it is kept.

// watchLeft watches what an attempt has left. The next engine takes it up (takeUpLeft).
func (e *Engine) watchLeft(job *jobs.Job, n int, started keeper.Started) {
	e.mu.Lock()
	e.left[job.ID] = n
	e.mu.Unlock()
	e.goRun(func() {
		if err := e.exec.AwaitLeft(e.stopped, started); err != nil {
			if e.stopped.Err() == nil {
				e.log.Error("the processes of a lost attempt cannot be watched", "job_id", job.ID, "error", err)
			}
			return // they stay a tool's
		}
		e.noneLeft(job.ID, n, "its processes were watched, and none lives any more; how they ended was not seen")
		e.mu.Lock()
		delete(e.left, job.ID)
		e.mu.Unlock()
	})
}

// noneLeft records that nothing of a lost attempt lives, and asks the probe about that.
func (e *Engine) noneLeft(id string, n int, detail string) {
	proof := jobs.Evidence{Kind: jobs.EvidenceToolEnded, Attempt: n, Detail: detail, At: e.now()}
	job, err := e.lasting(id, detail, func(j *jobs.Job) error {
		j.AddEvidence(proof)
		j.RecordLeft(nil)
		if j.State == jobs.StateUnknown {
			j.Message = "its keeper was lost before the tool ended; " + detail + e.lookAt(j.Tool)
		}
		return nil
	})
	if err != nil {
		if e.stopped.Err() == nil {
			e.log.Error("the end of a lost attempt was not stored", "job_id", id, "error", err)
		}
		return
	}
	e.askProbe(job)
}

// lookAt says what a person should look at who is to resolve a job of the tool.
func (e *Engine) lookAt(ref jobs.ToolRef) string {
	tool, err := e.toolOf(ref)
	if err != nil || tool.OnUnknown == "" {
		return ""
	}
	return "; look at: " + tool.OnUnknown
}

// askProbe asks the probe of an unknown job, if its tool has one.
func (e *Engine) askProbe(job *jobs.Job) {
	tool, err := e.toolOf(job.Tool)
	if job.State != jobs.StateUnknown || err != nil || !tool.HasProbe() {
		return
	}
	if _, err := e.probeAgain(e.stopped, job); err != nil && e.stopped.Err() == nil {
		e.log.Warn("the probe of a lost attempt could not be asked", "job_id", job.ID, "error", err)
	}
}

// lookAgain looks at unknown jobs of which nothing is watched, one after the other: whether
// the record of their end can be read now, and else what their probes say. The earlier
// engine may have left before it had an answer, and what a probe looks at may have been out
// of reach.
func (e *Engine) lookAgain(list []*jobs.Job) {
	list = slices.DeleteFunc(list, func(job *jobs.Job) bool {
		told, err := e.readAgain(e.stopped, job)
		if err != nil && e.stopped.Err() == nil {
			e.log.Warn("the records of an unknown job cannot be read", "job_id", job.ID, "error", err)
		}
		return told != ""
	})
	for _, job := range list {
		if e.stopped.Err() != nil {
			return // the next engine finds it again
		}
		now, err := e.store.Get(e.stopped, job.ID) // somebody may have resolved it meanwhile
		if err == nil {
			e.guarded(func() { e.askProbe(now) })
		}
	}
}

// takeUpLeft goes on watching what an attempt of an unknown job has left, and reports
// whether there is anything.
func (e *Engine) takeUpLeft(job *jobs.Job) (watched bool) {
	last, _ := job.LastAttempt()
	switch {
	case len(last.Left) == 0, hasEvidence(job, last.N, jobs.EvidenceToolEnded):
	case last.BootSession != e.boot:
		e.goRun(func() {
			e.noneLeft(job.ID, last.N, "the host was started again meanwhile, and its processes ended by then; how was not seen")
		})
		return true
	default:
		started, err := e.exec.Started(job.ID, last.N)
		if err != nil && last.Started != nil {
			// Its folder is gone. What the job knows does for the tool's first process.
			started = keeper.Started{Pid: last.Started.PID, StartTime: last.Started.StartTime}
		}
		if started.Pid != 0 {
			e.watchLeft(job, last.N, started)
			return true
		}
	}
	return false
}

func hasEvidence(job *jobs.Job, n int, kind jobs.EvidenceKind) bool {
	return slices.ContainsFunc(job.Evidence, func(ev jobs.Evidence) bool { return ev.Kind == kind && ev.Attempt == n })
}

// readAgain reads the records of an unknown or resolved job again. If there is one now that
// says how it ended, it reports that, and the job has it.
func (e *Engine) readAgain(ctx context.Context, job *jobs.Job) (told string, err error) {
	last, ok := job.LastAttempt()
	if !ok || last.Intent == nil || hasEvidence(job, last.N, jobs.EvidenceExitRecord) {
		return "", nil // without an intent a restored store knows nothing of the start, nor of later ones
	}
	found, err := e.exec.Inspect(job.ID, last.N)
	switch {
	case err != nil:
		return "", err
	case found.Kind == executor.Held:
		e.watchHeld(job, last.N)
		return "", nil
	case found.Kind != executor.Exited:
		return "", nil
	}
	return e.takeLate(ctx, job, found)
}

// watchHeld watches an unknown or resolved job whose keeper turns out to live, until it
// has written down how the tool ended.
func (e *Engine) watchHeld(job *jobs.Job, n int) {
	e.mu.Lock()
	_, watched := e.left[job.ID]
	if !watched {
		e.left[job.ID] = n
	}
	e.mu.Unlock()
	if watched {
		return
	}
	e.goRun(func() {
		running, held, err := e.exec.Attach(job.ID, n)
		var found executor.Found
		if held {
			found, err = running.Wait(e.stopped)
			running.Detach()
		} else if err == nil {
			found, err = e.exec.Inspect(job.ID, n) // it ended while we came
		}
		if err == nil && found.Kind == executor.Exited {
			_, err = e.takeLate(e.stopped, job, found)
		}
		if err != nil && e.stopped.Err() == nil {
			e.log.Error("the end of an unknown job that still ran was not stored", "job_id", job.ID, "error", err)
		}
		e.mu.Lock()
		delete(e.left, job.ID)
		e.mu.Unlock()
	})
}

// takeLate settles an unknown job by an exit record that came late, as if it had been read
// in time. What cannot be settled by it, because a person has resolved the job or its
// outputs would have to be published, keeps it as evidence.
func (e *Engine) takeLate(ctx context.Context, job *jobs.Job, found executor.Found) (told string, err error) {
	secrets, sealed := e.vault.openAll(job)
	a := &attempt{e: e, job: job, n: len(job.Attempts), secrets: secrets, sealed: sealed != nil, began: e.now()}
	proof := exitEvidence(a.n, found.Exit)
	told = "its exit record can be read now: " + proof.Detail
	if job.State == jobs.StateUnknown {
		err := a.finishLate(ctx, found)
		o, ok := errors.AsType[*over](err)
		if !ok && err != nil {
			return "", err
		}
		if ok {
			settled, err := e.lasting(job.ID, told, o.change)
			if err == nil {
				a.tidy(settled)
				return told, nil
			}
			if jobs.CodeOf(err) != jobs.CodeStateConflict {
				return "", err
			} // a person was quicker
		}
	}
	_, err = e.lasting(job.ID, told, func(j *jobs.Job) error {
		if !hasEvidence(j, a.n, proof.Kind) {
			j.AddEvidence(proof)
		}
		return nil
	})
	return told, err
}

// finishLate goes on from a late exit record, and returns nil if it does not decide.
func (a *attempt) finishLate(ctx context.Context, found executor.Found) error {
	if found.Exit.NotStarted || endedOf(*found.Exit) != jobs.EndedZero {
		return a.finish(found)
	}
	if err := a.reload(ctx); err != nil {
		a.e.log.Warn("what an unknown job has made cannot be verified", "job_id", a.job.ID, "error", err)
		return nil
	}
	if len(a.tool.Artifacts) > 0 || len(a.tool.Publish) > 0 || a.variant == nil {
		return nil
	}
	a.tidied = a.wasTidied()
	return a.verify(found)
}

func pidsOf(alive []executor.Proc) (pids []int) {
	for _, p := range alive {
		pids = append(pids, p.Pid)
	}
	return pids
}
