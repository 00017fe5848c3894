package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// LockFD is the descriptor on which a keeper finds the attempt's lock, held.
	LockFD = 3

	// leftoverGrace is what processes get that outlive the tool's first one.
	leftoverGrace = 500 * time.Millisecond
	// killPatience is how long a process may take to die of SIGKILL before it
	// counts as escaped.
	killPatience = 5 * time.Second
	// sweepPause is when a sweep looks again for processes that were not there.
	sweepPause = 20 * time.Millisecond
	// drainPatience bounds the reading of a pipe that an escaped process holds.
	drainPatience = time.Second
)

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
		return hold(Dir(args[1]))
	case len(args) == 1 && args[0] == "launch":
		return launch()
	}
	fmt.Fprintln(os.Stderr, "This is the part of macexec that holds a running tool; macexec itself starts it.")
	return exitUsage
}

// holding is one keeper's state.
type holding struct {
	dir    Dir
	spec   *Spec
	self   Process
	stop   <-chan os.Signal
	begun  time.Time
	exit   Exit
	log    *logFile
	stdout *capture
	stderr *capture
	// released: the tool may have begun, so nothing may claim the contrary.
	released bool
}

func hold(dir Dir) int {
	// The order matters: first listen, then say who holds the lock, then look at
	// the records. A request that came before is seen as a record, one that comes
	// later as a signal.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGUSR1)
	// The others are caught, not ignored: what is ignored would stay ignored in
	// the tool. Nobody reads the channel.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE,
		syscall.SIGQUIT, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	h := &holding{dir: dir, stop: stop, begun: time.Now()}
	spec, err := readSpec(os.Stdin)
	if err != nil {
		return h.complain(exitUsage, fmt.Errorf("read the spec: %w", err))
	}
	h.spec = spec
	if err := h.takeLock(); err != nil {
		return h.complain(exitRefused, err)
	}
	for _, path := range []string{dir.Fenced(), dir.Started(), dir.Exit()} {
		there, err := exists(path)
		if err == nil && there {
			err = fmt.Errorf("%s is there: this attempt is not to be started", filepath.Base(path))
		}
		if err != nil {
			return h.complain(exitRefused, err)
		}
	}
	if err := reserve(dir.Reserve()); err != nil {
		// Without room for its end, the attempt does not begin.
		return h.complain(exitFailed, fmt.Errorf("reserve room for the exit record: %w", err))
	}
	return h.run()
}

func (h *holding) complain(code int, err error) int {
	fmt.Fprintf(os.Stderr, "%s %v\n", time.Now().UTC().Format(time.RFC3339), err)
	return code
}

// takeLock proves that the descriptor handed over is the attempt's lock and is
// held, and writes this keeper's name into it.
func (h *holding) takeLock() error {
	unix.CloseOnExec(LockFD)
	lock := os.NewFile(LockFD, h.dir.Lock())
	mine, err := lock.Stat()
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
	return writeHolder(lock, h.self)
}

func reserve(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(reserveRoom(int(f.Fd()), reserveBytes), f.Close())
}

// run starts the tool, watches it and writes the exit record.
func (h *holding) run() (code int) {
	defer func() {
		if fault := recover(); fault != nil {
			h.complain(exitFailed, fmt.Errorf("fault: %v\n%s", fault, debug.Stack()))
			code = exitFailed
			if !h.released {
				code = h.end(h.notStarted(fmt.Errorf("fault in the keeper: %v", fault)))
			}
		}
	}()
	if h.stopAsked() {
		return h.end(h.notStarted(errors.New("stopped before it was started")))
	}
	started, err := h.start()
	if err != nil {
		return h.end(h.notStarted(err))
	}
	h.supervise(started)
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

func (h *holding) notStarted(err error) error {
	h.exit.NotStarted = true
	return err
}

// end writes the exit record. The lock is freed by the end of this process.
func (h *holding) end(err error) int {
	e := &h.exit
	if err != nil {
		e.Error = err.Error()
		e.Error = strings.ToValidUTF8(e.Error[:min(len(e.Error), maxErrorText)], "\uFFFD")
		e.DiskFull = e.DiskFull || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	}
	e.Escaped = e.Escaped[:min(len(e.Escaped), maxListed)]
	e.Usage = childrenUsage()
	e.At, e.Wall = time.Now().UTC(), time.Since(h.begun)
	if err := writeReserved(h.dir.Reserve(), h.dir.Exit(), e); err != nil {
		return h.complain(exitFailed, fmt.Errorf("write the exit record: %w", err))
	}
	return exitDone
}

// start brings the tool to its first instruction. After an error there was none.
func (h *holding) start() (*Started, error) {
	if err := adoptOrphans(); err != nil {
		return nil, fmt.Errorf("adopt orphans: %w", err)
	}
	launcher, err := h.startLauncher()
	if err != nil {
		return nil, err
	}
	abandon := func(err error) (*Started, error) {
		launcher.Close()
		SignalGroup(launcher.Pid, syscall.SIGKILL)
		Reap(launcher.Pid)
		h.drain()
		return nil, err
	}
	ready := make(chan error, 1)
	go func() { ready <- launcher.Ready() }()
	tool, err := Identify(launcher.Pid)
	if err != nil {
		return abandon(fmt.Errorf("identify the launcher: %w", err))
	}
	started := &Started{
		Pid: tool.Pid, StartTime: tool.StartTime,
		KeeperPid: h.self.Pid, KeeperStartTime: h.self.StartTime,
		BootSession: h.spec.BootSession, Token: h.spec.Token, At: time.Now().UTC(),
		StopSignal: h.spec.StopSignal, Grace: h.spec.Grace,
		Confinement: ConfinementOn(h.spec.Launch.Confine),
	}
	// The record reaches the disk while the launcher sets itself up: what it
	// says of the confinement is what the launcher enforces or dies of.
	if err := write(h.dir.Started(), started); err != nil {
		return abandon(fmt.Errorf("write the started record: %w", err))
	}
	timeout := h.after(h.spec.Timeout)
	select {
	case err = <-ready:
	case <-h.stop:
		if h.stopAsked() {
			err = errors.New("stopped before it was started")
		} else {
			err = <-ready
		}
	case <-timeout:
		h.exit.StoppedFor = StoppedForTimeout
		err = errors.New("the time limit was reached before it was started")
	}
	if err == nil && h.stopAsked() {
		err = errors.New("stopped before it was started")
	}
	if err != nil {
		return abandon(err)
	}
	h.released = true
	if err := launcher.Release(); err != nil {
		h.released = false
		return abandon(err)
	}
	return started, nil
}

func (h *holding) startLauncher() (*Launcher, error) {
	file, err := os.OpenFile(h.dir.Log(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	h.log = &logFile{file: file, limit: h.spec.LogBytes}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errW.Close()
	h.stdout, h.stderr = newCapture(Stdout, outR, h.log), newCapture(Stderr, errR, h.log)
	if h.spec.CaptureStdout {
		h.stdout.file, err = os.OpenFile(h.dir.Stdout(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		h.stdout.fileLimit = h.spec.CaptureBytes
	}
	l := h.spec.Launch
	l.Env = Environment(l.Env, h.spec.Token)
	launcher, err := StartLauncher(ownExecutable(h.spec.Self), h.spec.Self, &l, outW, errW)
	if err != nil {
		return nil, err
	}
	go h.stdout.run()
	go h.stderr.run()
	return launcher, nil
}

// after is a timer's channel; without a limit it never fires.
func (h *holding) after(limit time.Duration) <-chan time.Time {
	if limit <= 0 {
		return nil
	}
	return time.After(time.Until(h.begun.Add(limit)))
}

// supervise waits for the tool's end, stops it when that is due, and sweeps.
func (h *holding) supervise(s *Started) {
	ended := make(chan error, 1)
	go func() { ended <- WaitEnd(s.Pid, true) }()
	timeout := h.after(h.spec.Timeout)
	var kill <-chan time.Time
	begin := func(reason StoppedFor) {
		if h.exit.StoppedFor != StoppedForNothing {
			return
		}
		h.exit.StoppedFor = reason
		// The leader is not reaped while we are here, so the group is the tool's.
		SignalGroup(s.Pid, syscall.Signal(h.spec.StopSignal))
		SignalGroup(s.Pid, syscall.SIGCONT)
		kill = time.After(h.spec.Grace)
	}
	stopIfAsked := func() {
		if there, err := exists(h.dir.StopRequest()); err == nil && there {
			begin(StoppedForRequest)
		}
	}
	stopIfAsked()
	for {
		select {
		case <-h.stop:
			stopIfAsked()
			continue
		case <-timeout:
			begin(StoppedForTimeout)
			continue
		case <-kill:
			SignalGroup(s.Pid, syscall.SIGKILL)
			continue
		case err := <-ended:
			if err != nil {
				h.complain(exitFailed, fmt.Errorf("wait for the tool: %w", err))
			}
		}
		break
	}
	e := &h.exit
	ws, leftover, escaped := endTree(s, e.StoppedFor != StoppedForNothing, leftoverGrace)
	e.Leftover, e.Escaped = leftover, escaped
	if ws.Signaled() {
		e.Signal, e.CoreDumped = int(ws.Signal()), ws.CoreDump()
	} else {
		e.Code = ws.ExitStatus()
	}
	h.drain()
	failed := e.Code != 0 || e.Signal != 0
	e.DiskFull = e.DiskFull || h.stderr.says("No space left on device", "Disk quota exceeded")
	e.OutOfMemory = failed && h.stderr.says("Cannot allocate memory", "out of memory", "Out of memory", "bad_alloc", "MemoryError")
	if err := h.flush(failed); err != nil {
		e.Unflushed = true
		e.Error = fmt.Sprintf("flush the outputs: %v", err)
		e.DiskFull = e.DiskFull || errors.Is(err, syscall.ENOSPC)
	}
}

// drain reads what is left in the pipes. Normally all writers are gone; one that
// escaped must neither hang nor fail the attempt.
func (h *holding) drain() {
	deadline := time.Now().Add(drainPatience)
	for _, c := range []*capture{h.stdout, h.stderr} {
		_ = c.pipe.SetReadDeadline(deadline)
	}
	for _, c := range []*capture{h.stdout, h.stderr} {
		<-c.done
	}
	e := &h.exit
	e.Stdout, e.Stderr = h.stdout.count, h.stderr.count
	e.CaptureOverflow = h.stdout.overflow
	e.DiskFull = e.DiskFull || h.log.diskFull || h.stdout.diskFull
}

// flush brings to the disk what the exit record will stand for: after a power
// cut nobody may find that record beside outputs that are not there.
func (h *holding) flush(failed bool) error {
	var errs []error
	if f := h.stdout.file; f != nil {
		errs = append(errs, f.Sync())
	}
	if failed {
		return errors.Join(errs...)
	}
	errs = append(errs, filepath.WalkDir(h.dir.Out(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == h.dir.Out():
			if names, err := os.ReadDir(path); err == nil && len(names) == 0 {
				return fs.SkipAll
			}
		case !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	}))
	return errors.Join(errs...)
}

func childrenUsage() Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r); err != nil {
		return Usage{}
	}
	return Usage{
		UserCPU:   time.Duration(r.Utime.Nano()),
		SystemCPU: time.Duration(r.Stime.Nano()),
		MaxRSS:    int64(r.Maxrss) * rssUnit,
		InBlocks:  int64(r.Inblock),
		OutBlocks: int64(r.Oublock),
	}
}
