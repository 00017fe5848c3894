package schemas

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Variant is one compiled way to run a tool. The order of use is: Before, the
// steps, Accept, Command, the command, After, the steps, Verify, Tool.Result.
type Variant struct {
	VariantSpec
	Index int // its place in the manifest

	tool                 *Tool
	features             map[string][]*expression // by program, as in Programs; nil: always
	before, after        []compiledStep
	accept, verification []condition
	command              compiledStep
	total                *expression
}

// Step is one start of a program, ready to run.
type Step struct {
	Name    string // steps.<name>; empty for the command
	Program string // a name in Programs
	Argv    []string
	Env     map[string]string
	Capture bool // standard output is parsed, not logged

	parser Parser
	value  *expression // nil: what the parser made
}

// Parse gives what steps.<name>, or tool for the command, is when the program
// printed out. An error in the manifest's value is an error here.
func (s Step) Parse(ctx context.Context, out []byte) (any, error) {
	parsed, err := s.parser.Parse(out)
	if err != nil || s.value == nil {
		return parsed, err
	}
	value, err := s.value.tree(ctx, map[string]any{varParsed: parsed})
	if err != nil {
		return nil, fmt.Errorf("the value of what was printed cannot be worked out: %w", err)
	}
	return value, nil
}

// Features lists what a program must be able to do for these arguments.
func (v *Variant) Features(ctx context.Context, program string, vars Vars) ([]FeatureSpec, error) {
	bound := v.tool.bind(vars)
	var wanted []FeatureSpec
	for i, f := range v.Programs[program].Features {
		if when := v.features[program][i]; when != nil {
			yes, err := when.bool(ctx, bound)
			if err != nil {
				return nil, fmt.Errorf("when feature %s of %s is wanted: %w", f.Name, program, err)
			}
			if !yes {
				continue
			}
		}
		wanted = append(wanted, f)
	}
	return wanted, nil
}

// Before lists the read-only steps on the staged inputs.
func (v *Variant) Before(ctx context.Context, vars Vars) ([]Step, error) {
	return v.steps(ctx, v.before, vars)
}

// Accept judges the staged inputs by what the steps before found. A finding means
// that the job fails as input_invalid.
func (v *Variant) Accept(ctx context.Context, vars Vars) []Finding {
	return judge(ctx, v.accept, v.tool.bind(vars))
}

// Command is the tool itself.
func (v *Variant) Command(ctx context.Context, vars Vars) (Step, error) {
	return v.command.resolve(ctx, v.tool.bind(vars), vars.Args)
}

// ProgressTotal is how much media time the command will produce, if that is known.
func (v *Variant) ProgressTotal(ctx context.Context, vars Vars) (time.Duration, bool) {
	if v.total == nil {
		return 0, false
	}
	seconds, err := v.total.number(ctx, v.tool.bind(vars))
	if err != nil || math.IsNaN(seconds) || seconds <= 0 || seconds > math.MaxInt64/1e9/2 {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// After lists the read-only steps on the outputs.
func (v *Variant) After(ctx context.Context, vars Vars) ([]Step, error) {
	return v.steps(ctx, v.after, vars)
}

// Verify judges the outputs. A finding means that the job fails as
// output_invalid.
func (v *Variant) Verify(ctx context.Context, vars Vars) []Finding {
	return judge(ctx, v.verification, v.tool.bind(vars))
}

func (v *Variant) steps(ctx context.Context, compiled []compiledStep, vars Vars) ([]Step, error) {
	bound := v.tool.bind(vars)
	steps := make([]Step, 0, len(compiled))
	for _, c := range compiled {
		s, err := c.resolve(ctx, bound, vars.Args)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// compiledStep is a StepSpec with its expressions, nil where a text is literal.
type compiledStep struct {
	spec  StepSpec
	argv  []*expression
	env   map[string]*expression
	value *expression
}

// What one argument and a whole argument list may hold, on every platform that
// macexec runs on.
const (
	maxArgument  = 128<<10 - 1
	maxArguments = 512 << 10
)

func (c compiledStep) resolve(ctx context.Context, vars map[string]any, args any) (Step, error) {
	name := c.spec.Name
	if name == "" {
		name = "command"
	}
	s := Step{
		Name: c.spec.Name, Program: c.spec.Program, Argv: []string{}, Env: map[string]string{},
		Capture: c.spec.Stdout != "log", parser: c.spec.Parser, value: c.value,
	}
	total, options := 0, true
	for i, x := range c.argv {
		elements := []string{c.spec.Argv[i].Literal}
		if x != nil {
			var err error
			if elements, err = x.strings(ctx, vars); err != nil {
				return Step{}, fmt.Errorf("%s: argv %d: %w", name, i, err)
			}
		}
		for _, e := range elements {
			if err := checkElement(e, args, options && x != nil); err != nil {
				return Step{}, fmt.Errorf("%s: argv %d: %w", name, i, err)
			}
			options = options && e != "--"
			total += len(e) + 1
		}
		s.Argv = append(s.Argv, elements...)
	}
	if total > maxArguments {
		return Step{}, fmt.Errorf("%s: the arguments have %d bytes; at most %d are taken", name, total, maxArguments)
	}
	for _, variable := range slices.Sorted(maps.Keys(c.spec.Env)) {
		value := c.spec.Env[variable].Literal
		if x := c.env[variable]; x != nil {
			var err error
			if value, err = x.string(ctx, vars); err != nil {
				// The reason could hold a secret.
				return Step{}, fmt.Errorf("%s: the environment variable %s could not be made", name, variable)
			}
		}
		if strings.ContainsRune(value, 0) || len(value) > maxArgument {
			return Step{}, fmt.Errorf("%s: the environment variable %s holds a NUL or is longer than %d bytes", name, variable, maxArgument)
		}
		s.Env[variable] = value
	}
	return s, nil
}

// checkElement refuses what no program could be given, and a caller's text that
// would be taken for an option. It names the argument.
func checkElement(e string, args any, mayBeOption bool) error {
	switch {
	case strings.ContainsRune(e, 0):
		return fmt.Errorf("%s holds a NUL character", source(args, func(s string) bool { return strings.ContainsRune(s, 0) && strings.Contains(e, s) }))
	case len(e) > maxArgument:
		return fmt.Errorf("%s is too long for one program argument (%d bytes; at most %d)",
			source(args, func(s string) bool { return len(s) > maxArgument/2 && strings.Contains(e, s) }), len(e), maxArgument)
	case mayBeOption && len(e) > 1 && e[0] == '-':
		if from := source(args, func(s string) bool { return s == e }); from != unknownSource {
			return fmt.Errorf("%s begins with \"-\" and would be taken for an option", from)
		}
	}
	return nil
}

const unknownSource = "a value"

// source names the top-level argument whose text fits.
func source(args any, fits func(string) bool) string {
	given, _ := args.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if s, ok := given[name].(string); ok && fits(s) {
			return "the argument " + quoted(name)
		}
	}
	return unknownSource
}
