package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// maxWaitingSpans bounds the spans that wait for the collector.
const maxWaitingSpans = 2048

// queue lets at most maxWaitingSpans wait in the processor behind it, which would
// otherwise drop without a word, and keeps count of what becomes of each.
type queue struct {
	sdktrace.SpanProcessor

	exporter sdktrace.SpanExporter
	log      *slog.Logger
	count    func(result string, n int)
	waiting  atomic.Int64
	down     atomic.Bool // the last export failed; it was said
}

// OnEnd takes a span unless too many wait.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > maxWaitingSpans {
		q.waiting.Add(-1)
		q.count("dropped", 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

func (q *queue) asExporter() sdktrace.SpanExporter { return queueExporter{q} }

type queueExporter struct{ q *queue }

// ExportSpans sends spans. That the collector is not there, and that it is again, is
// said once.
func (x queueExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	q := x.q
	err := q.exporter.ExportSpans(ctx, spans)
	q.waiting.Add(-int64(len(spans)))
	if err != nil {
		q.count("failed", len(spans))
		if !q.down.Swap(true) {
			q.log.Warn("the collector takes no traces; they are dropped until it does", "error", err)
		}
		return nil // it is said, and nobody could do more
	}
	q.count("exported", len(spans))
	if q.down.Swap(false) {
		q.log.Info("the collector takes traces again")
	}
	return nil
}

func (x queueExporter) Shutdown(ctx context.Context) error { return x.q.exporter.Shutdown(ctx) }
