package telemetry

import (
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// openJobs knows which jobs are in which open state, and since when. Changes of one
// job may be told in any order, so it counts entering and leaving: their sum does not
// depend on the order.
type openJobs struct {
	mu     sync.Mutex
	states map[jobs.State]map[string]presence
}

type presence struct {
	entered int // minus left
	since   time.Time
}

func newOpenJobs() *openJobs {
	o := &openJobs{states: map[jobs.State]map[string]presence{}}
	for _, s := range openStates() {
		o.states[s] = map[string]presence{}
	}
	return o
}

// openStates are the states that a job leaves again.
func openStates() []jobs.State {
	var open []jobs.State
	for _, s := range jobs.States() {
		if !s.Terminal() {
			open = append(open, s)
		}
	}
	return open
}

func (o *openJobs) found(j *jobs.Job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count(j.State, j.ID, 1, since(j))
}

func (o *openJobs) changed(c engine.Change) {
	if c.Event == "" {
		return // the state is as it was
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count(c.From, c.Job.ID, -1, time.Time{})
	o.count(c.Job.State, c.Job.ID, 1, since(c.Job))
}

func (o *openJobs) count(state jobs.State, id string, by int, since time.Time) {
	in := o.states[state]
	if in == nil {
		return // new, or at its end
	}
	p := in[id]
	p.entered += by
	if by > 0 {
		p.since = since
	}
	if p.entered == 0 {
		delete(in, id)
		return
	}
	in[id] = p
}

// since is when a job came into its state.
func since(j *jobs.Job) time.Time {
	last, ok := j.LastAttempt()
	switch {
	case j.State == jobs.StateQueued:
		return j.QueuedAt
	case j.State == jobs.StateRunning && ok:
		return last.BegunAt
	case j.State == jobs.StateUnknown && ok:
		return last.EndedAt
	default:
		return j.SubmittedAt
	}
}

// look says how many jobs are in a state, and since when the one is that came first.
// Without any that is the zero time.
func (o *openJobs) look(state jobs.State) (n int, oldest time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.states[state] {
		if p.entered <= 0 {
			continue
		}
		n++
		if oldest.IsZero() || p.since.Before(oldest) {
			oldest = p.since
		}
	}
	return n, oldest
}
