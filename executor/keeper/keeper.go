package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

// LockFD is the descriptor on which a keeper finds the attempt's lock, held.
const LockFD = 3

// Exit codes of the keeper itself. They prove nothing about the tool.
const (
	exitDone    = 0
	exitRefused = 3  // the attempt may not be started by this keeper
	exitUsage   = 64 // not called as the daemon calls it
	exitFailed  = 70
)

// Main plays the keeper ("hold DIR") or the launcher ("launch") and returns the
// process's exit code.
func Main(args []string) int {
	switch {
	case len(args) == 2 && args[0] == "hold":
		return hold(Dir(args[1]), os.Args[:len(os.Args)-len(args)])
	case len(args) == 1 && args[0] == "launch":
		return launch()
	}
	fmt.Fprintln(os.Stderr, "This is the part of macexec that holds a running tool; macexec itself starts it.")
	return exitUsage
}

// holding is one keeper's state.
type holding struct {
	dir Dir
	// lock stays referred to until the end: a file that nothing refers to is
	// closed by the collector, and the lock with it.
	lock     *os.File
	spec     *Spec
	self     Process
	launcher *Launcher
	stop     <-chan os.Signal
	begun    time.Time
	exit     Exit
	log      *logFile
	stdout   *capture
	stderr   *capture
	// released: the tool may have begun, so nothing may claim the contrary.
	released bool
}

// hold is the keeper's whole life. self is the argument vector, without the verb,
// that plays this program again.
func hold(dir Dir, self []string) int {
	// The order matters: first listen, then say who holds the lock, then look at
	// the records. A request that came before is seen as a record, one that comes
	// later as a signal.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGUSR1)
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	unix.CloseOnExec(LockFD)
	h := &holding{dir: dir, stop: stop, lock: os.NewFile(LockFD, dir.Lock())}
	fault.Point("keeper.begun")
	// The launcher sets out at once, so that its start costs no time of its own.
	// Until it is sent its orders it is nothing but a process.
	launchErr := h.startLauncher(self)
	code, err := h.admit()
	if err != nil {
		h.abandon()
		if errors.Is(err, errNoOrders) {
			return exitDone
		}
		return h.complain(code, err)
	}
	return h.run(launchErr)
}

// admit reads what is to be done and finds out whether this keeper may do it.
func (h *holding) admit() (code int, err error) {
	if h.spec, err = readSpec(os.Stdin); err != nil {
		return exitUsage, fmt.Errorf("read the spec: %w", err)
	}
	h.begun = time.Now() // the orders are here; waiting for them is the daemon's time
	fault.Point("keeper.ordered")
	if err := h.takeLock(); err != nil {
		return exitRefused, err
	}
	for _, path := range []string{h.dir.Fenced(), h.dir.Started(), h.dir.Exit()} {
		there, err := exists(path)
		if err == nil && there {
			err = fmt.Errorf("%s is there: this attempt is not to be started", filepath.Base(path))
		}
		if err != nil {
			return exitRefused, err
		}
	}
	if err := reserve(h.dir.Reserve()); err != nil {
		// Without room for its end, the attempt does not begin.
		return exitFailed, fmt.Errorf("reserve room for the exit record: %w", err)
	}
	fault.Point("keeper.admitted")
	return exitDone, nil
}

func (h *holding) complain(code int, err error) int {
	fmt.Fprintf(os.Stderr, "%s %v\n", time.Now().UTC().Format(time.RFC3339), err)
	return code
}

// takeLock proves that the descriptor handed over is the attempt's lock and is
// held, and writes this keeper's name into it.
func (h *holding) takeLock() error {
	mine, err := h.lock.Stat()
	if err != nil {
		return fmt.Errorf("the lock was not handed over: %w", err)
	}
	there, err := os.Lstat(h.dir.Lock())
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return errors.New("the lock handed over is not this attempt's")
	}
	if err := unix.Flock(LockFD, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("the lock is not held: %w", err)
	}
	if h.self, err = Identify(os.Getpid()); err != nil {
		return err
	}
	return writeHolder(h.lock, h.self)
}

func reserve(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err = fault.Err("keeper.reserve"); err == nil {
		err = reserveRoom(int(f.Fd()), reserveBytes)
	}
	return errors.Join(err, f.Close())
}

// run starts the tool, watches it and writes the exit record.
func (h *holding) run(launchErr error) (code int) {
	defer func() {
		if fault := recover(); fault != nil {
			h.complain(exitFailed, fmt.Errorf("fault: %v\n%s", fault, debug.Stack()))
			code = exitFailed
			if !h.released {
				code = h.endUnstarted(fmt.Errorf("fault in the keeper: %v", fault))
			}
		}
	}()
	started, err := h.start(launchErr)
	if err != nil {
		return h.endUnstarted(err)
	}
	if err := h.supervise(started); err != nil {
		// How the tool ended was not seen, so there is no exit record: better none
		// than one that is not true.
		return h.complain(exitFailed, err)
	}
	return h.end(nil)
}

func (h *holding) stopAsked() bool {
	there, err := exists(h.dir.StopRequest())
	if err != nil || !there {
		return false
	}
	h.exit.StoppedFor = StoppedForRequest
	return true
}

// endUnstarted gives the launcher up: not one instruction of the tool ran.
func (h *holding) endUnstarted(err error) int {
	h.abandon()
	h.exit.NotStarted, h.exit.TooLate = true, errors.Is(err, errTooLate)
	return h.end(err)
}

// end writes the exit record. The lock is freed by the end of this process.
func (h *holding) end(err error) int {
	e := &h.exit
	if err != nil {
		e.Error = err.Error()
		e.Error = strings.ToValidUTF8(e.Error[:min(len(e.Error), maxErrorText)], "\uFFFD")
		e.DiskFull = e.DiskFull || isDiskFull(err)
	}
	e.Escaped = e.Escaped[:min(len(e.Escaped), maxListed)]
	e.Usage = childrenUsage()
	e.Usage.Whole = (adopts && err == nil || e.NotStarted) && len(e.Escaped) == 0
	e.At, e.Wall = fault.Now().UTC(), time.Since(h.begun)
	err = writeReserved(h.dir.Reserve(), h.dir.Exit(), e)
	runtime.KeepAlive(h.lock)
	if err != nil {
		return h.complain(exitFailed, fmt.Errorf("write the exit record: %w", err))
	}
	return exitDone
}

var errStopped = errors.New("stopped before it was started")

// start brings the tool to its first instruction. After an error there was none.
func (h *holding) start(launchErr error) (*Started, error) {
	switch {
	case h.stopAsked():
		return nil, errStopped
	case launchErr != nil:
		return nil, launchErr
	}
	if err := h.openOutputs(); err != nil {
		return nil, err
	}
	l := h.spec.Launch
	l.Env = Environment(l.Env, h.spec.Token)
	if err := h.launcher.Send(&l); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	launcher := h.launcher // which is given up, if the record below cannot be written
	go func() { ready <- launcher.Ready() }()
	tool, err := Identify(launcher.Pid)
	if err != nil {
		return nil, fmt.Errorf("identify the launcher: %w", err)
	}
	started := &Started{
		Pid: tool.Pid, StartTime: tool.StartTime,
		KeeperPid: h.self.Pid, KeeperStartTime: h.self.StartTime,
		BootSession: h.spec.BootSession, Token: h.spec.Token, At: fault.Now().UTC(),
		StopSignal: h.spec.StopSignal, Grace: h.spec.Grace,
		Confinement: ConfinementOn(h.spec.Launch.Confine),
	}
	if h.spec.Launch.late() {
		return nil, errTooLate // the launcher asks again, when nothing is left to be done
	}
	// The record reaches the disk while the launcher sets itself up: what it
	// says of the confinement is what the launcher enforces or dies of.
	if err := write(h.dir.Started(), started); err != nil {
		return nil, fmt.Errorf("write the started record: %w", err)
	}
	select {
	case err = <-ready:
	case <-h.stop:
		if !h.stopAsked() {
			err = <-ready
		}
	case <-h.after(h.spec.Timeout):
		h.exit.StoppedFor = StoppedForTimeout
		err = errors.New("the time limit was reached before it was started")
	}
	switch {
	case err != nil:
		return nil, err
	case h.stopAsked():
		return nil, errStopped
	}
	fault.Point("keeper.ready")
	h.released = true
	if err := h.launcher.Release(); err != nil {
		h.released = false
		return nil, err
	}
	fault.Point("keeper.released")
	return started, nil
}

func (h *holding) startLauncher(self []string) error {
	if err := adoptOrphans(); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer errW.Close()
	h.stdout, h.stderr = newCapture(Stdout, outR), newCapture(Stderr, errR)
	h.launcher, err = StartLauncher(ownExecutable(self), self, outW, errW)
	return err
}

// openOutputs makes the files of the tool's output and begins to fill them.
func (h *holding) openOutputs() error {
	file, err := os.OpenFile(h.dir.Log(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if h.spec.CaptureStdout {
		h.stdout.file, err = os.OpenFile(h.dir.Stdout(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		h.stdout.fileLimit = h.spec.CaptureBytes
	}
	h.log = &logFile{file: file, limit: h.spec.LogBytes}
	for _, c := range []*capture{h.stdout, h.stderr} {
		c.log = h.log
		go c.run()
	}
	return nil
}

// abandon ends and reaps a launcher that was not released.
func (h *holding) abandon() {
	if h.launcher == nil {
		return
	}
	h.launcher.Close()
	SignalGroup(h.launcher.Pid, syscall.SIGKILL)
	if _, err := Reap(h.launcher.Pid); err != nil {
		h.complain(exitFailed, err)
	}
	h.launcher = nil
	if h.log != nil {
		h.drain()
	}
}
