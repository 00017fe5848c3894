package executor

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/internal/fault"
)

// Command is what to run, and within which bounds.
type Command struct {
	// Argv starts with the absolute path of the executable. No shell is involved.
	Argv []string
	// Env is the tool's whole environment, but for the attempt's tag.
	Env []string
	// Dir is the working folder; the attempt's work folder if empty.
	Dir string
	// Timeout ends the tool; zero is no limit. Grace is the time between the stop
	// signal and SIGKILL; zero is the default of the keeper.
	Timeout, Grace time.Duration
	// StartBy is the last moment at which it may be executed by the wall clock, and
	// StartWithin the time from Start on by one that nobody sets: the launcher asks both
	// right before. Only of a StartBy is there a StartWithin. If one of them has passed,
	// the exit record says TooLate.
	StartBy     time.Time
	StartWithin time.Duration
	// StopSignal is sent first; zero is SIGTERM.
	StopSignal syscall.Signal
	// CaptureStdout keeps standard output as a file of its own, not in the log.
	CaptureStdout bool
	Limits        Limits
	Confine       Confine
}

// Limits bound a command. Zero means no limit, or the keeper's default for the
// log and the captured output.
type Limits struct {
	// Memory bounds the address space of each process (not enforced by macOS).
	Memory int64
	// FileSize bounds each file a process writes.
	FileSize int64
	// LogBytes bounds the log; CaptureBytes the captured standard output.
	LogBytes, CaptureBytes int64
	OpenFiles              uint64
}

// Confine says what a command may touch besides the system's folders and its own
// work folder. The paths must exist.
type Confine struct {
	Read, Write []string
	Network     bool
	// Metadata lets it change modes, owners, times and extended attributes by path,
	// of any file of this user: only descriptors are bound to the folders.
	Metadata bool
}

func (c Command) launch(work string, write, deny []string) keeper.Launch {
	l := keeper.Launch{
		Argv: c.Argv, Env: c.Env, Dir: keeper.Path(c.Dir), StartBy: c.StartBy,
		Limits: keeper.Limits{Memory: c.Limits.Memory, FileSize: c.Limits.FileSize, OpenFiles: c.Limits.OpenFiles},
		Confine: keeper.Confine{
			Read: c.Confine.Read, Write: append(write, c.Confine.Write...), Deny: deny,
			Network: c.Confine.Network, Metadata: c.Confine.Metadata,
		},
	}
	if !l.StartBy.IsZero() {
		l.StartUntil = keeper.SinceBoot() + c.StartWithin
	}
	if l.Dir == "" {
		l.Dir = keeper.Path(work)
	}
	return l
}

// Attempt is a prepared attempt: its folders are there, its lock is held, and its
// keeper waits for orders. It has to be started or released.
type Attempt struct {
	x    *Executor
	dir  Dir
	lock *os.File
	// orders is the pipe to the keeper; its end without orders ends the keeper.
	orders *os.File
	// ended is closed when the keeper is gone.
	ended chan struct{}
	// err is why there is no keeper; Start answers it.
	err error
	// safe is closed when the names of the attempt's folders are on the disk, or
	// cannot be brought there: unsafe.
	safe   chan struct{}
	unsafe error
}

// Prepare makes the folders of an attempt, takes its lock and starts its keeper. An attempt that was
// prepared before but never came to a keeper is made anew; one with records, or one
// after which there was another, is ErrSpent, one that is held ErrHeld.
func (x *Executor) Prepare(job string, n int) (*Attempt, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return nil, err
	}
	x.locks.Lock()
	defer x.locks.Unlock()
	if err := keeper.Restoring(d, func() error { return os.MkdirAll(d.Keeper(), 0o700) }); err != nil {
		return nil, err
	}
	lock, err := takeLock(d, true)
	if err != nil {
		return nil, err
	}
	a := &Attempt{x: x, dir: d, lock: lock}
	if err := a.checkUnused(); err != nil {
		a.Release()
		return nil, err
	}
	if err := x.isNewest(job, n); err != nil {
		a.Release()
		return nil, err
	}
	fault.Point("executor.locked")
	// The keeper sets out now, so that its start is over when the inputs are
	// staged. Without orders it does nothing.
	a.err = a.spawn()
	if err := a.makeFolders(); err != nil {
		a.Release()
		return nil, err
	}
	a.secure()
	fault.Point("executor.prepared")
	return a, nil
}

// secure brings the names of the attempt's folders to the disk while the inputs are
// staged. A record is worth no more than the way to it: after a power cut nobody
// could tell an attempt whose folder is gone from one that never was.
func (a *Attempt) secure() {
	folders := []string{a.x.root, filepath.Dir(string(a.dir)), string(a.dir), a.Work()}
	a.safe = make(chan struct{})
	go func() {
		defer close(a.safe)
		each := make(chan error, len(folders))
		for _, folder := range folders { // side by side: many file systems bring them to the disk in one go
			go func() { each <- syncFolder(folder) }()
		}
		a.unsafe = fault.Err("executor.secure")
		for range folders {
			a.unsafe = errors.Join(a.unsafe, <-each)
		}
	}()
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (a *Attempt) checkUnused() error {
	for _, path := range []string{a.dir.Fenced(), a.dir.Started(), a.dir.Exit()} {
		switch _, err := os.Lstat(path); {
		case err == nil:
			return fmt.Errorf("%s is there: %w", filepath.Base(path), ErrSpent)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return a.lock.Truncate(0) // the name of a keeper that refused
}

// isNewest refuses an attempt after which there was another: whoever asks for it has
// forgotten what became of that one.
func (x *Executor) isNewest(job string, n int) error {
	numbers, err := x.Attempts(job)
	if len(numbers) > 0 && numbers[len(numbers)-1] > n {
		return fmt.Errorf("a%d is there: %w", numbers[len(numbers)-1], ErrSpent)
	}
	return err
}

// Attempts returns the numbers of the attempts that a job has folders of, in their order.
func (x *Executor) Attempts(job string) (numbers []int, err error) {
	entries, err := os.ReadDir(x.JobDir(job))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), "a"); ok {
			if k, err := strconv.Atoi(number); err == nil && k > 0 {
				numbers = append(numbers, k)
			}
		}
	}
	slices.Sort(numbers)
	return numbers, err
}

func (a *Attempt) makeFolders() error {
	if err := fault.Err("executor.folders"); err != nil {
		return err
	}
	switch err := os.Mkdir(a.dir.Work(), 0o700); {
	case errors.Is(err, fs.ErrExist):
		// Left by a preparation that did not reach its start: nothing of it counts.
		if err := os.RemoveAll(a.dir.Work()); err != nil {
			return err
		}
		if err := os.Mkdir(a.dir.Work(), 0o700); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	for _, path := range []string{a.In(), a.Out(), a.Tmp()} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts the keeper and shares the lock with it.
func (a *Attempt) spawn() error {
	complaints, err := os.OpenFile(a.dir.Errors(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer complaints.Close()
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ordersR.Close()
	c := &exec.Cmd{
		Path: a.x.keeper[0], Args: append(slices.Clone(a.x.keeper), "hold", string(a.dir)),
		Env: fault.Environment(), Dir: "/",
		Stdin: ordersR, Stdout: complaints, Stderr: complaints,
		ExtraFiles:  []*os.File{a.lock},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := c.Start(); err != nil {
		ordersW.Close()
		return fmt.Errorf("start the keeper: %w", err)
	}
	a.orders, a.ended = ordersW, make(chan struct{})
	log, dir, ended := a.x.log, string(a.dir), a.ended
	go func() {
		defer close(ended)
		if err := c.Wait(); err != nil {
			log.Warn("keeper failed", "dir", dir, "error", err)
		}
	}()
	return nil
}

// Dir is the attempt's folder.
func (a *Attempt) Dir() Dir { return a.dir }

// Work is the tool's own folder.
func (a *Attempt) Work() string { return a.dir.Work() }

// In is the folder for staged inputs.
func (a *Attempt) In() string { return a.dir.In() }

// Out is the folder for outputs.
func (a *Attempt) Out() string { return a.dir.Out() }

// Tmp is the tool's folder for temporary files.
func (a *Attempt) Tmp() string { return a.dir.Tmp() }

// Release gives the attempt up without a start. Later calls do nothing.
func (a *Attempt) Release() {
	if a.lock == nil {
		return
	}
	if a.safe != nil {
		<-a.safe
	}
	if a.orders != nil {
		a.orders.Close()
		<-a.ended
	}
	freeLock(a.lock)
	a.lock = nil
}

// Start gives the keeper its orders. An error is a NotStartedError: the command
// certainly did not run and will not. Everything less certain is a Running, whose
// Wait finds out. Either way the attempt is used up.
func (a *Attempt) Start(cmd Command) (*Running, error) {
	if a.lock == nil {
		return nil, &NotStartedError{errors.New("the attempt was started or released before")}
	}
	text, err := json.Marshal(keeper.Spec{
		Token: rand.Text(), BootSession: a.x.boot,
		Launch:  cmd.launch(a.Work(), []string{a.Work()}, []string{a.dir.Keeper()}),
		Timeout: cmd.Timeout, Grace: cmd.Grace, StopSignal: int(cmd.StopSignal),
		CaptureStdout: cmd.CaptureStdout, LogBytes: cmd.Limits.LogBytes, CaptureBytes: cmd.Limits.CaptureBytes,
	})
	if <-a.safe; a.unsafe != nil {
		err = fmt.Errorf("bring the attempt's folders to the disk: %w", a.unsafe)
	}
	if a.err != nil {
		err = a.err
	}
	if err != nil {
		a.Release()
		return nil, &NotStartedError{err}
	}
	a.lock.Close() // the keeper alone holds it now
	a.lock = nil
	fault.Point("executor.handed_over")
	// Long orders do not fit into the pipe before they are read. A keeper that
	// reads only a part, because it or this process died, starts nothing.
	orders := a.orders
	go func() {
		_, _ = orders.Write(text)
		orders.Close()
		fault.Point("executor.ordered")
	}()
	return &Running{x: a.x, dir: a.dir, ended: a.ended}, nil
}
