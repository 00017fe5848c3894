package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// promises checks that what a manifest says about itself fits together.
func (b *builder) promises() {
	t := b.tool
	external := t.Effects == "external"
	if !external && slices.Contains(t.Needs, "network") {
		b.fail("/needs", "network", "a tool whose effects are none or staged has no network", "effects: external, or no network")
	}
	if t.Effects == "none" && (len(t.Artifacts) > 0 || len(t.Publish) > 0 || t.Destructive) {
		b.fail("/effects", "effects", "a tool with effects none makes and publishes nothing", "effects: staged")
	}
	if external && t.Probe == nil && t.OnUnknown == "" {
		b.warn("/effects", "on_unknown", "nobody is told what to look at when the outcome is unknown", "add a probe, or on_unknown")
	}
	if !external && t.Probe != nil {
		b.fail("/probe", "probe", "only a tool with outside effects has something to probe for", "")
	}
	if t.Probe != nil && len(t.Run) == 0 {
		b.fail("/probe", "probe", "a tool that only publishes needs no probe", "")
	}
	for i, v := range t.Run {
		at := "/run/" + strconv.Itoa(i)
		if v.Network && !external {
			b.fail(at+"/network", "network", "a tool whose effects are none or staged has no network", "effects: external, or network: false")
		}
		if v.Network && external && !slices.Contains(t.Needs, "network") {
			b.warn(at+"/network", "network", "the tool does not say that it needs the network", "needs: [network]")
		}
		if len(v.Paths.Write) > 0 && !external {
			b.fail(at+"/paths/write", "paths", "a tool whose effects are none or staged writes only into its own folder", "effects: external")
		}
		if len(v.Paths.Cache) > 0 {
			b.warn(at+"/paths/cache", "paths", "the tool writes outside its own folder; make sure that nothing there is a result", "")
		}
		if v.Command.Stdout == "capture" && v.Command.Parser.Kind == "" {
			b.warn(at+"/command", "parser", "what the command prints is kept from the log and not used", "add a parser, or stdout: log")
		}
	}
	b.publishing()
}

func (b *builder) publishing() {
	t := b.tool
	removes := 0
	published := map[string]bool{}
	for i, p := range t.Publish {
		at := "/publish/" + strconv.Itoa(i)
		if p.Remove != "" {
			removes++
			if !b.hasFile(p.Remove, RoleInput) {
				b.fail(at+"/remove", "publish", fmt.Sprintf("%s is not an argument marked as a path that is read", quoted(p.Remove)), "")
			}
			if !t.Destructive {
				b.fail("/destructive", "destructive", "a tool that removes is destructive", "destructive: true")
			}
			continue
		}
		switch made, ok := t.Artifact(p.Create); {
		case !ok:
			b.fail(at+"/create", "publish", fmt.Sprintf("there is no artifact %s", quoted(p.Create)), "")
		case made.Kind == KindList:
			b.fail(at+"/create", "publish", "a list stays with the job: it is no one thing that can be renamed into place", "kind: folder")
		}
		if !b.hasFile(p.At, RoleOutput) {
			b.fail(at+"/at", "publish", fmt.Sprintf("%s is not an argument marked as a path that is written", quoted(p.At)), "")
		}
		if published[p.At] {
			b.fail(at+"/at", "publish", fmt.Sprintf("two artifacts go to %s", quoted(p.At)), "")
		}
		published[p.At] = true
	}
	for _, f := range t.files {
		if f.Role == RoleOutput && !published[f.Name] {
			b.fail("/input/properties"+Pointer(f.Name), "publish", fmt.Sprintf("nothing is published at %s", quoted(f.Name)), "add {create: ARTIFACT, at: "+f.Name+"} to publish")
		}
	}
	if len(t.Run) == 0 {
		if removes == 0 || removes != len(t.Publish) {
			b.fail("/run", "run", "a tool without run can only remove", "add run, or publish: [{remove: ARGUMENT}]")
		}
		if len(t.Artifacts) > 0 {
			b.fail("/artifacts", "run", "a tool without run makes no artifacts", "")
		}
	}
}

// scope is what an expression may use where it stands.
type scope struct {
	vars     []string
	steps    []string
	programs []string
}

func (s *scope) addSteps(lists ...[]StepSpec) {
	s.steps = slices.Clone(s.steps)
	for _, list := range lists {
		for _, step := range list {
			s.steps = append(s.steps, step.Name)
		}
	}
}

// scoped checks that an expression uses only what exists where it stands: the
// type checker knows the variables, not their members.
func (b *builder) scoped(x *expression, pointer string, s scope) {
	variables := []string{varArgs, varCall, varInputs, varOutputs, varSteps, varTool, varArtifacts, varPrograms, varSecrets, varWork, varParsed}
	ast.PreOrderVisit(x.checked.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			name := e.AsIdent()
			if !slices.Contains(variables, name) || slices.Contains(s.vars, name) {
				return
			}
			if name == varSecrets {
				b.fail(pointer, "secret", "secrets can be used only in env", "")
				return
			}
			b.fail(pointer, "scope", fmt.Sprintf("%s is not known here", name), "known here: "+quotedList(s.vars))
		case ast.SelectKind:
			sel := e.AsSelect()
			b.member(sel.Operand(), sel.FieldName(), pointer, s)
		case ast.CallKind:
			call := e.AsCall()
			switch call.FunctionName() {
			case operators.Index, operators.OptIndex, operators.OptSelect, "@text":
				if args := call.Args(); len(args) == 2 && args[1].Kind() == ast.LiteralKind {
					if name, ok := args[1].AsLiteral().(types.String); ok {
						b.member(args[0], string(name), pointer, s)
					}
				}
			}
		default: // what it is made of is visited on its own
		}
	}))
}

func (b *builder) member(operand ast.Expr, name, pointer string, s scope) {
	if operand.Kind() != ast.IdentKind {
		return
	}
	t := b.tool
	known := map[string][]string{
		varCall:  {"tool", "version", "purpose", "replace"},
		varSteps: s.steps, varPrograms: s.programs,
		varSecrets: slices.Collect(maps.Keys(t.secrets)),
	}
	for arg := range b.input {
		if !t.secrets[arg] {
			known[varArgs] = append(known[varArgs], arg)
		}
	}
	for _, f := range t.files {
		if f.Role == RoleInput {
			known[varInputs] = append(known[varInputs], f.Name)
		}
	}
	for _, a := range t.Artifacts {
		known[varOutputs] = append(known[varOutputs], a.Name)
		known[varArtifacts] = append(known[varArtifacts], a.Name)
	}
	variable := operand.AsIdent()
	names, ok := known[variable]
	if variable == varArgs && t.secrets[name] {
		b.fail(pointer, "secret", fmt.Sprintf("the secret argument %s can be used only in env, as secrets.%s", quoted(name), name), "")
		return
	}
	if !ok && !slices.Contains([]string{varArgs, varInputs, varOutputs, varArtifacts}, variable) {
		return
	}
	if !slices.Contains(names, name) {
		slices.Sort(names)
		b.fail(pointer, "scope", fmt.Sprintf("there is no %s.%s here", variable, name), "known here: "+quotedList(names))
	}
}
