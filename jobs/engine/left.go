package engine

import (
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
// are a tool's, and so no callers.

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

// askProbes asks the probes of unknown jobs of which nothing is watched, one after the
// other: the earlier engine may have left before it had an answer, and what a probe looks
// at may have been out of reach.
func (e *Engine) askProbes(list []*jobs.Job) {
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
	ended := slices.ContainsFunc(job.Evidence, func(ev jobs.Evidence) bool {
		return ev.Kind == jobs.EvidenceToolEnded && ev.Attempt == last.N
	})
	switch {
	case len(last.Left) == 0, ended:
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

func pidsOf(alive []executor.Proc) (pids []int) {
	for _, p := range alive {
		pids = append(pids, p.Pid)
	}
	return pids
}
