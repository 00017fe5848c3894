package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/internal/fault"
)

// FoundKind says what was found of an attempt.
type FoundKind string

// What may be found of an attempt, beside its intent.
const (
	// Held: the lock is held, normally by a living keeper. Nothing is concluded.
	Held FoundKind = "held"
	// Exited: there is an exit record. It may say that the tool was not started.
	Exited FoundKind = "exited"
	// NeverStarted: no started record, and now a fence: the tool never ran.
	NeverStarted FoundKind = "never_started"
	// Unwatched: started, no exit record, no keeper, and processes of it live.
	Unwatched FoundKind = "unwatched"
	// Lost: started, no exit record, nothing alive; or a record is damaged.
	Lost FoundKind = "lost"
	// Rebooted: started in another boot session, no exit record.
	Rebooted FoundKind = "rebooted"
	// FolderGone: the attempt's folder or its lock is not there.
	FolderGone FoundKind = "folder_gone"
)

// Found is what is known of an attempt.
type Found struct {
	Kind    FoundKind
	Started *keeper.Started
	Exit    *keeper.Exit
	// Alive are the processes of an Unwatched attempt, by proved identity.
	Alive []Proc
	// Damaged tells of a record that cannot be believed.
	Damaged error
	// Complaint is the end of what the keeper said, if it left no exit record.
	Complaint string
}

// Outcome is what is known of an attempt whose keeper is gone.
type Outcome = Found

// Inspect finds out what is known of an attempt. It takes the lock and fences the
// attempt durably before it concludes anything, so that no late keeper can make
// the conclusion false.
func (x *Executor) Inspect(job string, n int) (Found, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return Found{}, err
	}
	return x.inspect(d)
}

func (x *Executor) inspect(d Dir) (Found, error) {
	x.locks.Lock()
	defer x.locks.Unlock()
	lock, err := takeLock(d, false)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A keeper proves that its lock is the file of that name, so without it
		// none can start.
		return Found{Kind: FolderGone}, nil
	case errors.Is(err, ErrHeld):
		return Found{Kind: Held}, nil
	case err != nil:
		return Found{}, err
	}
	defer freeLock(lock)
	fault.Point("executor.taken")
	if err := keeper.WriteFence(d, keeper.Fence{At: fault.Now().UTC()}); err != nil {
		return Found{}, fmt.Errorf("fence the attempt: %w", err)
	}
	return x.judge(d)
}

// judge reads the records under the lock, after the fence.
func (x *Executor) judge(d Dir) (Found, error) {
	var f Found
	started, startedErr := keeper.ReadStarted(d)
	switch {
	case startedErr == nil:
		f.Started = &started
	case errors.Is(startedErr, keeper.ErrDamaged):
		f.Damaged = startedErr
	case !errors.Is(startedErr, fs.ErrNotExist):
		return Found{}, startedErr
	}
	exit, exitErr := keeper.ReadExit(d)
	switch {
	case exitErr == nil:
		f.Kind, f.Exit = Exited, &exit
		return f, nil
	case errors.Is(exitErr, keeper.ErrDamaged):
		f.Damaged = errors.Join(f.Damaged, exitErr)
	case !errors.Is(exitErr, fs.ErrNotExist):
		return Found{}, exitErr
	}
	f.Complaint = complaint(d)
	switch {
	case f.Started == nil && f.Damaged == nil:
		f.Kind = NeverStarted
		return f, nil
	case f.Started == nil:
		f.Kind = Lost
		return f, nil
	case started.BootSession != x.boot:
		f.Kind = Rebooted
		return f, nil
	}
	var err error
	if f.Alive, err = keeper.Members(started); err != nil {
		return Found{}, fmt.Errorf("look for the attempt's processes: %w", err)
	}
	f.Kind = Lost
	if len(f.Alive) > 0 {
		f.Kind = Unwatched
	}
	return f, nil
}

// complaint reads the end of the keeper's own words. They explain and prove
// nothing, so that they cannot be read is no error.
func complaint(d Dir) string {
	f, err := os.Open(d.Errors())
	if err != nil {
		return ""
	}
	defer f.Close()
	var t tail
	_, _ = io.Copy(&t, f)
	return strings.ToValidUTF8(strings.TrimSpace(string(t.data[max(0, len(t.data)-2048):])), "\uFFFD")
}

// StopTree ends every process of an attempt that lost its keeper: the stop signal
// first, SIGKILL after the attempt's grace. It returns when none is left.
func (x *Executor) StopTree(ctx context.Context, found Found) error {
	if found.Started == nil || found.Started.BootSession != x.boot {
		return nil
	}
	fault.Point("executor.stops")
	kill := time.Now().Add(found.Started.Grace)
	// Children that the leader's end leaves behind in its session are remembered,
	// since afterwards the session proves nothing any more.
	known := map[Proc]bool{}
	asked := map[Proc]bool{}
	for _, p := range found.Alive {
		known[p] = true
	}
	for {
		members, err := keeper.Members(*found.Started)
		if err != nil {
			return fmt.Errorf("look for the attempt's processes: %w", err)
		}
		for _, p := range members {
			known[p] = true
		}
		var living []Proc
		for p := range known {
			if p.Alive() {
				living = append(living, p)
			}
		}
		if len(living) == 0 {
			return nil
		}
		late := !time.Now().Before(kill)
		for _, p := range living {
			var err error
			switch {
			case late:
				err = p.Signal(syscall.SIGKILL)
			case !asked[p]:
				asked[p] = true
				err = errors.Join(p.Signal(syscall.Signal(found.Started.StopSignal)), p.Signal(syscall.SIGCONT))
			}
			if err != nil && !errors.Is(err, keeper.ErrNoProcess) {
				return fmt.Errorf("stop process %d: %w", p.Pid, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d processes live on: %w", len(living), context.Cause(ctx))
		}
		// A short limit, because new processes may have been made meanwhile.
		keeper.AwaitEnd(living, min(100*time.Millisecond, max(time.Until(kill), 10*time.Millisecond)))
	}
}

// lookAgain is how often processes are looked for that were not there before.
const lookAgain = 5 * time.Second

// AwaitLeft waits until no process of an attempt lives that has lost its keeper. Children
// that its first process leaves behind are known as long as they were there before its
// end, or carry the attempt's tag.
func (x *Executor) AwaitLeft(ctx context.Context, s keeper.Started) error {
	known := map[Proc]bool{}
	for {
		members, err := keeper.Members(s)
		if err != nil {
			return fmt.Errorf("look for the attempt's processes: %w", err)
		}
		for _, p := range members {
			known[p] = true
		}
		var watch *endWatch
		for p := range known {
			if watch, err = watchEnd(p); err == nil {
				break
			}
			if !errors.Is(err, keeper.ErrNoProcess) {
				return fmt.Errorf("watch process %d: %w", p.Pid, err)
			}
			delete(known, p)
		}
		if watch == nil {
			return nil
		}
		again := time.NewTimer(lookAgain)
		select {
		case <-watch.ended:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		watch.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Started is the record of an attempt's start; without one it is fs.ErrNotExist.
func (x *Executor) Started(job string, n int) (keeper.Started, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return keeper.Started{}, err
	}
	return keeper.ReadStarted(d)
}

// Belongs reports whether a process is of a living attempt: the tool itself, one of
// its descendants, or one that carries the attempt's tag.
func (x *Executor) Belongs(job string, n, pid int) bool {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return false
	}
	started, err := keeper.ReadStarted(d)
	return err == nil && started.BootSession == x.boot && keeper.Belongs(pid, started)
}

// Stdout is the captured standard output of an attempt; without any it is
// fs.ErrNotExist.
func (x *Executor) Stdout(job string, n int) ([]byte, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return nil, err
	}
	var data []byte
	err = keeper.Restoring(d, func() (err error) {
		data, err = os.ReadFile(d.Stdout())
		return err
	})
	return data, err
}
