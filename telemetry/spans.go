package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/macexec/macexec/jobs"
)

// span is one span of a job, as its record tells it.
type span struct {
	name       string
	id         trace.SpanID // zero: any
	begin, end time.Time
	attributes []attribute.KeyValue
	failed     string // why it did not succeed, if it did not
}

// ended sends the spans of a job that has ended or become unknown.
func (t *Traces) ended(j *jobs.Job) {
	own, parent := t.jobSpan(j), parentOf(j)
	if !own.IsSampled() {
		return
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(j.SubmittedAt), trace.WithAttributes(jobAttributes(j)...)}
	if request := spanContext(j.Trace, ""); request.IsValid() {
		// A job outlives its request, and may belong to another trace than that.
		options = append(options, trace.WithLinks(trace.Link{SpanContext: request}))
	}
	ctx := trace.ContextWithRemoteSpanContext(withIDs(context.Background(), own), parent)
	ctx, s := t.tracer.Start(ctx, "job "+j.Tool.Name, options...)
	ctx = context.WithValue(ctx, wantedKey{}, nil)
	for _, part := range partsOf(j) {
		partCtx := ctx
		if part.id.IsValid() {
			partCtx = withIDs(ctx, own.WithSpanID(part.id))
		}
		_, p := t.tracer.Start(partCtx, part.name, trace.WithTimestamp(part.begin), trace.WithAttributes(part.attributes...))
		if part.failed != "" {
			p.SetStatus(codes.Error, part.failed)
		}
		p.End(trace.WithTimestamp(part.end))
	}
	if j.State == jobs.StateFailed || j.State == jobs.StateUnknown {
		s.SetStatus(codes.Error, string(j.State)+" "+string(j.EndReason))
	}
	s.End(trace.WithTimestamp(endOf(j)))
}

// settled sends how an unknown job came to its end: its own span is sent already.
func (t *Traces) settled(j *jobs.Job) {
	own := t.jobSpan(j)
	if !own.IsSampled() {
		return
	}
	begin := j.EndedAt
	if last, ok := j.LastAttempt(); ok {
		begin = last.EndedAt
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), own)
	_, s := t.tracer.Start(ctx, "unknown", trace.WithTimestamp(begin), trace.WithAttributes(jobAttributes(j)...))
	if j.State == jobs.StateFailed {
		s.SetStatus(codes.Error, string(j.State)+" "+string(j.EndReason))
	}
	s.End(trace.WithTimestamp(j.EndedAt))
}

// endOf is when a job ended, or became unknown.
func endOf(j *jobs.Job) time.Time {
	if last, ok := j.LastAttempt(); ok && j.EndedAt.IsZero() {
		return last.EndedAt
	}
	return j.EndedAt
}

func jobAttributes(j *jobs.Job) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("macexec.job.id", j.ID), attribute.String("macexec.tool", j.Tool.Name),
		attribute.String("macexec.tool.version", j.Tool.Version), attribute.String("macexec.state", string(j.State)),
		attribute.String("macexec.end_reason", string(j.EndReason)), attribute.Int("macexec.attempts", len(j.Attempts)),
	}
	for name, value := range map[string]string{"macexec.run_id": j.Call.Context.RunID, "macexec.tool_call_id": j.Call.Context.ToolCallID} {
		if value != "" {
			list = append(list, attribute.String(name, value))
		}
	}
	return list
}

// partsOf cuts the life of a job into the spans below its own:
//
//	approval  a person was waited for
//	wait      in the queue, before each attempt
//	stage     inputs were taken in
//	run       the keeper and the tool
//	verify    outputs were checked
//	publish   the plan was carried out
func partsOf(j *jobs.Job) []span {
	var parts []span
	queued := j.SubmittedAt
	if a := j.Approval; a != nil {
		decided := a.DecidedAt
		if !a.Decided {
			decided = endOf(j)
		}
		parts = append(parts, span{name: "approval", begin: j.SubmittedAt, end: decided, attributes: []attribute.KeyValue{attribute.Bool("macexec.approved", a.Approved)}})
		queued = decided
		if !a.Approved {
			return parts
		}
	}
	for i, at := range j.Attempts {
		parts = append(parts, span{name: "wait", begin: queued, end: at.BegunAt})
		ended := at.EndedAt
		if i == len(j.Attempts)-1 {
			ended = endOf(j)
		}
		parts = append(parts, attemptParts(j, at, ended)...)
		queued = ended
	}
	if len(j.Attempts) == 0 {
		parts = append(parts, span{name: "wait", begin: queued, end: endOf(j)})
	}
	return parts
}

func attemptParts(j *jobs.Job, at jobs.Attempt, ended time.Time) []span {
	number := attribute.Int("macexec.attempt", at.N)
	if at.Intent == nil {
		if j.Plan != nil {
			return []span{{name: "publish", begin: at.BegunAt, end: ended, attributes: []attribute.KeyValue{number}}}
		}
		return []span{{name: "stage", begin: at.BegunAt, end: ended, attributes: []attribute.KeyValue{number}, failed: at.Lost}}
	}
	parts := []span{{name: "stage", begin: at.BegunAt, end: at.Intent.At, attributes: []attribute.KeyValue{number}}}
	run := span{name: "run", id: runSpanID(j, at.N), begin: at.Intent.At, end: ended, attributes: []attribute.KeyValue{number}, failed: at.Lost}
	if at.Started != nil {
		run.attributes = append(run.attributes, attribute.Int("process.pid", at.Started.PID))
	}
	if at.Exit == nil {
		return append(parts, run)
	}
	run.end = at.Exit.At
	run.attributes = append(run.attributes, attribute.Int("process.exit.code", at.Exit.Code))
	if at.Exit.Signal != "" {
		run.attributes = append(run.attributes, attribute.String("macexec.signal", at.Exit.Signal))
	}
	if at.Exit.Code != 0 {
		run.failed = "the tool did not exit with 0"
		return append(parts, run)
	}
	verify := span{name: "verify", begin: at.Exit.At, end: ended, attributes: []attribute.KeyValue{number}}
	if j.Plan == nil {
		return append(parts, run, verify)
	}
	verify.end = plannedAt(j, verify.begin)
	publish := span{name: "publish", begin: verify.end, end: ended, attributes: []attribute.KeyValue{number}}
	return append(parts, run, verify, publish)
}

// plannedAt is when the publish plan was stored: with it the evidence of the outputs
// was.
func plannedAt(j *jobs.Job, otherwise time.Time) time.Time {
	for _, e := range j.Evidence {
		if e.Kind == jobs.EvidenceOutputs {
			return e.At
		}
	}
	return otherwise
}
