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
	settled, leave := e.waiting.await(id)
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

// waitingRooms is where everybody waits for a job to be settled. Each of them is woken
// once, however much else happens.
type waitingRooms struct {
	mu    sync.Mutex
	rooms map[string]*waitingRoom // by job id; only of jobs that somebody waits for
}

// waitingRoom is where everybody waits who waits for one job.
type waitingRoom struct {
	guests  int
	settled chan struct{}
}

// tell wakes who waits for a job: it is settled.
func (w *waitingRooms) tell(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := w.rooms[id]; room != nil {
		delete(w.rooms, id)
		close(room.settled)
	}
}

// await returns a channel that is closed when a write after this call settles the
// job; who got it calls leave in the end.
func (w *waitingRooms) await(id string) (settled <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := w.rooms[id]
	if room == nil {
		room = &waitingRoom{settled: make(chan struct{})}
		w.rooms[id] = room
	}
	room.guests++
	return room.settled, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if room.guests--; room.guests == 0 && w.rooms[id] == room {
			delete(w.rooms, id)
		}
	}
}
