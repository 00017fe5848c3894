package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// Observer is told what happens, for metrics, traces and logs. It is told after the
// fact and outside of every lock, it must not block, and nothing that it does changes
// what becomes of a job. Jobs that it is given are snapshots. Of changes of one job
// that are made at the same time it may be told in any order.
type Observer interface {
	// Submitted tells of a submission that was decided; ctx is the request's.
	Submitted(ctx context.Context, d Decided)
	// Found tells of a job that an earlier engine left open, before any change of it.
	Found(job *jobs.Job)
	// Changed tells of a change of a job that is on stable storage.
	Changed(c Change)
	// Started tells that a keeper was started for the job's newest attempt, or why not.
	Started(job *jobs.Job, took time.Duration, err error)
	// Probed tells what a tool's probe said of an unknown job.
	Probed(job *jobs.Job, answer ProbeAnswer)

	// Trace returns the traceparent of the request's span, which its job keeps. Empty:
	// it is not traced.
	Trace(ctx context.Context) string
	// ToolTrace returns the traceparent that the tool of the job's newest attempt gets.
	// Empty: the attempt is not traced.
	ToolTrace(job *jobs.Job) string
}

// Decided is a submission and what became of it.
type Decided struct {
	Tool    string // a name that the registry knows; empty for any other
	Context jobs.CallContext
	Answer  Answer
	Code    jobs.Code // why it was refused, else empty
	Job     *jobs.Job // accepted or replayed
	Took    time.Duration
}

// Answer is what a submission is answered.
type Answer string

// What a submission can be answered.
const (
	Accepted Answer = "accepted"
	Replayed Answer = "replayed"
	Refused  Answer = "refused"
)

// Change is one change of a job.
type Change struct {
	From  jobs.State // empty: the job is new
	Phase jobs.Phase // before the change
	Event jobs.Event // empty: the state is as it was
	Job   *jobs.Job  // after the change
}

// ProbeAnswer is what a probe proves.
type ProbeAnswer string

// What a probe can prove.
const (
	ProbeHappened    ProbeAnswer = "happened"
	ProbeNotHappened ProbeAnswer = "not_happened"
	ProbeNoAnswer    ProbeAnswer = "no_answer"
)

// unobserved is the Observer of an engine that nobody observes.
type unobserved struct{}

func (unobserved) Submitted(context.Context, Decided)      {}
func (unobserved) Found(*jobs.Job)                         {}
func (unobserved) Changed(Change)                          {}
func (unobserved) Started(*jobs.Job, time.Duration, error) {}
func (unobserved) Probed(*jobs.Job, ProbeAnswer)           {}
func (unobserved) Trace(context.Context) string            { return "" }
func (unobserved) ToolTrace(*jobs.Job) string              { return "" }

// guardedObserver keeps a panic of an observer from what it is told of.
type guardedObserver struct {
	Observer

	guarded func(func())
}

func (g guardedObserver) Submitted(ctx context.Context, d Decided) {
	g.guarded(func() { g.Observer.Submitted(ctx, d) })
}

func (g guardedObserver) Found(job *jobs.Job) { g.guarded(func() { g.Observer.Found(job) }) }

func (g guardedObserver) Changed(c Change) { g.guarded(func() { g.Observer.Changed(c) }) }

func (g guardedObserver) Started(job *jobs.Job, took time.Duration, err error) {
	g.guarded(func() { g.Observer.Started(job, took, err) })
}

func (g guardedObserver) Probed(job *jobs.Job, answer ProbeAnswer) {
	g.guarded(func() { g.Observer.Probed(job, answer) })
}

func (g guardedObserver) Trace(ctx context.Context) (parent string) {
	g.guarded(func() { parent = g.Observer.Trace(ctx) })
	return parent
}

func (g guardedObserver) ToolTrace(job *jobs.Job) (parent string) {
	g.guarded(func() { parent = g.Observer.ToolTrace(job) })
	return parent
}

// tellingStore tells of every change of a job, whoever makes it. The order counts: an
// observer may be slow, and nobody is to wait for it.
type tellingStore struct {
	jobs.Store

	ahead     func() time.Duration
	scheduler func(*jobs.Job)
	waiters   func(*jobs.Job)
	observers func(Change)
}

// Update is the one write that changes a job. That a job is new tells Submit.
func (s tellingStore) Update(ctx context.Context, id string, change func(*jobs.Job) (jobs.Note, error)) (*jobs.Job, error) {
	var c Change
	job, err := s.Store.Update(ctx, id, func(j *jobs.Job) (jobs.Note, error) {
		c.From, c.Phase = j.State, j.Phase
		note, err := change(j)
		c.Event = j.Event
		if j.State.Terminal() && !c.From.Terminal() {
			j.Clock.Ended = s.ahead()
		}
		return note, err
	})
	if err != nil {
		return job, err
	}
	c.Job = job
	s.scheduler(job)
	s.waiters(job)
	s.observers(c)
	return job, nil
}

// telling is a store whose changes the engine is told of.
func (e *Engine) telling(s jobs.Store) jobs.Store {
	return tellingStore{
		Store: s,
		ahead: e.deadlines.ahead,
		// What has ended gives everything back, what is unknown keeps its locks.
		scheduler: func(job *jobs.Job) {
			switch {
			case job.State.Terminal():
				e.retention.told()
				e.sched.remove(job.ID)
				e.dispatch()
			case job.State == jobs.StateUnknown:
				e.sched.lost(job.ID)
			}
		},
		waiters: func(job *jobs.Job) {
			if job.State.Settled() {
				e.waiting.tell(job.ID)
			}
		},
		observers: e.observer.Changed,
	}
}

// observe tells of a submission that was decided. Nothing is held meanwhile: neither
// its key nor the host's mode waits for who listens.
func (e *Engine) observe(ctx context.Context, req Request, receipt Receipt, err error, took time.Duration) {
	if code := jobs.CodeOf(err); code == jobs.CodeCallerGone || code == jobs.CodeDeadline {
		return // its caller left while it waited for the key's turn: nothing was decided, and nobody answered
	}
	d := Decided{Context: req.Context, Answer: Accepted, Job: receipt.Job, Took: took}
	if _, ok := e.registry.Tool(req.Tool, ""); ok {
		d.Tool = req.Tool
	}
	switch {
	case err != nil:
		d.Answer, d.Code = Refused, jobs.CodeOf(err)
	case receipt.Replayed:
		d.Answer = Replayed
	default:
		begun := jobs.EventAccept
		if receipt.Job.State == jobs.StateAwaitingApproval {
			begun = jobs.EventHold
		}
		e.observer.Changed(Change{Event: begun, Job: receipt.Job})
	}
	e.observer.Submitted(ctx, d)
}

// startKeeper starts what was prepared and tells of it.
func (a *attempt) startKeeper(prepared *executor.Attempt, command executor.Command) (*executor.Running, error) {
	began := time.Now()
	running, err := prepared.Start(command)
	a.e.observer.Started(a.job, time.Since(began), err)
	return running, err
}

// traced lets a tool join the trace of its job: OpenTelemetry's own convention is a
// variable of this name. What the manifest says goes before it. A job that macexec
// does not trace passes its caller's trace on.
func (a *attempt) traced(env []string) []string {
	parent, ok := jobs.ParseTraceParent(a.e.observer.ToolTrace(a.job))
	if !ok {
		parent, ok = jobs.ParseTraceParent(a.job.Call.Context.TraceParent)
	}
	const name = "TRACEPARENT="
	if !ok || slices.ContainsFunc(env, func(pair string) bool { return strings.HasPrefix(pair, name) }) {
		return env
	}
	return append(env, name+parent.String())
}

// Gauges is what can be read of an engine at any moment.
type Gauges struct {
	Slots    []Slot
	Held     int   // queued jobs that wait for an operator's word on a restored store
	DiskFree int64 // bytes on the disk of the jobs' folders, -1 if it cannot be told
	Head     uint64
	Mode     jobs.Mode // empty before Start

	Retention RetentionStatus
}

// Gauges reads what changes all the time.
func (e *Engine) Gauges() Gauges {
	g := Gauges{Slots: e.sched.slots(), Held: e.sched.held(), Head: e.store.Head(), Mode: e.currentMode().Mode, DiskFree: -1, Retention: e.RetentionStatus()}
	if free, err := files.FreeBytes(e.exec.Root()); err == nil {
		g.DiskFree = free
	}
	return g
}
