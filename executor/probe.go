package executor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/macexec/macexec/executor/keeper"
)

const (
	probeTimeout = 30 * time.Second // for a Command without one
	probeOutput  = 1 << 20          // of stdout, and of the end of stderr
	probeDrain   = time.Second      // for pipes that an escaped process holds
)

// ProbeResult is the answer of a read-only command.
type ProbeResult struct {
	// Code is the exit code when Signal is zero.
	Code   int
	Signal syscall.Signal
	// TimedOut: it was ended at its time limit.
	TimedOut bool
	// Stdout is cut after its first mebibyte, and then Truncated; Stderr is the
	// end of what came.
	Stdout    []byte
	Stderr    []byte
	Truncated bool
}

// Probe runs a read-only command as a child of this process: confined and limited
// like a tool, but with no records, and ended together with ctx. Without a Dir it
// runs in the root folder. A NotStartedError says that it did not run.
func (x *Executor) Probe(ctx context.Context, cmd Command) (ProbeResult, error) {
	var r ProbeResult
	timeout := cmd.Timeout
	if timeout <= 0 {
		timeout = probeTimeout
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return r, &NotStartedError{err}
	}
	defer outR.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		outW.Close()
		return r, &NotStartedError{err}
	}
	defer errR.Close()
	token := rand.Text()
	l := cmd.launch("/", nil, []string{x.root})
	l.Env = keeper.Environment(l.Env, token)
	launcher, err := keeper.StartLauncher(x.keeper[0], x.keeper, outW, errW)
	outW.Close()
	errW.Close()
	if err != nil {
		return r, &NotStartedError{err}
	}
	tool, identityErr := keeper.Identify(launcher.Pid)

	var stdout head
	var stderr tail
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(&stdout, outR) })
	readers.Go(func() { _, _ = io.Copy(&stderr, errR) })
	begun := make(chan error, 1)
	go func() {
		err := identityErr
		if err == nil {
			err = launcher.Send(&l)
		}
		if err == nil {
			err = launcher.Ready()
		}
		if err == nil {
			err = launcher.Release()
		} else {
			launcher.Close()
		}
		begun <- err
	}()
	ended := make(chan error, 1)
	go func() { ended <- keeper.WaitEnd(launcher.Pid, false) }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var waitErr error
	select {
	case waitErr = <-ended:
	case <-timer.C:
		r.TimedOut = true
	case <-ctx.Done():
	}
	// Not reaped yet, so the group is still the probe's; whoever is left in it
	// ends with it.
	keeper.SignalGroup(launcher.Pid, syscall.SIGKILL)
	if r.TimedOut || ctx.Err() != nil {
		waitErr = <-ended
	}
	x.sweepProbe(keeper.Started{Pid: tool.Pid, StartTime: tool.StartTime, Token: token})
	ws, reapErr := keeper.Reap(launcher.Pid)
	waitErr = errors.Join(waitErr, reapErr)
	deadline := time.Now().Add(probeDrain)
	_ = outR.SetReadDeadline(deadline)
	_ = errR.SetReadDeadline(deadline)
	readers.Wait()
	if err := <-begun; err != nil {
		return ProbeResult{}, &NotStartedError{err}
	}
	if ctx.Err() != nil {
		return ProbeResult{}, context.Cause(ctx)
	}
	if waitErr != nil {
		return ProbeResult{}, fmt.Errorf("wait for the probe: %w", waitErr)
	}
	r.Stdout, r.Truncated, r.Stderr = stdout.data, stdout.cut, stderr.data
	if ws.Signaled() {
		r.Signal = ws.Signal()
	} else {
		r.Code = ws.ExitStatus()
	}
	return r, nil
}

// sweepProbe kills what left the probe's session but still carries its tag.
func (x *Executor) sweepProbe(s keeper.Started) {
	members, err := keeper.Members(s)
	if err != nil {
		x.log.Warn("look for what a probe left", "error", err)
		return
	}
	for _, p := range members {
		if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, keeper.ErrNoProcess) {
			x.log.Warn("end what a probe left", "pid", p.Pid, "error", err)
		}
	}
}

// head keeps the first bytes of a stream.
type head struct {
	data []byte
	cut  bool
}

func (h *head) Write(p []byte) (int, error) {
	keep := min(len(p), probeOutput-len(h.data))
	h.data = append(h.data, p[:keep]...)
	h.cut = h.cut || keep < len(p)
	return len(p), nil
}

// tail keeps the last bytes of a stream.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p[max(0, len(p)-probeOutput):]...)
	if over := len(t.data) - probeOutput; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}
