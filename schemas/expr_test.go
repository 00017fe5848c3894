package schemas_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/schemas"
)

// evaluated gives the value of an expression as JSON, by way of a tool's result.
func evaluated(t *testing.T, expr string, vars schemas.Vars) (string, error) {
	t.Helper()
	quotedExpr, err := json.Marshal(`{"said": ` + expr + `}`)
	if err != nil {
		t.Fatal(err)
	}
	tool := loaded(t, `'{"said": tool}'`, string(quotedExpr))
	raw, err := tool.Result(t.Context(), vars)
	return strings.TrimSuffix(strings.TrimPrefix(string(raw), `{"said":`), "}"), err
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	vars := schemas.Vars{
		Args: parsed(t, `{"text":"x","count":9007199254740993,"ratio":0.10,"tags":["a","b"]}`),
		Tool: parsed(t, `{"big":123456789012345678901234567890,"one":1.0,"tiny":1e-400,"nested":{"n":[1.50,12345678901234567890]},"huge":1e400,"s":"<&>"}`),
		Call: schemas.CallVars{Purpose: "preview", Replace: true}, Work: "/w",
		Artifacts: map[string]schemas.Artifact{},
	}
	for _, tc := range []struct{ expr, want string }{
		{`args.count`, `9007199254740993`},
		{`args.count + 1`, `9007199254740994`},
		{`tool.one`, `1`},
		{`tool.one == 1`, `true`},
		{`text(tool.big)`, `"123456789012345678901234567890"`},
		{`text(args.ratio)`, `"0.10"`},
		{`text(tool.one)`, `"1.0"`},
		{`text(tool.nested.n[1])`, `"12345678901234567890"`},
		{`text(tool["tiny"])`, `"1e-400"`},
		{`text(3)`, `"3"`},
		{`text(args.text)`, `"x"`},
		{`tool.nested`, `{"n":[1.50,12345678901234567890]}`},
		{`tool.s`, `"<&>"`},
		{`args.mode`, `"slow"`},
		{`has(args.when)`, `false`},
		{`args.?when.orValue("never")`, `"never"`},
		{`args.tags.map(x, x + "!")`, `["a!","b!"]`},
		{`call.purpose`, `"preview"`},
		{`call.replace`, `true`},
		{`clock_seconds("01:02:03.5")`, `3723.5`},
		{`math.round(2.5)`, `3`},
		{`null`, `null`},
		{`{"a": 1u}`, `{"a":1}`},
		{`[dyn(1), "a"]`, `[1,"a"]`},
		{`optional.none()`, `null`},
		{`optional.of(2)`, `2`},
		{`"a,b".split(",")`, `["a","b"]`},
	} {
		got, err := evaluated(t, tc.expr, vars)
		if err != nil || got != tc.want {
			t.Errorf("%s: %s %v, want %s", tc.expr, got, err, tc.want)
		}
	}
	for _, expr := range []string{
		`tool.nosuch`, `1 / 0`, `tool.huge`, `double("NaN")`, `1.0 / 0.0`, `text(tool.nested)`, `clock_seconds("1:2")`, `int("x")`,
		`timestamp("2026-11-01T00:00:00Z")`, `{1: 2}`, `b"a"`,
		`lists.range(10000).map(x, lists.range(10000).map(y, y))`, // the cost limit
	} {
		if got, err := evaluated(t, expr, vars); err == nil {
			t.Errorf("%s: %s without an error", expr, got)
		}
	}
}

// TestExpressionErrorsDeny: an error in a check or a condition is never a yes.
func TestExpressionErrorsDeny(t *testing.T) {
	t.Parallel()
	tool := loaded(t, `args.text != args.text.upperAscii() || args.text == ""`, `args.when != ""`)
	got := tool.Check(t.Context(), schemas.Vars{Args: parsed(t, `{"text":"x"}`)})
	if len(got) != 1 || got[0].Keyword != "not_shouting" || !strings.Contains(got[0].Message, "could not be decided") {
		t.Errorf("%+v", got)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	slow := loaded(t, `args.text != args.text.upperAscii() || args.text == ""`, `lists.range(9999).all(x, x >= 0)`)
	if got := slow.Check(cancelled, schemas.Vars{Args: parsed(t, `{"text":"x"}`)}); len(got) != 1 {
		t.Errorf("a cancelled check says yes: %+v", got)
	}
}

func TestCheckMessages(t *testing.T) {
	t.Parallel()
	want := []schemas.Finding{finding("/text", "not_shouting", "do not shout HELLO", "use small letters")}
	if d := cmp.Diff(want, loaded(t).Check(t.Context(), schemas.Vars{Args: parsed(t, `{"text":"HELLO"}`)})); d != "" {
		t.Error(d)
	}
}

// TestArgv: a value reaches the program as one element, or is refused with the
// name of its argument.
func TestArgv(t *testing.T) {
	t.Parallel()
	command := func(tool *schemas.Tool, args map[string]any) (schemas.Step, error) {
		variant, missing := tool.Variant("darwin", func(string) bool { return true })
		if variant == nil {
			t.Fatal(missing)
		}
		return variant.Command(t.Context(), schemas.Vars{Args: args})
	}
	after := loaded(t) // args.text stands after "--"
	for _, value := range []string{"", "plain", "; touch x", "$(touch x)", "`x`", "a\nb", "%x", "{{t}}", "-y", "--output=/x", "@f", "e\u0301", strings.Repeat("x", 131_071)} {
		step, err := command(after, map[string]any{"text": value})
		if d := cmp.Diff([]string{"-n", "--", value}, step.Argv); err != nil || d != "" {
			t.Errorf("%.20q: %v\n%s", value, err, d)
		}
	}
	step, err := command(after, map[string]any{"text": "t", "count": json.Number("1.0")})
	if d := cmp.Diff([]string{"-n", "--", "t", "-c", "1.0"}, step.Argv); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	before := loaded(t, "[-n, --, {cel: args.text}", "[-n, {cel: args.text}")
	for value, says := range map[string]string{
		"a\x00b": "NUL", strings.Repeat("x", 131_072): "too long", "-y": "taken for an option", "--output=/x": "taken for an option",
	} {
		_, err := command(before, map[string]any{"text": value})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `the argument "text"`) {
			t.Errorf("%.20q: %v", value, err)
		}
	}
}

func TestVariants(t *testing.T) {
	t.Parallel()
	image := shipped(t, "convert_image")
	only := func(names ...string) func(string) bool {
		return func(p string) bool { return strings.Contains(strings.Join(names, " ")+" ", p+" ") }
	}
	if v, _ := image.Variant("darwin", only("magick", "convert", "identify")); v == nil || v.Index != 0 {
		t.Errorf("%+v", v)
	}
	if v, _ := image.Variant("linux", only("convert", "identify")); v == nil || v.Index != 1 {
		t.Errorf("%+v", v)
	}
	if v, missing := image.Variant("linux", only("convert")); v != nil || cmp.Diff([]string{"identify"}, missing) != "" {
		t.Errorf("%v", missing)
	}
	if v, missing := image.Variant("plan9", only()); v != nil || len(missing) != 1 {
		t.Errorf("%v", missing)
	}
	if v, missing := shipped(t, "delete_asset").Variant("linux", only()); v != nil || missing != nil {
		t.Errorf("%v", missing)
	}
	v, _ := shipped(t, "convert_audio").Variant("linux", func(string) bool { return true })
	wanted, err := v.Features(t.Context(), "ffmpeg", schemas.Vars{Args: parsed(t, `{"input":"x","format":"mp3"}`)})
	if err != nil || len(wanted) != 1 || wanted[0].Name != "libmp3lame" {
		t.Errorf("%+v %v", wanted, err)
	}
}

func TestProgressTotal(t *testing.T) {
	t.Parallel()
	v, _ := shipped(t, "export_video").Variant("linux", func(string) bool { return true })
	vars := schemas.Vars{Args: parsed(t, `{}`), Inputs: map[string]schemas.File{"input": {Path: "/x"}}}
	steps, err := v.Before(t.Context(), vars)
	if err != nil || len(steps) != 1 {
		t.Fatal(steps, err)
	}
	for stream, want := range map[string]string{
		`"duration":"2.5"`: "2.5s true", `"index":0`: "9s true", `"tags":{"DURATION":"00:01:00.5"}`: "1m0.5s true", `"tags":{}`: "9s true",
		`"duration":"x"`: "no value", `"tags":{"DURATION":"x"}`: "no value",
	} {
		got := "no value"
		source, err := steps[0].Parse(t.Context(), []byte(
			`{"streams":[{"codec_type":"video","width":2,"height":2,"disposition":{"attached_pic":0},`+stream+`}],"format":{"duration":"9"}}`))
		if err == nil {
			vars.Steps = map[string]any{steps[0].Name: source}
			total, ok := v.ProgressTotal(t.Context(), vars)
			got = total.String() + map[bool]string{true: " true", false: " false"}[ok]
		}
		if got != want {
			t.Errorf("%s: %s, want %s (%v)", stream, got, want, err)
		}
	}
	vars.Steps = map[string]any{"source": map[string]any{}} // neither the stream nor the file says
	if total, ok := v.ProgressTotal(t.Context(), vars); ok {
		t.Errorf("%v is known from nothing", total)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	tool := loaded(t, "result:", "probe: {program: echo, argv: [{cel: '\"--of=\" + args.text'}], parser: {kind: text}, happened: 'steps.probe == \"yes\" || steps.probe == \"both\"', not_happened: 'steps.probe == \"no\" || steps.probe == \"both\"'}\nresult:")
	vars := schemas.Vars{Args: parsed(t, `{"text":"x"}`)}
	step, ok, err := tool.ProbeStep(t.Context(), vars)
	if !ok || err != nil || step.Argv[0] != "--of=x" || !step.Capture {
		t.Errorf("%+v %v %v", step, ok, err)
	}
	for answer, want := range map[string][3]bool{"yes": {true, false, false}, "no": {false, true, false}, "maybe": {false, false, false}, "both": {false, false, true}} {
		vars.Steps = map[string]any{"probe": answer}
		happened, not, err := tool.ProbeAnswer(t.Context(), vars)
		if got := [3]bool{happened, not, err != nil}; got != want {
			t.Errorf("%s: %v, want %v", answer, got, want)
		}
	}
	if _, ok, _ := shipped(t, "export_video").ProbeStep(t.Context(), vars); ok {
		t.Error("a staged tool has a probe")
	}
}
