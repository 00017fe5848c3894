package keeper

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The launcher's descriptors besides the three that the tool will have.
const (
	controlFD = 3 // read: the Launch with its length before it, then one byte to go
	statusFD  = 4 // write: closed by the exec itself

	statusReady = 'r'
	statusError = 'e'
	statusLate  = 'l' // not executed: start_by has passed
)

// Launcher is a started launcher: a process that leads its own session, with
// limits and confinement in place or under way, and that runs nothing of the
// tool before Release.
type Launcher struct {
	Pid     int
	control *os.File
	status  *bufio.Reader
	closer  io.Closer
	sent    chan error
}

// StartLauncher starts a launcher. exe is the program file and self its argument
// vector without "launch". The tool will have /dev/null as its input, and stdout
// and stderr as its outputs.
func StartLauncher(exe string, self []string, stdout, stderr *os.File) (*Launcher, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer controlR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		controlW.Close()
		return nil, err
	}
	defer statusW.Close()
	pid, err := syscall.ForkExec(exe, append(slices.Clone(self), "launch"), &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{blocking(null), blocking(stdout), blocking(stderr), blocking(controlR), blocking(statusW)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		controlW.Close()
		statusR.Close()
		return nil, fmt.Errorf("start the launcher: %w", err)
	}
	return &Launcher{
		Pid: pid, control: controlW, closer: statusR,
		status: bufio.NewReader(statusR), sent: make(chan error, 1),
	}, nil
}

// Send tells the launcher what to become.
func (l *Launcher) Send(what *Launch) error {
	if err := what.check(); err != nil {
		return err
	}
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	// A long argument vector does not fit into the pipe before somebody reads it.
	go func() {
		_, err := l.control.Write(message)
		l.sent <- err
	}()
	return nil
}

// blocking gives a descriptor as a child expects it: one that waits.
func blocking(f *os.File) uintptr {
	fd := f.Fd()
	_ = syscall.SetNonblock(int(fd), false)
	return fd
}

// Ready waits until limits and confinement are in place. After an error the tool
// will never run, and the process only remains to be reaped.
func (l *Launcher) Ready() error {
	sendErr := <-l.sent
	first, err := l.status.ReadByte()
	switch {
	case err == nil && first == statusReady:
		return nil
	case err == nil && first == statusError:
		text, _ := io.ReadAll(io.LimitReader(l.status, maxErrorText))
		return errors.New(string(text))
	}
	return fmt.Errorf("the launcher ended before it was ready: %w", errors.Join(err, sendErr))
}

// Release lets the launcher become the tool and waits until it has. After an
// error no instruction of the tool has run.
func (l *Launcher) Release() error {
	defer l.Close()
	if _, err := l.control.Write([]byte{'g'}); err != nil {
		return fmt.Errorf("release the launcher: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(l.status, maxErrorText))
	switch {
	case err != nil:
		// Not knowing is treated as started.
		return nil
	case len(text) > 0 && text[0] == statusLate:
		return errTooLate
	case len(text) > 0 && text[0] == statusError:
		return errors.New(string(text[1:]))
	}
	return nil
}

// Close gives the launcher up: one that was not released ends by itself.
func (l *Launcher) Close() {
	l.control.Close()
	l.closer.Close()
}

// launch is the launcher's own part. It returns only if there is no tool.
func launch() int {
	// Landlock restricts one thread, and exec keeps the one that calls it.
	runtime.LockOSThread()
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(statusFD)
	control := os.NewFile(controlFD, "control")
	status := os.NewFile(statusFD, "status")
	fail := func(err error) int {
		text := err.Error()
		_, _ = status.WriteString(string(rune(statusError)) + text[:min(len(text), maxErrorText-1)])
		return 126
	}
	l, err := readLaunch(control)
	if err != nil {
		return fail(fmt.Errorf("read what to launch: %w", err))
	}
	argv, env := []string(l.Argv), []string(l.Env)
	exe := argv[0]
	if err := setUp(l); err != nil {
		return fail(err)
	}
	exe, argv = wrapped(exe, argv, l.Confine)
	resetSignals()
	if _, err := status.Write([]byte{statusReady}); err != nil {
		return 126
	}
	var one [1]byte
	if n, _ := control.Read(one[:]); n != 1 || one[0] != 'g' {
		return 126 // given up
	}
	if err := limitMemory(l.Limits.Memory, argv, env); err != nil {
		return fail(err)
	}
	// Last of all, because everything before may take any time: from here on there is
	// only the kernel's exec.
	if l.late() {
		_, _ = status.Write([]byte{statusLate})
		return 126
	}
	err = syscall.Exec(exe, argv, env)
	return fail(fmt.Errorf("exec %s: %w", exe, err))
}

func readLaunch(r io.Reader) (*Launch, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxSpecBytes {
		return nil, errors.New("too large")
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	var l Launch
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, err
	}
	return &l, l.check()
}

func setUp(l *Launch) error {
	syscall.Umask(0o077)
	if err := os.Chdir(string(l.Dir)); err != nil {
		return fmt.Errorf("enter the working folder: %w", err)
	}
	if err := closeOthers(); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := lower(unix.RLIMIT_CORE, 0); err != nil {
		return fmt.Errorf("limit core files: %w", err)
	}
	if l.Limits.FileSize > 0 {
		if err := lower(unix.RLIMIT_FSIZE, uint64(l.Limits.FileSize)); err != nil {
			return fmt.Errorf("limit file size: %w", err)
		}
	}
	if l.Limits.OpenFiles > 0 {
		if err := lower(unix.RLIMIT_NOFILE, l.Limits.OpenFiles); err != nil {
			return fmt.Errorf("limit open files: %w", err)
		}
	}
	if err := confine(l.Argv[0], l.Confine); err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	return nil
}

// lower sets a limit, never above what is already the maximum.
func lower(which int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(which, &now); err != nil {
		return err
	}
	value = min(value, uint64(now.Max))
	return unix.Setrlimit(which, &unix.Rlimit{Cur: value, Max: value})
}

// limitMemory comes last, because it binds the launcher too, whose own address
// space is larger than what many tools need: afterwards the Go heap cannot grow.
// So room for the copies that exec makes is taken and given back before.
func limitMemory(limit int64, argv, env []string) error {
	if limit <= 0 {
		return nil
	}
	size := 1 << 20
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			size += 2*len(s) + 64
		}
	}
	debug.SetGCPercent(-1)
	runtime.KeepAlive(make([]byte, size))
	runtime.GC()
	if err := lower(unix.RLIMIT_AS, uint64(limit)); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}

// Environment is the tool's environment with the attempt's tag, which a caller
// cannot set.
func Environment(env []string, token string) []string {
	out := make([]string, 0, len(env)+1)
	for _, v := range env {
		if !strings.HasPrefix(v, TagVariable+"=") {
			out = append(out, v)
		}
	}
	return append(out, TagVariable+"="+token)
}
