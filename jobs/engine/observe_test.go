package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// recorder keeps what an Observer is told, as words.
type recorder struct {
	unobserved

	mu   sync.Mutex
	said []string
	tool string // the traceparent that tools get
}

func (r *recorder) say(words ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, strings.Join(words, ","))
}

func (r *recorder) heard() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.said)
}

func (r *recorder) Submitted(_ context.Context, d Decided) {
	r.say("submitted", d.Tool, string(d.Answer), string(d.Code))
}

func (r *recorder) Found(j *jobs.Job) { r.say("found", string(j.State)) }

func (r *recorder) Changed(c Change) {
	r.say("changed", string(c.From), string(c.Phase), string(c.Event), string(c.Job.State), string(c.Job.Phase))
}

func (r *recorder) Started(*jobs.Job, time.Duration, error) { r.say("started") }
func (r *recorder) Trace(context.Context) string            { return "the request's" }
func (r *recorder) ToolTrace(*jobs.Job) string              { return r.tool }

// What an engine does is told, each moment once and in order.
func TestObserved(t *testing.T) {
	t.Parallel()
	r := &recorder{tool: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	h := newHost(t, manifest("join", "none", `test "$TRACEPARENT" = `+r.tool, plainResult))
	h.Stop()
	h.observer = r
	h.start()

	job := h.submit("join", `{}`)
	ended := h.await(job.ID, func(j *jobs.Job) bool { return j.State.Terminal() })
	if ended.State != jobs.StateCompleted {
		t.Fatalf("the job is %s: %s", ended.State, ended.Message)
	}
	if ended.Trace != "the request's" {
		t.Errorf("the job keeps the trace %q", ended.Trace)
	}
	h.submit("join", `{}`)
	if _, err := h.Submit(t.Context(), owner(), Request{Tool: "no_such_tool", Key: "x", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}); err == nil {
		t.Error("a tool that there is not was taken")
	}
	want := []string{
		"changed,,,accept,queued,",
		"submitted,join,accepted,",
		"changed,queued,,start,running,staging",
		"changed,running,staging,,running,running",
		"started",
		"changed,running,running,complete,completed,",
		"submitted,join,replayed,",
		"submitted,,refused,TOOL_NOT_FOUND",
	}
	got := h.recorded(r)
	slices.Sort(want) // a submission and its job's start are told side by side
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// recorded leaves out that a start was shown, which only happens to slow tools.
func (h *host) recorded(r *recorder) []string {
	return slices.DeleteFunc(r.heard(), func(s string) bool { return s == "changed,running,running,,running,running" })
}
