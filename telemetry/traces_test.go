package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

const callersTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// collected is a Traces with what it has sent.
type collected struct {
	*Traces

	t    *testing.T
	sent *tracetest.InMemoryExporter
}

func collect(t *testing.T, o TracesOptions) *collected {
	t.Helper()
	c := &collected{t: t, sent: tracetest.NewInMemoryExporter()}
	o.Log = slog.New(slog.DiscardHandler)
	c.Traces = newTraces(c.sent, o)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (c *collected) spans() tracetest.SpanStubs {
	c.t.Helper()
	if err := c.provider.ForceFlush(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return c.sent.GetSpans()
}

func (c *collected) span(name string) tracetest.SpanStub {
	c.t.Helper()
	all := c.spans()
	i := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.Name == name })
	if i < 0 {
		c.t.Fatalf("no span %q", name)
	}
	return all[i]
}

// tree writes spans as lines, each below its parent, with seconds from noon.
func tree(all tracetest.SpanStubs) []string {
	var lines []string
	for _, s := range all {
		line := fmt.Sprintf("%s %.1f–%.1f", s.Name, s.StartTime.Sub(noon()).Seconds(), s.EndTime.Sub(noon()).Seconds())
		for _, p := range all {
			if p.SpanContext.SpanID() == s.Parent.SpanID() && p.SpanContext.TraceID() == s.SpanContext.TraceID() {
				line = p.Name + " > " + line
			}
		}
		if s.Status.Code == codes.Error {
			line += " error"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// One trace joins a caller, its request, the job and the tool; and the job's spans are
// the same whichever daemon sends them.
func TestTraceOfAJob(t *testing.T) {
	t.Parallel()
	c := collect(t, TracesOptions{Sample: 0})
	ctx, end := c.Request(t.Context(), "/macexec.v1.JobService/SubmitJob", callersTrace, "a=b")
	l := newLife(t, "job1", jobs.CallContext{TraceParent: callersTrace, TraceState: "a=b"})
	l.job.Trace = c.Trace(ctx)
	l.accept()
	c.Submitted(ctx, engine.Decided{Answer: engine.Accepted, Tool: "copy", Job: l.job})
	end("OK")
	l.begin()
	l.intend()
	first := c.ToolTrace(l.job)
	l.requeue()
	l.begin()
	l.intend()
	second := c.ToolTrace(l.job)
	l.exited(0)
	l.tell(c)

	want := []string{
		"job copy > run 2.0–3.0 error",
		"job copy > run 5.0–5.5",
		"job copy > stage 1.0–2.0",
		"job copy > stage 4.0–5.0",
		"job copy > verify 5.5–6.0",
		"job copy > wait 0.0–1.0",
		"job copy > wait 3.0–4.0",
		"macexec.v1.JobService/SubmitJob > job copy 0.0–6.0",
	}
	got := slices.DeleteFunc(tree(c.spans()), func(s string) bool {
		return strings.HasPrefix(s, "macexec.v1.JobService/SubmitJob ") && !strings.Contains(s, ">")
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
	request, job := c.span("macexec.v1.JobService/SubmitJob"), c.span("job copy")
	if got := traceParent(request.Parent); got != callersTrace {
		t.Errorf("the request is below %s, not the caller's %s", got, callersTrace)
	}
	if len(job.Links) != 1 || job.Links[0].SpanContext.SpanID() != request.SpanContext.SpanID() {
		t.Errorf("the job is linked to %v, not to its request", job.Links)
	}
	if got := job.SpanContext.TraceState().String(); got != "a=b" {
		t.Errorf("the trace state is %q", got)
	}
	var runs []string
	for _, s := range c.spans() {
		if s.Name == "run" {
			runs = append(runs, traceParent(s.SpanContext))
		}
	}
	if d := cmp.Diff([]string{first, second}, runs); d != "" {
		t.Errorf("the tools' spans are not those they were told (-told +sent):\n%s", d)
	}

	// A daemon that was started later knows only the record.
	later := collect(t, TracesOptions{Sample: 0})
	later.Changed(l.changes[len(l.changes)-1])
	ids := func(all tracetest.SpanStubs) (list []string) {
		for _, s := range all {
			if s.Name == "run" || s.Name == "job copy" {
				list = append(list, traceParent(s.Parent)+" > "+traceParent(s.SpanContext))
			}
		}
		return list
	}
	if d := cmp.Diff(ids(c.spans()), ids(later.spans())); d != "" {
		t.Errorf("another daemon sends other spans (-first +later):\n%s", d)
	}
	again, end := later.Request(t.Context(), "/macexec.v1.JobService/SubmitJob", "", "")
	_ = again
	end("OK")
}

// Which trace a job belongs to, and whether it is recorded.
func TestTraceJobsBelongTo(t *testing.T) {
	t.Parallel()
	other := strings.Replace(callersTrace, "0af7", "0bbb", 1)
	unsampled := strings.TrimSuffix(callersTrace, "01") + "00"
	for _, test := range []struct {
		name, request, call string
		sample              float64
		parent              string
		sent                bool
	}{
		{name: "nobody's, recorded", sample: 1, sent: true},
		{name: "nobody's, not recorded", sample: 0},
		{name: "the request's", request: callersTrace, parent: callersTrace, sent: true},
		{name: "the caller's, from before tracing was on", call: callersTrace, parent: callersTrace, sent: true},
		{name: "another that the call names", request: other, call: callersTrace, parent: callersTrace, sent: true},
		{name: "one that is not recorded", request: unsampled, call: unsampled, sample: 1, parent: unsampled},
		{name: "malformed", request: "x", call: "00-zz-01", sample: 1, sent: true},
	} {
		c := collect(t, TracesOptions{Sample: test.sample})
		l := newLife(t, "job1", jobs.CallContext{TraceParent: test.call})
		l.job.Trace = test.request
		l.accept()
		l.begin()
		l.intend()
		tool, ok := jobs.ParseTraceParent(c.ToolTrace(l.job))
		l.exited(1)
		l.tell(c)
		if !ok || (tool.Flags == 1) != test.sent || (len(c.spans()) > 0) != test.sent {
			t.Errorf("%s: the tool is told %v, and %d spans are sent", test.name, tool, len(c.spans()))
		}
		if !test.sent {
			continue
		}
		job, run := c.span("job copy"), c.span("run")
		if got := traceParent(job.Parent); test.parent != "" && got != test.parent || test.parent == "" && job.Parent.IsValid() {
			t.Errorf("%s: the job is below %s, want %s", test.name, got, test.parent)
		}
		if job.Status.Code != codes.Error || run.Status.Code != codes.Error {
			t.Errorf("%s: a failed job is %v, its run %v", test.name, job.Status, run.Status)
		}
		if run.SpanContext.SpanID() != tool.SpanID || run.SpanContext.TraceID() != tool.TraceID {
			t.Errorf("%s: the tool was told %s and its span is %s", test.name, tool, traceParent(run.SpanContext))
		}
	}
}

func TestTraceOfAnUnknownJob(t *testing.T) {
	t.Parallel()
	c := collect(t, TracesOptions{Sample: 1})
	l := newLife(t, "job1", jobs.CallContext{})
	l.accept()
	l.begin()
	l.intend()
	l.lose()
	l.resolve()
	l.tell(c)
	want := []string{
		"job copy 0.0–3.0 error",
		"job copy > run 2.0–3.0 error",
		"job copy > stage 1.0–2.0",
		"job copy > unknown 3.0–4.0 error",
		"job copy > wait 0.0–1.0",
	}
	if d := cmp.Diff(want, tree(c.spans())); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}

// A request that belongs to no trace and submits nothing is not worth a span; a repeat
// says where its job was traced; a fault is an error.
func TestTraceOfRequests(t *testing.T) {
	t.Parallel()
	c := collect(t, TracesOptions{Sample: 1})
	ctx, end := c.Request(t.Context(), "/macexec.v1.JobService/GetJob", "malformed", "")
	end("OK")
	if c.Trace(ctx) != "" || len(c.spans()) != 0 {
		t.Error("a request that nobody traces has a span")
	}
	_, end = c.Request(t.Context(), "/macexec.v1.JobService/GetJob", callersTrace, "not a trace state,,")
	end("Internal")
	if s := c.span("macexec.v1.JobService/GetJob"); s.Status.Code != codes.Error {
		t.Errorf("a fault is %v", s.Status)
	}
	l := newLife(t, "job1", jobs.CallContext{})
	l.accept()
	ctx, end = c.Request(t.Context(), "/macexec.v1.JobService/SubmitJob", "", "")
	c.Submitted(ctx, engine.Decided{Answer: engine.Replayed, Job: l.job})
	end("OK")
	s := c.span("macexec.v1.JobService/SubmitJob")
	if len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != jobSpanID(l.job) {
		t.Errorf("a repeat is linked to %v", s.Links)
	}
}

func TestTracesGoToACollector(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{
		"", "127.0.0.1:4317", "ftp://127.0.0.1:4317", "http://", "http://:4317", "http://%zz", "http://secret%zz@h:1",
		"http://127.0.0.1", "https://collector/", "https://collector:0", "https://[::1]", "http://secret@127.0.0.1:4317", "http://me:secret@127.0.0.1:4317",
	} {
		c, err := NewTraces(t.Context(), TracesOptions{Endpoint: endpoint})
		if err == nil {
			c.Close(t.Context())
			t.Errorf("%q was taken", endpoint)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error repeats it: %v", endpoint, err)
		}
	}
	for _, endpoint := range []string{"http://127.0.0.1:4317", "https://collector.example:443", "http://[::1]:4317/"} {
		if err := CheckEndpoint(endpoint); err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

// stuck is an exporter that is held up until it may go on, and fails as told.
type stuck struct {
	entered chan int
	answer  chan error
}

func (s stuck) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	s.entered <- len(spans)
	return <-s.answer
}

func (stuck) Shutdown(context.Context) error { return nil }

// A collector that is down holds nothing up: what does not fit is dropped and counted,
// and it is said once.
func TestCollectorIsDown(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	counts := map[string]int{}
	var said bytes.Buffer
	x := stuck{entered: make(chan int), answer: make(chan error)}
	c := newTraces(x, TracesOptions{Sample: 1, Log: slog.New(slog.NewTextHandler(&said, nil)), Count: func(result string, n int) {
		mu.Lock()
		defer mu.Unlock()
		counts[result] += n
	}})
	const made = maxWaitingSpans + 100
	for range made {
		_, end := c.Request(t.Context(), "/SubmitJob", "", "")
		end("OK")
	}
	exported := 0
	for i := 0; exported < maxWaitingSpans; i++ {
		exported += <-x.entered
		if i == 2 {
			x.answer <- nil
		} else {
			x.answer <- errors.New("nobody is there")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.Close(ctx)
	mu.Lock()
	defer mu.Unlock()
	if counts["dropped"] != made-maxWaitingSpans || counts["failed"]+counts["exported"] != maxWaitingSpans || counts["exported"] == 0 {
		t.Errorf("of %d spans: %v", made, counts)
	}
	if n := strings.Count(said.String(), "takes no traces"); n < 1 || n > 2 || strings.Count(said.String(), "takes traces again") != 1 {
		t.Errorf("the log says:\n%s", said.String())
	}
}
