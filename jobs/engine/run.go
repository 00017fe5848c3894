package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/programs"
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
	began   time.Time // of the phase
}

// over is how an attempt ends when it does not lead to a running tool: the state
// change that is to be stored. It is an error so that every step can return it.
type over struct {
	event  jobs.Event
	change func(*jobs.Job) error
	why    string
}

func (o *over) Error() string { return o.why }

// errLeft says that the engine is stopping: nothing is concluded, and the next
// engine takes the job up from its records.
var errLeft = errors.New("the engine is stopping")

// runAttempt begins the next attempt of a queued job and sees it through.
func (e *Engine) runAttempt(id string) {
	job, ok := e.change(id, jobs.EventStart, "an attempt begins", func(j *jobs.Job) error {
		return j.Begin(e.BootSession, e.Now())
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
	return &attempt{e: e, job: job, n: len(job.Attempts), live: l, began: e.Now()}
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
	prepared, err := a.e.Executor.Prepare(a.job.ID, a.n)
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
		a.e.Logger.Warn("the keeper did not start", "job_id", a.job.ID, "attempt", a.n, "error", err)
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
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: why, Attempt: a.n}, why, a.e.Now())
	}}
}

func (a *attempt) stoppedBeforeStart() error {
	return &over{event: jobs.EventStop, why: "stopped before it started", change: func(j *jobs.Job) error {
		out := jobs.Outcome{State: jobs.StateCancelled, Reason: stopReason(j), SideEffect: jobs.SideEffectNone, Retry: jobs.RetryNewKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "stopped before anything was started", Attempt: a.n}, "stopped before it started", a.e.Now())
	}}
}

func (a *attempt) void(difference string) error {
	return &over{event: jobs.EventVoid, why: difference, change: func(j *jobs.Job) error {
		return j.Void(difference, a.e.Now())
	}}
}

func stopReason(j *jobs.Job) jobs.EndReason {
	if j.Stop == nil {
		return jobs.EndCancelledByCaller
	}
	return j.Stop.End
}

// stage takes the inputs in as copies that nobody else can change, and compares
// what was approved with what would run, on those copies.
func (a *attempt) stage(ctx context.Context) error {
	dir := a.e.Executor.AttemptDir(a.job.ID, a.n)
	inputs := slices.Clone(a.job.Inputs)
	for _, arg := range a.tool.Files(a.vars.Args) {
		if arg.Role != schemas.RoleInput {
			continue
		}
		i := slices.IndexFunc(inputs, func(in jobs.InputFile) bool { return in.Pointer == arg.Pointer })
		if i < 0 {
			return jobs.Errorf(jobs.CodeInternal, "input %s was not looked at when the call was accepted", arg.Pointer)
		}
		facts, err := a.stageInput(ctx, dir.In(), arg, &inputs[i])
		if err != nil {
			return a.never(jobs.EndInputInvalid, fmt.Sprintf("the input %s cannot be taken in: %s", arg.Pointer, plainMessage(err)))
		}
		a.vars.Inputs[arg.Name] = facts
	}
	changed := *a.job
	changed.Inputs = inputs
	a.job = &changed
	return a.compareWithApproval(ctx)
}

// load reads the job's record back into what the manifest's expressions see.
func (a *attempt) load() error {
	e, job := a.e, a.job
	tool, ok := e.Registry.Tool(job.Tool.Name, job.Tool.Version)
	if !ok || tool.Digest != job.Tool.ManifestDigest {
		return a.never(jobs.EndStartFailed, "the manifest of "+job.Tool.Name+" is not the one that the call was accepted with; submit it under a new key")
	}
	secrets, err := e.vault.openAll(job)
	if err != nil {
		return err
	}
	args, findings := schemas.Parse(job.Call.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		return jobs.Errorf(jobs.CodeRecordDamaged, "the stored arguments do not parse: %s", findings[0].Message)
	}
	a.tool, a.secrets = tool, secrets
	dir := e.Executor.AttemptDir(job.ID, a.n)
	a.vars = schemas.Vars{
		Args: args, Secrets: byArgument(secrets), Work: dir.Work(),
		Call:   schemas.CallVars{Purpose: string(job.Call.Purpose), Replace: job.Call.Options.Replace, Tool: tool.Tool, Version: tool.Version},
		Inputs: map[string]schemas.File{}, Outputs: map[string]string{}, Steps: map[string]any{},
		Artifacts: map[string]schemas.Artifact{}, Programs: map[string]schemas.Program{},
	}
	if !runs(tool) {
		return nil
	}
	variant, missing := e.chooseVariant(tool)
	if variant == nil {
		return a.never(jobs.EndStartFailed, fmt.Sprintf("%s needs %v, which this host does not have any more", tool.Tool, missing))
	}
	a.variant = variant
	return nil
}

// stageInput copies one input into the attempt's folder and says what the copy is.
func (a *attempt) stageInput(ctx context.Context, to string, arg schemas.FileArgument, in *jobs.InputFile) (schemas.File, error) {
	f, _, err := a.e.openInput(ctx, a.job.Principal, a.vars.Args, arg)
	if err != nil {
		return schemas.File{}, err
	}
	defer f.Close()
	name := filepath.Base(in.Path)
	if in.Path == "" {
		name = arg.Name
	}
	if !runs(a.tool) {
		// Only looked at: what moves is decided when it moves.
		in.SHA256, in.Size, err = files.Digest(ctx, f)
		return schemas.File{Name: name, Size: in.Size, SHA256: in.SHA256, MediaType: in.MediaType}, err
	}
	staged, err := files.Stage(ctx, f, to, arg.Name)
	if err != nil {
		return schemas.File{}, err
	}
	in.SHA256, in.Size, in.MediaType = staged.SHA256, staged.Size, staged.MediaType
	return schemas.File{
		Path: staged.Path, Name: name, Size: staged.Size, SHA256: staged.SHA256,
		MediaType: staged.MediaType, Kind: string(staged.Kind),
	}, nil
}

// compareWithApproval voids an approved job if what would run is not what was
// approved, or if the policy of this moment is stricter (promise G8).
func (a *attempt) compareWithApproval(ctx context.Context) error {
	if a.job.Approval == nil {
		return nil
	}
	publishes, findings := a.publishes(ctx)
	if len(findings) > 0 {
		return a.void(findings[0].Message)
	}
	now := jobs.Binding{
		Tool: a.job.Tool.Name, Version: a.job.Tool.Version, ManifestDigest: a.tool.Digest,
		Fingerprint: a.job.Fingerprint, Inputs: map[string]string{}, Programs: map[string]string{},
		Requester: a.job.Principal,
	}
	for _, in := range a.job.Inputs {
		now.Inputs[in.Pointer] = in.SHA256
	}
	for _, step := range publishes {
		if step.OldSHA256 != "" {
			now.Inputs[string(step.Verb)+":"+step.Path] = step.OldSHA256
		}
	}
	if a.variant != nil {
		programs, _ := a.e.programsOf(ctx, a.variant, a.vars)
		for _, p := range programs {
			now.Programs[p.Path] = p.SHA256
		}
	}
	if difference := bindingDifference(a.job.Approval.Binding, now); difference != "" {
		return a.void(difference)
	}
	decision := a.e.decideNow(a.job.Principal, a.job.Call.Purpose, a.job.Call.Context.VisibleTools, a.job.Tool, publishes)
	if decision.Effect == jobs.Deny {
		return a.void("the policy now denies this call: " + decision.Reason)
	}
	return nil
}

// publishes works out the changes to projects as they stand now.
func (a *attempt) publishes(ctx context.Context) ([]jobs.PublishStep, []schemas.Finding) {
	j := &judgement{tool: a.tool, args: a.vars.Args}
	req := Request{Options: a.job.Call.Options}
	findings := a.e.lookAtPublishes(ctx, a.job.Principal, req, j)
	return j.publishes, findings
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
		Argv: command.Argv, EnvNames: names(command.Env), Programs: progs, Timeout: command.Timeout, At: e.Now(),
	}
	return command, intent, nil
}

// lookBefore works out where the outputs will be and runs the steps that look at
// the staged inputs.
func (a *attempt) lookBefore(ctx context.Context) error {
	dir := a.e.Executor.AttemptDir(a.job.ID, a.n)
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

// look runs one read-only step and parses what it prints.
func (a *attempt) look(ctx context.Context, step schemas.Step) (any, error) {
	command, err := a.command(step)
	if err != nil {
		return nil, err
	}
	command.Timeout = lookTimeout
	command.Confine.Read = append(command.Confine.Read, command.Dir)
	for name := range a.vars.Artifacts {
		// Once an output is kept it lies outside of the tool's own folder.
		command.Confine.Read = append(command.Confine.Read, a.vars.Outputs[name])
	}
	res, err := a.e.Executor.Probe(ctx, command)
	if err != nil {
		return nil, err
	}
	if why := probeFailure(res); why != "" {
		return nil, fmt.Errorf("%s %s", step.Program, masked(why, a.secrets))
	}
	return step.Parser.Parse(res.Stdout)
}

// lookTimeout bounds a read-only step; reading a header takes milliseconds.
const lookTimeout = 5 * time.Minute

// probeFailure says why a read-only step did not succeed, or "".
func probeFailure(res executor.ProbeResult) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(res.Stderr), "�")), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	switch {
	case res.TimedOut:
		return "took too long"
	case res.Signal != 0:
		return "was killed by " + signalName(int(res.Signal)) + ": " + last
	case res.Code != 0:
		return fmt.Sprintf("exited with code %d: %s", res.Code, last)
	case res.Truncated:
		return "printed more than a step may"
	default:
		return ""
	}
}

// command turns a manifest's step into what the executor starts.
func (a *attempt) command(step schemas.Step) (executor.Command, error) {
	e := a.e
	prog, err := e.Programs.Resolve(step.Program)
	if err != nil {
		return executor.Command{}, err
	}
	dir := e.Executor.AttemptDir(a.job.ID, a.n)
	env := append(baseEnvironment(e.Programs.Dirs(), dir.Tmp()), pairs(step.Env)...)
	paths := a.variant.Paths
	return executor.Command{
		Argv: append([]string{prog.Found}, step.Argv...), Env: env, Dir: dir.Work(),
		CaptureStdout: step.Capture,
		Limits: executor.Limits{
			Memory: int64(a.variant.Limits.Memory), FileSize: int64(a.variant.Limits.FileSize),
			OpenFiles: uint64(a.variant.Limits.OpenFiles), LogBytes: e.Limits.LogBytes,
		},
		Confine: executor.Confine{
			Read:  append(programFolders(prog), paths.Read...),
			Write: append(slices.Clone(paths.Write), paths.Cache...), Network: a.variant.Network,
		},
	}, nil
}

// programFolders lets a tool read what lies beside its own executable.
func programFolders(p programs.Program) []string {
	return []string{filepath.Dir(p.Path), filepath.Dir(p.Found)}
}

// baseEnvironment is all that a tool inherits. Under launchd there is no locale,
// and tools then take text for bytes; so it is set (see docs/manifests.md).
func baseEnvironment(toolPath []string, tmp string) []string {
	locale := "C.UTF-8"
	if runtime.GOOS == "darwin" {
		locale = "en_US.UTF-8"
	}
	return []string{
		"PATH=" + strings.Join(toolPath, ":"), "HOME=" + tmp, "TMPDIR=" + tmp, "LANG=" + locale, "LC_ALL=" + locale, "TZ=UTC",
	}
}

// update stores a change of the job and keeps the new snapshot.
func (a *attempt) update(event jobs.Event, message string, change func(*jobs.Job) error) error {
	job, err := a.e.Store.Update(context.Background(), a.job.ID, func(j *jobs.Job) (jobs.Note, error) {
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
	now := a.e.Now()
	d := now.Sub(a.began)
	a.began = now
	return max(d, 0)
}

// change stores a change that macexec itself makes, and says whether it was made.
// A refusal by the job's state is no fault: somebody else was first.
func (e *Engine) change(id string, event jobs.Event, message string, f func(*jobs.Job) error) (*jobs.Job, bool) {
	job, err := e.Store.Update(context.Background(), id, func(j *jobs.Job) (jobs.Note, error) {
		if err := f(j); err != nil {
			return jobs.Note{}, err
		}
		return jobs.Note{Event: event, Message: message}, nil
	})
	if err != nil {
		if code := jobs.CodeOf(err); code != jobs.CodeStateConflict && code != jobs.CodeTooLate {
			e.Logger.Error("a change was not stored", "job_id", id, "event", event, "error", err)
		}
		return nil, false
	}
	return job, true
}

// chooseVariant finds the first variant of a tool that this host can run, or says
// what is missing for the last one it looked at.
func (e *Engine) chooseVariant(t *schemas.Tool) (*schemas.Variant, []string) {
	return t.Variant(runtime.GOOS, func(name string) bool {
		_, err := e.Programs.Resolve(name)
		return err == nil
	})
}

// programsOf resolves every program of a variant, with version and digest, and
// says what of it is missing.
func (e *Engine) programsOf(ctx context.Context, v *schemas.Variant, vars schemas.Vars) ([]jobs.Program, []schemas.Finding) {
	var list []jobs.Program
	var findings []schemas.Finding
	for _, name := range slices.Sorted(maps.Keys(v.Programs)) {
		need := v.Programs[name]
		p, err := e.Programs.Resolve(name)
		if err != nil {
			findings = append(findings, schemas.Finding{Keyword: "program", Message: err.Error(), Hint: "ask the operator to install it"})
			continue
		}
		out := jobs.Program{Name: name, Path: p.Path, SHA256: p.SHA256}
		if need.Version != nil {
			if re, err := regexp.Compile(need.Version.Pattern); err == nil {
				out.Version, _ = e.Programs.Version(ctx, p, need.Version.Argv, re, e.ask)
			}
		}
		list = append(list, out)
		features, err := v.Features(ctx, name, vars)
		if err != nil {
			findings = append(findings, schemas.Finding{Keyword: "feature", Message: err.Error(), Hint: "ask the operator to mend the manifest"})
		}
		for _, f := range features {
			if has, err := e.hasFeature(ctx, p, f); err != nil || !has {
				findings = append(findings, schemas.Finding{
					Keyword: "feature", Message: fmt.Sprintf("%s on this host has no %s", name, f.Name),
					Hint: "choose another format, or ask the operator for a build of " + name + " that has it",
				})
			}
		}
	}
	return list, findings
}

func (e *Engine) hasFeature(ctx context.Context, p programs.Program, f schemas.FeatureSpec) (bool, error) {
	re, err := regexp.Compile(f.Pattern)
	if err != nil {
		return false, err
	}
	found, err := e.Programs.Features(ctx, p, f.Argv, re, e.ask)
	return len(found) > 0, err
}

// ask runs a program that tells of itself, confined and with nothing to write to.
func (e *Engine) ask(ctx context.Context, argv []string) ([]byte, error) {
	res, err := e.Executor.Probe(ctx, executor.Command{
		Argv: argv, Env: baseEnvironment(e.Programs.Dirs(), "/nonexistent"), Dir: "/",
		Confine: executor.Confine{Read: []string{filepath.Dir(argv[0])}},
	})
	if err != nil {
		return nil, err
	}
	if why := probeFailure(res); why != "" {
		return nil, errors.New(why)
	}
	return res.Stdout, nil
}

func names(env []string) []string {
	var list []string
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		list = append(list, name)
	}
	return list
}

func pairs(env map[string]string) []string {
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}
