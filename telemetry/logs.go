package telemetry

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// LogOptions say how the log is written. The zero value is text from info on.
type LogOptions struct {
	JSON  bool
	Level slog.Level
}

// Logs writes a line for each call that is refused and for each job that is refused its
// start, unknown or ended; what was accepted or repeated, which the journal has too, is
// for those who debug. It is an engine.Observer.
//
// It also completes the lines of everybody else: one that has a job_id gets the
// job's tool, run_id and trace_id, as far as they are known.
type Logs struct {
	untraced

	Logger *slog.Logger
	known  *knownJobs
}

// NewLogs makes a log on a writer.
func NewLogs(w io.Writer, o LogOptions) *Logs {
	options := &slog.HandlerOptions{Level: o.Level}
	var h slog.Handler = slog.NewTextHandler(w, options)
	if o.JSON {
		h = slog.NewJSONHandler(w, options)
	}
	known := &knownJobs{jobs: map[string]callIDs{}}
	return &Logs{Logger: slog.New(completing{Handler: h, known: known}), known: known}
}

// Submitted writes down a refusal; what is accepted is told by Changed.
func (l *Logs) Submitted(ctx context.Context, d engine.Decided) {
	switch d.Answer {
	case engine.Refused:
		attrs := append([]slog.Attr{slog.String("code", string(d.Code))}, idsOf(d.Tool, d.Context).attrs()...)
		l.Logger.LogAttrs(ctx, slog.LevelInfo, "a call was refused", attrs...)
	case engine.Replayed:
		l.known.add(d.Job)
		l.Logger.LogAttrs(ctx, slog.LevelDebug, "a call was repeated", slog.String("job_id", d.Job.ID), slog.String("state", string(d.Job.State)))
	case engine.Accepted: // told as a change
	}
}

// Found makes a job known.
func (l *Logs) Found(j *jobs.Job) { l.known.add(j) }

// Changed writes down how a job begins and ends.
func (l *Logs) Changed(c engine.Change) {
	if c.Event == "" {
		return
	}
	j := c.Job
	l.known.add(j)
	line := func(level slog.Level, message string, more ...slog.Attr) {
		attrs := append([]slog.Attr{slog.String("job_id", j.ID), slog.String("state", string(j.State))}, more...)
		l.Logger.LogAttrs(context.Background(), level, message, attrs...) //nolint:sloglint // each is a constant below
	}
	reason := slog.String("end_reason", string(j.EndReason))
	if c.From == "" {
		line(slog.LevelDebug, "a job was accepted", slog.String("principal", j.Principal))
	}
	last, tried := j.LastAttempt()
	if c.From == jobs.StateRunning && tried && last.Intent == nil && j.Plan == nil && j.State.Terminal() {
		line(slog.LevelWarn, "a start was refused", reason, slog.Int("attempt", last.N))
	}
	switch {
	case j.State.Terminal():
		line(slog.LevelInfo, "a job ended", reason, slog.String("side_effect", string(j.SideEffect)),
			slog.Int("attempts", len(j.Attempts)), slog.Duration("duration", j.EndedAt.Sub(j.SubmittedAt).Round(time.Millisecond)))
	case j.State == jobs.StateUnknown:
		line(slog.LevelWarn, "a job is unknown", slog.Int("attempts", len(j.Attempts)))
	case c.Event == jobs.EventRequeue:
		line(slog.LevelWarn, "an attempt was lost; the job is queued again", slog.Int("attempts", len(j.Attempts)))
	}
}

// Started writes nothing: the engine says itself what it could not start.
func (l *Logs) Started(*jobs.Job, time.Duration, error) {}

// Probed writes down what a probe proves.
func (l *Logs) Probed(j *jobs.Job, answer engine.ProbeAnswer) {
	l.Logger.LogAttrs(context.Background(), slog.LevelInfo, "a probe was asked",
		slog.String("job_id", j.ID), slog.String("answer", string(answer)))
}

// callIDs say which call a line is about.
type callIDs struct{ tool, runID, toolCallID, traceID string }

func idsOf(tool string, c jobs.CallContext) callIDs {
	trace := (&jobs.Job{Call: jobs.Call{Context: c}}).TraceID()
	return callIDs{tool: tool, runID: c.RunID, toolCallID: c.ToolCallID, traceID: trace}
}

// attrs are those that there are.
func (c callIDs) attrs() []slog.Attr {
	var attrs []slog.Attr
	for _, a := range []slog.Attr{
		slog.String("tool", c.tool), slog.String("run_id", c.runID), slog.String("tool_call_id", c.toolCallID), slog.String("trace_id", c.traceID),
	} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	return attrs
}

// knownJobs remembers what lines of a job are to say: of every open job, and of the
// last ones that ended, since something may be said of them a little later.
type knownJobs struct {
	mu    sync.Mutex
	jobs  map[string]callIDs
	ended []string
}

// rememberEnded bounds how many ended jobs stay known.
const rememberEnded = 256

func (k *knownJobs) add(j *jobs.Job) {
	c := j.Call.Context
	if parent, ok := jobs.ParseTraceParent(j.Trace); ok {
		c.TraceParent = parent.String()
	}
	ids := idsOf(j.Tool.Name, c)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.jobs[j.ID] = ids
	if !j.State.Terminal() || slices.Contains(k.ended, j.ID) {
		return
	}
	k.ended = append(k.ended, j.ID)
	if len(k.ended) > rememberEnded {
		delete(k.jobs, k.ended[0])
		k.ended = k.ended[1:]
	}
}

func (k *knownJobs) of(id string) []slog.Attr {
	k.mu.Lock()
	ids := k.jobs[id]
	k.mu.Unlock()
	return ids.attrs()
}

// completing adds to a line that has a job_id what is known of the job.
type completing struct {
	slog.Handler

	known *knownJobs
}

func (h completing) Handle(ctx context.Context, r slog.Record) error {
	var id string
	has := map[string]bool{}
	r.Attrs(func(a slog.Attr) bool {
		has[a.Key] = true
		if a.Key == "job_id" {
			id = a.Value.String()
		}
		return true
	})
	if id != "" {
		for _, a := range h.known.of(id) {
			if !has[a.Key] {
				r.AddAttrs(a)
			}
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h completing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return completing{h.Handler.WithAttrs(attrs), h.known}
}

func (h completing) WithGroup(name string) slog.Handler {
	return completing{h.Handler.WithGroup(name), h.known}
}
