package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
)

// loader turns manifests into tools. One serves a whole registry.
type loader struct {
	language *language
	manifest *DocumentSchema
}

func newLoader() (*loader, error) {
	l, err := newLanguage()
	if err != nil {
		return nil, err
	}
	manifest, ok := Document("manifest")
	if !ok {
		return nil, errors.New("the schema of manifests is damaged")
	}
	return &loader{language: l, manifest: manifest}, nil
}

// load reads one manifest. Without an issue of severity error the tool is good.
// The lines of the text are returned where it could be read.
func (l *loader) load(raw []byte, source string) (tool *Tool, issues []issue, lines *yamlText) {
	defer func() {
		if r := recover(); r != nil { // whatever one file does, the others load
			tool = nil
			issues = append(issues, issue{severity: SeverityError, rule: KeywordInternal, message: fmt.Sprintf("macexec failed while it read the manifest: %v", r)})
		}
	}()
	lines, err := readYAML(raw, manifestLimits())
	if err != nil {
		i := issue{severity: SeverityError, rule: keywordYAML, message: err.Error()}
		if y, ok := errors.AsType[*yamlError](err); ok {
			i.pointer, i.line = y.pointer, y.line
		}
		return nil, []issue{i}, nil
	}
	if findings := l.manifest.Validate(lines.json); len(findings) > 0 {
		for _, f := range findings {
			issues = append(issues, issue{severity: SeverityError, pointer: f.Pointer, rule: "manifest_" + f.Keyword, message: f.Message, hint: f.Hint})
		}
		return nil, issues, lines
	}
	sum := sha256.Sum256(raw)
	t := &Tool{Digest: hex.EncodeToString(sum[:]), Source: source, Text: raw}
	if err := json.Unmarshal(lines.json, &t.Manifest); err != nil {
		return nil, []issue{{severity: SeverityError, rule: "manifest", message: err.Error()}}, lines
	}
	b := &builder{language: l.language, tool: t}
	b.build()
	if slices.ContainsFunc(b.issues, func(i issue) bool { return i.severity == SeverityError }) {
		return nil, b.issues, lines
	}
	return t, b.issues, lines
}

// builder compiles one manifest into a tool and collects what is wrong with it.
type builder struct {
	language *language
	tool     *Tool
	issues   []issue
	input    map[string]any // the properties of the input schema
}

func (b *builder) fail(pointer, rule, message, hint string) {
	b.issues = append(b.issues, issue{severity: SeverityError, pointer: pointer, rule: rule, message: message, hint: hint})
}

func (b *builder) warn(pointer, rule, message, hint string) {
	b.issues = append(b.issues, issue{severity: SeverityWarning, pointer: pointer, rule: rule, message: message, hint: hint})
}

func (b *builder) build() {
	t := b.tool
	t.input = b.schema(t.Input, "/input", true)
	t.output = b.schema(t.Output, "/output", false)
	b.input, _ = asObject(t.Input)["properties"].(map[string]any)
	b.arguments()
	b.promises()
	t.checks = b.conditions(t.Checks, "/checks", scope{vars: []string{varArgs, varCall}})
	b.artifacts()
	for i := range t.Run {
		t.variants = append(t.variants, b.variant(i))
	}
	b.probe()
	all := scope{vars: []string{varArgs, varCall, varInputs, varOutputs, varSteps, varTool, varArtifacts, varPrograms}}
	for _, v := range t.Run {
		all.addSteps(v.Before, v.After)
		all.programs = slices.AppendSeq(all.programs, maps.Keys(v.Programs))
	}
	t.result = b.expression(t.Manifest.Result, "/result", all, cel.MapType(cel.StringType, cel.DynType))
}

func (b *builder) schema(raw json.RawMessage, pointer string, input bool) *compiledSchema {
	tree := any(asObject(raw))
	issues := auditSchema(tree, pointer, input)
	b.issues = append(b.issues, issues...)
	if slices.ContainsFunc(issues, func(i issue) bool { return i.severity == SeverityError }) {
		return nil
	}
	s, err := compileSchema(tree)
	if err != nil {
		at := pointer
		if e, ok := errors.AsType[*schemaError](err); ok {
			at += e.finding.Pointer
		}
		b.fail(at, "schema", err.Error(), "")
	}
	return s
}

// mark is what x-macexec says about an argument.
type mark struct {
	FolderLimits

	Path    string   `json:"path"`
	Kinds   []string `json:"kinds"`
	InPlace bool     `json:"in_place"`
}

// arguments reads the marks and defaults of the input schema's properties.
func (b *builder) arguments() {
	t := b.tool
	t.secrets, t.defaults = map[string]bool{}, map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(b.input)) {
		property, _ := b.input[name].(map[string]any)
		at := "/input/properties" + Pointer(name)
		marked, isFile := property["x-macexec"]
		secret := property["writeOnly"] == true
		if (isFile || secret || name == "project_id") && property["type"] != "string" {
			b.fail(at, "argument_mark", "a path, a secret and project_id must be of type string", "")
			continue
		}
		if secret {
			t.secrets[name] = true
		}
		if isFile {
			if secret {
				b.fail(at, "argument_mark", "a path cannot be a secret: it is journaled", "")
			}
			b.file(name, at+"/x-macexec", marked)
		}
		if value, ok := property["default"]; ok {
			if s, err := compileSchema(property); err == nil && property["$ref"] == nil && len(s.validate(value, nil)) > 0 {
				b.fail(at+"/default", "default", "the default does not fit the argument's own schema", "")
			}
			if secret {
				b.fail(at+"/default", "default", "a secret has no default", "")
			}
			t.defaults[name] = value
		}
	}
}

func (b *builder) file(name, pointer string, marked any) {
	raw, _ := marshal(marked)
	var m mark
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil || (m.Path != RoleInput && m.Path != RoleOutput) {
		b.fail(pointer, "argument_mark", "x-macexec is {path: input or output, kinds: [...], in_place: bool, max_files, max_bytes, max_depth}", "")
		return
	}
	for _, k := range m.Kinds {
		if !slices.Contains([]string{"image", "audio", "video", "svg", "text", KindFolder}, k) {
			b.fail(pointer+"/kinds", "argument_mark", fmt.Sprintf("there is no kind %s", quoted(k)), "kinds: image, audio, video, svg, text, folder")
		}
	}
	if m.Path == RoleOutput && (m.InPlace || len(m.Kinds) > 0) {
		b.fail(pointer, "argument_mark", "kinds and in_place are for inputs", "")
	}
	arg := FileArgument{Name: name, Pointer: Pointer(name), Role: m.Path, Kinds: m.Kinds, InPlace: m.InPlace}
	switch {
	case !arg.TakesFolder() && m.FolderLimits != FolderLimits{}:
		b.fail(pointer, "argument_mark", "max_files, max_bytes and max_depth are for an input that may be a folder", "kinds: [folder]")
	case arg.TakesFolder() && m.InPlace:
		b.fail(pointer+"/in_place", "argument_mark", "a folder is always taken in as a copy", "leave in_place out")
	case m.MaxFiles < 0 || m.MaxFiles > mostFiles || m.MaxDepth < 0 || m.MaxDepth > mostDepth:
		b.fail(pointer, "argument_mark", fmt.Sprintf("max_files is at most %d, max_depth at most %d", mostFiles, mostDepth), "")
	}
	if arg.TakesFolder() {
		arg.Limits = m.orDefault(defaultFiles)
	}
	b.tool.files = append(b.tool.files, arg)
}

func (b *builder) hasFile(name, role string) bool {
	return slices.ContainsFunc(b.tool.files, func(f FileArgument) bool { return f.Name == name && f.Role == role })
}

func (b *builder) conditions(specs []CheckSpec, pointer string, s scope) []condition {
	var out []condition
	seen := map[string]bool{}
	for i, spec := range specs {
		at := pointer + "/" + strconv.Itoa(i)
		if seen[spec.Name] {
			b.fail(at+"/name", "name_twice", fmt.Sprintf("%s stands twice", quoted(spec.Name)), "")
		}
		seen[spec.Name] = true
		c, err := compileCondition(b.language, spec)
		if err != nil {
			b.fail(at+"/expr", "expression", err.Error(), "")
			continue
		}
		b.scoped(c.expr, at+"/expr", s)
		if c.message != nil {
			b.scoped(c.message, at+"/message", s)
		}
		out = append(out, c)
	}
	return out
}

func (b *builder) expression(source, pointer string, s scope, want ...*cel.Type) *expression {
	x, err := b.language.compile(source, want...)
	if err != nil {
		b.fail(pointer, "expression", err.Error(), "")
		return nil
	}
	b.scoped(x, pointer, s)
	return x
}

func (b *builder) text(t Text, pointer string, s scope, want ...*cel.Type) *expression {
	if t.CEL == "" {
		return nil
	}
	return b.expression(t.CEL, pointer+"/cel", s, want...)
}

func (b *builder) artifacts() {
	t := b.tool
	t.artifacts = map[string]*expression{}
	for i, a := range t.Artifacts {
		at := "/artifacts/" + strconv.Itoa(i)
		if _, twice := t.artifacts[a.Name]; twice {
			b.fail(at+"/name", "name_twice", fmt.Sprintf("%s stands twice", quoted(a.Name)), "")
		}
		t.artifacts[a.Name] = b.expression(a.File, at+"/file", scope{vars: []string{varArgs, varCall}}, cel.StringType)
		if !a.Folder() {
			continue
		}
		b.names(a.Names, at+"/names")
		files := defaultFiles
		if a.Kind == KindList {
			files = defaultListFiles
		}
		t.Artifacts[i].FolderLimits = a.orDefault(files)
	}
}

// names judges the pattern of the names in a folder. It is for whole names.
func (b *builder) names(pattern, at string) {
	if re := b.pattern(pattern, at); re != nil && pattern != "" && (!strings.HasPrefix(pattern, "^") || !strings.HasSuffix(pattern, "$")) {
		b.warn(at, "pattern_anchored", "the pattern matches anywhere in a name", "begin it with ^ and end it with $")
	}
}

func (b *builder) variant(i int) *Variant {
	spec := b.tool.Run[i]
	at := "/run/" + strconv.Itoa(i)
	v := &Variant{VariantSpec: spec, Index: i, tool: b.tool, features: map[string][]*expression{}}
	programs := slices.Collect(maps.Keys(spec.Programs))
	s := scope{vars: []string{varArgs, varCall, varInputs, varPrograms, varWork}, programs: programs}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		v.features[name] = b.requirement(spec.Programs[name], at+"/programs"+Pointer(name))
	}
	v.before = b.steps(spec.Before, at+"/before", s, spec)
	s.vars = append(slices.Clone(s.vars), varSteps)
	s.addSteps(spec.Before)
	v.accept = b.conditions(spec.Accept, at+"/accept", s)
	s.vars = append(slices.Clone(s.vars), varOutputs)
	v.command = b.step(spec.Command, at+"/command", s, spec)
	if spec.Progress != nil && spec.Progress.TotalSeconds != "" {
		v.total = b.expression(spec.Progress.TotalSeconds, at+"/progress/total_seconds", s, cel.DoubleType, cel.IntType)
	}
	s.vars = append(slices.Clone(s.vars), varTool)
	v.after = b.steps(spec.After, at+"/after", s, spec)
	s.vars = append(slices.Clone(s.vars), varArtifacts)
	s.addSteps(spec.After)
	v.verification = b.conditions(spec.Verify, at+"/verify", s)
	names := map[string]bool{}
	for _, step := range slices.Concat(spec.Before, spec.After) {
		if names[step.Name] {
			b.fail(at, "name_twice", fmt.Sprintf("two steps are called %s", quoted(step.Name)), "")
		}
		names[step.Name] = true
	}
	return v
}

func (b *builder) requirement(p ProgramSpec, at string) []*expression {
	if p.Version != nil {
		if re := b.pattern(p.Version.Pattern, at+"/version/pattern"); re != nil && re.NumSubexp() < 1 {
			b.fail(at+"/version/pattern", "pattern", "the version is the pattern's first group, and it has none", "put the version in parentheses")
		}
	}
	var when []*expression
	for i, f := range p.Features {
		fat := at + "/features/" + strconv.Itoa(i)
		b.pattern(f.Pattern, fat+"/pattern")
		if f.When == "" {
			when = append(when, nil)
			continue
		}
		when = append(when, b.expression(f.When, fat+"/when", scope{vars: []string{varArgs, varCall}}, cel.BoolType))
	}
	return when
}

func (b *builder) pattern(pattern, pointer string) *regexp.Regexp {
	re, err := regexp.Compile(pattern)
	if err != nil {
		b.fail(pointer, "pattern", "the pattern is not RE2: "+err.Error(), "")
		return nil
	}
	return re
}

func (b *builder) steps(specs []StepSpec, pointer string, s scope, v VariantSpec) []compiledStep {
	var out []compiledStep
	for i, spec := range specs {
		out = append(out, b.step(spec, pointer+"/"+strconv.Itoa(i), s, v))
	}
	return out
}

func (b *builder) step(spec StepSpec, at string, s scope, v VariantSpec) compiledStep {
	if spec.Name == "" && spec.Stdout == "" {
		spec.Stdout = "log" // the command's own default
	}
	c := compiledStep{spec: spec, env: map[string]*expression{}}
	if _, ok := v.Programs[spec.Program]; !ok {
		b.fail(at+"/program", "program", fmt.Sprintf("%s is not among the variant's programs", quoted(spec.Program)), "add it to programs")
	}
	if spec.Parser.Kind == "regex" {
		b.pattern(spec.Parser.Pattern, at+"/parser/pattern")
	}
	if spec.Value != "" {
		c.value = b.expression(spec.Value, at+"/value", scope{vars: []string{varParsed}}, treeTypes()...)
	}
	options := true
	for i, t := range spec.Argv {
		eat := at + "/argv/" + strconv.Itoa(i)
		c.argv = append(c.argv, b.text(t, eat, s, cel.StringType, cel.ListType(cel.StringType)))
		if name, ok := strings.CutPrefix(strings.TrimSpace(t.CEL), varArgs+"."); ok && options && b.free(name) {
			b.warn(eat, "option", fmt.Sprintf("the argument %s could begin with \"-\"; such a call is refused when it runs", quoted(name)),
				"give it a pattern, or write it as part of an option, as in \"--title=\" + args.title")
		}
		options = options && t.Literal != "--"
	}
	for name, t := range spec.Env {
		withSecrets := s
		withSecrets.vars = append(slices.Clone(s.vars), varSecrets)
		c.env[name] = b.text(t, at+"/env"+Pointer(name), withSecrets, cel.StringType)
	}
	return c
}

// free reports whether an argument is a text whose beginning nothing bounds.
func (b *builder) free(name string) bool {
	p, ok := b.input[name].(map[string]any)
	return ok && p["type"] == "string" && p["enum"] == nil && p["const"] == nil && p["pattern"] == nil && p["format"] == nil
}

func (b *builder) probe() {
	p := b.tool.Probe
	if p == nil {
		return
	}
	s := scope{vars: []string{varArgs, varCall, varInputs, varPrograms}}
	for _, v := range b.tool.Run {
		s.programs = slices.AppendSeq(s.programs, maps.Keys(v.Programs))
	}
	step := StepSpec{Name: "probe", Program: p.Program, Argv: p.Argv, Parser: p.Parser}
	var compiled compiledStep
	for i, v := range b.tool.Run {
		if c := b.step(step, "/probe", s, v); i == 0 {
			compiled = c
		}
	}
	s.vars = append(s.vars, varSteps)
	s.steps = []string{"probe"}
	b.tool.probe = &compiledProbe{
		step:        compiled,
		happened:    b.expression(p.Happened, "/probe/happened", s, cel.BoolType),
		notHappened: b.expression(p.NotHappened, "/probe/not_happened", s, cel.BoolType),
	}
}
