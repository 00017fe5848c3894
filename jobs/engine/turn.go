package engine

import (
	"context"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/jobs"
)

// turnOf is what the scheduler has to know of a job of a class.
func turnOf(job *jobs.Job, class string) turn {
	return turn{id: job.ID, principal: job.Principal, class: class, rank: rankOf(job)}
}

// rankOf is the rank of a job, and stays the same over its attempts. The time is that
// of its id, which never goes back, whatever becomes of the clock.
func rankOf(job *jobs.Job) rank {
	at := job.SubmittedAt.UnixMilli()
	if len(job.ID) >= ulid.EncodedSize {
		if id, err := ulid.ParseStrict(strings.ToUpper(job.ID[:ulid.EncodedSize])); err == nil {
			at = int64(id.Time())
		}
	}
	return rank{at: at - int64(job.Call.Options.Priority)*priorityStep.Milliseconds(), seq: job.Seq}
}

// The bounds of a call's priority.
const (
	minPriority = -10
	maxPriority = 10
)

// waitingFor says what a queued job waits for now.
func (e *Engine) waitingFor(job *jobs.Job) *jobs.WaitingFor {
	if w := e.sched.waiting(job.ID); w != nil {
		return w
	}
	// It is on its way into the scheduler.
	return e.sched.expected(turnOf(job, e.slotOf(job)))
}

// turnStore tells the scheduler what a change of a job means for it, whoever makes
// the change: what has ended gives everything back.
type turnStore struct {
	jobs.Store

	sched   *scheduler
	changed func()
}

// Update is the one write that ends a job.
func (s turnStore) Update(ctx context.Context, id string, change func(*jobs.Job) (jobs.Note, error)) (*jobs.Job, error) {
	job, err := s.Store.Update(ctx, id, change)
	if err == nil && job.State.Terminal() {
		s.sched.remove(id)
		s.changed()
	}
	return job, err
}

// sawID keeps the ids of new jobs above one that is there already, so that they sort
// and rank by acceptance also when the clock was set back between two engines.
func (e *Engine) sawID(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastMilli = max(e.lastMilli, uint64(rankOf(&jobs.Job{ID: id}).at))
}
