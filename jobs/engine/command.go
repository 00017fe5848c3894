package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// lookAll runs read-only steps side by side, since none depends on another, and keeps
// what they say. The error is of the first that failed, in the manifest's order.
func (a *attempt) lookAll(ctx context.Context, steps []schemas.Step) error {
	values, errs := make([]any, len(steps)), make([]error, len(steps))
	var all sync.WaitGroup
	for i, step := range steps {
		all.Go(func() { values[i], errs[i] = a.look(ctx, step) })
	}
	all.Wait()
	for i, step := range steps {
		if errs[i] != nil {
			return fmt.Errorf("(%s): %w", step.Name, errs[i])
		}
		a.vars.Steps[step.Name] = values[i]
	}
	return nil
}

// look runs one read-only step and parses what it prints.
func (a *attempt) look(ctx context.Context, step schemas.Step) (any, error) {
	command, err := a.command(step)
	if err != nil {
		return nil, err
	}
	command.Timeout = lookTimeout
	if _, err := os.Stat(command.Dir); isNotExist(err) {
		command.Dir = "/" // a probe may be asked when the attempt's folder is gone
	}
	// It only looks, also where the command may write: a probe is asked what was written.
	command.Confine.Read = slices.Concat(command.Confine.Read, command.Confine.Write, []string{command.Dir})
	command.Confine.Write, command.Confine.Network, command.Confine.Metadata = nil, false, false
	for name := range a.vars.Artifacts {
		// Once an output is kept it lies outside of the tool's own folder.
		command.Confine.Read = append(command.Confine.Read, a.vars.Outputs[name])
	}
	res, err := a.e.exec.Probe(ctx, command)
	if err != nil {
		return nil, err
	}
	if why := probeFailure(res); why != "" {
		return nil, fmt.Errorf("%s %s", step.Program, masked(why, a.secrets))
	}
	return step.Parse(ctx, res.Stdout)
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
	prog, err := e.programs.Resolve(step.Program)
	if err != nil {
		return executor.Command{}, err
	}
	dir := e.exec.AttemptDir(a.job.ID, a.n)
	env := baseEnvironment(e.programs.Dirs(), dir.Tmp())
	maps.Copy(env, step.Env)
	paths := a.variant.Paths
	return executor.Command{
		Argv: append([]string{prog.Found}, step.Argv...), Env: pairs(env), Dir: dir.Work(),
		CaptureStdout: step.Capture,
		Limits: executor.Limits{
			Memory: int64(a.variant.Limits.Memory), FileSize: int64(a.variant.Limits.FileSize),
			OpenFiles: uint64(a.variant.Limits.OpenFiles), LogBytes: e.limits().LogBytes,
		},
		Confine: executor.Confine{
			Read:  slices.Concat(programFolders(prog), paths.Read, a.inPlace),
			Write: append(slices.Clone(paths.Write), paths.Cache...), Network: a.variant.Network,
			Metadata: !a.job.Tool.Effects.LeavesNothing(),
		},
	}, nil
}

// programFolders lets a tool read what lies beside its own executable.
func programFolders(p programs.Program) []string {
	return []string{filepath.Dir(p.Path), filepath.Dir(p.Found)}
}

// baseEnvironment is all that a tool gets besides what its manifest says, which goes
// before it. Under launchd there is no locale,
// and tools then take text for bytes; so it is set (see docs/manifests.md).
func baseEnvironment(toolPath []string, tmp string) map[string]string {
	locale := "C.UTF-8"
	if runtime.GOOS == "darwin" {
		locale = "en_US.UTF-8"
	}
	return map[string]string{
		"PATH": strings.Join(toolPath, ":"), "HOME": tmp, "TMPDIR": tmp, "LANG": locale, "LC_ALL": locale, "TZ": "UTC",
	}
}

// chooseVariant finds the first variant of a tool that this host can run, or says
// what is missing for the last one it looked at.
func (e *Engine) chooseVariant(t *schemas.Tool) (*schemas.Variant, []string) {
	return t.Variant(runtime.GOOS, func(name string) bool {
		_, err := e.programs.Resolve(name)
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
		p, err := e.programs.Resolve(name)
		if err != nil {
			findings = append(findings, schemas.Finding{Keyword: "program", Message: err.Error(), Hint: "ask the operator to install it"})
			continue
		}
		out := jobs.Program{Name: name, Path: p.Path, SHA256: p.SHA256}
		if need.Version != nil {
			if re, err := regexp.Compile(need.Version.Pattern); err == nil {
				out.Version, _ = e.programs.Version(ctx, p, need.Version.Argv, re, e.ask)
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
	found, err := e.programs.Features(ctx, p, f.Argv, re, e.ask)
	return len(found) > 0, err
}

// ask runs a program that tells of itself, confined and with nothing to write to.
func (e *Engine) ask(ctx context.Context, argv []string) ([]byte, error) {
	res, err := e.exec.Probe(ctx, executor.Command{
		Argv: argv, Env: pairs(baseEnvironment(e.programs.Dirs(), "/nonexistent")), Dir: "/",
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
