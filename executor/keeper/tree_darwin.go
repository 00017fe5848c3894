package keeper

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopts: what an orphan used is counted nowhere.
const adopts = false

// adoptOrphans does nothing: macOS gives orphans to launchd. They are found by
// group and tag instead.
func adoptOrphans() error { return nil }

// WaitEnd returns when the child pid has ended. The child stays a zombie, so its
// pid and group cannot be given to others.
func WaitEnd(pid int, _ bool) error {
	kq, err := unix.Kqueue()
	if err != nil {
		return err
	}
	defer unix.Close(kq)
	change := unix.Kevent_t{Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT}
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	events := make([]unix.Kevent_t, 1)
	for {
		_, err := unix.Kevent(kq, []unix.Kevent_t{change}, events, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ESRCH):
			return nil // it ended before the watch began
		default:
			return err
		}
	}
}

// endTree ends whatever is left of the attempt: members of the tool's group and
// session, and processes that carry its tag. The tool's first process has ended
// and is reaped last, because as a zombie it keeps the group's number.
func endTree(s *Started, kill bool, grace time.Duration) (ws syscall.WaitStatus, leftover int, escaped []Process, err error) {
	seen := map[Process]bool{}
	deadline := time.Now().Add(grace)
	last := deadline.Add(killPatience)
	for {
		living, err := remaining(s)
		if err != nil {
			return ws, 0, nil, err
		}
		if len(living) == 0 || time.Now().After(last) {
			ws, err = Reap(s.Pid)
			return ws, len(seen), living, err
		}
		sig := syscall.SIGTERM
		if kill || time.Now().After(deadline) {
			sig = syscall.SIGKILL
		}
		signalAll(living, sig, seen)
		AwaitEnd(living, sweepPause)
	}
}

func remaining(s *Started) ([]Process, error) {
	all, err := readStatuses()
	if err != nil {
		return nil, fmt.Errorf("look for the tool's processes: %w", err)
	}
	var found []Process
	for _, p := range all {
		if p.zombie || p.pid <= 1 || p.pid == syscall.Getpid() || p.process() == s.Tool() {
			continue
		}
		if p.pgid == s.Pid || p.sid == s.Pid || hasTag(p.pid, s.Token) {
			found = append(found, p.process())
		}
	}
	return found, nil
}

// reserveRoom takes room on the disk; where the file system cannot, zeros do.
func reserveRoom(fd int, size int64) error {
	err := unix.FcntlFstore(uintptr(fd), unix.F_PREALLOCATE, &unix.Fstore_t{
		Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: size,
	})
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENOSPC) {
		return err
	}
	_, err = unix.Pwrite(fd, make([]byte, size), 0)
	return err
}

// rssUnit is the unit of Rusage.Maxrss.
const rssUnit = 1
