package endtoend

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// What callers ask of a key, and what they are answered.
type (
	keyInput struct {
		verb verb
		key  string
		call string // of submit: which of the calls that are made under the key
	}
	keyOutput struct {
		says says
		id   string // of the job that the answer names
	}
	verb string
	says string
)

const (
	verbSubmit verb = "submit"
	verbFence  verb = "fence"
	verbLookup verb = "lookup"

	saysJob      says = "job"      // this call's job, or the job that the key has
	saysConflict says = "conflict" // the key is another call's
	saysFenced   says = "fenced"
	saysFree     says = "free"
	saysNothing  says = "nothing" // a refusal that says that nothing was done
	saysLost     says = "lost"    // nobody knows
)

// keyState is what a key stands for. The id is empty while nobody was told of it.
type keyState struct {
	is   says // saysFree, saysJob or saysFenced
	call string
	id   string
}

// keyModel is what is promised of one key, taken alone (G2, G15): it is free until one
// call or one fence takes it, and that is for ever. What was lost may have been done or
// not, which is why a state may have two successors.
func keyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{keyState{is: saysFree}} },
		Step: func(state, input, output any) []any {
			var next []any
			for _, s := range keyStep(state.(keyState), input.(keyInput), output.(keyOutput)) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	return m.ToModel()
}

// keyStep returns what the key may stand for after the answer, and nothing if the answer
// cannot be.
func keyStep(s keyState, in keyInput, out keyOutput) []keyState {
	var after keyState // if it is done
	var told says      // what the caller has to be told then
	switch {
	case s.is != saysFree || in.verb == verbLookup:
		after, told = s, s.is
		if s.is == saysJob && in.verb == verbSubmit && s.call != in.call {
			told = saysConflict
		}
	case in.verb == verbSubmit:
		after, told = keyState{is: saysJob, call: in.call}, saysJob
	default:
		after, told = keyState{is: saysFenced}, saysFenced
	}
	switch {
	case out.says == saysLost:
		return slices.Compact([]keyState{s, after})
	case out.says == saysNothing:
		return []keyState{s}
	case out.says != told, after.id != "" && after.id != out.id:
		return nil
	}
	after.id = out.id
	return []keyState{after}
}

// history is what all callers saw, by key.
type history struct {
	began time.Time

	mu   sync.Mutex
	keys map[string][]porcupine.Operation
}

func newHistory() *history {
	return &history{began: time.Now(), keys: map[string][]porcupine.Operation{}}
}

// ask writes down a request and its answer. One that was lost may be carried out at any
// time after it was sent.
func (h *history) ask(in keyInput, request func() keyOutput) keyOutput {
	call := time.Since(h.began).Nanoseconds()
	out := request()
	end := time.Since(h.began).Nanoseconds()
	if out.says == saysLost {
		end = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys[in.key] = append(h.keys[in.key], porcupine.Operation{Input: in, Output: out, Call: call, Return: end})
	return out
}

// check holds that what was seen of each key is one of the orders that the model allows,
// and returns how many answers there were.
func (h *history) check(t *testing.T) (answers int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, seen := range h.keys {
		answers += len(seen)
		if result := porcupine.CheckOperationsTimeout(keyModel(), seen, patience); result != porcupine.Ok {
			t.Errorf("what was seen of the key %s is %s:", key, result)
			for _, op := range seen {
				t.Errorf("  %d-%d %+v -> %+v", op.Call, op.Return, op.Input, op.Output)
			}
		}
	}
	return answers
}

// The model says no to what must never be seen, so that it can.
func TestKeyModelRefuses(t *testing.T) {
	t.Parallel()
	submit := func(call string) keyInput { return keyInput{verb: verbSubmit, call: call} }
	fence, lookup := keyInput{verb: verbFence}, keyInput{verb: verbLookup}
	type seen struct {
		in  keyInput
		out keyOutput
	}
	for name, test := range map[string]struct {
		seen []seen
		ok   bool
	}{
		"a repeat":            {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {submit("a"), keyOutput{saysJob, "1"}}}, true},
		"two jobs":            {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {submit("a"), keyOutput{saysJob, "2"}}}, false},
		"a conflict":          {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {submit("b"), keyOutput{saysConflict, "1"}}}, true},
		"another's conflict":  {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {submit("b"), keyOutput{saysConflict, "2"}}}, false},
		"no conflict":         {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {submit("b"), keyOutput{saysJob, "1"}}}, false},
		"a lost job":          {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {lookup, keyOutput{saysFree, ""}}}, false},
		"a job after a fence": {[]seen{{fence, keyOutput{saysFenced, ""}}, {submit("a"), keyOutput{saysJob, "1"}}}, false},
		"a fence after a job": {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {fence, keyOutput{saysFenced, ""}}}, false},
		"a fence too late":    {[]seen{{submit("a"), keyOutput{saysJob, "1"}}, {fence, keyOutput{saysJob, "1"}}}, true},
		"lost and done":       {[]seen{{submit("a"), keyOutput{saysLost, ""}}, {lookup, keyOutput{saysJob, "1"}}}, true},
		"lost and not done":   {[]seen{{submit("a"), keyOutput{saysLost, ""}}, {submit("b"), keyOutput{saysJob, "1"}}}, true},
		"refused and done":    {[]seen{{submit("a"), keyOutput{saysNothing, ""}}, {lookup, keyOutput{saysJob, "1"}}}, false},
	} {
		var list []porcupine.Operation
		for i, s := range test.seen {
			op := porcupine.Operation{Input: s.in, Output: s.out, Call: int64(2 * i), Return: int64(2*i + 1)}
			if s.out.says == saysLost {
				op.Return = math.MaxInt64
			}
			list = append(list, op)
		}
		if ok := porcupine.CheckOperations(keyModel(), list); ok != test.ok {
			t.Errorf("%s: %t, want %t", name, ok, test.ok)
		}
	}
}
