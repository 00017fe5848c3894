package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/macexec/macexec/jobs"
)

// hostMode is the host's mode in this engine. The store has it first, and the next
// engine begins with it.
type hostMode struct {
	// now is read without waiting for anybody. It changes under gate only; nil before Start.
	now atomic.Pointer[jobs.HostMode]

	// gate is held for reading from the look at the mode until a new call is stored, so
	// that none is taken any more once a drain is answered; for nothing else.
	gate   sync.RWMutex
	listen []func(jobs.Mode)
}

// SetMode opens, pauses or drains the host. It is durable when it answers, and in
// force: after a pause nothing starts, after a drain no new call is taken.
func (e *Engine) SetMode(ctx context.Context, c Caller, mode jobs.Mode, reason string) (HostInfo, error) {
	if !slices.Contains(jobs.Modes(), mode) {
		return HostInfo{}, jobs.Errorf(jobs.CodeRequestInvalid, "a host's mode is one of %v, not %q", jobs.Modes(), mode).With("field", "mode")
	}
	if err := checkReason(reason); err != nil {
		return HostInfo{}, err
	}
	err := e.setMode(context.WithoutCancel(ctx), jobs.HostMode{Mode: mode, By: c.Principal, Reason: reason, Since: e.now()})
	e.dispatch() // after an error too: what it kept from starting for a moment starts
	if err != nil {
		return HostInfo{}, err
	}
	return e.Host(ctx, c)
}

func (e *Engine) setMode(ctx context.Context, m jobs.HostMode) error {
	e.mode.gate.Lock()
	defer e.mode.gate.Unlock()
	if m.Mode == jobs.ModePaused {
		// Before it is stored: what would begin after that write is refused (see begin).
		e.sched.pause(true)
	}
	if err := e.store.SetMode(ctx, m); err != nil {
		e.sched.pause(e.currentMode().Mode == jobs.ModePaused)
		return err
	}
	e.applyMode(m)
	return nil
}

// applyMode puts a mode in force. The caller holds the gate.
func (e *Engine) applyMode(m jobs.HostMode) {
	e.mode.now.Store(&m)
	e.sched.pause(m.Mode == jobs.ModePaused)
	for _, listen := range e.mode.listen {
		listen(m.Mode)
	}
}

// takeUpMode puts the kept mode in force. One that cannot be read keeps nobody from
// the host's answers, but nothing is started on a guess.
func (e *Engine) takeUpMode(ctx context.Context) error {
	m, err := e.store.Mode(ctx)
	switch {
	case jobs.CodeOf(err) == jobs.CodeRecordDamaged:
		e.log.Error("the kept mode of the host cannot be read; it is paused until somebody sets one", "error", err)
		m = jobs.HostMode{Mode: jobs.ModePaused, Reason: "the kept mode cannot be read; set one", Since: e.now()}
	case err != nil:
		return err
	}
	m.Mode = cmp.Or(m.Mode, jobs.ModeOpen)
	e.mode.gate.Lock()
	defer e.mode.gate.Unlock()
	e.applyMode(m)
	return nil
}

// OnMode tells listen the mode, at once and at each change, in their order. listen is
// quick and calls nothing of the engine.
func (e *Engine) OnMode(listen func(jobs.Mode)) {
	e.mode.gate.Lock()
	defer e.mode.gate.Unlock()
	e.mode.listen = append(e.mode.listen, listen)
	listen(e.currentMode().Mode)
}

// currentMode is the mode in force. It waits for nobody.
func (e *Engine) currentMode() jobs.HostMode {
	if m := e.mode.now.Load(); m != nil {
		return *m
	}
	return jobs.HostMode{}
}

// accepting reports whether new calls are taken.
func (e *Engine) accepting() bool {
	return e.stopped.Err() == nil && e.currentMode().Mode != jobs.ModeDraining
}

// whileAccepting calls f, which stores something new, unless the host is draining; a
// drain waits for it.
func (e *Engine) whileAccepting(f func()) (draining *jobs.Error) {
	e.mode.gate.RLock()
	defer e.mode.gate.RUnlock()
	if draining = refusedBy(e.currentMode()); draining == nil {
		f()
	}
	return draining
}

// refusedBy is the refusal of a new call in a mode, or nil.
func refusedBy(m jobs.HostMode) *jobs.Error {
	if m.Mode != jobs.ModeDraining {
		return nil
	}
	why := ""
	if m.Reason != "" {
		why = " (" + m.Reason + ")"
	}
	return jobs.Errorf(jobs.CodeDraining, "%s drains this host%s: it takes no new calls, and answers repeats of known ones", cmp.Or(m.By, "somebody"), why).
		With("mode", string(m.Mode)) // so that it is not taken for a daemon that is starting again
}

// errPaused says that a job is not to start now.
var errPaused = errors.New("the host is paused")
