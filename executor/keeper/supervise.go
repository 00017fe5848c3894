package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/macexec/macexec/internal/fault"
)

const (
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

// after is a timer's channel; without a limit it never fires.
func (h *holding) after(limit time.Duration) <-chan time.Time {
	if limit <= 0 {
		return nil
	}
	return time.After(time.Until(h.begun.Add(limit)))
}

// supervise waits for the tool's end, stops it when that is due, and sweeps. An error
// means that its end was not seen.
func (h *holding) supervise(s *Started) error {
	ended := make(chan error, 1)
	go func() { ended <- WaitEnd(s.Pid, true) }()
	timeout := h.after(h.spec.Timeout)
	var kill <-chan time.Time
	begin := func(reason StoppedFor) {
		// A keeper that was suspended may hear of the tool's end and of its time limit in
		// any order. What has ended by itself was not stopped.
		if h.exit.StoppedFor != StoppedForNothing || !s.Tool().Alive() {
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
				return fmt.Errorf("wait for the tool: %w", err)
			}
		}
		break
	}
	fault.Point("keeper.ended")
	e := &h.exit
	ws, leftover, escaped, err := endTree(s, e.StoppedFor != StoppedForNothing, leftoverGrace)
	if err != nil {
		return err
	}
	e.Leftover, e.Escaped = leftover, escaped
	if ws.Signaled() {
		e.Signal, e.CoreDumped = int(ws.Signal()), ws.CoreDump()
	} else {
		e.Code = ws.ExitStatus()
	}
	h.drain()
	fault.Point("keeper.swept")
	failed := e.Code != 0 || e.Signal != 0
	e.DiskFull = e.DiskFull || h.stderr.says("No space left on device", "Disk quota exceeded")
	e.OutOfMemory = failed && h.stderr.says("Cannot allocate memory", "out of memory", "Out of memory", "bad_alloc", "MemoryError")
	err = fault.Err("keeper.flush")
	if err == nil {
		err = h.flush(failed)
	}
	if err != nil {
		e.Unflushed = true
		e.Error = fmt.Sprintf("flush the outputs: %v", err)
		e.DiskFull = e.DiskFull || isDiskFull(err)
	}
	e.NoRoom = !failed && noRoom(h.dir)
	return nil
}

// noRoom tries whether the disk of an attempt takes a little more. A tool that met its
// end has left less than that, unless somebody made room meanwhile. The records' folder
// stands for the tool's, which is beside it and may be closed.
func noRoom(d Dir) bool {
	path := filepath.Join(d.Keeper(), "room.tmp")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(reserveRoom(int(f.Fd()), roomBytes), f.Close(), os.Remove(path))
	}
	return isDiskFull(err)
}

// roomBytes are more than what a write that ended at the end of the disk leaves: less
// than one block, and what file systems round up.
const roomBytes = 64 << 10

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
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // whatever a race puts there is only synced
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	}))
	return errors.Join(errs...)
}

// signalAll asks each process once to end, and kills it as often as it is seen.
func signalAll(living []Process, sig syscall.Signal, seen map[Process]bool) {
	for _, p := range living {
		if !seen[p] || sig == syscall.SIGKILL {
			_ = p.Signal(sig)
			if sig != syscall.SIGKILL {
				_ = p.Signal(syscall.SIGCONT) // a stopped process hears nothing else
			}
		}
		seen[p] = true
	}
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
