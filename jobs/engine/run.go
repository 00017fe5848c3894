package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/internal/fault"
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
	secrets map[string]string // opened; see sealed
	sealed  bool              // the secrets could not be opened
	inPlace []string          // inputs that the tool reads where they lie
	tidied  bool              // it was found tidied; see wasTidied
	began   time.Time         // of the phase
}

// An attempt leads to one of three things, each an error so that any step can
// return it: over, what is to be stored; errLeft, nothing, since the engine is
// stopping; anything else, a fault after which the records are looked at again.

// over is what an attempt led to: a change of the job. Whoever makes one knows from
// the records what is proved.
type over struct {
	change func(*jobs.Job) error
	why    string
	found  executor.Found // of a lost attempt
}

func (o *over) Error() string { return o.why }

// unfit says why an attempt cannot go on. It says nothing of what that means: before
// the intent is stored nothing has started, after it only the records know.
type unfit struct {
	reason jobs.EndReason
	why    string
}

func (u *unfit) Error() string { return u.why }

// errLeft says that the engine is stopping: nothing is concluded, and the next
// engine takes the job up from its records.
var errLeft = errors.New("the engine is stopping")

// runAttempt begins the next attempt of a queued job and sees it through. It returns
// what is to be done when the slot is given back.
func (e *Engine) runAttempt(id string) (next func()) {
	err := e.begin(id)
	if errors.Is(err, errPaused) {
		e.sched.queueAgain(id) // it waits where it waited
		return nil
	}
	switch jobs.CodeOf(err) {
	case "":
		return e.seeThrough(id, (*attempt).run)
	case jobs.CodeTooLate:
		e.sched.rest(id)
		return func() { e.tooLate(id) }
	case jobs.CodeStateConflict, jobs.CodeJobNotFound:
		e.sched.rest(id) // it has ended meanwhile
		return nil
	default:
		// The store did not take it, so the job still waits.
		e.sched.rest(id)
		return func() { e.wakeIn(e.retryDelay, id) }
	}
}

// seeThrough takes up the newest attempt of a running job, and concludes what steps
// leads to.
func (e *Engine) seeThrough(id string, steps func(*attempt) error) (next func()) {
	l := &live{stop: make(chan struct{})}
	defer e.endLive(id, l)
	a, err := e.newAttempt(id, l)
	if err != nil {
		return func() { e.tryAgain(id, err) }
	}
	return a.conclude(steps(a))
}

// begin stores that the next attempt begins, unless the job is not to start any more.
func (e *Engine) begin(id string) error {
	ctx := context.Background()
	job, err := e.store.Get(ctx, id)
	if err != nil {
		return err
	}
	if ended, err := e.endClosed(ctx, job); err != nil {
		return err
	} else if ended {
		return jobs.Errorf(jobs.CodeStateConflict, "the run of job %s was cancelled", id).WithJob(id)
	}
	locks := locksOf(e.sched.claims(id))
	_, err = e.lasting(id, "an attempt begins", func(j *jobs.Job) error {
		if e.sched.paused.Load() {
			return errPaused
		}
		if err := e.notTooLate(j); err != nil {
			return err
		}
		j.Needs.Locks = locks
		return j.Begin(e.boot, e.now())
	})
	return err
}

// newAttempt takes up the newest attempt of a running job. It is made known before
// the job is read, so that a stop request is either in the record or passed on.
func (e *Engine) newAttempt(id string, l *live) (*attempt, error) {
	e.mu.Lock()
	e.live[id] = l
	e.mu.Unlock()
	e.forget(id)
	job, err := e.store.Get(context.Background(), id)
	if fault.On && err == nil {
		err = fault.Err("engine.read." + string(job.Phase))
	}
	if err != nil {
		return nil, err
	}
	if job.Stop != nil {
		l.requestStop()
	}
	l.attempt.Store(int64(len(job.Attempts)))
	secrets, err := e.vault.openAll(job)
	if err != nil {
		e.log.Error("the secret arguments of a job cannot be opened", "job_id", id, "error", err)
	}
	return &attempt{e: e, job: job, n: len(job.Attempts), live: l, secrets: secrets, sealed: err != nil, began: e.now()}, nil
}

func (e *Engine) endLive(id string, l *live) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[id] == l {
		delete(e.live, id)
	}
}

// run takes an attempt from staging to its outcome.
func (a *attempt) run() error {
	ctx, cancel := a.whileNotStopped()
	defer cancel()
	if a.overtaken() {
		return a.withoutIntent()
	}
	if err := a.load(); err != nil {
		return a.reason(ctx, err)
	}
	if a.variant == nil {
		if why, err := a.movedBefore(); why != "" || err != nil {
			return cmp.Or[error](err, a.unprovable(why))
		}
		if err := a.stage(ctx); err != nil {
			return a.reason(ctx, err)
		}
		return a.publish(product{})
	}
	prepared, err := a.e.exec.Prepare(a.job.ID, a.n)
	if errors.Is(err, executor.ErrSpent) || errors.Is(err, executor.ErrHeld) {
		return a.withoutIntent()
	}
	if err != nil {
		return a.never(&unfit{startReason(err), "the attempt's folder cannot be prepared: " + err.Error()})
	}
	defer prepared.Release() // does nothing once the lock is the keeper's
	if err := a.stage(ctx); err != nil {
		return a.reason(ctx, err)
	}
	fault.Point("engine.staged")
	command, intent, err := a.plan(ctx)
	if err != nil {
		return a.reason(ctx, err)
	}
	// Decide and record first, then act: after this write only the keeper's records
	// can say whether anything started.
	inputs, staging := a.job.Inputs, a.lap()
	err = a.update("the start is recorded", func(j *jobs.Job) error {
		if err := a.e.notTooLate(j); err != nil {
			return err
		}
		j.Inputs = inputs
		j.Usage.Staging += staging
		return j.Intend(intent)
	})
	switch jobs.CodeOf(err) {
	case "":
	case jobs.CodeStateConflict:
		return a.stoppedBeforeStart()
	case jobs.CodeTooLate:
		return a.tooLate()
	default:
		return err
	}
	if by := a.job.Call.Options.StartBy; !by.IsZero() {
		command.StartBy, command.StartWithin = by, a.e.deadlines.left(a.job, by)
	}
	running, err := a.startKeeper(prepared, command)
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

// reason turns an error of a step before the intent into what the attempt led to. A
// context that ended explains whatever error came of it, so it is asked first.
func (a *attempt) reason(ctx context.Context, err error) error {
	switch {
	case a.e.stopped.Err() != nil:
		return errLeft
	case errors.Is(context.Cause(ctx), errStopRequested):
		return a.stoppedBeforeStart()
	}
	if o, ok := errors.AsType[*over](err); ok {
		return o
	}
	if u, ok := errors.AsType[*unfit](err); ok {
		return a.never(u)
	}
	return a.never(&unfit{startReason(err), plainMessage(err)})
}

// startReason tells a full disk from other reasons why nothing could be started.
func startReason(err error) jobs.EndReason {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return jobs.EndDiskFull
	}
	return jobs.EndStartFailed
}

// never ends the job as failed before its intent was stored: nothing has started.
func (a *attempt) never(u *unfit) error {
	return &over{why: u.why, change: func(j *jobs.Job) error {
		out := jobs.OutcomeOf(j.Tool.Effects, jobs.EndedNotStarted)
		out.Reason = u.reason
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: u.why, Attempt: a.n}, u.why, a.e.now())
	}}
}

func (a *attempt) stoppedBeforeStart() error {
	const why = "stopped before anything was started"
	return &over{why: why, change: func(j *jobs.Job) error {
		out := jobs.Outcome{State: jobs.StateCancelled, Reason: stopReason(j), SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: why, Attempt: a.n}, why, a.e.now())
	}}
}

// tooLate ends the job of a start_by that has passed before anything was begun. If only the
// wall clock says that it has, the job waits as it did: that clock may have been set.
func (a *attempt) tooLate() error {
	return &over{why: "start_by has passed", change: func(j *jobs.Job) error {
		j.Plan = nil // of a tool without a process: no step of it was begun
		if a.e.notTooLate(j) == nil {
			return a.again(j, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: onlyWall, Attempt: a.n})
		}
		return j.TooLate(a.e.now())
	}}
}

// onlyWall says why an attempt was given up of a job that may still start.
const onlyWall = "start_by had passed by the wall clock, and not by the time that went by"

func (a *attempt) void(difference string) error {
	return &over{why: difference, change: func(j *jobs.Job) error { return j.Void(difference, a.e.now()) }}
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
		return executor.Command{}, jobs.Intent{}, &unfit{jobs.EndStartFailed, findings[0].Message}
	}
	if a.job.Approval != nil {
		now := a.job.Approval.Binding
		now.Programs = map[string]string{}
		for _, p := range progs {
			now.Programs[p.Path] = p.SHA256
		}
		if difference := bindingDifference(a.job.Approval.Binding, now); difference != "" {
			return executor.Command{}, jobs.Intent{}, a.void(difference)
		}
	}
	for _, p := range progs {
		a.vars.Programs[p.Name] = schemas.Program{Path: p.Path, Version: p.Version}
	}
	if err := a.lookBefore(ctx); err != nil {
		return executor.Command{}, jobs.Intent{}, err
	}
	if err := a.makeFolders(); err != nil {
		return executor.Command{}, jobs.Intent{}, err
	}
	step, err := a.variant.Command(ctx, a.vars)
	if err != nil {
		return executor.Command{}, jobs.Intent{}, &unfit{jobs.EndStartFailed, "the command cannot be worked out: " + err.Error()}
	}
	command, err := a.command(step)
	if err != nil {
		return executor.Command{}, jobs.Intent{}, err
	}
	command.Env = a.traced(command.Env)
	command.Timeout = time.Duration(a.variant.Timeout)
	if t := a.job.Call.Options.Timeout; t > 0 && (command.Timeout == 0 || t < command.Timeout) {
		command.Timeout = t
	}
	intent := jobs.Intent{
		Argv: command.Argv, EnvNames: names(command.Env), Programs: progs, Timeout: command.Timeout,
		Variant: a.variant.Index, At: e.now(),
	}
	return command, intent, nil
}

// lookBefore works out where the outputs will be and runs the steps that look at
// the staged inputs.
func (a *attempt) lookBefore(ctx context.Context) error {
	dir := a.e.exec.AttemptDir(a.job.ID, a.n)
	steps, err := a.variant.Before(ctx, a.vars)
	if err != nil {
		return &unfit{jobs.EndStartFailed, "a step before the command cannot be worked out: " + err.Error()}
	}
	if err := a.lookAll(ctx, steps); err != nil {
		return &unfit{jobs.EndInputInvalid, "the input cannot be read " + plainMessage(err)}
	}
	if findings := a.variant.Accept(ctx, a.vars); len(findings) > 0 {
		return &unfit{jobs.EndInputInvalid, sentence(findings[0])}
	}
	for _, spec := range a.tool.Artifacts {
		file, err := a.tool.ArtifactFile(ctx, spec.Name, a.vars)
		if err != nil {
			return &unfit{jobs.EndStartFailed, "the name of an output cannot be worked out: " + err.Error()}
		}
		a.vars.Outputs[spec.Name] = filepath.Join(dir.Out(), file)
	}
	return nil
}

// makeFolders makes the folders that the command is to fill.
func (a *attempt) makeFolders() error {
	for _, spec := range a.tool.Artifacts {
		if !spec.Folder() {
			continue
		}
		if err := os.Mkdir(a.vars.Outputs[spec.Name], 0o700); err != nil {
			return &unfit{startReason(err), fmt.Sprintf("the folder of %s cannot be made: %s", spec.Name, err)}
		}
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
func (a *attempt) update(message string, change func(*jobs.Job) error) error {
	job, err := a.e.lasting(a.job.ID, message, change)
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

// change stores a change that macexec itself makes.
func (e *Engine) change(id, message string, f func(*jobs.Job) error) (*jobs.Job, error) {
	return e.store.Update(context.Background(), id, func(j *jobs.Job) (jobs.Note, error) {
		return jobs.Note{Message: message}, f(j)
	})
}
