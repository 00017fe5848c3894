package telemetry

import (
	"context"
	"time"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Join tells each observer in turn. The trace is that of the first which has one.
func Join(observers ...engine.Observer) engine.Observer { return joined(observers) }

type joined []engine.Observer

func (all joined) Submitted(ctx context.Context, d engine.Decided) {
	for _, o := range all {
		o.Submitted(ctx, d)
	}
}

func (all joined) Found(j *jobs.Job) {
	for _, o := range all {
		o.Found(j)
	}
}

func (all joined) Changed(c engine.Change) {
	for _, o := range all {
		o.Changed(c)
	}
}

func (all joined) Started(j *jobs.Job, took time.Duration, err error) {
	for _, o := range all {
		o.Started(j, took, err)
	}
}

func (all joined) Probed(j *jobs.Job, answer engine.ProbeAnswer) {
	for _, o := range all {
		o.Probed(j, answer)
	}
}

func (all joined) Trace(ctx context.Context) string {
	for _, o := range all {
		if trace := o.Trace(ctx); trace != "" {
			return trace
		}
	}
	return ""
}

func (all joined) ToolTrace(j *jobs.Job) string {
	for _, o := range all {
		if trace := o.ToolTrace(j); trace != "" {
			return trace
		}
	}
	return ""
}

// untraced is the part of an observer that traces nothing.
type untraced struct{}

func (untraced) Trace(context.Context) string { return "" }
func (untraced) ToolTrace(*jobs.Job) string   { return "" }
