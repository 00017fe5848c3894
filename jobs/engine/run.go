package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// attempt is one try at one job, from its beginning to what it led to. Its fields
// are set in the order of its methods, and only by the one goroutine that runs it.
type attempt struct {
	e    *Engine
	job  *jobs.Job // as last stored
	n    int
	live *live

	tool    *schemas.Tool
	variant *schemas.Variant
	vars    schemas.Vars
	secrets map[string]string
	inPlace []string  // inputs that the tool reads where they lie
	began   time.Time // of the phase
}

// over is how an attempt ends when it does not lead to a running tool: the state
// change that is to be stored. It is an error so that every step can return it.
type over struct {
	event  jobs.Event
	change func(*jobs.Job) error
	why    string
	alive  bool // processes of it still live
}

func (o *over) Error() string { return o.why }

// errLeft says that the engine is stopping: nothing is concluded, and the next
// engine takes the job up from its records.
var errLeft = errors.New("the engine is stopping")

// runAttempt begins the next attempt of a queued job and sees it through.
func (e *Engine) runAttempt(id string) {
	job, ok := e.change(id, jobs.EventStart, "an attempt begins", func(j *jobs.Job) error {
		return j.Begin(e.boot, e.now())
	})
	if !ok {
		return // cancelled or too late meanwhile
	}
	a := e.newAttempt(job)
	defer e.endLive(id)
	a.conclude(a.run())
}

// newAttempt takes up the newest attempt of a running job.
func (e *Engine) newAttempt(job *jobs.Job) *attempt {
	l := &live{stop: make(chan struct{})}
	e.mu.Lock()
	e.live[job.ID] = l
	e.mu.Unlock()
	e.forget(job.ID)
	if job.Stop != nil {
		l.requestStop()
	}
	return &attempt{e: e, job: job, n: len(job.Attempts), live: l, began: e.now()}
}

func (e *Engine) endLive(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, id)
}

// run takes an attempt from staging to its outcome.
func (a *attempt) run() error {
	ctx, cancel := a.whileNotStopped()
	defer cancel()
	if err := a.load(); err != nil {
		return a.reason(ctx, err)
	}
	if a.variant == nil {
		if err := a.stage(ctx); err != nil {
			return a.reason(ctx, err)
		}
		return a.publish(nil)
	}
	prepared, err := a.e.exec.Prepare(a.job.ID, a.n)
	if err != nil {
		return a.never(jobs.EndStartFailed, "the attempt's folder cannot be prepared: "+err.Error())
	}
	defer prepared.Release() // does nothing once the lock is the keeper's
	if err := a.stage(ctx); err != nil {
		return a.reason(ctx, err)
	}
	command, intent, err := a.plan(ctx)
	if err != nil {
		return a.reason(ctx, err)
	}
	// Decide and record first, then act: after this write only the keeper's records
	// can say whether anything started.
	if err := a.update("", "the start is recorded", func(j *jobs.Job) error {
		j.Inputs = a.job.Inputs
		j.Usage.Staging += a.lap()
		return j.Intend(intent)
	}); err != nil {
		if jobs.CodeOf(err) == jobs.CodeStateConflict {
			return a.stoppedBeforeStart()
		}
		return err
	}
	running, err := prepared.Start(command)
	if err != nil {
		a.e.log.Warn("the keeper did not start", "job_id", a.job.ID, "attempt", a.n, "error", err)
		prepared.Release()
		return a.inspect()
	}
	return a.watch(running)
}

// whileNotStopped gives a context that ends when the engine leaves or a stop
// request for the job has been stored.
func (a *attempt) whileNotStopped() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a.e.stopped)
	done := make(chan struct{})
	a.e.goRun(func() {
		select {
		case <-a.live.stop:
			cancel(errStopRequested)
		case <-done:
		}
	})
	return ctx, func() { close(done); cancel(nil) }
}

var errStopRequested = errors.New("a stop was requested")

// reason turns an error of a step before the start into how the attempt ends.
func (a *attempt) reason(ctx context.Context, err error) error {
	if o, ok := errors.AsType[*over](err); ok {
		return o
	}
	switch {
	case errors.Is(context.Cause(ctx), errStopRequested):
		return a.stoppedBeforeStart()
	case a.e.stopped.Err() != nil:
		return errLeft
	default:
		return a.never(jobs.EndStartFailed, plainMessage(err))
	}
}

// never ends the job as failed: nothing of it has been started.
func (a *attempt) never(reason jobs.EndReason, why string) error {
	return &over{event: jobs.EventFail, why: why, change: func(j *jobs.Job) error {
		out := jobs.OutcomeOf(j.Tool.Effects, jobs.EndedNotStarted)
		out.Reason = reason
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: why, Attempt: a.n}, why, a.e.now())
	}}
}

func (a *attempt) stoppedBeforeStart() error {
	return &over{event: jobs.EventStop, why: "stopped before it started", change: func(j *jobs.Job) error {
		out := jobs.Outcome{State: jobs.StateCancelled, Reason: stopReason(j), SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "stopped before anything was started", Attempt: a.n}, "stopped before it started", a.e.now())
	}}
}

func (a *attempt) void(difference string) error {
	return &over{event: jobs.EventVoid, why: difference, change: func(j *jobs.Job) error {
		return j.Void(difference, a.e.now())
	}}
}

func stopReason(j *jobs.Job) jobs.EndReason {
	if j.Stop == nil {
		return jobs.EndCancelledByCaller
	}
	return j.Stop.End
}

// plan asks the manifest what to run: the read-only steps on the staged inputs
// first, then the command.
func (a *attempt) plan(ctx context.Context) (executor.Command, jobs.Intent, error) {
	e := a.e
	progs, findings := e.programsOf(ctx, a.variant, a.vars)
	if len(findings) > 0 {
		return executor.Command{}, jobs.Intent{}, a.never(jobs.EndStartFailed, findings[0].Message)
	}
	for _, p := range progs {
		a.vars.Programs[p.Name] = schemas.Program{Path: p.Path, Version: p.Version}
	}
	if err := a.lookBefore(ctx); err != nil {
		return executor.Command{}, jobs.Intent{}, err
	}
	step, err := a.variant.Command(ctx, a.vars)
	if err != nil {
		return executor.Command{}, jobs.Intent{}, a.never(jobs.EndStartFailed, "the command cannot be worked out: "+err.Error())
	}
	command, err := a.command(step)
	if err != nil {
		return executor.Command{}, jobs.Intent{}, err
	}
	command.Timeout = time.Duration(a.variant.Timeout)
	if t := a.job.Call.Options.Timeout; t > 0 && (command.Timeout == 0 || t < command.Timeout) {
		command.Timeout = t
	}
	intent := jobs.Intent{
		Argv: command.Argv, EnvNames: names(command.Env), Programs: progs, Timeout: command.Timeout, At: e.now(),
	}
	return command, intent, nil
}

// lookBefore works out where the outputs will be and runs the steps that look at
// the staged inputs.
func (a *attempt) lookBefore(ctx context.Context) error {
	dir := a.e.exec.AttemptDir(a.job.ID, a.n)
	steps, err := a.variant.Before(ctx, a.vars)
	if err != nil {
		return a.never(jobs.EndStartFailed, "a step before the command cannot be worked out: "+err.Error())
	}
	for _, step := range steps {
		value, err := a.look(ctx, step)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			return a.never(jobs.EndInputInvalid, fmt.Sprintf("the input cannot be read (%s): %s", step.Name, plainMessage(err)))
		}
		a.vars.Steps[step.Name] = value
	}
	if findings := a.variant.Accept(ctx, a.vars); len(findings) > 0 {
		return a.never(jobs.EndInputInvalid, sentence(findings[0]))
	}
	for _, spec := range a.tool.Artifacts {
		file, err := a.tool.ArtifactFile(ctx, spec.Name, a.vars)
		if err != nil {
			return a.never(jobs.EndStartFailed, "the name of an output cannot be worked out: "+err.Error())
		}
		a.vars.Outputs[spec.Name] = filepath.Join(dir.Out(), file)
	}
	return nil
}

func sentence(f schemas.Finding) string {
	if f.Hint == "" {
		return f.Message
	}
	return f.Message + "; " + f.Hint
}

// update stores a change of the job and keeps the new snapshot.
func (a *attempt) update(event jobs.Event, message string, change func(*jobs.Job) error) error {
	job, err := a.e.store.Update(context.Background(), a.job.ID, func(j *jobs.Job) (jobs.Note, error) {
		if err := change(j); err != nil {
			return jobs.Note{}, err
		}
		return jobs.Note{Event: event, Message: message}, nil
	})
	if err == nil {
		a.job = job
	}
	return err
}

// lap is the time since the phase began; a new one begins.
func (a *attempt) lap() time.Duration {
	now := a.e.now()
	d := now.Sub(a.began)
	a.began = now
	return max(d, 0)
}

// change stores a change that macexec itself makes, and says whether it was made.
// A refusal by the job's state is no fault: somebody else was first.
func (e *Engine) change(id string, event jobs.Event, message string, f func(*jobs.Job) error) (*jobs.Job, bool) {
	job, err := e.store.Update(context.Background(), id, func(j *jobs.Job) (jobs.Note, error) {
		if err := f(j); err != nil {
			return jobs.Note{}, err
		}
		return jobs.Note{Event: event, Message: message}, nil
	})
	if err != nil {
		if code := jobs.CodeOf(err); code != jobs.CodeStateConflict && code != jobs.CodeTooLate {
			e.log.Error("a change was not stored", "job_id", id, "event", event, "error", err)
		}
		return nil, false
	}
	return job, true
}
