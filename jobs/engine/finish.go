package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// watch waits for the keeper and the tool, and finishes from what they leave.
func (a *attempt) watch(running *executor.Running) error {
	ctx := a.e.stopped
	ended := make(chan struct{})
	a.e.goRun(func() { a.passStopOn(running, ended) })
	a.e.goRun(func() { a.showStart(ctx, running, ended) })
	a.live.setProgress(a.progressSource(ctx))
	found, err := running.Wait(ctx)
	close(ended)
	if err != nil {
		running.Detach()
		if a.e.stopped.Err() != nil {
			return errLeft
		}
		return err
	}
	return a.conclusion(found)
}

// passStopOn hands a stored stop request to the keeper.
func (a *attempt) passStopOn(running *executor.Running, ended <-chan struct{}) {
	select {
	case <-a.live.stop:
		if err := running.Stop("requested"); err != nil {
			a.e.log.Warn("the keeper could not be told to stop", "job_id", a.job.ID, "error", err)
		}
	case <-ended:
	case <-a.e.stopped.Done():
	}
}

// showStart stores the tool's pid, so that people can look at a job that runs for
// long. A short one carries it with its end and costs no write of its own.
func (a *attempt) showStart(ctx context.Context, running *executor.Running, ended <-chan struct{}) {
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
	a.e.change(a.job.ID, "", "the tool runs", func(j *jobs.Job) error {
		if j.State != jobs.StateRunning || j.Phase != jobs.PhaseRunning || len(j.Attempts) != a.n {
			return jobs.Errorf(jobs.CodeStateConflict, "it has ended meanwhile")
		}
		j.RecordStarted(startedOf(started))
		return nil
	})
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
			return a.watch(running)
		}
		return a.inspect()
	}
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
	return &over{event: jobs.EventRequeue, why: "the tool was never started", change: func(j *jobs.Job) error {
		why := jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "the lock was free and no start is recorded; the attempt is fenced", Attempt: a.n}
		return a.again(j, why)
	}}
}

// lost gives an attempt up. A tool that leaves nothing behind is stopped for good
// and run again; any other is unknown.
func (a *attempt) lost(found executor.Found, ended jobs.Ended, why string) error {
	out := jobs.OutcomeOf(a.job.Tool.Effects, ended)
	if out.State == jobs.StateQueued && found.Kind == executor.Unwatched {
		if err := a.e.exec.StopTree(a.e.stopped, found); err != nil {
			if a.e.stopped.Err() != nil {
				return errLeft
			}
			return err
		}
	}
	evidence := jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: why, Attempt: a.n}
	if out.State == jobs.StateQueued {
		return &over{event: jobs.EventRequeue, why: why, change: func(j *jobs.Job) error {
			keepStart(j, found)
			return a.again(j, evidence)
		}}
	}
	message := why
	if a.tool == nil {
		if err := a.load(); err != nil {
			a.e.log.Warn("the manifest of a lost job cannot be read", "job_id", a.job.ID, "error", err)
		}
	}
	if a.tool != nil && a.tool.OnUnknown != "" {
		message += "; look at: " + a.tool.OnUnknown
	}
	return &over{event: jobs.EventLose, why: why, alive: len(found.Alive) > 0, change: func(j *jobs.Job) error {
		keepStart(j, found)
		return j.End(out, evidence, message, a.e.now())
	}}
}

// again queues a job for its next attempt, unless it is to be stopped or has had
// all its attempts.
func (a *attempt) again(j *jobs.Job, why jobs.Evidence) error {
	switch {
	case j.Stop != nil:
		out := jobs.Outcome{State: jobs.StateCancelled, Reason: stopReason(j), SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
		return j.End(out, why, "stopped; "+why.Detail, a.e.now())
	case len(j.Attempts) >= a.e.limits.MaxAttempts:
		out := jobs.Outcome{State: jobs.StateFailed, Reason: jobs.EndAttemptsExhausted, SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
		return j.End(out, why, fmt.Sprintf("all %d attempts were lost; the last one: %s", len(j.Attempts), why.Detail), a.e.now())
	default:
		return j.Requeue(why, a.e.now())
	}
}

// finish goes on from the keeper's exit record.
func (a *attempt) finish(found executor.Found) error {
	exit := *found.Exit
	ended := endedOf(exit)
	if ended == jobs.EndedZero {
		return a.verify(found)
	}
	return a.endBy(found, ended, endMessage(exit, ended))
}

// endBy ends the job by the outcome table, as not completed.
func (a *attempt) endBy(found executor.Found, ended jobs.Ended, message string) error {
	tail, cause := a.lastWords()
	return &over{event: eventOf(jobs.OutcomeOf(a.job.Tool.Effects, ended).State), why: message, change: func(j *jobs.Job) error {
		out := jobs.OutcomeOf(j.Tool.Effects, ended)
		if ended == jobs.EndedStopped {
			out.Reason = stopReason(j)
		}
		keepStart(j, found)
		a.keepExit(j, found)
		j.LogTail, j.Cause = tail, cause
		return j.End(out, exitEvidence(a.n, found.Exit), message, a.e.now())
	}}
}

func eventOf(state jobs.State) jobs.Event {
	switch state {
	case jobs.StateCompleted:
		return jobs.EventComplete
	case jobs.StateCancelled:
		return jobs.EventStop
	case jobs.StateUnknown:
		return jobs.EventLose
	default:
		return jobs.EventFail
	}
}

// endedOf reads an exit record. That the disk was full counts even with exit code
// 0: what such a tool wrote cannot be whole.
func endedOf(x keeper.Exit) jobs.Ended {
	switch {
	case x.NotStarted:
		return jobs.EndedNotStarted
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
	default:
		return jobs.EndedZero
	}
}

func endMessage(x keeper.Exit, ended jobs.Ended) string {
	switch ended {
	case jobs.EndedNotStarted:
		return "the tool could not be started: " + x.Error
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
	j.Usage.PeakMemory = max(j.Usage.PeakMemory, x.Usage.MaxRSS)
	j.Usage.BytesIn = 0
	for _, in := range j.Inputs {
		j.Usage.BytesIn += in.Size
	}
}

// lastWords are the last lines of the attempt's log, masked, and the line that most
// likely says what went wrong.
func (a *attempt) lastWords() (tail []string, cause string) {
	var text strings.Builder
	err := a.e.exec.ReadLog(context.Background(), a.job.ID, a.n, executor.LogOptions{TailBytes: 8 << 10}, func(ch executor.LogChunk) error {
		text.Write(ch.Data)
		return nil
	})
	if err != nil {
		return nil, ""
	}
	lines := strings.FieldsFunc(strings.ToValidUTF8(masked(text.String(), a.secrets), "�"), func(r rune) bool { return r == '\n' || r == '\r' })
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

const maxTailLines = 20

// verify checks what a tool that exited 0 has made, keeps it, and works out the
// result. Exit code 0 alone proves nothing.
func (a *attempt) verify(found executor.Found) error {
	ctx := a.e.stopped
	if a.variant == nil {
		if err := a.reload(ctx); err != nil {
			return err
		}
	}
	if a.hasOutputs() {
		if err := a.update("", "the outputs are being verified", func(j *jobs.Job) error {
			keepStart(j, found)
			return j.Enter(jobs.PhaseVerifying)
		}); err != nil {
			return err
		}
	}
	a.lap()
	bad := func(why string) error {
		if a.e.stopped.Err() != nil {
			return errLeft
		}
		return a.endBy(found, jobs.EndedBadOutput, why)
	}
	if why := a.unchangedInPlace(ctx); why != "" {
		return a.endBy(found, jobs.EndedInputChanged, why)
	}
	command, err := a.variant.Command(ctx, a.vars)
	if err != nil {
		return bad("the command cannot be worked out again: " + err.Error())
	}
	if command.Capture {
		text, err := a.e.exec.Stdout(a.job.ID, a.n)
		if err != nil {
			return bad("what the tool printed cannot be read: " + err.Error())
		}
		if a.vars.Tool, err = command.Parser.Parse(text); err != nil {
			return bad("what the tool printed is not what its manifest says: " + err.Error())
		}
	}
	artifacts, why := a.keepArtifacts(ctx)
	if why != "" {
		return bad(why)
	}
	steps, err := a.variant.After(ctx, a.vars)
	if err != nil {
		return bad("a step after the command cannot be worked out: " + err.Error())
	}
	for _, step := range steps {
		value, err := a.look(ctx, step)
		if err != nil {
			return bad(fmt.Sprintf("the output cannot be read (%s): %s", step.Name, plainMessage(err)))
		}
		a.vars.Steps[step.Name] = value
	}
	if findings := a.variant.Verify(ctx, a.vars); len(findings) > 0 {
		return bad(sentence(findings[0]))
	}
	result, err := a.tool.Result(ctx, a.vars)
	if err != nil {
		return bad("the result cannot be worked out: " + err.Error())
	}
	if findings := a.tool.ValidateResult(result); len(findings) > 0 {
		return bad("the result does not fit the tool's output schema: " + findings[0].Message)
	}
	took := a.lap()
	keep := func(j *jobs.Job) {
		j.Artifacts, j.Result = artifacts, result
		j.Usage.BytesOut = 0
		for _, art := range artifacts {
			j.Usage.BytesOut += art.Size
		}
		j.Usage.Publishing += took
		for _, art := range artifacts {
			j.Evidence = append(j.Evidence, jobs.Evidence{
				Kind: jobs.EvidenceOutputs, Attempt: a.n, At: a.e.now(),
				Detail: fmt.Sprintf("%s: %d bytes, sha256 %s", art.Name, art.Size, art.SHA256),
			})
		}
	}
	if len(a.tool.Publish) > 0 {
		return a.publish(func(j *jobs.Job) {
			keepStart(j, found)
			a.keepExit(j, found)
			keep(j)
		}, exitEvidence(a.n, found.Exit))
	}
	return a.complete(found, keep)
}

// complete ends a job that has nothing to publish. A stop that was stored while
// the outputs were verified still counts for a tool that leaves nothing behind.
func (a *attempt) complete(found executor.Found, keep func(*jobs.Job)) error {
	return &over{event: jobs.EventComplete, why: "completed", change: func(j *jobs.Job) error {
		keepStart(j, found)
		a.keepExit(j, found)
		if j.Stop != nil && j.Tool.Effects.LeavesNothing() {
			out := jobs.OutcomeOf(j.Tool.Effects, jobs.EndedStopped)
			out.Reason = stopReason(j)
			return j.End(out, exitEvidence(a.n, found.Exit), "stopped on request before its result was used", a.e.now())
		}
		keep(j)
		return j.End(jobs.OutcomeOf(j.Tool.Effects, jobs.EndedZero), exitEvidence(a.n, found.Exit), "", a.e.now())
	}}
}

func (a *attempt) hasOutputs() bool { return a.tool != nil && len(a.tool.Artifacts) > 0 }

// reload makes an attempt that an earlier engine ran known again: its manifest,
// its staged inputs and what the steps before the command said of them.
func (a *attempt) reload(ctx context.Context) error {
	if err := a.load(); err != nil {
		return err
	}
	if a.variant == nil {
		return nil
	}
	dir := a.e.exec.AttemptDir(a.job.ID, a.n)
	for _, arg := range a.tool.Files(a.vars.Args) {
		i := slices.IndexFunc(a.job.Inputs, func(in jobs.InputFile) bool { return in.Pointer == arg.Pointer })
		if arg.Role != schemas.RoleInput || i < 0 {
			continue
		}
		in := a.job.Inputs[i]
		file := schemas.File{Path: filepath.Join(dir.In(), arg.Name), Name: nameOf(in, arg), Size: in.Size, SHA256: in.SHA256, MediaType: in.MediaType}
		if readInPlace(in) {
			f, _, err := a.e.openInput(ctx, a.job.Principal, a.vars.Args, arg)
			if err != nil {
				return a.never(jobs.EndInputChanged, plainMessage(err))
			}
			file.Path = f.Name()
			a.inPlace = append(a.inPlace, file.Path)
			_ = f.Close()
		}
		if f, err := os.Open(file.Path); err == nil {
			_, kind, err := files.SniffFile(f)
			_ = f.Close()
			if err == nil {
				file.Kind = string(kind)
			}
		}
		a.vars.Inputs[arg.Name] = file
	}
	if last, ok := a.job.LastAttempt(); ok && last.Intent != nil {
		for _, p := range last.Intent.Programs {
			a.vars.Programs[p.Name] = schemas.Program{Path: p.Path, Version: p.Version}
		}
	}
	err := a.lookBefore(ctx)
	if err != nil && a.e.stopped.Err() != nil {
		return errLeft
	}
	return err
}

// keepArtifacts takes the tool's outputs out of its reach.
func (a *attempt) keepArtifacts(ctx context.Context) ([]jobs.Artifact, string) {
	dir := a.e.exec.AttemptDir(a.job.ID, a.n)
	var list []jobs.Artifact
	for _, spec := range a.tool.Artifacts {
		from := a.vars.Outputs[spec.Name]
		kept, err := files.KeepArtifact(ctx, from, string(dir), filepath.Base(from))
		switch {
		case isNotExist(err) && !spec.Required:
			continue
		case isNotExist(err):
			return nil, fmt.Sprintf("the tool exited with 0 but made no %s", spec.Name)
		case errors.Is(err, files.ErrEmpty):
			return nil, fmt.Sprintf("the tool exited with 0 but its %s is empty", spec.Name)
		case err != nil:
			return nil, fmt.Sprintf("the %s cannot be taken: %s", spec.Name, plainMessage(err))
		}
		if len(spec.MediaTypes) > 0 && !slices.Contains(spec.MediaTypes, kept.MediaType) {
			return nil, fmt.Sprintf("the %s is %s by its first bytes, not %s", spec.Name, kept.MediaType, strings.Join(spec.MediaTypes, " or "))
		}
		rel, err := filepath.Rel(a.e.exec.JobDir(a.job.ID), kept.Path)
		if err != nil {
			return nil, err.Error()
		}
		list = append(list, jobs.Artifact{Name: spec.Name, Size: kept.Size, MediaType: kept.MediaType, SHA256: kept.SHA256, Kept: rel})
		a.vars.Outputs[spec.Name] = kept.Path
		a.vars.Artifacts[spec.Name] = schemas.Artifact{Size: kept.Size, MediaType: kept.MediaType, SHA256: kept.SHA256}
	}
	return list, ""
}

// concludeAgain is the pause before records that could not be read are tried again.
const concludeAgain = 5 * time.Second

// conclude stores what an attempt led to and lets go of what is not needed any
// more.
func (a *attempt) conclude(err error) {
	e := a.e
	o, ok := errors.AsType[*over](err)
	switch {
	case ok:
	case errors.Is(err, errLeft) || e.stopped.Err() != nil:
		return
	default:
		// A fault of macexec's own says nothing about the tool. The job stays as it is
		// stored, and its records are looked at again.
		e.log.Error("an attempt could not be concluded", "job_id", a.job.ID, "attempt", a.n, "error", err)
		e.at(e.now().Add(concludeAgain), a.job.ID, func() { e.takeUpAgain(a.job.ID) })
		return
	}
	job, stored := e.change(a.job.ID, o.event, o.why, o.change)
	if !stored {
		return
	}
	if job.State.Terminal() || job.State == jobs.StateQueued {
		if err := e.exec.Tidy(job.ID, a.n, len(job.Artifacts) > 0); err != nil {
			e.log.Warn("an attempt's folder could not be tidied", "job_id", job.ID, "attempt", a.n, "error", err)
		}
	}
	switch job.State {
	case jobs.StateQueued:
		e.admit(job, e.slotOf(job))
	case jobs.StateUnknown:
		if a.tool != nil {
			a.probe(e.stopped, o.alive)
		}
	default:
	}
}
