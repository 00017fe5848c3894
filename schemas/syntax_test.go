package schemas_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/schemas"
)

func nested(open, closing string, n int) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(closing, n)
}

// TestParseRefuses holds G1's first verdict: what is not one strict JSON value
// gets a finding that says where and what to send.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, raw, keyword, pointer, says string }{
		{"empty", "", "json", "", "empty"},
		{"blank", " \n\t ", "json", "", "empty"},
		{"two values", `{} {}`, "json", "", "more text follows"},
		{"trailing text", `{}x`, "json", "", "more text follows"},
		{"trailing comma", `{"a":1,}`, "json", "", "not JSON at byte"},
		{"comment", `{/* */}`, "json", "", "not JSON at byte 1"},
		{"single quotes", `{'a':1}`, "json", "", "not JSON at byte 1"},
		{"NaN", `{"a":NaN}`, "json", "/a", "not JSON at byte 5"},
		{"byte order mark", "\ufeff{}", "json", "", "not JSON at byte 0"},
		{"cut object", `{"a":[1,2`, "json", "/a", "ends too early"},
		{"cut text", `{"a":"b`, "json", "/a", "ends too early"},
		{"bare name", `{a:1}`, "json", "", "not JSON at byte 1"},
		{"number as name", `{1:1}`, "json", "", "not JSON at byte"},
		{"duplicate", `{"a":1,"b":{"c":1,"c":2}}`, "duplicate_name", "/b/c", `"c" stands twice`},
		{"duplicate by escape", `{"a":1,"\u0061":2}`, "duplicate_name", "/a", `"a" stands twice`},
		{"bad UTF-8", "{\"a\":\"\xff\"}", "utf8", "", "at byte 6"},
		{"overlong UTF-8", "{\"a\":\"\xc0\xaf\"}", "utf8", "", "at byte 6"},
		{"lone high surrogate", `{"a":"\ud83c"}`, "utf8", "/a", "half a surrogate pair"},
		{"lone low surrogate", `{"a":"\udfac"}`, "utf8", "/a", "half a surrogate pair"},
		{"lone surrogate in a name", `{"\udfac":1}`, "utf8", "", "half a surrogate pair"},
		{"leading zero", `{"a":01}`, "json", "", "not JSON at byte"},
		{"number too long", `{"a":` + strings.Repeat("9", 65) + `}`, "number", "/a", "65 characters"},
		{"exponent that crashes validators", `{"a":1e1000001}`, "number", "/a", "beyond 400"},
		{"exponent beyond int64", `{"a":[1e-99999999999999999999]}`, "number", "/a/0", "beyond 400"},
		{"too deep", nested("[", "]", 33), "depth", "", "deeper than 32"},
		{"very deep", nested(`{"a":`, "}", 100_000), "depth", "", "deeper than 32"},
		{"too large", `"` + strings.Repeat("x", 1<<20) + `"`, "size", "", "at most 1048576"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			value, findings := schemas.Parse([]byte(tc.raw), schemas.DefaultLimits())
			if value != nil || len(findings) != 1 {
				t.Fatalf("value %v, findings %v; want one finding and no value", value, findings)
			}
			f := findings[0]
			if f.Keyword != tc.keyword || !strings.Contains(f.Message, tc.says) || f.Hint == "" {
				t.Errorf("got %+v; want keyword %s, a message with %q, and a hint", f, tc.keyword, tc.says)
			}
			if tc.keyword != "depth" && f.Pointer != tc.pointer {
				t.Errorf("pointer %q, want %q", f.Pointer, tc.pointer)
			}
		})
	}
}

func TestParseKeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	raw := `{"n":[9007199254740993,1.0,1e0,-0,1E+2],"s":"\ud83c\udfac\u0000é","e\u0301":null,"t":true,"o":{},"a":[]}`
	value, findings := schemas.Parse([]byte(raw), schemas.DefaultLimits())
	if findings != nil {
		t.Fatal(findings)
	}
	want := map[string]any{
		"n": []any{json.Number("9007199254740993"), json.Number("1.0"), json.Number("1e0"), json.Number("-0"), json.Number("1E+2")},
		"s": "🎬\x00é", "e\u0301": nil, "t": true, "o": map[string]any{}, "a": []any{},
	}
	if d := cmp.Diff(want, value); d != "" {
		t.Error(d)
	}
	if _, findings := schemas.Parse([]byte(nested("[", "]", 32)), schemas.DefaultLimits()); findings != nil {
		t.Errorf("depth 32: %v", findings)
	}
	if _, findings := schemas.Parse([]byte("1e0000000400"), schemas.DefaultLimits()); findings != nil {
		t.Errorf("exponent 400: %v", findings)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"x",null,true]}`, ``, `{"a":1,"a":2}`, `"\ud83c"`, "\xff", `1e1000001`, nested("[", "]", 40), `{} []`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		value, findings := schemas.Parse(raw, schemas.DefaultLimits())
		if len(findings) > 0 {
			if value != nil {
				t.Fatalf("a value beside findings %v", findings)
			}
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("taken, but encoding/json refuses it: %q", raw)
		}
		// What was taken survives being written and read again.
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		again, findings := schemas.Parse(text, schemas.Limits{Bytes: 1 << 24, Depth: 32, NumberLength: 64, Exponent: 400})
		if findings != nil {
			t.Fatalf("refused after a round trip: %v", findings)
		}
		if d := cmp.Diff(value, again); d != "" {
			t.Fatal(d)
		}
		call := schemas.CanonicalCall{Tool: "t", Arguments: value}
		if schemas.Fingerprint(call, nil) != schemas.Fingerprint(schemas.CanonicalCall{Tool: "t", Arguments: again}, nil) {
			t.Fatal("two fingerprints for one value")
		}
	})
}
