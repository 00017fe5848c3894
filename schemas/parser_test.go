package schemas_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/schemas"
)

func TestParsers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		parser schemas.Parser
		out    string
		want   any
		fails  bool
	}{
		{schemas.Parser{}, "anything", nil, false},
		{schemas.Parser{Kind: "text"}, " a b \n", "a b", false},
		{schemas.Parser{Kind: "text"}, "\xff", "\ufffd", false},
		{schemas.Parser{Kind: "json"}, `{"a":1.50}`, map[string]any{"a": json.Number("1.50")}, false},
		{schemas.Parser{Kind: "json"}, `{"a":1,"a":2}`, nil, true},
		{schemas.Parser{Kind: "json"}, ``, nil, true},
		{schemas.Parser{Kind: "key_value"}, "head\na = 1\nb=x=y\n\n", map[string]any{"a": "1", "b": "x=y"}, false},
		{schemas.Parser{Kind: "key_value", Separator: ": "}, "a: b: c\r\n", map[string]any{"a": "b: c"}, false},
		{schemas.Parser{Kind: "key_value"}, "a=1\na=2", nil, true},
		{schemas.Parser{Kind: "regex", Pattern: `(?P<w>\d+)x(?P<h>\d+)(y)?`}, "is 3x4", map[string]any{"w": "3", "h": "4"}, false},
		{schemas.Parser{Kind: "regex", Pattern: `(?P<w>\d+)`, All: true}, "1 22", []any{map[string]any{"w": "1"}, map[string]any{"w": "22"}}, false},
		{schemas.Parser{Kind: "regex", Pattern: `(?P<w>\d+)`, All: true}, "", []any{}, false},
		{schemas.Parser{Kind: "regex", Pattern: `(?P<w>\d+)`}, "x", nil, true},
		{schemas.Parser{Kind: "plist"}, "x", nil, true},
	} {
		got, err := tc.parser.Parse([]byte(tc.out))
		if d := cmp.Diff(tc.want, got); d != "" || (err != nil) != tc.fails {
			t.Errorf("%+v %q: %v\n%s", tc.parser, tc.out, err, d)
		}
	}
}

// TestStepValue: what a step is, is what its value makes of the parser's tree; an
// error in it is an error of the step.
func TestStepValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		value, out string
		want       any
		fails      bool
	}{
		{`parsed`, `{"a":1.50}`, map[string]any{"a": json.Number("1.50")}, false},
		{`parsed.list.filter(x, x.n > 1)`, `{"list":[{"n":1},{"n":2.50}]}`, []any{map[string]any{"n": json.Number("2.50")}}, false},
		{`{?"first": parsed.list[?0], "all": size(parsed.list)}`, `{"list":["x"]}`, map[string]any{"first": "x", "all": json.Number("1")}, false},
		{`{?"first": parsed.list[?0], "all": size(parsed.list)}`, `{"list":[]}`, map[string]any{"all": json.Number("0")}, false},
		{`parsed == null`, `null`, true, false},
		{`parsed.a.b`, `{"a":{"b":null}}`, nil, false},
		{`parsed.list`, `{"a":1}`, nil, true},
		{`int(parsed.a)`, `{"a":"x"}`, nil, true},
		{`{"a": bytes(parsed.a)}`, `{"a":"x"}`, nil, true},
		{`parsed`, `not JSON`, nil, true},
	} {
		quoted, err := json.Marshal(tc.value)
		if err != nil {
			t.Fatal(err)
		}
		tool := loaded(t, "argv: [hi], parser: {kind: text}}", "argv: [hi], parser: {kind: json}, value: "+string(quoted)+"}")
		variant, missing := tool.Variant("linux", func(string) bool { return true })
		if missing != nil {
			t.Fatal(missing)
		}
		steps, err := variant.Before(t.Context(), schemas.Vars{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := steps[0].Parse(t.Context(), []byte(tc.out))
		if d := cmp.Diff(tc.want, got); d != "" || (err != nil) != tc.fails {
			t.Errorf("%s of %s: %v\n%s", tc.value, tc.out, err, d)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("a=1\nb: 2", "=")
	f.Add(`{"a":[1]}`, ":")
	f.Fuzz(func(t *testing.T, out, separator string) {
		for _, p := range []schemas.Parser{{Kind: "json"}, {Kind: "key_value", Separator: separator}, {Kind: "text"}, {Kind: "regex", Pattern: separator}} {
			value, err := p.Parse([]byte(out))
			if err != nil {
				continue
			}
			if _, err := json.Marshal(value); err != nil {
				t.Fatalf("%+v made %#v: %v", p, value, err)
			}
		}
	})
}
