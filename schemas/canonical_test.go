package schemas_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/macexec/macexec/schemas"
)

func fingerprint(t rapid.TB, arguments string) string {
	value, findings := schemas.Parse([]byte(arguments), schemas.DefaultLimits())
	if findings != nil {
		t.Fatalf("%s: %v", arguments, findings)
	}
	return schemas.Fingerprint(schemas.CanonicalCall{Tool: "t", Purpose: "production", Arguments: value}, nil)
}

// TestFingerprintEquality holds G2: what is the same call and what is another.
func TestFingerprintEquality(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":2}`, ` { "b" : 2 , "a" : 1 } `, true},
		{`[1]`, `[1.0]`, true},
		{`[1]`, `[1e0]`, true},
		{`[100]`, `[1E+2]`, true},
		{`[0]`, `[-0.0e9]`, true},
		{`[0.001]`, `[1e-3]`, true},
		{`[120]`, `[12.0e1]`, true},
		{`[9007199254740993]`, `[9007199254740992]`, false},
		{`[9007199254740993]`, `[9007199254740993.0]`, true},
		{`[0.1]`, `[0.10000000000000000001]`, false},
		{`[1e400]`, `[1e399]`, false},
		{`[1]`, `[-1]`, false},
		{`[10]`, `[1]`, false},
		{`["A"]`, `["\u0041"]`, true},
		{`["/"]`, `["\/"]`, true},
		{`["\n"]`, `["\u000a"]`, true},
		{`["\n"]`, `["\\n"]`, false},
		{`["é"]`, `["e\u0301"]`, false},
		{`["1"]`, `[1]`, false},
		{`[null]`, `["null"]`, false},
		{`[]`, `{}`, false},
		{`{"a":null}`, `{}`, false},
		{`["a,b"]`, `["a","b"]`, false},
		{`["a\",\"b"]`, `["a","b"]`, false},
		{`[[],[]]`, `[[[]]]`, false},
		{`["secret(\"x\")"]`, `["secret(x)"]`, false},
	} {
		if got := fingerprint(t, tc.a) == fingerprint(t, tc.b); got != tc.same {
			t.Errorf("%s and %s: same %v, want %v", tc.a, tc.b, got, tc.same)
		}
	}
}

func TestFingerprintCoversTheWholeCall(t *testing.T) {
	t.Parallel()
	base := schemas.CanonicalCall{Tool: "t", Version: "2026-11-01", Purpose: "production", Arguments: map[string]any{}}
	seen := map[string]string{}
	for name, change := range map[string]func(*schemas.CanonicalCall){
		"base":         func(*schemas.CanonicalCall) {},
		"tool":         func(c *schemas.CanonicalCall) { c.Tool = "u" },
		"version":      func(c *schemas.CanonicalCall) { c.Version = "" },
		"purpose":      func(c *schemas.CanonicalCall) { c.Purpose = "preview" },
		"replace":      func(c *schemas.CanonicalCall) { c.Replace = true },
		"arguments":    func(c *schemas.CanonicalCall) { c.Arguments = []any{} },
		"moved border": func(c *schemas.CanonicalCall) { c.Tool, c.Version = "t\n2026", "-11-01" },
	} {
		c := base
		change(&c)
		got := schemas.Fingerprint(c, nil)
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s share a fingerprint", name, other)
		}
		seen[got] = name
		if !strings.HasPrefix(got, "v1:") || len(got) != 3+64 {
			t.Errorf("fingerprint %q", got)
		}
	}
	// The form is stored for ever, so it may not change by accident.
	const golden = "v1:08093c85d0bb8443e5969fe225d6f1534aafd8b43f0a0542045f469f07b8fb6a"
	got := schemas.Fingerprint(schemas.CanonicalCall{
		Tool: "export_video", Version: "2026-11-01", Purpose: "production",
		Arguments: map[string]any{"n": json.Number("1.50"), "s": "é\"\n", "l": []any{nil, true}},
	}, nil)
	if got != golden {
		t.Errorf("the canonical form has changed: %s", got)
	}
}

// TestFingerprintSecrets holds G11: a secret enters by what stands for it.
func TestFingerprintSecrets(t *testing.T) {
	t.Parallel()
	secret := map[string]bool{"/token": true}
	call := func(token string, seen *[]string) schemas.CanonicalCall {
		return schemas.CanonicalCall{
			Tool: "t", Arguments: map[string]any{"token": token, "a~/b": "x"},
			Secret: func(pointer, value string) string {
				*seen = append(*seen, pointer+" "+value)
				return "mac of " + value
			},
		}
	}
	var seen []string
	one := schemas.Fingerprint(call("s3cret", &seen), secret)
	if len(seen) != 1 || seen[0] != `/token "s3cret"` {
		t.Errorf("asked for %q", seen)
	}
	if one == schemas.Fingerprint(call("other", &seen), secret) {
		t.Error("two secrets share a fingerprint")
	}
	plain := schemas.CanonicalCall{Tool: "t", Arguments: map[string]any{"token": "s3cret", "a~/b": "x"}}
	if one == schemas.Fingerprint(plain, secret) {
		t.Error("the secret itself was digested")
	}
}

// TestFingerprintNumbers compares with exact rational arithmetic.
func TestFingerprintNumbers(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		if rapid.Bool().Draw(t, "scaled") { // another way to write a
			b = a
			if !strings.ContainsAny(a, "eE") {
				b = a + "e0"
			}
		}
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		if same := fingerprint(t, a) == fingerprint(t, b); same != (x.Cmp(y) == 0) {
			t.Fatalf("%s and %s: same fingerprint %v, equal values %v", a, b, same, x.Cmp(y) == 0)
		}
	})
}

// TestFingerprintIgnoresOrder: the order of names never matters, that of items does.
func TestFingerprintIgnoresOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOfN(rapid.String(), rapid.String(), 2, 8).Draw(t, "m")
		names := make([]string, 0, len(m))
		for n := range m {
			names = append(names, n)
		}
		write := func(order []string) string {
			parts := make([]string, 0, len(order))
			for _, n := range order {
				k, _ := json.Marshal(n)
				v, _ := json.Marshal(m[n])
				parts = append(parts, string(k)+":"+string(v))
			}
			return "{" + strings.Join(parts, ",") + "}"
		}
		if fingerprint(t, write(names)) != fingerprint(t, write(rapid.Permutation(names).Draw(t, "order"))) {
			t.Fatal("order of names matters")
		}
	})
}
