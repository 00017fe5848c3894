package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// say makes a call and awaits its end.
func (h *host) say(tool, key string, c jobs.CallContext) *jobs.Job {
	h.t.Helper()
	r, err := h.Submit(h.t.Context(), owner(), Request{Tool: tool, Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction, Context: c})
	if err != nil {
		h.t.Fatalf("submit %s: %v", key, err)
	}
	return h.await(r.Job.ID, settled)
}

// told returns what a watch tells of all that has happened up to now.
func (h *host) told(c Caller, w WatchRequest) []WatchEvent {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	h.store.mu.Lock()
	h.store.idle = cancel
	h.store.mu.Unlock()
	var events []WatchEvent
	err := h.Watch(ctx, c, w, func(e WatchEvent) error {
		events = append(events, e)
		return nil
	})
	if ctx.Err() == nil {
		h.t.Fatalf("the watch ended with %v", err)
	}
	h.store.mu.Lock()
	h.store.idle = nil
	h.store.mu.Unlock()
	return events
}

// TestWatchFilters: a watch tells of exactly the jobs that a list with the same filter
// has, in the states that were asked for.
func TestWatchFilters(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("good", "none", "true", plainResult), manifest("bad", "none", "exit 3", plainResult))
	calls := []struct {
		tool, key string
		context   jobs.CallContext
	}{
		{"good", "a", jobs.CallContext{RunID: "r1", ToolCallID: "c1", ThreadID: "t1", Labels: map[string]string{"x": "1", "y": "1"}}},
		{"bad", "b", jobs.CallContext{RunID: "r2", ParentRunID: "r1", ToolCallID: "c2", ContextID: "k1", Labels: map[string]string{"x": "1"}}},
		{"good", "c", jobs.CallContext{RunID: "r1", ParentCallID: "c1", ToolCallID: "c3", ThreadID: "t1"}},
	}
	keys := map[string]string{} // by job id
	for _, c := range calls {
		keys[h.say(c.tool, c.key, c.context).ID] = c.key
	}
	// A replay has its own request's ids, and is of its job's run all the same.
	h.say("good", "a", jobs.CallContext{RunID: "elsewhere", ToolCallID: "again"})

	for name, test := range map[string]struct {
		filter jobs.Query
		want   string
	}{
		"all":         {jobs.Query{}, "a b c"},
		"tool":        {jobs.Query{Tool: "good"}, "a c"},
		"principal":   {jobs.Query{Principal: "owner"}, "a b c"},
		"another":     {jobs.Query{Principal: "somebody"}, ""},
		"key":         {jobs.Query{Key: "b"}, "b"},
		"run":         {jobs.Query{RunID: "r1"}, "a c"},
		"parent run":  {jobs.Query{ParentRunID: "r1"}, "b"},
		"thread":      {jobs.Query{ThreadID: "t1"}, "a c"},
		"context":     {jobs.Query{ContextID: "k1"}, "b"},
		"call":        {jobs.Query{ToolCall: "c1"}, "a"},
		"parent call": {jobs.Query{ParentCall: "c1"}, "c"},
		"labels":      {jobs.Query{Labels: map[string]string{"x": "1", "y": "1"}}, "a"},
		"two":         {jobs.Query{Tool: "good", RunID: "r1", ParentCall: "c1"}, "c"},
		"contrary":    {jobs.Query{Tool: "bad", RunID: "r1"}, ""},
	} {
		// The sets of both, by their keys in the order of acceptance.
		inOrder := func(has map[string]bool) string {
			var list []string
			for _, c := range calls {
				if has[c.key] {
					list = append(list, c.key)
				}
			}
			return strings.Join(list, " ")
		}
		seen := map[string]bool{}
		for _, e := range h.told(owner(), WatchRequest{Filter: test.filter}) {
			seen[keys[e.Entry.JobID]] = true
		}
		page, err := h.Jobs(t.Context(), owner(), test.filter)
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]bool{}
		for _, j := range page.Jobs {
			listed[j.Key] = true
		}
		if got, list := inOrder(seen), inOrder(listed); got != test.want || list != test.want {
			t.Errorf("%s: watched %q, listed %q, want %q", name, got, list, test.want)
		}
	}

	// The state is the one that the event led to, not the one of now.
	var said []string
	for _, e := range h.told(owner(), WatchRequest{Filter: jobs.Query{RunID: "r1", States: []jobs.State{jobs.StateQueued, jobs.StateCompleted}}}) {
		said = append(said, fmt.Sprint(keys[e.Entry.JobID], " ", e.Entry.Kind, " ", e.Entry.State, " ", e.Entry.ToolCallID))
	}
	want := []string{
		"a job.submitted queued c1", "a job.changed completed c1",
		"c job.submitted queued c3", "c job.changed completed c3",
		"a job.replayed completed again",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	if events := h.told(Caller{Principal: "somebody"}, WatchRequest{}); len(events) != 0 {
		t.Errorf("somebody else is told of %d events", len(events))
	}
}

// TestG12EntriesOutliveTheirJobs: a reader is told of an entry whose job cannot be
// read, unless the entry itself says that it is not of the selection.
func TestG12EntriesOutliveTheirJobs(t *testing.T) {
	t.Parallel()
	entry := jobs.Entry{Owner: "owner", State: jobs.StateRunning, RunID: "r", ToolCallID: "c"}
	for _, test := range []struct {
		filter jobs.Query
		want   bool
	}{
		{jobs.Query{}, true},
		{jobs.Query{RunID: "r", ToolCall: "c", States: []jobs.State{jobs.StateRunning}}, true},
		{jobs.Query{Tool: "t", ThreadID: "t", Labels: map[string]string{"a": "b"}}, true},
		{jobs.Query{RunID: "other"}, false},
		{jobs.Query{ToolCall: "other"}, false},
		{jobs.Query{States: []jobs.State{jobs.StateQueued}}, false},
		{jobs.Query{Principal: "other"}, false},
	} {
		if got := mayBeOf(entry, test.filter); got != test.want {
			t.Errorf("%+v: %t", test.filter, got)
		}
	}
}

// TestProgressOfEndedJobsIsForgotten: a watch keeps what it told of the jobs that run,
// and of no others, however long it lasts.
func TestProgressOfEndedJobsIsForgotten(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	job := h.submit("wait", `{}`)
	h.await(job.ID, running)
	l := &live{source: func() (Progress, bool) { return Progress{JobID: job.ID, Rate: "2x"}, true }}
	h.mu.Lock()
	h.live["told"] = l
	h.mu.Unlock()
	last, told := map[string]Progress{"ended": {}}, 0
	tell := func(WatchEvent) error { told++; return nil }
	for range 2 {
		if err := h.yieldProgress(owner(), WatchRequest{JobID: job.ID}, last, tell); err != nil {
			t.Fatal(err)
		}
	}
	if _, kept := last[job.ID]; !kept || len(last) != 1 || told == 0 {
		t.Errorf("kept after %d events: %v", told, last)
	}
	h.mu.Lock()
	delete(h.live, "told")
	h.mu.Unlock()
	h.letGo(job.ID)
	h.await(job.ID, settled)
	if err := h.yieldProgress(owner(), WatchRequest{}, last, tell); err != nil || len(h.progress()) == 0 && len(last) > 0 {
		t.Errorf("kept of jobs that have ended: %v, %v", last, err)
	}
}
