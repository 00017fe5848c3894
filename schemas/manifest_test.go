package schemas_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/macexec/macexec/schemas"
)

// baseManifest is a small good tool without a warning.
const baseManifest = `tool: echo_text
version: "2026-11-01"
title: Echo
description: Prints a text and says how long it is.
effects: external
purposes: [production]
needs: [network]
on_unknown: look at the service
input:
  type: object
  additionalProperties: false
  required: [text]
  properties:
    text: {type: string, description: what to print, maxLength: 200000}
    count: {type: integer, description: how often, minimum: 0, maximum: 9007199254740993}
    ratio: {type: number, description: a ratio, multipleOf: 0.01}
    mode: {type: string, description: how, enum: [fast_mode, slow], default: slow}
    token: {type: string, description: a secret, writeOnly: true, minLength: 8, maxLength: 20, pattern: '^[a-z0-9]+$'}
    when: {type: string, description: when, format: date-time}
    tags: {type: array, description: words, maxItems: 3, items: {type: string, maxLength: 9}}
output:
  type: object
  additionalProperties: false
  required: [said]
  properties:
    said: {type: string}
    count: {type: number}
checks:
  - name: not_shouting
    expr: args.text != args.text.upperAscii() || args.text == ""
    message: {cel: '"do not shout " + args.text'}
    pointer: /text
    hint: use small letters
run:
  - platforms: [linux, darwin]
    programs:
      echo: {version: {argv: [--version], pattern: '(\S+)$'}, features: [{name: e, argv: [x], pattern: e, when: args.mode == "slow"}]}
    before:
      - {name: first, program: echo, argv: [hi], parser: {kind: text}}
    accept:
      - {name: greeted, expr: steps.first == "hi", message: no greeting}
    command:
      program: echo
      argv: [-n, --, {cel: args.text}, {cel: 'has(args.count) ? ["-c", text(args.count)] : []'}]
      env: {TOKEN: {cel: 'has(secrets.token) ? secrets.token : ""'}}
      stdout: capture
      parser: {kind: text}
    timeout: 1m
    slot: small
    network: true
result: '{"said": tool}'
`

// edited is the base manifest with old replaced by new, in pairs.
func edited(t testing.TB, pairs ...string) string {
	t.Helper()
	text := baseManifest
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the base manifest has no %q", pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// open loads manifests as an operator's.
func open(t testing.TB, manifests ...string) *schemas.Registry {
	t.Helper()
	dir := t.TempDir()
	for i, m := range manifests {
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".yaml"), []byte(m), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := schemas.Open(schemas.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func loaded(t testing.TB, pairs ...string) *schemas.Tool {
	t.Helper()
	r := open(t, edited(t, pairs...))
	tool, ok := r.Tool("echo_text", "")
	if !ok {
		t.Fatalf("not loaded: %+v", r.Problems())
	}
	return tool
}

func lint(t testing.TB, manifest string) schemas.LintReport {
	t.Helper()
	report, err := schemas.Lint([]byte(manifest), "m.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestLintBaseIsClean(t *testing.T) {
	t.Parallel()
	if r := lint(t, baseManifest); !r.OK || len(r.Problems) != 0 || r.Tool != "echo_text" || r.Version != "2026-11-01" {
		t.Errorf("%+v", r)
	}
}

func TestLintShippedIsClean(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("tools/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range lint(t, string(raw)).Problems {
			t.Errorf("%s:%s", f, p)
		}
	}
}

// TestLintRules has a row for each rule: a change to the good manifest, and the
// severity, rule and place of what is said about it.
func TestLintRules(t *testing.T) {
	t.Parallel()
	staged := []string{"effects: external", "effects: staged", "needs: [network]\n", "", "    network: true\n", ""}
	input := func(property string) []string {
		return []string{"    tags:", "    extra: " + property + "\n    tags:"}
	}
	for _, tc := range []struct {
		name     string
		pairs    []string
		severity string
		rule     string
		pointer  string
	}{
		{"unknown field", []string{"title: Echo", "title: Echo\nfoo: 1"}, "error", "manifest_additionalProperties", "/foo"},
		{"field missing", []string{"title: Echo\n", ""}, "error", "manifest_required", ""},
		{"bad name", []string{"echo_text", "Echo.Text"}, "error", "manifest_pattern", "/tool"},
		{"version no date", []string{"2026-11-01", "1.2.3"}, "error", "manifest_format", "/version"},
		{"duplicate name", []string{"title: Echo", "title: Echo\ntitle: Echo"}, "error", "yaml", ""},
		{"anchor", []string{"title: Echo", "title: &a Echo"}, "error", "yaml", "/title"},
		{"tag", []string{"title: Echo", "title: !!binary Echo"}, "error", "yaml", "/title"},
		{"octal", []string{"maximum: 9007199254740993", "maximum: 0o17"}, "error", "yaml", "/input/properties/count/maximum"},
		{"two documents", []string{"tool: echo", "a: 1\n---\ntool: echo"}, "error", "yaml", ""},
		{"effects none with artifact", append([]string{"result:", "artifacts: [{name: a, file: '\"a\"', media_types: [a/b], required: true}]\nresult:", "on_unknown: look at the service\n", ""}, replaceAt(staged, 1, "effects: none")...), "error", "effects", "/effects"},
		{"staged with network", []string{"effects: external", "effects: staged", "needs: [network]\n", ""}, "error", "network", "/run/0/network"},
		{"staged needs network", []string{"effects: external", "effects: staged", "    network: true\n", ""}, "error", "network", "/needs"},
		{"network without need", []string{"needs: [network]\n", ""}, "warning", "network", "/run/0/network"},
		{"staged writes elsewhere", append([]string{"    slot: small", "    slot: small\n    paths: {write: [/x]}"}, staged...), "error", "paths", "/run/0/paths/write"},
		{"cache", []string{"    slot: small", "    slot: small\n    paths: {cache: [/x]}"}, "warning", "paths", "/run/0/paths/cache"},
		{"external without a hint", []string{"on_unknown: look at the service\n", ""}, "warning", "on_unknown", "/effects"},
		{"probe of a staged tool", append([]string{"result:", "probe: {program: echo, argv: [], parser: {kind: text}, happened: 'true', not_happened: 'false'}\nresult:"}, staged...), "error", "probe", "/probe"},
		{"input open", []string{"input:\n  type: object\n  additionalProperties: false", "input:\n  type: object"}, "error", "schema_closed", "/input"},
		{"output open", []string{"output:\n  type: object\n  additionalProperties: false", "output:\n  type: object"}, "error", "schema_closed", "/output"},
		{"input no object", []string{"input:\n  type: object", "input:\n  type: array"}, "error", "schema_object", "/input"},
		{"inner object open", input("{type: object, description: d, properties: {a: {type: 'null'}}}"), "warning", "schema_closed", "/input/properties/extra"},
		{"no bound of text", input("{type: string, description: d}"), "warning", "max_length", "/input/properties/extra"},
		{"no bound of list", input("{type: array, description: d}"), "warning", "max_items", "/input/properties/extra"},
		{"no description", input("{type: 'null'}"), "warning", "description", "/input/properties/extra"},
		{"pattern not anchored", input("{type: string, description: d, maxLength: 9, pattern: '[a-z]+'}"), "warning", "pattern_anchored", "/input/properties/extra/pattern"},
		{"look-ahead", input("{type: string, description: d, maxLength: 9, pattern: '^(?!-).*$'}"), "error", "schema_pattern", "/input/properties/extra/pattern"},
		{"unknown format", input("{type: string, description: d, format: path}"), "error", "schema_format", "/input/properties/extra/format"},
		{"unknown keyword", input("{type: 'null', description: d, maxlenght: 3}"), "warning", "schema_keyword", "/input/properties/extra/maxlenght"},
		{"keyword of a wrong type", input("{type: string, description: d, maxLength: nine}"), "error", "schema", "/input/properties/extra/maxLength"},
		{"default does not fit", input("{type: string, description: d, enum: [a], default: b}"), "error", "default", "/input/properties/extra/default"},
		{"secret in a list", input("{type: array, description: d, maxItems: 1, items: {type: string, maxLength: 3, writeOnly: true}}"), "error", "argument_mark", "/input/properties/extra/items/writeOnly"},
		{"secret no string", input("{type: integer, description: d, writeOnly: true}"), "error", "argument_mark", "/input/properties/extra"},
		{"path no string", input("{type: integer, description: d, x-macexec: {path: input}}"), "error", "argument_mark", "/input/properties/extra"},
		{"path mark wrong", input("{type: string, description: d, maxLength: 9, x-macexec: {path: both}}"), "error", "argument_mark", "/input/properties/extra/x-macexec"},
		{"path kind unknown", input("{type: string, description: d, maxLength: 9, x-macexec: {path: input, kinds: [film]}}"), "error", "argument_mark", "/input/properties/extra/x-macexec/kinds"},
		{"output path not published", input("{type: string, description: d, maxLength: 9, x-macexec: {path: output}}"), "error", "publish", "/input/properties/extra"},
		{"publish of nothing", []string{"result:", "publish: [{create: a, at: text}]\nresult:"}, "error", "publish", "/publish/0/create"},
		{"remove without destructive", append(input("{type: string, description: d, maxLength: 9, x-macexec: {path: input}}"), "result:", "publish: [{remove: extra}]\nresult:"), "error", "destructive", "/destructive"},
		{"reference to a file", input("{description: d, $ref: 'file:///etc/hostname'}"), "error", "schema_reference", "/input/properties/extra/$ref"},
		{"reference to a missing part", input("{description: d, $ref: '#/$defs/no'}"), "error", "schema_reference", "/input/properties/extra/$ref"},
		{"rebased", []string{"input:\n", "input:\n  $id: https://example.com/\n"}, "error", "schema_reference", "/input/$id"},
		{"other dialect", []string{"input:\n", "input:\n  $schema: http://json-schema.org/draft-07/schema#\n"}, "error", "schema_dialect", "/input/$schema"},
		{"cycle", append(input("{description: d, $ref: '#/$defs/a'}"), "input:\n", "input:\n  $defs: {a: {type: array, maxItems: 1, items: {$ref: '#/$defs/a'}}}\n"), "error", "schema_cycle", "/input/$defs/a/items/$ref"},
		{"secret in argv", []string{"[hi]", "[{cel: args.token}]"}, "error", "secret", "/run/0/before/0/argv/0/cel"},
		{"secret in a check", []string{`args.text == ""`, `args.token == ""`}, "error", "secret", "/checks/0/expr"},
		{"secrets in argv", []string{"[hi]", "[{cel: secrets.token}]"}, "error", "secret", "/run/0/before/0/argv/0/cel"},
		{"not known yet", []string{"[hi]", "[{cel: steps.first}]"}, "error", "scope", "/run/0/before/0/argv/0/cel"},
		{"no such argument", []string{`args.text == ""`, `args.txt == ""`}, "error", "scope", "/checks/0/expr"},
		{"no such argument by index", []string{`args.text == ""`, `args["txt"] == ""`}, "error", "scope", "/checks/0/expr"},
		{"no such step", []string{"steps.first ==", "steps.last =="}, "error", "scope", "/run/0/accept/0/expr"},
		{"expression does not parse", []string{`args.text == ""`, `args.text ==`}, "error", "expression", "/checks/0/expr"},
		{"expression of another type", []string{`expr: steps.first == "hi"`, `expr: '"hi"'`}, "error", "expression", "/run/0/accept/0/expr"},
		{"unknown function", []string{`steps.first == "hi"`, `open(steps.first)`}, "error", "expression", "/run/0/accept/0/expr"},
		{"number in argv", []string{"[hi]", "[{cel: '1'}]"}, "error", "expression", "/run/0/before/0/argv/0/cel"},
		{"result no map", []string{`'{"said": tool}'`, `'"said"'`}, "error", "expression", "/result"},
		{"value that does not parse", []string{"parser: {kind: text}}", "parser: {kind: text}, value: 'parsed +'}"}, "error", "expression", "/run/0/before/0/value"},
		{"value that JSON cannot hold", []string{"parser: {kind: text}}", "parser: {kind: text}, value: 'bytes(parsed)'}"}, "error", "expression", "/run/0/before/0/value"},
		{"value of an argument", []string{"parser: {kind: text}}", "parser: {kind: text}, value: 'parsed + args.text'}"}, "error", "scope", "/run/0/before/0/value"},
		{"parsed elsewhere", []string{`steps.first == "hi"`, `parsed == "hi"`}, "error", "scope", "/run/0/accept/0/expr"},
		{"program not declared", []string{"{name: first, program: echo", "{name: first, program: cat"}, "error", "program", "/run/0/before/0/program"},
		{"two checks of one name", []string{"run:", "  - {name: not_shouting, expr: 'true', message: m}\nrun:"}, "error", "name_twice", "/checks/1/name"},
		{"version without a group", []string{`'(\S+)$'`, `'\S+$'`}, "error", "pattern", "/run/0/programs/echo/version/pattern"},
		{"an argument that may be an option", []string{"[hi]", "[{cel: args.text}]"}, "warning", "option", "/run/0/before/0/argv/0"},
		{"captured for nothing", []string{"      stdout: capture\n      parser: {kind: text}\n", "      stdout: capture\n"}, "warning", "parser", "/run/0/command"},
		{"parser without capture", []string{"      stdout: capture\n", ""}, "error", "manifest_required", "/run/0/command"},
		{"regex without pattern", []string{"parser: {kind: text}}", "parser: {kind: regex}}"}, "error", "manifest_required", "/run/0/before/0/parser"},
		{"no run and no publish", []string{"run:\n", "x: &a\n"}, "error", "yaml", "/x"},
		{"timeout of nothing", []string{"timeout: 1m", "timeout: 0s"}, "error", "manifest", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := lint(t, edited(t, tc.pairs...))
			i := slices.IndexFunc(r.Problems, func(p schemas.LintProblem) bool {
				return p.Severity == tc.severity && p.Rule == tc.rule && p.Pointer == tc.pointer
			})
			if i < 0 {
				t.Fatalf("want %s %s at %q, got %+v", tc.severity, tc.rule, tc.pointer, r.Problems)
			}
			if r.Problems[i].Message == "" || (tc.pointer != "" && r.Problems[i].Line == 0) {
				t.Errorf("%+v", r.Problems[i])
			}
			if r.OK == slices.ContainsFunc(r.Problems, func(p schemas.LintProblem) bool { return p.Severity == "error" }) {
				t.Errorf("OK is %v with %+v", r.OK, r.Problems)
			}
		})
	}
}

func replaceAt(list []string, i int, with string) []string {
	list = slices.Clone(list)
	list[i] = with
	return list
}

func TestLintTellsTheLine(t *testing.T) {
	t.Parallel()
	r := lint(t, edited(t, `args.text == ""`, `args.txt == ""`))
	want := slices.Index(strings.Split(edited(t, `args.text == ""`, `args.txt == ""`), "\n"), `    expr: args.text != args.text.upperAscii() || args.txt == ""`) + 1
	if len(r.Problems) != 1 || r.Problems[0].Line != want {
		t.Errorf("want line %d: %+v", want, r.Problems)
	}
}

func FuzzLint(f *testing.F) {
	f.Add([]byte(baseManifest))
	f.Add([]byte(edited(f, "    tags:", "    extra: {$ref: '#/$defs/a'}\n    tags:")))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := schemas.Lint(raw, "m.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Problems {
			if p.Rule == schemas.KeywordInternal {
				t.Fatalf("%+v", p)
			}
		}
		if !r.OK && len(r.Problems) == 0 {
			t.Fatal("refused without a reason")
		}
	})
}
