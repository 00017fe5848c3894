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

// blocker is an observer that does not return from the moments that it picks.
type blocker struct {
	unobserved

	picks   func(d *Decided, c *Change) bool
	blocked chan struct{} // told of each
	release chan struct{}
}

func (b *blocker) block(d *Decided, c *Change) {
	if b.picks(d, c) {
		b.blocked <- struct{}{}
		<-b.release
	}
}

func (b *blocker) Submitted(_ context.Context, d Decided) { b.block(&d, nil) }
func (b *blocker) Changed(c Change)                       { b.block(nil, &c) }

// TestSlowObserverHoldsNothingUp: while an observer does not return from what it is told,
// be it a new job, a decision or an end, the host's mode is read and set, the key is
// answered, and who waits for the job gets it.
func TestSlowObserverHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for name, picks := range map[string]func(*Decided, *Change) bool{
		"new":       func(_ *Decided, c *Change) bool { return c != nil && c.From == "" },
		"submitted": func(d *Decided, _ *Change) bool { return d != nil && d.Answer == Accepted },
		"ended":     func(_ *Decided, c *Change) bool { return c != nil && c.Job.State.Terminal() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &blocker{picks: picks, blocked: make(chan struct{}), release: make(chan struct{})}
			h := newHost(t, manifest("quick", "none", "true", plainResult))
			h.Stop()
			h.observer = b
			h.start()
			t.Cleanup(func() { close(b.release) }) // before the host stops
			req := Request{Tool: "quick", Key: "k", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}
			first := make(chan Receipt, 1)
			go func() {
				r, err := h.Submit(t.Context(), owner(), req)
				if err != nil {
					t.Error(err)
				}
				first <- r
			}()
			<-b.blocked
			again, err := h.Submit(t.Context(), owner(), req)
			if err != nil || !again.Replayed {
				t.Fatalf("the repeat: %+v, %v", again, err)
			}
			h.setHost(jobs.ModePaused)
			if m := h.Gauges().Mode; m != jobs.ModePaused {
				t.Errorf("the mode is %s", m)
			}
			h.setHost(jobs.ModeOpen)
			job, err := h.WaitJob(t.Context(), owner(), again.Job.ID, maxWait)
			if err != nil || job.State != jobs.StateCompleted {
				t.Errorf("who waits gets %v, %v", job, err)
			}
			b.release <- struct{}{}
			if r := <-first; r.Job.ID != again.Job.ID || r.Replayed {
				t.Errorf("the first got %+v", r)
			}
		})
	}
}

// panicker is an observer that is broken.
type panicker struct{}

func (panicker) Submitted(context.Context, Decided)      { panic("submitted") }
func (panicker) Found(*jobs.Job)                         { panic("found") }
func (panicker) Changed(Change)                          { panic("changed") }
func (panicker) Started(*jobs.Job, time.Duration, error) { panic("started") }
func (panicker) Probed(*jobs.Job, ProbeAnswer)           { panic("probed") }
func (panicker) Trace(context.Context) string            { panic("trace") }
func (panicker) ToolTrace(*jobs.Job) string              { panic("tool trace") }

// TestBrokenObserverChangesNothing of what becomes of a job, new or found (G13).
func TestBrokenObserverChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.Stop()
	h.observer = panicker{}
	h.start()
	job := h.submit("wait", `{}`)
	h.await(job.ID, running)
	h.Stop()
	h.start()
	h.letGo(job.ID)
	ended, err := h.WaitJob(t.Context(), owner(), job.ID, maxWait)
	if err != nil {
		t.Fatal(err)
	}
	h.wantState(ended, jobs.StateCompleted, jobs.EndOK)
	if n := starts(ended); n != 1 {
		t.Errorf("its tool was started %d times", n)
	}
}
