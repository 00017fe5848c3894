package engine

import (
	"fmt"
	"runtime/debug"
)

// dispatch begins every job that the scheduler has given what it needs.
func (e *Engine) dispatch() {
	for {
		id, n, ok := e.sched.take()
		if !ok {
			return
		}
		e.attend(id, func() {
			if len(n.paths) == 0 || e.sched.relock(id, e.claims(e.stopped, n)) {
				e.runAttempt(id)
			}
		})
	}
}

// attend runs f, which sees a job through an attempt, and gives its slot back. A
// panic is a fault of macexec's own: it stops nothing else (promise G13), and the
// job's records are looked at again.
func (e *Engine) attend(id string, f func()) {
	e.goRun(func() {
		defer e.dispatch()
		defer e.sched.release(id)
		defer e.endLive(id)
		defer func() {
			if fault := recover(); fault != nil {
				e.tryAgain(id, fmt.Errorf("panic: %v\n%s", fault, debug.Stack()))
			}
		}()
		f()
	})
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
