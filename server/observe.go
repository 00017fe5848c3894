package server

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Request is a request as an Observe sees it.
type Request struct {
	Method                  string // as gRPC writes it: /package.Service/Method
	TraceParent, TraceState string // W3C trace context as received, which may be no valid one
}

// Observe is told of each request before anything else is done with it. The context
// that it returns is the request's from then on; end is called once, with the name of
// the status code that was answered.
type Observe func(ctx context.Context, r Request) (_ context.Context, end func(code string))

// begin tells that a request is there. req is nil for a stream.
func (s *Server) begin(ctx context.Context, method string, req any) (context.Context, func(error)) {
	if s.observe == nil {
		return ctx, func(error) {}
	}
	r := Request{Method: method}
	r.TraceParent, r.TraceState = carriedTrace(ctx)
	if call, ok := req.(interface {
		GetContext() *macexecv1.CallContext
	}); ok && r.TraceParent == "" {
		r.TraceParent, r.TraceState = call.GetContext().GetTraceparent(), call.GetContext().GetTracestate()
	}
	ctx, end := s.observe(ctx, r)
	return ctx, func(err error) { end(status.Code(err).String()) }
}

// maxTraceState is how long a tracestate of the metadata may be to be passed on: W3C
// Trace Context asks for no more.
const maxTraceState = 512

// carriedTrace returns the trace context of a request's metadata, if there is a valid
// one. Whoever put it there need not be the caller, who could do nothing about a
// refusal: a tracestate that is too long is left out.
func carriedTrace(ctx context.Context) (parent, state string) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("traceparent")
	if len(values) != 1 {
		return "", ""
	}
	if _, ok := jobs.ParseTraceParent(values[0]); !ok {
		return "", ""
	}
	if state = strings.Join(md.Get("tracestate"), ","); len(state) > maxTraceState {
		state = ""
	}
	return values[0], state
}

// withCarriedTrace lets a call that names no trace belong to the one of its request.
func withCarriedTrace(ctx context.Context, c jobs.CallContext) jobs.CallContext {
	if c.TraceParent == "" {
		c.TraceParent, c.TraceState = carriedTrace(ctx)
	}
	return c
}
