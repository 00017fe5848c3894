package house_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// TestGeneratedDocs compares every generated part of a page with what the tables
// of package jobs, the comments of constants, the .proto files and the schemas
// say now. `make generate`
// writes the parts anew.
func TestGeneratedDocs(t *testing.T) {
	t.Parallel()
	words := readWords(t)
	for _, page := range []struct {
		file  string
		parts map[string]string
	}{
		{"docs/states.md", map[string]string{
			"picture":     picture(),
			"states":      words.table("State", "state"),
			"phases":      words.table("Phase", "phase"),
			"transitions": transitions(),
			"outcomes":    outcomes(words),
			"recovery":    recovery(),
			"publishing":  publishing(),
			"reasons":     words.table("EndReason", "end_reason"),
			"effects":     words.table("Effects", "effects"),
			"sideeffects": words.table("SideEffect", "side_effect"),
			"retry":       words.table("Retry", "retry"),
			"evidence":    words.table("EvidenceKind", "evidence"),
		}},
		{"docs/errors.md", map[string]string{
			"classes": words.table("Class", "class"),
			"codes":   codes(),
			"actions": words.table("UserAction", "user_action"),
		}},
		{"README.md", map[string]string{"exitcodes": exitCodes(t)}},
		{"docs/api.md", map[string]string{"services": services(t)}},
		{"docs/configuration.md", map[string]string{"config": config(t)}},
	} {
		name := filepath.Join(root, filepath.FromSlash(page.file))
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want := replaceParts(t, page.file, string(data), page.parts)
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := gocmp.Diff(strings.Split(want, "\n"), strings.Split(string(data), "\n")); diff != "" {
			t.Errorf("%s is stale; run make generate (-want +got):\n%s", page.file, diff)
		}
	}
}

// replaceParts fills each marked part of a page. Every part must be in the page
// exactly once, and the page may mark no other.
func replaceParts(t *testing.T, file, text string, parts map[string]string) string {
	t.Helper()
	seen := map[string]int{}
	marked := regexp.MustCompile(`(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)`)
	text = marked.ReplaceAllStringFunc(text, func(old string) string {
		groups := marked.FindStringSubmatch(old)
		seen[groups[2]]++
		return groups[1] + parts[groups[2]] + groups[3]
	})
	for name := range maps.Keys(parts) {
		if seen[name] != 1 {
			t.Errorf("%s marks the part %q %d times, want once", file, name, seen[name])
		}
		delete(seen, name)
	}
	for name := range seen {
		t.Errorf("%s marks a part %q that nothing generates", file, name)
	}
	return text
}

// word is a constant of package jobs with its comment.
type word struct{ value, comment string }

// words holds the constants of package jobs by their type, in the order of the source.
type words map[string][]word

func readWords(t *testing.T) words {
	t.Helper()
	w := words{}
	for _, f := range tree(t) {
		if f.dir != "jobs" || f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			typ, ok := spec.Type.(*ast.Ident)
			lit, isLit := spec.Values[0].(*ast.BasicLit)
			if !ok || !isLit {
				return true
			}
			value, err := strconv.Unquote(lit.Value)
			if err != nil || value == "" {
				return true
			}
			comment := cmp.Or(spec.Doc.Text(), spec.Comment.Text())
			comment = strings.Join(strings.Fields(comment), " ")
			comment = strings.TrimPrefix(comment, spec.Names[0].Name+" ")
			comment = strings.TrimPrefix(comment, spec.Names[0].Name+": ")
			comment = strings.Replace(comment, "is entered", "Entered", 1)
			w[typ.Name] = append(w[typ.Name], word{value, comment})
			return true
		})
	}
	return w
}

// table writes the constants of one type, with their comments.
func (w words) table(typ, title string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | meaning |\n|---|---|\n", title)
	for _, word := range w[typ] {
		fmt.Fprintf(&b, "| `%s` | %s |\n", word.value, word.comment)
	}
	return b.String()
}

// meaning returns the comment of one constant.
func (w words) meaning(typ, value string) string {
	for _, word := range w[typ] {
		if word.value == value {
			return word.comment
		}
	}
	return ""
}

// picture draws the transition table.
func picture() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	type arrow struct{ from, to jobs.State }
	var order []arrow
	events := map[arrow][]string{}
	for _, tr := range jobs.Transitions() {
		for _, to := range tr.To {
			a := arrow{tr.From, to}
			if events[a] == nil {
				order = append(order, a)
			}
			events[a] = append(events[a], string(tr.Event))
		}
	}
	for _, a := range order {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", cmp.Or(string(a.from), "[*]"), a.to, strings.Join(events[a], ", "))
	}
	for _, s := range jobs.States() {
		if s.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	b.WriteString("```\n")
	return b.String()
}

func transitions() string {
	var b strings.Builder
	b.WriteString("| from | event | to | evidence, one of |\n|---|---|---|---|\n")
	for _, tr := range jobs.Transitions() {
		from := "(new)"
		if tr.From != "" {
			from = "`" + string(tr.From) + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", from, tr.Event, codeList(tr.To), cmp.Or(codeList(tr.Evidence), "none"))
	}
	return b.String()
}

func codeList[T ~string](list []T) string {
	quoted := make([]string, len(list))
	for i, v := range list {
		quoted[i] = "`" + string(v) + "`"
	}
	return strings.Join(quoted, ", ")
}

func outcomes(w words) string {
	var b strings.Builder
	b.WriteString("| the attempt's end | `none`, `staged` | `external` |\n|---|---|---|\n")
	for _, ended := range jobs.Endeds() {
		fmt.Fprintf(&b, "| `%s`: %s | %s | %s |\n", ended, w.meaning("Ended", string(ended)),
			outcome(jobs.OutcomeOf(jobs.EffectsStaged, ended)), outcome(jobs.OutcomeOf(jobs.EffectsExternal, ended)))
	}
	return b.String()
}

func outcome(o jobs.Outcome) string {
	reason := ""
	if o.Reason != jobs.EndNone {
		reason = " (" + string(o.Reason) + ")"
	}
	return fmt.Sprintf("%s%s, side effect %s, retry %s", codeList([]jobs.State{o.State}), reason, o.SideEffect, o.Retry)
}

func recovery() string {
	var b strings.Builder
	b.WriteString("| found | `none`, `staged` | `external` |\n|---|---|---|\n")
	for _, ended := range jobs.Endeds() {
		if ended.Lost() {
			fmt.Fprintf(&b, "| `%s` | `%s` | `%s` |\n", ended,
				jobs.OutcomeOf(jobs.EffectsStaged, ended).State, jobs.OutcomeOf(jobs.EffectsExternal, ended).State)
		}
	}
	return b.String()
}

func publishing() string {
	var b strings.Builder
	b.WriteString("| steps done | the job |\n|---|---|\n")
	for _, row := range []struct {
		done string
		out  jobs.Outcome
	}{
		{"all", jobs.PublishOutcome(2, 2, jobs.EndOK)},
		{"some", jobs.PublishOutcome(1, 2, jobs.EndPublishFailed)},
		{"none", jobs.PublishOutcome(0, 2, jobs.EndPublishFailed)},
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", row.done, outcome(row.out))
	}
	return b.String()
}

func codes() string {
	table := jobs.Codes()
	sorted := slices.SortedFunc(maps.Keys(table), func(a, b jobs.Code) int {
		classes := jobs.Classes()
		return cmp.Or(
			cmp.Compare(slices.Index(classes, table[a].Class), slices.Index(classes, table[b].Class)),
			cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("| code | class | meaning | retryable | user_action |\n|---|---|---|---|---|\n")
	for _, code := range sorted {
		info := table[code]
		retryable := "no"
		if info.Retryable {
			retryable = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` |\n", code, info.Class, info.Meaning, retryable, info.Action)
	}
	return b.String()
}

// exitCodes writes the command line's exit codes.
func exitCodes(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| code | meaning |\n|---|---|\n")
	for _, f := range tree(t) {
		if f.dir != "cmd/macexec" || f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			typ, isIdent := spec.Type.(*ast.Ident)
			if code, isLit := spec.Values[0].(*ast.BasicLit); isIdent && isLit && typ.Name == "exitCode" {
				fmt.Fprintf(&b, "| %s | %s |\n", code.Value, strings.TrimSpace(spec.Comment.Text()))
			}
			return true
		})
	}
	return b.String()
}

// services writes what the .proto files say about each service and each RPC.
func services(t *testing.T) string {
	t.Helper()
	service := regexp.MustCompile(`^service (\w+) \{`)
	rpc := regexp.MustCompile(`^  rpc (\w+)\((stream )?\w+\) returns \((stream )?\w+\);`)
	var b strings.Builder
	err := walk(func(name string, data []byte) error {
		if path.Ext(name) != ".proto" {
			return nil
		}
		var comment []string
		for line := range strings.Lines(string(data)) {
			line = strings.TrimRight(line, "\n")
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "//"); ok {
				comment = append(comment, strings.TrimPrefix(text, " "))
				continue
			}
			if m := service.FindStringSubmatch(line); m != nil {
				fmt.Fprintf(&b, "\n## %s\n\n%s\n", m[1], strings.Join(comment, "\n"))
			}
			if m := rpc.FindStringSubmatch(line); m != nil {
				kind := ""
				switch {
				case m[2] != "" && m[3] != "":
					kind = " (streams both ways)"
				case m[2] != "":
					kind = " (streams to the server)"
				case m[3] != "":
					kind = " (streams to the client)"
				}
				fmt.Fprintf(&b, "\n### %s%s\n\n%s\n", m[1], kind, strings.Join(comment, "\n"))
			}
			comment = nil
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(b.String(), "<", `\<`) + "\n"
}

// config writes the fields of config.yaml, from its schema.
func config(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "schemas", "config.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema field
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| field | type | left out | a change needs | meaning |\n|---|---|---|---|---|\n")
	schema.rows(&b, "")
	return b.String()
}

// field is the part of a JSON Schema that a table shows.
type field struct {
	Type        string           `json:"type"`
	Description string           `json:"description"`
	Enum        []string         `json:"enum"`
	Default     json.RawMessage  `json:"default"`
	Properties  map[string]field `json:"properties"`
	Macexec     struct {
		Reload bool `json:"reload"`
	} `json:"x-macexec"` //nolint:tagliatelle // a keyword of schemas
}

func (f field) rows(b *strings.Builder, prefix string) {
	for _, name := range slices.Sorted(maps.Keys(f.Properties)) {
		child := f.Properties[name]
		typ := child.Type
		if len(child.Enum) > 0 {
			typ = codeList(child.Enum)
		}
		if len(child.Properties) == 0 {
			standard, needs := "see below", "restart"
			if child.Default != nil {
				standard = "`" + strings.NewReplacer("\n", "", " ", "").Replace(string(child.Default)) + "`"
			}
			if child.Macexec.Reload {
				needs = "reload"
			}
			fmt.Fprintf(b, "| `%s%s` | %s | %s | %s | %s |\n", prefix, name, typ, standard, needs, child.Description)
		}
		child.rows(b, prefix+name+".")
	}
}

// TestManifestPageNamesEveryField holds that nothing can be written in a manifest
// that the page about manifests does not speak of.
func TestManifestPageNamesEveryField(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "manifests.md"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "schemas", "manifest.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	fields := map[string]bool{}
	var collect func(node any)
	collect = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			if properties, ok := node["properties"].(map[string]any); ok {
				for name := range properties {
					fields[name] = true
				}
			}
			for _, child := range node {
				collect(child)
			}
		case []any:
			for _, child := range node {
				collect(child)
			}
		}
	}
	collect(schema)
	if len(fields) == 0 {
		t.Fatal("the schema has no field")
	}
	for name := range fields {
		if !regexp.MustCompile(`\b` + name + `\b`).Match(page) {
			t.Errorf("docs/manifests.md does not speak of the field %s", name)
		}
	}
}

// TestLinksAndTargetsExist holds that a page sends nobody to a file or to a make
// target that is not there.
func TestLinksAndTargetsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	target := regexp.MustCompile("(?m)(?:`|^)make ([a-z]+)")
	pages := 0
	err = walk(func(name string, data []byte) error {
		if path.Ext(name) != ".md" {
			return nil
		}
		pages++
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, m[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(string(data), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s speaks of `make %s`, which the Makefile does not have", name, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Error("found no page")
	}
}
