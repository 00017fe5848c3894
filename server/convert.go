package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
)

// What the conversions of all nouns share.

// enum returns the API's value for a word of the domain. A test holds that every
// word has one.
func enum[E interface {
	~int32
	protoreflect.Enum
}, W ~string](word W) E {
	e, _ := document.Enum[E](string(word))
	return e
}

// word returns the domain's word for a value that a caller sent.
func word[W ~string](field string, e protoreflect.Enum) (W, error) {
	if e.Descriptor().Values().ByNumber(e.Number()) == nil {
		return "", badField(field, "has no value %d", e.Number())
	}
	return W(document.Word(e)), nil
}

// badField is the error of a request whose field is wrong.
func badField(field, format string, args ...any) *jobs.Error {
	return jobs.Errorf(jobs.CodeRequestInvalid, field+" "+format, args...).With("field", field)
}

// timestamp leaves the zero time unset.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, badField(field, "is no time")
	}
	if t.AsTime().IsZero() {
		return time.Time{}, badField(field, "is the first moment of the year 1, which stands for no time at all; leave it out")
	}
	return t.AsTime(), nil
}

// durationOf takes seconds as a caller sent them.
func durationOf(field string, seconds float64) (time.Duration, error) {
	const most = float64(math.MaxInt64 / int64(time.Second))
	if math.IsNaN(seconds) || seconds < 0 || seconds > most {
		return 0, badField(field, "is %v, and must be from 0 to %v seconds", seconds, most)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// each converts a list.
func each[A, B any](list []A, convert func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, a := range list {
		out = append(out, convert(a))
	}
	return out
}

// int32of converts a number that is small by its meaning, and keeps it at the bound
// if it is not.
func int32of(n int) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32))
}
