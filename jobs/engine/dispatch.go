package engine

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/macexec/macexec/jobs"
)

// dispatch begins every job that the scheduler has given what it needs.
func (e *Engine) dispatch() {
	for {
		id, n, ok := e.sched.take()
		if !ok {
			return
		}
		e.attend(id, func() (next func()) {
			if len(n.paths) > 0 && !e.sched.relock(id, e.claims(e.stopped, n)) {
				return nil
			}
			return e.runAttempt(id)
		})
	}
}

// attend runs f, which sees a job through an attempt, gives its slot back, and does what
// f says comes next. Only who has the slot attends to a job, so nothing that takes the
// job up again may begin before.
func (e *Engine) attend(id string, f func() (next func())) {
	e.goRun(func() {
		defer e.dispatch()
		next := e.contained(id, f)
		e.sched.release(id)
		if next != nil {
			next()
		}
	})
}

// contained runs f for a job that has its slot. A panic is a fault of macexec's own: it
// stops nothing else (promise G13), and the job's records are looked at again.
func (e *Engine) contained(id string, f func() (next func())) (next func()) {
	defer func() {
		if fault := recover(); fault != nil {
			err := fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
			next = func() { e.tryAgain(id, err) }
			// The scheduler takes whoever has a slot for running. One that did not come
			// to that waits on, and only while it has its slot is that sure to stay so.
			e.guarded(func() {
				if job, err := e.store.Get(context.Background(), id); err == nil && job.State == jobs.StateQueued {
					e.sched.rest(id)
				}
			})
		}
	}()
	return f()
}

// goRun runs f unless the engine is stopping. A panic is logged and stops nothing
// else.
func (e *Engine) goRun(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped.Err() == nil {
		e.running.Go(func() { e.guarded(f) })
	}
}

func (e *Engine) guarded(f func()) {
	defer func() {
		if fault := recover(); fault != nil {
			e.log.Error("a fault in macexec itself", "fault", fault, "stack", string(debug.Stack()))
		}
	}()
	f()
}
