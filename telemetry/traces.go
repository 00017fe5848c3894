package telemetry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// TracesOptions say where traces go.
type TracesOptions struct {
	Endpoint string  // of an OTLP collector's gRPC, such as http://127.0.0.1:4317; https uses TLS
	Sample   float64 // the part of the traces that begin here which is recorded; a caller's trace says itself
	Version  string  // of macexec
	Host     string  // the host id
	Log      *slog.Logger
	// Count is told what became of spans: exported, failed or dropped. May be nil.
	Count func(result string, n int)
}

// Traces sends spans of requests and jobs to a collector. It is an engine.Observer.
//
// The spans of a job are made when it has ended, from its record alone, and their ids
// follow from the job's id: so a daemon that was started in between tells the same,
// and the tool could be given the id of its span before that span was made.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler // of traces that begin here
}

// CheckEndpoint says what is wrong with an address to send traces to. It repeats
// nothing that could be a password.
func CheckEndpoint(endpoint string) error {
	where, err := url.Parse(endpoint)
	const such = "such as http://127.0.0.1:4317"
	switch {
	case err != nil || where.Hostname() == "" || where.Scheme != "http" && where.Scheme != "https":
		return errors.New("this is no http or https address of a collector, " + such)
	case where.User != nil:
		return errors.New("an address of a collector with a user or password is not taken, for no collector would be told them; leave them out, " + such)
	case where.Port() == "" || where.Port() == "0":
		return fmt.Errorf("%q has no port, and collectors have different ones; add it, %s", endpoint, such)
	}
	return nil
}

// NewTraces begins to send traces. The collector need not be there: nothing waits
// for it.
func NewTraces(ctx context.Context, o TracesOptions) (*Traces, error) {
	if err := CheckEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	client := otlptracegrpc.NewClient(
		otlptracegrpc.WithEndpointURL(o.Endpoint), otlptracegrpc.WithTimeout(exportPatience),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: exportPatience, MaxElapsedTime: exportPatience}),
	)
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	return newTraces(exporter, o), nil
}

// exportPatience bounds one export with its retries; then its spans are given up.
const exportPatience = 10 * time.Second

func newTraces(exporter sdktrace.SpanExporter, o TracesOptions) *Traces {
	if o.Count == nil {
		o.Count = func(string, int) {}
	}
	q := &queue{exporter: exporter, log: o.Log, count: o.Count}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(q.asExporter(), sdktrace.WithMaxQueueSize(maxWaitingSpans), sdktrace.WithBatchTimeout(time.Second))
	t := &Traces{sampler: sdktrace.TraceIDRatioBased(o.Sample)}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(q), sdktrace.WithIDGenerator(ids{}), sdktrace.WithSampler(sdktrace.ParentBased(t.sampler)),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "macexec"), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Host),
		)),
	)
	t.tracer = t.provider.Tracer("github.com/macexec/macexec")
	return t
}

// Close sends what waits, as far as that goes before ctx ends.
func (t *Traces) Close(ctx context.Context) { _ = t.provider.Shutdown(ctx) }

// Request begins the span of a gRPC request, which ends when the returned function is
// called with the status code's name. Requests that neither belong to a trace nor
// submit a job get none: they would be the most, and say the least.
func (t *Traces) Request(ctx context.Context, method, traceParent, traceState string) (context.Context, func(code string)) {
	parent := spanContext(traceParent, traceState)
	if !parent.IsValid() && !strings.HasSuffix(method, "/SubmitJob") {
		return ctx, func(string) {}
	}
	name := strings.TrimPrefix(method, "/")
	ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", name),
	))
	return ctx, func(code string) {
		span.SetAttributes(attribute.String("rpc.response.status_code", code))
		switch code {
		case "Unknown", "DeadlineExceeded", "Unimplemented", "Internal", "Unavailable", "DataLoss":
			span.SetStatus(codes.Error, code)
		default: // the caller's fault, or nobody's
		}
		span.End()
	}
}

// Trace returns the traceparent of a request's span.
func (t *Traces) Trace(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return traceParent(span)
}

// Submitted says in the request's span what became of the call, and where a repeat's
// job was traced.
func (t *Traces) Submitted(ctx context.Context, d engine.Decided) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("macexec.answer", string(d.Answer)))
	if d.Code != "" {
		span.SetAttributes(attribute.String("macexec.code", string(d.Code)))
	}
	if d.Tool != "" {
		span.SetAttributes(attribute.String("macexec.tool", d.Tool))
	}
	if d.Job == nil {
		return
	}
	span.SetAttributes(attribute.String("macexec.job.id", d.Job.ID))
	if d.Answer == engine.Replayed {
		span.AddLink(trace.Link{SpanContext: t.jobSpan(d.Job)})
	}
}

// Found has nothing to trace: a job's spans are made when it has ended.
func (t *Traces) Found(*jobs.Job) {}

// Changed makes the spans of a job that has ended or become unknown.
func (t *Traces) Changed(c engine.Change) {
	switch {
	case c.Event == "":
	case c.From == jobs.StateUnknown:
		t.settled(c.Job)
	case c.Job.State.Terminal(), c.Job.State == jobs.StateUnknown:
		t.ended(c.Job)
	}
}

// Started has nothing to trace.
func (t *Traces) Started(*jobs.Job, time.Duration, error) {}

// Probed has nothing to trace: what a probe proves is a change.
func (t *Traces) Probed(*jobs.Job, engine.ProbeAnswer) {}

// ToolTrace returns the traceparent of the span that the tool's own spans are part of.
func (t *Traces) ToolTrace(j *jobs.Job) string {
	last, ok := j.LastAttempt()
	if !ok {
		return ""
	}
	return traceParent(t.jobSpan(j).WithSpanID(runSpanID(j, last.N)))
}

// jobSpan is the context of a job's span, which may not have been made yet.
func (t *Traces) jobSpan(j *jobs.Job) trace.SpanContext {
	parent := parentOf(j)
	if parent.IsValid() {
		return parent.WithSpanID(jobSpanID(j)).WithRemote(false)
	}
	root := trace.NewSpanContext(trace.SpanContextConfig{TraceID: jobTraceID(j), SpanID: jobSpanID(j)})
	if t.sampler.ShouldSample(sdktrace.SamplingParameters{TraceID: root.TraceID()}).Decision == sdktrace.RecordAndSample {
		root = root.WithTraceFlags(trace.FlagsSampled)
	}
	return root
}

// parentOf is the span that a job's span is below: of the request that made it; else,
// or when the caller named another trace in the call itself, the caller's.
func parentOf(j *jobs.Job) trace.SpanContext {
	request := spanContext(j.Trace, j.Call.Context.TraceState)
	caller := spanContext(j.Call.Context.TraceParent, j.Call.Context.TraceState)
	if !request.IsValid() || caller.IsValid() && caller.TraceID() != request.TraceID() {
		return caller
	}
	return request
}

func spanContext(traceParent, traceState string) trace.SpanContext {
	p, ok := jobs.ParseTraceParent(traceParent)
	if !ok {
		return trace.SpanContext{}
	}
	config := trace.SpanContextConfig{TraceID: p.TraceID, SpanID: p.SpanID, TraceFlags: trace.TraceFlags(p.Flags) & trace.FlagsSampled, Remote: true}
	if state, err := trace.ParseTraceState(traceState); err == nil {
		config.TraceState = state
	}
	return trace.NewSpanContext(config)
}

func traceParent(c trace.SpanContext) string {
	return jobs.TraceParent{TraceID: c.TraceID(), SpanID: c.SpanID(), Flags: byte(c.TraceFlags())}.String()
}

// The ids of a job's spans follow from its own id.
func jobSpanID(j *jobs.Job) trace.SpanID { return spanID(j.ID) }

func runSpanID(j *jobs.Job, n int) trace.SpanID { return spanID(fmt.Sprintf("%s attempt %d", j.ID, n)) }
func jobTraceID(j *jobs.Job) (id trace.TraceID) { copy(id[:], digest("trace of "+j.ID)); return id }
func spanID(of string) (id trace.SpanID)        { copy(id[:], digest("span of "+of)); return id }
func digest(text string) []byte                 { sum := sha256.Sum256([]byte(text)); return sum[:] }

// ids makes the ids of new spans: those that the context asks for, else random ones.
type ids struct{}

type wantedIDs struct {
	trace trace.TraceID
	span  trace.SpanID
}

type wantedKey struct{}

func withIDs(ctx context.Context, c trace.SpanContext) context.Context {
	return context.WithValue(ctx, wantedKey{}, wantedIDs{c.TraceID(), c.SpanID()})
}

func (ids) NewIDs(ctx context.Context) (t trace.TraceID, s trace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wantedIDs); ok {
		return w.trace, w.span
	}
	for !t.IsValid() {
		fill(t[:])
	}
	return t, ids{}.NewSpanID(ctx, t)
}

func (ids) NewSpanID(ctx context.Context, t trace.TraceID) (s trace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wantedIDs); ok && w.trace == t {
		return w.span
	}
	for !s.IsValid() {
		fill(s[:])
	}
	return s
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(rand.Uint32()) //nolint:gosec // ids need to differ, not to be secret
	}
}
