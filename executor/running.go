package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/internal/fault"
)

// attachPatience bounds how long Attach waits for the name of whoever holds the
// lock: a keeper says it in the first milliseconds of its life.
const attachPatience = 10 * time.Second

// Running is an attempt in the hands of a keeper.
type Running struct {
	x   *Executor
	dir Dir
	// ended is closed when the keeper is gone.
	ended chan struct{}
	// watch is set for a keeper that is no child of this process.
	watch  *endWatch
	detach sync.Once
}

// Attach takes up watching an attempt that a keeper holds, also one that another
// daemon started. It reports false if nobody holds the attempt.
func (x *Executor) Attach(job string, n int) (*Running, bool, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return nil, false, err
	}
	changes := watchFolder(d.Keeper())
	defer changes.close()
	patience := time.NewTimer(attachPatience)
	defer patience.Stop()
	for {
		if p, err := keeper.ReadHolder(d); err == nil {
			w, err := watchEnd(p)
			if err == nil {
				return &Running{x: x, dir: d, ended: w.ended, watch: w}, true, nil
			}
			if !errors.Is(err, keeper.ErrNoProcess) {
				return nil, false, fmt.Errorf("watch the keeper: %w", err)
			}
		}
		x.locks.Lock()
		lock, err := takeLock(d, false)
		if err == nil {
			freeLock(lock)
		}
		x.locks.Unlock()
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return nil, false, nil
		case !errors.Is(err, ErrHeld):
			return nil, false, err
		}
		select {
		case <-changes.events:
		case <-patience.C:
			return nil, false, fmt.Errorf("the holder does not say who it is: %w", ErrHeld)
		}
	}
}

// Dir is the attempt's folder.
func (r *Running) Dir() Dir { return r.dir }

// Detach stops watching; the attempt runs on. Waits return once the keeper, if it
// is a child of this process, has ended, or at their context's end.
func (r *Running) Detach() {
	if r.watch != nil {
		r.detach.Do(r.watch.close)
	}
}

// Ended is closed when the keeper is gone; Wait then answers at once.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Started waits until the tool was started and gives the record. It reports false
// if the attempt ended without one.
func (r *Running) Started(ctx context.Context) (keeper.Started, bool, error) {
	changes := watchFolder(r.dir.Keeper())
	defer changes.close()
	for {
		over := false
		select {
		case <-r.ended:
			over = true
		default:
		}
		s, err := keeper.ReadStarted(r.dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return s, err == nil, err
		}
		if over {
			return keeper.Started{}, false, nil
		}
		select {
		case <-changes.events:
		case <-r.ended:
		case <-ctx.Done():
			return keeper.Started{}, false, context.Cause(ctx)
		}
	}
}

// Wait waits for the keeper's end and says what is known of the attempt then.
// The end of ctx ends only the waiting.
func (r *Running) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-r.ended:
	case <-ctx.Done():
		return Outcome{}, context.Cause(ctx)
	}
	r.Detach() // gives the watch back
	fault.Point("executor.ended")
	// An exit record needs no fence: it is the keeper's last deed.
	if exit, err := keeper.ReadExit(r.dir); err == nil {
		f := Found{Kind: Exited, Exit: &exit}
		if s, err := keeper.ReadStarted(r.dir); err == nil {
			f.Started = &s
		}
		return f, nil
	}
	return r.x.inspect(r.dir)
}

// Stop asks the keeper to stop the tool. The request is durable when Stop
// returns, and it is kept even if the tool is not started yet. After the end it
// is ErrEnded. A second request changes nothing.
func (r *Running) Stop(reason string) error {
	if _, err := keeper.ReadExit(r.dir); err == nil {
		return ErrEnded
	}
	if err := keeper.WriteStopRequest(r.dir, keeper.StopRequest{Reason: reason, At: fault.Now().UTC()}); err != nil {
		return fmt.Errorf("store the stop request: %w", err)
	}
	holder, err := keeper.ReadHolder(r.dir)
	if err != nil {
		return nil //nolint:nilerr // it does not listen yet, and reads the request when it does
	}
	if err := holder.Signal(syscall.SIGUSR1); err != nil && !errors.Is(err, keeper.ErrNoProcess) {
		return fmt.Errorf("signal the keeper: %w", err)
	}
	return nil
}
