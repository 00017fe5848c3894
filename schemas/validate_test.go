package schemas_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/schemas"
)

func parsed(t testing.TB, text string) any {
	t.Helper()
	v, findings := schemas.Parse([]byte(text), schemas.DefaultLimits())
	if findings != nil {
		t.Fatal(findings)
	}
	return v
}

func finding(pointer, keyword, message, hint string) schemas.Finding {
	return schemas.Finding{Pointer: pointer, Keyword: keyword, Message: message, Hint: hint}
}

// TestValidateFindings holds G1's second verdict: every finding, each with
// pointer, keyword, message and hint.
func TestValidateFindings(t *testing.T) {
	t.Parallel()
	tool := loaded(t)
	for _, tc := range []struct {
		args string
		want []schemas.Finding
	}{
		{`{"text":"a"}`, nil},
		{`{"text":"a","count":9007199254740993,"when":"2026-11-01T00:00:00Z","ratio":0.03,"mode":"slow","tags":[]}`, nil},
		{`{"text":"a","count":1.0}`, nil},
		{`{}`, []schemas.Finding{finding("", "required", `the property "text" is missing`, `add "text": what to print`)}},
		{`[]`, []schemas.Finding{finding("", "type", "an object is wanted, but this is an array", "send an object")}},
		{`null`, []schemas.Finding{finding("", "type", "an object is wanted, but this is null", "send an object, or leave it out")}},
		{`{"text":null}`, []schemas.Finding{finding("/text", "type", "a string is wanted, but this is null", "send a string, or leave it out")}},
		{`{"text":"a","count":"3"}`, []schemas.Finding{finding("/count", "type", "an integer is wanted, but this is a string", "send an integer, without quotes around it")}},
		{`{"text":"a","count":1.5}`, []schemas.Finding{finding("/count", "type", "an integer is wanted, but this is a number", "send an integer")}},
		{`{"text":"a","count":9007199254740994}`, []schemas.Finding{finding("/count", "maximum", "9007199254740994 is greater than the maximum 9007199254740993", "send at most 9007199254740993")}},
		{`{"text":"a","count":-1e0}`, []schemas.Finding{finding("/count", "minimum", "-1e0 is less than the minimum 0", "send at least 0")}},
		{`{"text":"a","ratio":0.025}`, []schemas.Finding{finding("/ratio", "multipleOf", "0.025 is not a multiple of 0.01", "send a multiple of 0.01")}},
		{`{"text":"a","mode":"FAST-mode"}`, []schemas.Finding{finding("/mode", "enum", `only these values are allowed: "fast_mode", "slow"`, `send "fast_mode", written exactly so`)}},
		{`{"text":"a","mode":3}`, []schemas.Finding{finding("/mode", "type", "a string is wanted, but this is a number", "send a string, in quotes")}},
		{`{"text":"a","when":"yesterday"}`, []schemas.Finding{finding("/when", "format", "it is not a valid date-time", "send a date-time such as 2026-11-01T12:00:00Z")}},
		{`{"text":"a","tags":["1","2","3","0123456789"]}`, []schemas.Finding{
			finding("/tags", "maxItems", "it has 4 items; at most 3 are allowed", "send fewer items"),
			finding("/tags/3", "maxLength", "it has 10 characters; at most 9 are allowed", "send a shorter text"),
		}},
		{`{"text":"a","Mode":"slow","x/y":1}`, []schemas.Finding{
			finding("/Mode", "additionalProperties", `there is no property "Mode" here`, `write it "mode"`),
			finding("/x~1y", "additionalProperties", `there is no property "x/y" here`,
				`leave it out; the names here are "count", "mode", "ratio", "tags", "text", "token", "when"`),
		}},
	} {
		if d := cmp.Diff(tc.want, tool.Validate(parsed(t, tc.args))); d != "" {
			t.Errorf("%s:\n%s", tc.args, d)
		}
	}
}

// TestSecretsStaySecret holds G11 for the schema verdict and for expressions.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	tool := loaded(t)
	for _, value := range []string{`"HUNTER2"`, `"HUNTER2-HUNTER2-HUNTER2-HUNTER2"`, `"hunter2"`, `{"HUNTER2":["HUNTER2"]}`, `48151623`, `["HUNTER2"]`} {
		args := parsed(t, `{"text":"a","token":`+value+`}`)
		findings := tool.Validate(args)
		if len(findings) == 0 {
			t.Errorf("%s: no finding", value)
		}
		for _, f := range findings {
			if shown := fmt.Sprintf("%+v", f); strings.Contains(strings.ToLower(shown), "hunter2") || strings.Contains(shown, "48151623") ||
				!strings.HasPrefix(f.Pointer, "/token") {
				t.Errorf("%s: %s", value, shown)
			}
		}
		masked, err := json.Marshal(tool.Mask(args))
		if err != nil || string(masked) != `{"text":"a","token":{"macexec_secret":true}}` {
			t.Errorf("masked: %s %v", masked, err)
		}
		if len(tool.Secrets(args)) != 1 || tool.Secrets(args)["/token"] == "" {
			t.Errorf("secrets: %v", tool.Secrets(args))
		}
	}
	args := parsed(t, `{"text":"a","token":"abcdefgh1"}`)
	if f := tool.Validate(args); f != nil {
		t.Fatal(f)
	}
	variant, _ := tool.Variant("linux", func(string) bool { return true })
	vars := schemas.Vars{Args: args, Secrets: map[string]string{"token": "abcdefgh1"}}
	step, err := variant.Command(t.Context(), vars)
	if err != nil || step.Env["TOKEN"] != "abcdefgh1" || strings.Contains(fmt.Sprint(step.Argv), "abcdefgh1") {
		t.Errorf("%+v %v", step, err)
	}
}

// TestValidateSurvivesOddNumbers: the number that is known to crash the validator
// is stopped by Parse; should one come another way, Validate still answers.
func TestValidateSurvivesOddNumbers(t *testing.T) {
	t.Parallel()
	if _, findings := schemas.Parse([]byte(`{"text":"a","ratio":1e1000001}`), schemas.DefaultLimits()); len(findings) != 1 || findings[0].Keyword != "number" {
		t.Errorf("%+v", findings)
	}
	tool := loaded(t)
	args := map[string]any{"text": "a", "ratio": json.Number("1e1000001")}
	findings := tool.Validate(args)
	if len(findings) != 1 || (findings[0].Keyword != schemas.KeywordInternal && findings[0].Keyword != "multipleOf") {
		t.Errorf("%+v", findings)
	}
	if f := tool.Validate(parsed(t, `{"text":"a"}`)); f != nil {
		t.Errorf("afterwards: %+v", f)
	}
}

// TestNothingIsLoaded: no reference makes the loader read a file or a network
// address, and no text of a file comes back.
func TestNothingIsLoaded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hits := make(chan struct{}, 100)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			hits <- struct{}{}
			c.Close()
		}
	}()
	dir := t.TempDir()
	valid, invalid := filepath.Join(dir, "valid.json"), filepath.Join(dir, "secret.txt")
	for path, text := range map[string]string{valid: `{"type":"string"}`, invalid: "hunter2"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := "http://" + listener.Addr().String() + "/x.json"
	for _, property := range []string{
		"{$ref: 'file://" + valid + "'}", "{$ref: 'file://" + invalid + "'}", "{$ref: '" + valid + "'}", "{$ref: '" + url + "'}",
		"{$ref: '//" + listener.Addr().String() + "/x'}", "{$ref: '../x.json'}", "{$ref: 'urn:x'}", "{$ref: '#'}", "{$ref: ''}", "{$ref: 7}",
		"{$id: '" + url + "', type: string}", "{$dynamicRef: '" + url + "'}", "{$schema: '" + url + "'}", "{$recursiveRef: '#'}",
		"{allOf: [{$ref: '" + url + "'}]}", "{if: {$ref: '" + url + "'}}", "{patternProperties: {'^a$': {$ref: '" + url + "'}}}",
		"{$ref: '#/properties/text'}", "{$ref: 'https://json-schema.org/draft/2020-12/schema'}", "{definitions: {a: {$ref: '" + url + "'}}, $ref: '#/definitions/a'}",
	} {
		r := lint(t, edited(t, "    tags:", "    extra: "+property+"\n    tags:"))
		if r.OK && !strings.HasPrefix(property, "{$schema") {
			t.Errorf("%s was taken", property)
		}
		if strings.Contains(fmt.Sprintf("%+v", r), "hunter2") {
			t.Errorf("%s shows the file: %+v", property, r)
		}
	}
	select {
	case <-hits:
		t.Error("the network was used")
	default:
	}
}

// TestSchemaBudget: a schema whose branches refer to branches is refused when it
// is loaded, since the validator could be kept busy without end by it.
func TestSchemaBudget(t *testing.T) {
	t.Parallel()
	var defs strings.Builder
	defs.WriteString("input:\n  $defs:\n")
	for i := range 40 {
		fmt.Fprintf(&defs, "    a%d: {anyOf: [{$ref: '#/$defs/a%d'}, {$ref: '#/$defs/a%d'}]}\n", i, i+1, i+1)
	}
	defs.WriteString("    a40: {type: 'null'}\n")
	r := lint(t, edited(t, "input:\n", defs.String(), "    tags:", "    extra: {description: d, $ref: '#/$defs/a0'}\n    tags:"))
	if r.OK || r.Problems[0].Rule != "schema_budget" {
		t.Errorf("%+v", r)
	}
	recursive := "input:\n  $defs:\n    a: {anyOf: [{type: object, additionalProperties: {$ref: '#/$defs/a'}}, {type: object, additionalProperties: {$ref: '#/$defs/a'}}]}\n"
	if r := lint(t, edited(t, "input:\n", recursive, "    tags:", "    extra: {description: d, $ref: '#/$defs/a'}\n    tags:")); r.OK || r.Problems[0].Rule != "schema_cycle" {
		t.Errorf("%+v", r)
	}
}

func TestValidateForms(t *testing.T) {
	t.Parallel()
	tool := loaded(t, "    tags:", "    form: {description: d, oneOf: [{type: string, maxLength: 3}, {type: object, additionalProperties: false, required: [a], properties: {a: {type: integer}}}]}\n    tags:")
	got := tool.Validate(parsed(t, `{"text":"a","form":{"a":"x"}}`))
	want := []schemas.Finding{{
		"/form", "oneOf", "it fits none of the allowed forms: (1) a string is wanted, but this is an object; (2) /form/a: an integer is wanted, but this is a string",
		"send exactly one of the forms in full",
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestManyFindingsAreBounded(t *testing.T) {
	t.Parallel()
	args := map[string]any{"text": "a"}
	for i := range 500 {
		args[fmt.Sprintf("x%d", i)] = true
	}
	if got := loaded(t).Validate(args); len(got) != 64 || got[63].Keyword != "more" {
		t.Errorf("%d findings, last %+v", len(got), got[len(got)-1])
	}
}

func TestRegularExpressionsAreLinear(t *testing.T) {
	t.Parallel()
	tool := loaded(t, "    tags:", "    extra: {type: string, description: d, maxLength: 200000, pattern: '^(a+)+$'}\n    tags:")
	if got := tool.Validate(map[string]any{"text": "a", "extra": strings.Repeat("a", 100_000) + "!"}); len(got) != 1 || got[0].Keyword != "pattern" {
		t.Errorf("%+v", got)
	}
	if got := tool.Validate(map[string]any{"text": "a", "extra": "aa\n"}); len(got) != 1 {
		t.Errorf("a line end fits: %+v", got)
	}
}
