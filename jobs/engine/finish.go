package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
)

// watch waits for the keeper and the tool, and finishes from what they leave.
func (a *attempt) watch(running *executor.Running) error {
	ctx := a.e.stopped
	ended := make(chan struct{})
	id := a.job.ID
	a.e.goRun(func() { a.passStopOn(id, running, ended) })
	a.e.goRun(func() { a.showStart(ctx, id, running, ended) })
	a.live.setProgress(a.progressSource(ctx))
	found, err := running.Wait(ctx)
	close(ended)
	a.live.setProgress(nil)
	if err != nil {
		running.Detach()
		if a.e.stopped.Err() != nil {
			return errLeft
		}
		return err
	}
	return a.conclusion(found)
}

// passStopOn hands a stored stop request to the keeper, and tries until it has it or
// the attempt has ended: the request was acknowledged.
func (a *attempt) passStopOn(id string, running *executor.Running, ended <-chan struct{}) {
	asked := a.live.stop
	var again <-chan time.Time
	for {
		select {
		case <-ended:
			return
		case <-a.e.stopped.Done():
			return
		case <-asked:
		case <-again:
		}
		err := running.Stop("requested")
		if err == nil || errors.Is(err, executor.ErrEnded) {
			return
		}
		a.e.log.Warn("the keeper could not be told to stop; trying again", "job_id", id, "error", err)
		asked, again = nil, time.After(a.e.retryDelay)
	}
}

// showStart stores the tool's pid, so that people can look at a job that runs for
// long. A short one carries it with its end and costs no write of its own.
func (a *attempt) showStart(ctx context.Context, id string, running *executor.Running, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
		return
	case <-time.After(showStartAfter):
	}
	started, ok, err := running.Started(ctx)
	if err != nil || !ok {
		return
	}
	_, err = a.e.change(id, "the tool runs", func(j *jobs.Job) error {
		if j.State != jobs.StateRunning || j.Phase != jobs.PhaseRunning || len(j.Attempts) != a.n {
			return jobs.Errorf(jobs.CodeStateConflict, "it has ended meanwhile")
		}
		j.RecordStarted(startedOf(started))
		return nil
	})
	if err != nil && jobs.CodeOf(err) != jobs.CodeStateConflict {
		a.e.log.Warn("a start could not be shown", "job_id", id, "error", err)
	}
}

const showStartAfter = 300 * time.Millisecond

// inspect asks the records what became of an attempt that nobody watches.
func (a *attempt) inspect() error {
	found, err := a.e.exec.Inspect(a.job.ID, a.n)
	if err != nil {
		return err
	}
	if found.Kind == executor.Held {
		running, held, err := a.e.exec.Attach(a.job.ID, a.n)
		if err != nil {
			return err
		}
		if held {
			if err := a.reload(a.e.stopped); err != nil {
				// It can be watched all the same; that it cannot be verified is said at its end.
				a.e.log.Warn("a running job's manifest or inputs cannot be read again", "job_id", a.job.ID, "error", err)
				a.variant = nil
			}
			return a.watch(running)
		}
		return a.inspect()
	}
	a.tidied = a.wasTidied()
	return a.conclusion(found)
}

// conclusion is the recovery table of the design: what was found under the
// attempt's lock, and what follows from it.
func (a *attempt) conclusion(found executor.Found) error {
	switch found.Kind {
	case executor.Exited:
		return a.finish(found)
	case executor.NeverStarted:
		return a.neverRan()
	case executor.Unwatched:
		return a.lost(found, jobs.EndedUnwatched, "its keeper is gone while the tool still runs"+pids(found))
	case executor.Lost:
		return a.lost(found, jobs.EndedKeeperLost, "its keeper and its tool are gone, and no record says how the tool ended")
	case executor.Rebooted:
		return a.lost(found, jobs.EndedRebooted, "stopped by a reboot, outcome unproven")
	case executor.FolderGone:
		return a.lost(found, jobs.EndedFolderGone, "the attempt's folder is gone, and with it the proof of how the tool ended")
	case executor.Held:
	}
	return jobs.Errorf(jobs.CodeInternal, "attempt %d of job %s was found %v", a.n, a.job.ID, found.Kind)
}

func pids(found executor.Found) string {
	var list []string
	for _, p := range found.Alive {
		list = append(list, fmt.Sprint(p.Pid))
	}
	if len(list) == 0 {
		return ""
	}
	return " (pids " + strings.Join(list, ", ") + ")"
}

// neverRan queues the job again: its keeper released nothing.
func (a *attempt) neverRan() error {
	return a.requeue(jobs.Evidence{
		Kind: jobs.EvidenceNeverStarted, Attempt: a.n,
		Detail: "the lock was free and no start is recorded; the attempt is fenced",
	}, executor.Found{})
}

// lost gives an attempt up. A tool that leaves nothing behind is stopped for good
// and run again; any other is unknown.
func (a *attempt) lost(found executor.Found, ended jobs.Ended, why string) error {
	out := jobs.OutcomeOf(a.job.Tool.Effects, ended)
	evidence := jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: why, Attempt: a.n}
	if out.State == jobs.StateQueued {
		if found.Kind == executor.Unwatched {
			if err := a.e.exec.StopTree(a.e.stopped, found); err != nil {
				return err
			}
		}
		return a.requeue(evidence, found)
	}
	if a.tool == nil {
		if err := a.reload(a.e.stopped); err != nil {
			a.e.log.Warn("the manifest or the inputs of a lost job cannot be read again", "job_id", a.job.ID, "error", err)
		}
	}
	message := why + a.e.lookAt(a.job.Tool)
	return &over{why: why, found: found, change: func(j *jobs.Job) error {
		keepStart(j, found)
		j.RecordLeft(pidsOf(found.Alive))
		return j.End(out, evidence, message, a.e.now())
	}}
}

// requeue queues a job for its next attempt, unless it is to be stopped or has had
// all its attempts. Only attempts that started count; that none starts at all is
// tried for longer, since it is this host's fault and not the tool's.
func (a *attempt) requeue(why jobs.Evidence, found executor.Found) error {
	return &over{why: why.Detail, change: func(j *jobs.Job) error {
		keepStart(j, found)
		return a.again(j, why)
	}}
}

// again makes the change that requeue is about.
func (a *attempt) again(j *jobs.Job, why jobs.Evidence) error {
	started := 0
	for _, at := range j.Attempts {
		if at.Started != nil {
			started++
		}
	}
	out := jobs.Outcome{State: jobs.StateFailed, Reason: jobs.EndAttemptsExhausted, SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
	switch {
	case j.Stop != nil:
		out.State, out.Reason = jobs.StateCancelled, stopReason(j)
		return j.End(out, why, "stopped; "+why.Detail, a.e.now())
	case started >= a.e.limits().MaxAttempts:
		return j.End(out, why, fmt.Sprintf("%d attempts were lost; the last one: %s", started, why.Detail), a.e.now())
	case len(j.Attempts)-started >= maxUnstarted:
		out.Reason = jobs.EndStartFailed
		return j.End(out, why, fmt.Sprintf("%d attempts could not be started; the last one: %s", len(j.Attempts)-started, why.Detail), a.e.now())
	default:
		return j.Requeue(why, a.e.now())
	}
}

// maxUnstarted bounds attempts that never came to a start.
const maxUnstarted = 100

// finish goes on from the keeper's exit record.
func (a *attempt) finish(found executor.Found) error {
	exit := *found.Exit
	if exit.NotStarted {
		return a.notStarted(found)
	}
	ended := endedOf(exit)
	if ended == jobs.EndedZero {
		return a.verify(found)
	}
	return a.endBy(found, ended, endMessage(exit, ended))
}

// notStarted ends a job of which the keeper recorded that not one instruction ran.
func (a *attempt) notStarted(found executor.Found) error {
	x := *found.Exit
	out := jobs.OutcomeOf(a.job.Tool.Effects, jobs.EndedNotStarted)
	why := "the tool could not be started: " + x.Error
	return &over{why: why, change: func(j *jobs.Job) error {
		out := out
		switch {
		case x.StoppedFor == keeper.StoppedForRequest:
			out.State, out.Reason = jobs.StateCancelled, stopReason(j)
		case x.StoppedFor == keeper.StoppedForTimeout:
			out.Reason = jobs.EndTimeout
		case x.DiskFull:
			out.Reason = jobs.EndDiskFull
		}
		a.keepExit(j, found)
		j.RecordNotStarted()
		if x.TooLate && j.State == jobs.StateRunning {
			proof := exitEvidence(a.n, &x)
			proof.Kind = jobs.EvidenceNeverStarted
			if a.e.notTooLate(j) == nil {
				proof.Detail = onlyWall
				return a.again(j, proof)
			}
			return j.RefusedTooLate(proof, a.e.now())
		}
		return a.endIn(j, out, exitEvidence(a.n, &x), why)
	}}
}

// endBy ends the job by the outcome table, as not completed.
func (a *attempt) endBy(found executor.Found, ended jobs.Ended, message string) error {
	message = masked(message, a.secrets)
	tail, cause := a.lastWords()
	if ended == jobs.EndedDiskFull && (found.Exit.DiskFull || found.Exit.NoRoom) {
		a.makeRoom()
	}
	return &over{why: message, change: func(j *jobs.Job) error {
		out := jobs.OutcomeOf(j.Tool.Effects, ended)
		if ended == jobs.EndedStopped {
			out.Reason = stopReason(j)
		}
		keepStart(j, found)
		a.keepExit(j, found)
		j.LogTail, j.Cause = tail, cause
		return a.endIn(j, out, exitEvidence(a.n, found.Exit), message)
	}}
}

// endIn ends a running job, or an unknown one whose exit record came late.
func (a *attempt) endIn(j *jobs.Job, out jobs.Outcome, why jobs.Evidence, message string) error {
	if j.State == jobs.StateUnknown {
		return j.EndLate(out, why, message, a.e.now())
	}
	return j.End(out, why, message, a.e.now())
}

// endedOf reads an exit record. That the disk was full counts even with exit code
// 0: what such a tool wrote cannot be whole.
func endedOf(x keeper.Exit) jobs.Ended {
	switch {
	case x.StoppedFor == keeper.StoppedForRequest:
		return jobs.EndedStopped
	case x.StoppedFor == keeper.StoppedForTimeout:
		return jobs.EndedTimeout
	case x.DiskFull:
		return jobs.EndedDiskFull
	case x.Signal == int(syscall.SIGXFSZ), x.CaptureOverflow:
		return jobs.EndedOutputLimit
	case x.OutOfMemory:
		return jobs.EndedMemory
	case x.Signal != 0:
		return jobs.EndedSignal
	case x.Code != 0:
		return jobs.EndedNonZero
	case x.Unflushed:
		return jobs.EndedBadOutput
	default:
		return jobs.EndedZero
	}
}

func endMessage(x keeper.Exit, ended jobs.Ended) string {
	switch ended {
	case jobs.EndedBadOutput:
		return "it exited with 0, but its outputs could not be brought to the disk"
	case jobs.EndedStopped:
		return "stopped on request; its processes are gone"
	case jobs.EndedTimeout:
		return "it ran longer than its time limit and was stopped"
	case jobs.EndedDiskFull:
		return "the disk was full while it ran"
	case jobs.EndedOutputLimit:
		return "it wrote more than it may"
	case jobs.EndedMemory:
		return "it could not get the memory it wanted"
	case jobs.EndedSignal:
		return "it was killed by " + signalName(x.Signal)
	default:
		return fmt.Sprintf("it exited with code %d", x.Code)
	}
}

func signalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

func exitEvidence(n int, x *keeper.Exit) jobs.Evidence {
	detail := fmt.Sprintf("exit code %d", x.Code)
	if x.Signal != 0 {
		detail = signalName(x.Signal)
	}
	if x.NotStarted {
		detail = "not started: " + x.Error
	}
	return jobs.Evidence{Kind: jobs.EvidenceExitRecord, Detail: "the keeper recorded " + detail, Attempt: n, At: x.At}
}

func startedOf(s keeper.Started) jobs.Started {
	return jobs.Started{PID: s.Pid, StartTime: s.StartTime, BootSession: s.BootSession, At: s.At}
}

func keepStart(j *jobs.Job, found executor.Found) {
	if found.Started != nil {
		j.RecordStarted(startedOf(*found.Started))
		if found.Exit == nil {
			j.Usage.Scope = jobs.UsagePartial // what this attempt used is lost
		}
	}
}

func (a *attempt) keepExit(j *jobs.Job, found executor.Found) {
	x := found.Exit
	out := jobs.Exit{Code: x.Code, StoppedFor: string(x.StoppedFor), At: x.At}
	if x.Signal != 0 {
		out.Code, out.Signal = -1, signalName(x.Signal)
	}
	for _, p := range x.Escaped {
		out.Escaped = append(out.Escaped, p.Pid)
	}
	if len(out.Escaped) > 0 {
		j.Warnings = append(slices.Clone(j.Warnings), fmt.Sprintf("processes that left the tool's session still run: %v", out.Escaped))
	}
	j.RecordExit(out)
	j.Usage.Running += x.Wall
	j.Usage.CPUUser += x.Usage.UserCPU
	j.Usage.CPUSystem += x.Usage.SystemCPU
	switch {
	case !x.Usage.Whole:
		j.Usage.Scope = jobs.UsagePartial
	case j.Usage.Scope == "":
		j.Usage.Scope = jobs.UsageWhole // unless an earlier attempt was not
	}
	j.Usage.PeakMemory = max(j.Usage.PeakMemory, x.Usage.MaxRSS)
	j.Usage.BytesIn = 0
	for _, in := range j.Inputs {
		j.Usage.BytesIn += in.Size
	}
}

// lastWords are the last lines of the attempt's log, masked, and the line that most
// likely says what went wrong. Without the secrets nothing can be masked, so then
// there are none.
func (a *attempt) lastWords() (tail []string, cause string) {
	if a.sealed {
		return nil, ""
	}
	var text strings.Builder
	err := a.e.exec.ReadLog(context.Background(), a.job.ID, a.n, executor.LogOptions{TailBytes: tailBytes}, func(ch executor.LogChunk) error {
		text.Write(ch.Data)
		return nil
	})
	if err != nil {
		return nil, ""
	}
	said := text.String()
	if len(said) >= tailBytes {
		// It begins in the middle of a line, and perhaps of a secret.
		_, said, _ = strings.Cut(said, "\n")
	}
	lines := strings.FieldsFunc(strings.ToValidUTF8(masked(said, a.secrets), "�"), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > maxTailLines {
		lines = lines[len(lines)-maxTailLines:]
	}
	for _, line := range slices.Backward(lines) {
		lower := strings.ToLower(line)
		if strings.Contains(lower, "error") || strings.Contains(lower, "invalid") || strings.Contains(lower, "no such") || strings.Contains(lower, "cannot") {
			return lines, line
		}
	}
	if len(lines) > 0 {
		cause = lines[len(lines)-1]
	}
	return lines, cause
}

const (
	tailBytes    = 8 << 10
	maxTailLines = 20
)

// conclude stores what an attempt led to and lets go of what is not needed any more. It
// returns what is to be done when the slot is given back.
// A leaving engine concludes nothing: what went wrong may only be its own leaving,
// and the next engine comes to the same conclusion from the records.
func (a *attempt) conclude(err error) (next func()) {
	e := a.e
	if errors.Is(err, errLeft) || e.stopped.Err() != nil {
		return nil
	}
	o, ok := errors.AsType[*over](err)
	if !ok {
		return func() { e.tryAgain(a.job.ID, err) }
	}
	job, err := e.lasting(a.job.ID, o.why, o.change)
	if errors.Is(err, errLeft) {
		return nil
	}
	if err != nil {
		return func() { e.tryAgain(a.job.ID, err) }
	}
	fault.Point("engine.concluded")
	a.tidy(job)
	switch job.State {
	case jobs.StateQueued:
		return e.waitAgain(job, a.delay(job))
	case jobs.StateUnknown:
		if found := o.found; len(found.Alive) > 0 {
			e.watchLeft(job, a.n, *found.Started)
		}
		if a.tool != nil && a.tool.HasProbe() {
			a.job = job
			a.probe(e.stopped, a.mayLive(o.found))
		}
	default:
	}
	return nil
}

// delay is how long a job waits whose last attempts could not even be started.
func (a *attempt) delay(job *jobs.Job) time.Duration {
	unstarted := 0
	for _, at := range slices.Backward(job.Attempts) {
		if at.Started != nil {
			break
		}
		unstarted++
	}
	return min(time.Duration(max(unstarted-1, 0))*time.Second, time.Minute)
}

// tidy removes what a job that has ended, or waits for its next attempt, does not
// need any more. It comes after the record: a crash in between leaves hidden files, which
// a pass of retention takes away (see tidyAgain), never a record that is not true. A
// leaving engine does it all the same: the next one has no reason to look at the job.
func (a *attempt) tidy(job *jobs.Job) {
	if !job.State.Terminal() && job.State != jobs.StateQueued {
		return
	}
	if a.tool != nil && job.State.Terminal() {
		a.takeBack(context.WithoutCancel(a.e.stopped), job)
	}
	if err := a.e.exec.Tidy(job.ID, a.n, len(job.Artifacts) > 0); err != nil {
		a.e.log.Warn("an attempt's folder could not be tidied", "job_id", job.ID, "attempt", a.n, "error", err)
	}
}

// tidyAgain does for a job that has ended what the engine that ended it did not live to do.
func (e *Engine) tidyAgain(job *jobs.Job) {
	untidy := slices.ContainsFunc(job.Attempts, func(at jobs.Attempt) bool {
		_, err := os.Lstat(e.exec.AttemptDir(job.ID, at.N).Work())
		return err == nil
	})
	if !untidy || e.attended(job.ID) {
		return
	}
	secrets, err := e.vault.openAll(job)
	a := &attempt{e: e, job: job, n: len(job.Attempts), secrets: secrets, sealed: err != nil}
	if err := a.load(); err != nil {
		e.log.Warn("the manifest of a job that was not tidied cannot be read; a hidden file of it may stay in its project", "job_id", job.ID, "error", err)
	}
	a.tidy(job)
	e.tidyJob(job)
}

// attended reports whether an attempt of a job is seen to.
func (e *Engine) attended(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[id] != nil
}
