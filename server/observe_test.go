package server_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/server"
)

type seenKey struct{}

// Each request is told once with its trace, and with the code that it was answered;
// and a call that names no trace belongs to that of its request, without a state that is
// too long to be passed on.
func TestObserve(t *testing.T) {
	t.Parallel()
	const own, carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-1111651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var mu sync.Mutex
	var told []string
	say := func(words string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, words)
	}
	path := socket(t)
	serve(t, path, server.Options{
		Observe: func(ctx context.Context, r server.Request) (context.Context, func(string)) {
			return context.WithValue(ctx, seenKey{}, true), func(code string) { say(r.Method + " " + r.TraceParent + " " + r.TraceState + " " + code) }
		},
		Engine: &fakeEngine{
			submit: func(ctx context.Context, r engine.Request) (engine.Receipt, error) {
				if ctx.Value(seenKey{}) == nil {
					t.Error("the engine does not get the observer's context")
				}
				say("call " + r.Context.TraceParent + " " + r.Context.TraceState)
				return engine.Receipt{Job: &jobs.Job{ID: "J"}}, nil
			},
			job: func(string) (*jobs.Job, error) { return nil, jobs.Errorf(jobs.CodeJobNotFound, "none") },
			watch: func(ctx context.Context, _ engine.WatchRequest, _ func(engine.WatchEvent) error) error {
				if ctx.Value(seenKey{}) == nil {
					t.Error("a stream does not get the observer's context")
				}
				return nil
			},
		},
	})
	c := macexecv1.NewJobServiceClient(raw(t, path))
	submit := func(call string, md ...string) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), md...)
		if _, err := c.SubmitJob(ctx, &macexecv1.SubmitJobRequest{Context: &macexecv1.CallContext{Traceparent: call}}); err != nil {
			t.Fatal(err)
		}
	}
	submit("")
	submit(own)
	submit("", "traceparent", carried, "tracestate", "a=b", "tracestate", "c=d")
	longest := "a=" + strings.Repeat("b", 510)
	submit("", "traceparent", carried, "tracestate", longest)
	submit("", "traceparent", carried, "tracestate", longest, "tracestate", "c=d")
	submit(own, "traceparent", carried)
	submit("", "traceparent", "malformed")
	submit("", "traceparent", carried, "traceparent", own)
	if _, err := c.GetJob(t.Context(), &macexecv1.GetJobRequest{Id: "J"}); err == nil {
		t.Error("a job that there is not was found")
	}
	w, err := c.WatchJobs(t.Context(), &macexecv1.WatchJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err == nil {
		t.Error("the stream did not end")
	}
	const method = "/macexec.v1.JobService/"
	want := []string{
		"call  ", method + "SubmitJob   OK",
		"call " + own + " ", method + "SubmitJob " + own + "  OK",
		"call " + carried + " a=b,c=d", method + "SubmitJob " + carried + " a=b,c=d OK",
		"call " + carried + " " + longest, method + "SubmitJob " + carried + " " + longest + " OK",
		"call " + carried + " ", method + "SubmitJob " + carried + "  OK",
		"call " + own + " ", method + "SubmitJob " + carried + "  OK",
		"call  ", method + "SubmitJob   OK",
		"call  ", method + "SubmitJob   OK",
		method + "GetJob   NotFound",
		method + "WatchJobs   OK",
	}
	mu.Lock()
	defer mu.Unlock()
	if d := cmp.Diff(want, slices.Clone(told)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
