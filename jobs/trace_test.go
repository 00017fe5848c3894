package jobs

import (
	"strings"
	"testing"
)

const someTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseTraceParent(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		someTrace: true,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00":      true,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      true,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more": true,
		"":                                      false,
		"00":                                    false,
		someTrace + "-more":                     false, // version 00 has four fields
		someTrace + " ":                         false,
		"cc" + someTrace[2:] + "x":              false,
		"ff" + someTrace[2:]:                    false,
		strings.ToUpper(someTrace):              false,
		strings.Replace(someTrace, "-", "_", 1): false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":       false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":       false,
		"00-0af7651916cd43dd8448eb211c8031-9c-b7ad6b7169203331-01"[:55]: false,
		"0g" + someTrace[2:]: false,
	} {
		parsed, ok := ParseTraceParent(text)
		if ok != valid {
			t.Errorf("ParseTraceParent(%q) = %v, %t", text, parsed, ok)
		}
		if want := "00" + strings.TrimSuffix(text, "-more")[min(2, len(text)):]; ok && parsed.String() != want {
			t.Errorf("ParseTraceParent(%q) is written %q, not %q", text, parsed, want)
		}
	}
}

func TestTraceIDOfAJob(t *testing.T) {
	t.Parallel()
	j := &Job{Call: Call{Context: CallContext{TraceID: "the caller's own", TraceParent: "nonsense"}}}
	if got := j.TraceID(); got != "the caller's own" {
		t.Errorf("without a trace context: %q", got)
	}
	j.Call.Context.TraceParent = someTrace
	if got := j.TraceID(); got != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("with the caller's: %q", got)
	}
	j.Trace = strings.Replace(someTrace, "0af7", "ffff", 1)
	if got := j.TraceID(); got != "ffff651916cd43dd8448eb211c80319c" {
		t.Errorf("with the request's: %q", got)
	}
}

func FuzzParseTraceParent(f *testing.F) {
	f.Add(someTrace)
	f.Add("cc" + someTrace[2:] + "-more")
	f.Fuzz(func(t *testing.T, text string) {
		parsed, ok := ParseTraceParent(text)
		if !ok {
			return
		}
		again, ok := ParseTraceParent(parsed.String())
		if !ok || again != parsed {
			t.Fatalf("%q is read as %v, which is read as %v, %t", text, parsed, again, ok)
		}
	})
}
