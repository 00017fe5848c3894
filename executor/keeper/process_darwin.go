package keeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const stateZombie = 5 // SZOMB of <sys/proc.h>

func readStatus(pid int) (status, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		// The kernel answers success with nothing for a pid that is not there,
		// which the wrapper turns into EIO.
		if errors.Is(err, unix.EIO) || errors.Is(err, unix.ESRCH) {
			return status{}, ErrNoProcess
		}
		return status{}, err
	}
	return statusOf(info), nil
}

func statusOf(info *unix.KinfoProc) status {
	s := status{
		pid:    int(info.Proc.P_pid),
		ppid:   int(info.Eproc.Ppid),
		pgid:   int(info.Eproc.Pgid),
		zombie: info.Proc.P_stat == stateZombie,
	}
	start := info.Proc.P_starttime
	s.start = strconv.FormatInt(start.Sec, 10) + "." + strconv.FormatInt(int64(start.Usec), 10)
	if sid, err := unix.Getsid(s.pid); err == nil {
		s.sid = sid
	}
	return s
}

func readStatuses() ([]status, error) {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	all := make([]status, len(infos))
	for i := range infos {
		all[i] = statusOf(&infos[i])
	}
	return all, nil
}

// hasTag looks through what kern.procargs2 gives: the number of arguments, the
// executable's path, padding, the arguments and the environment. It is readable
// for processes of the same user only; others cannot be ours.
func hasTag(pid int, token string) bool {
	if token == "" {
		return false
	}
	data, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return false
	}
	return tagIn(data, token)
}

func tagIn(data []byte, token string) bool {
	if len(data) < 4 {
		return false
	}
	args := int(binary.NativeEndian.Uint32(data))
	data = data[4:]
	end := bytes.IndexByte(data, 0)
	if end < 0 {
		return false
	}
	data = bytes.TrimLeft(data[end:], "\x00")
	want := []byte(TagVariable + "=" + token)
	for v := range bytes.SplitSeq(data, []byte{0}) {
		if args--; args < 0 && bytes.Equal(v, want) {
			return true
		}
	}
	return false
}

// Signal sends a signal to this very process. macOS has no handle on a process
// that is not a child, so a window of a few microseconds remains between the
// proof and the signal.
func (p Process) Signal(sig syscall.Signal) error {
	if p.Pid <= 1 || !p.Alive() {
		return ErrNoProcess
	}
	if err := syscall.Kill(p.Pid, sig); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return ErrNoProcess
		}
		return err
	}
	return nil
}

// AwaitEnd waits until these processes have ended, at most for the given time.
func AwaitEnd(procs []Process, limit time.Duration) {
	kq, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(kq)
	deadline := time.Now().Add(limit)
	watched := 0
	for _, p := range procs {
		var change unix.Kevent_t
		unix.SetKevent(&change, p.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
		change.Fflags = unix.NOTE_EXIT
		if _, err := unix.Kevent(kq, []unix.Kevent_t{change}, nil, nil); err == nil && p.Alive() {
			watched++
		}
	}
	events := make([]unix.Kevent_t, max(watched, 1))
	for watched > 0 {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		wait := unix.NsecToTimespec(left.Nanoseconds())
		n, err := unix.Kevent(kq, nil, events, &wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		watched -= max(n, 0)
	}
}
