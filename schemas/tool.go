package schemas

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
)

// Tool is a manifest that has been checked and compiled. It never changes and
// may be used by many at once.
type Tool struct {
	Manifest
	Digest string // hex SHA-256 of the manifest's bytes
	Source string // "shipped", or the manifest's path
	Text   []byte // the manifest itself

	input, output *compiledSchema
	files         []FileArgument // as declared, by name
	secrets       map[string]bool
	defaults      map[string]any
	checks        []condition
	variants      []*Variant
	artifacts     map[string]*expression
	result        *expression
	probe         *compiledProbe
}

type compiledProbe struct {
	step                  compiledStep
	happened, notHappened *expression
}

// The roles of a file argument.
const (
	RoleInput  = "input"
	RoleOutput = "output"
)

// FileArgument is an argument that names a file.
type FileArgument struct {
	Name    string
	Pointer string
	Value   string // empty where the argument is only declared
	Role    string // RoleInput or RoleOutput
	Kinds   []string
	InPlace bool // a huge input that is read where it lies
	Limits  FolderLimits
}

// TakesFolder says whether the argument may name a folder.
func (f FileArgument) TakesFolder() bool { return slices.Contains(f.Kinds, KindFolder) }

// Validate gives the schema verdict on a call's arguments, with every finding.
// No finding tells anything about a secret's value.
func (t *Tool) Validate(args any) []Finding {
	return t.input.validate(args, slices.Collect(maps.Keys(t.Secrets(args))))
}

// FileArguments lists the arguments that name files, by name.
func (t *Tool) FileArguments() []FileArgument { return slices.Clone(t.files) }

// Files lists the file arguments that a call has, by name.
func (t *Tool) Files(args any) []FileArgument {
	given, _ := args.(map[string]any)
	var files []FileArgument
	for _, f := range t.files {
		if value, ok := given[f.Name].(string); ok {
			f.Value = value
			files = append(files, f)
		}
	}
	return files
}

// SecretArguments lists the names of the arguments that are secret, sorted.
func (t *Tool) SecretArguments() []string { return slices.Sorted(maps.Keys(t.secrets)) }

// Secrets gives the secret values of a call by JSON pointer. A secret that is no
// string is given as its JSON text, so that it is masked too.
func (t *Tool) Secrets(args any) map[string]string {
	given, _ := args.(map[string]any)
	values := map[string]string{}
	for name := range t.secrets {
		switch v := given[name].(type) {
		case nil:
			if _, ok := given[name]; ok {
				values[Pointer(name)] = "null"
			}
		case string:
			values[Pointer(name)] = v
		default:
			text, _ := marshal(v) // what Parse made can be written
			values[Pointer(name)] = string(text)
		}
	}
	return values
}

// SecretMarker stands for a secret value wherever arguments are kept or shown.
const SecretMarker = "macexec_secret"

// Mask returns the arguments with an object {"macexec_secret": true} in place of
// each secret value. What it is given stays as it is.
func (t *Tool) Mask(args any) any {
	given, ok := args.(map[string]any)
	if !ok || len(t.secrets) == 0 {
		return args
	}
	masked := maps.Clone(given)
	for name := range t.secrets {
		if _, ok := masked[name]; ok {
			masked[name] = map[string]any{SecretMarker: true}
		}
	}
	return masked
}

// Check evaluates the manifest's own checks, which see the arguments and the call
// only. It is a part of the business verdict; an error in a check denies.
func (t *Tool) Check(ctx context.Context, v Vars) []Finding {
	return judge(ctx, t.checks, t.bind(v))
}

// Variant chooses the first variant for a platform (linux, darwin) whose programs
// are all available. If there is none it returns nil and what the last one tried
// misses. A tool without run has no variant and misses nothing.
func (t *Tool) Variant(platform string, available func(program string) bool) (*Variant, []string) {
	var missing []string
	tried := false
	for _, v := range t.variants {
		if !slices.Contains(v.Platforms, platform) {
			continue
		}
		tried, missing = true, nil
		for _, program := range slices.Sorted(maps.Keys(v.Programs)) {
			if !available(program) {
				missing = append(missing, program)
			}
		}
		if len(missing) == 0 {
			return v, nil
		}
	}
	if !tried && len(t.variants) > 0 {
		missing = []string{"a variant for " + platform}
	}
	return nil, missing
}

// VariantAt gives the variant of an Index, so that a job that has started is finished
// by the way of running that it was started by.
func (t *Tool) VariantAt(index int) (*Variant, bool) {
	if index < 0 || index >= len(t.variants) {
		return nil, false
	}
	return t.variants[index], true
}

// Artifact gives what the manifest says of an artifact.
func (t *Tool) Artifact(name string) (ArtifactSpec, bool) {
	i := slices.IndexFunc(t.Artifacts, func(a ArtifactSpec) bool { return a.Name == name })
	if i < 0 {
		return ArtifactSpec{}, false
	}
	return t.Artifacts[i], true
}

// ArtifactFile gives the plain name of an artifact's file or folder in the attempt's
// output folder.
func (t *Tool) ArtifactFile(ctx context.Context, name string, v Vars) (string, error) {
	x, ok := t.artifacts[name]
	if !ok {
		return "", fmt.Errorf("the tool has no artifact %s", quoted(name))
	}
	file, err := x.string(ctx, t.bind(v))
	if err != nil {
		return "", fmt.Errorf("the file name of artifact %s: %w", name, err)
	}
	if file == "" || len(file) > 255 || strings.ContainsAny(file, "/\x00") || file[0] == '.' || file[0] == '-' {
		return "", fmt.Errorf("the file name %s of artifact %s is not a plain name", quoted(file), name)
	}
	return file, nil
}

// Result evaluates the tool's result. It is not checked against the output schema
// yet: see ValidateResult.
func (t *Tool) Result(ctx context.Context, v Vars) (json.RawMessage, error) {
	tree, err := t.result.tree(ctx, t.bind(v))
	if err != nil {
		return nil, fmt.Errorf("the result: %w", err)
	}
	if _, ok := tree.(map[string]any); !ok {
		return nil, errors.New("the result is not a map")
	}
	return marshal(tree)
}

// ValidateResult judges a result against the output schema.
func (t *Tool) ValidateResult(raw []byte) []Finding {
	value, findings := Parse(raw, documentLimits())
	if len(findings) > 0 {
		return findings
	}
	return t.output.validate(value, nil)
}

// HasProbe reports whether something can prove what became of the tool's effect.
func (t *Tool) HasProbe() bool { return t.probe != nil }

// ProbeStep is the read-only step that can prove what became of the effect of an
// external tool. false: the tool has none.
func (t *Tool) ProbeStep(ctx context.Context, v Vars) (Step, bool, error) {
	if t.probe == nil {
		return Step{}, false, nil
	}
	step, err := t.probe.step.resolve(ctx, t.bind(v), v.Args)
	return step, true, err
}

// ProbeAnswer says what the probe proves, its parsed output being v.Steps["probe"].
// Both false: it proves nothing. An error, and an answer that says both, prove
// nothing either.
func (t *Tool) ProbeAnswer(ctx context.Context, v Vars) (happened, notHappened bool, err error) {
	if t.probe == nil {
		return false, false, errors.New("the tool has no probe")
	}
	vars := t.bind(v)
	if happened, err = t.probe.happened.bool(ctx, vars); err != nil {
		return false, false, err
	}
	if notHappened, err = t.probe.notHappened.bool(ctx, vars); err != nil {
		return false, false, err
	}
	if happened && notHappened {
		return false, false, errors.New("the probe says both that it happened and that it did not")
	}
	return happened, notHappened, nil
}

// condition is a compiled CheckSpec.
type condition struct {
	spec    CheckSpec
	expr    *expression
	message *expression // nil: literal
}

// judge evaluates conditions and returns a finding for each that is not true.
func judge(ctx context.Context, conditions []condition, vars map[string]any) []Finding {
	var findings []Finding
	for _, c := range conditions {
		f := Finding{Pointer: c.spec.Pointer, Keyword: c.spec.Name, Message: c.spec.Message.Literal, Hint: c.spec.Hint}
		ok, err := c.expr.bool(ctx, vars)
		if err == nil && ok {
			continue
		}
		if err == nil && c.message != nil {
			f.Message, err = c.message.string(ctx, vars)
		}
		if err != nil {
			f.Message = fmt.Sprintf("the condition %s could not be decided: %v", c.spec.Name, err)
		}
		findings = append(findings, f)
	}
	return findings
}

// marshal writes JSON without escaping what only HTML needs escaped.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

func compileCondition(l *language, c CheckSpec) (condition, error) {
	x, err := l.compile(c.Expr, cel.BoolType)
	if err != nil {
		return condition{}, err
	}
	out := condition{spec: c, expr: x}
	if c.Message.CEL != "" {
		out.message, err = l.compile(c.Message.CEL, cel.StringType)
	}
	return out, err
}
