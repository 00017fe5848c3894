package engine

import (
	"context"
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
)

// maxWait bounds one WaitJob; who wants to wait longer asks again.
const maxWait = 5 * time.Minute

// WaitJob returns the job once it is settled, or as it is after the wait; its state
// says which. It ends with CodeDraining when the engine stops, and with ctx's cause
// when ctx ends first.
func (e *Engine) WaitJob(ctx context.Context, c Caller, id string, wait time.Duration) (*jobs.Job, error) {
	// The place in the waiting room is taken before the job is read: what settles it
	// meanwhile is either read or told.
	settled, leave := e.settling.await(id)
	defer leave()
	job, err := e.Job(ctx, c, id)
	if err != nil || job.State.Settled() || wait <= 0 {
		return job, err
	}
	enough := time.NewTimer(min(wait, maxWait))
	defer enough.Stop()
	select {
	case <-settled:
	case <-enough.C:
	case <-e.store.Failed(): // the read below says so
	case <-e.stopped.Done():
		return nil, jobs.Errorf(jobs.CodeDraining, "the daemon is stopping; ask again, and the next one goes on waiting").WithJob(id)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return e.Job(ctx, c, id)
}

// settlingStore is a store that tells who waits for a job when it is settled. Each of
// them is woken once, however much else happens.
type settlingStore struct {
	jobs.Store

	mu    sync.Mutex
	rooms map[string]*waitingRoom // by job id; only of jobs that somebody waits for
}

// waitingRoom is where everybody waits who waits for one job.
type waitingRoom struct {
	guests  int
	settled chan struct{}
}

func newSettlingStore(s jobs.Store) *settlingStore {
	return &settlingStore{Store: s, rooms: map[string]*waitingRoom{}}
}

// Update is the one write that can settle a job.
func (s *settlingStore) Update(ctx context.Context, id string, change func(*jobs.Job) (jobs.Note, error)) (*jobs.Job, error) {
	job, err := s.Store.Update(ctx, id, change)
	if err == nil && job.State.Settled() {
		s.tell(id)
	}
	return job, err
}

func (s *settlingStore) tell(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if room := s.rooms[id]; room != nil {
		delete(s.rooms, id)
		close(room.settled)
	}
}

// await returns a channel that is closed when a write after this call settles the
// job; who got it calls leave in the end.
func (s *settlingStore) await(id string) (settled <-chan struct{}, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.rooms[id]
	if room == nil {
		room = &waitingRoom{settled: make(chan struct{})}
		s.rooms[id] = room
	}
	room.guests++
	return room.settled, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if room.guests--; room.guests == 0 && s.rooms[id] == room {
			delete(s.rooms, id)
		}
	}
}
