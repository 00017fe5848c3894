package jobs

import (
	"encoding/hex"
	"strings"
)

// TraceParent is a W3C trace context: a trace, a span of it, and flags.
type TraceParent struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte // bit 0: the trace is recorded
}

// ParseTraceParent reads a traceparent. A caller's tracing must never keep its call
// from running, so text that is none is as good as no text.
func ParseTraceParent(text string) (TraceParent, bool) {
	const size = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	var t TraceParent
	// A version to come may add fields behind the four; version 00 has none.
	if len(text) < size || len(text) > size && (strings.HasPrefix(text, "00") || text[size] != '-') {
		return t, false
	}
	fields := strings.Split(text[:size], "-")
	var version, flags [1]byte
	if len(fields) != 4 || !unhex(version[:], fields[0]) || version[0] == 0xff ||
		!unhex(t.TraceID[:], fields[1]) || t.TraceID == [16]byte{} ||
		!unhex(t.SpanID[:], fields[2]) || t.SpanID == [8]byte{} || !unhex(flags[:], fields[3]) {
		return TraceParent{}, false
	}
	t.Flags = flags[0]
	return t, true
}

// unhex fills to with exactly what lower-case digits say.
func unhex(to []byte, digits string) bool {
	if len(digits) != 2*len(to) || strings.ToLower(digits) != digits {
		return false
	}
	_, err := hex.Decode(to, []byte(digits))
	return err == nil
}

// String writes a traceparent of version 00.
func (t TraceParent) String() string {
	return "00-" + hex.EncodeToString(t.TraceID[:]) + "-" + hex.EncodeToString(t.SpanID[:]) + "-" + hex.EncodeToString([]byte{t.Flags})
}

// TraceID is the trace that a job belongs to, in hex: that of the request that made
// it, else the one that its caller named. Empty: none.
func (j *Job) TraceID() string {
	for _, text := range []string{j.Trace, j.Call.Context.TraceParent} {
		if t, ok := ParseTraceParent(text); ok {
			return hex.EncodeToString(t.TraceID[:])
		}
	}
	return j.Call.Context.TraceID
}
