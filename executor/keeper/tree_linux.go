package keeper

import (
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adopts: every process of the tree is reaped by its parent or by this one, so none
// is missing in what the children used.
const adopts = true

// adoptOrphans makes this process the parent of every descendant whose own
// parent ends, so that none leaves the tree by a new session or a double fork.
func adoptOrphans() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// WaitEnd returns when the child pid has ended. The child stays a zombie, so its
// pid and group cannot be given to others. With adopts, orphans that end
// meanwhile are reaped.
func WaitEnd(pid int, adopts bool) error {
	kind, id := unix.P_PID, pid
	if adopts {
		kind, id = unix.P_ALL, 0
	}
	for {
		var info unix.Siginfo
		err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		ended := pidOf(&info)
		if ended == pid {
			return nil
		}
		_, _ = unix.Wait4(ended, nil, unix.WNOHANG, nil)
	}
}

// pidOf reads si_pid: the field that follows signo, errno and code, aligned as a
// pointer.
func pidOf(info *unix.Siginfo) int {
	const align = unsafe.Sizeof(uintptr(0))
	const offset = (3*4 + align - 1) / align * align
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}

// endTree reaps the tool's first process, which has ended, then ends whatever is
// left of the tree and reaps all of it. Every process left is a descendant: those
// whose parents die become children of this one, until there are no children.
func endTree(s *Started, kill bool, grace time.Duration) (ws syscall.WaitStatus, leftover int, escaped []Process, err error) {
	if ws, err = Reap(s.Pid); err != nil {
		return ws, 0, nil, err
	}
	if reap() {
		return ws, 0, nil, nil
	}
	seen := map[Process]bool{}
	deadline := time.Now().Add(grace)
	last := deadline.Add(killPatience)
	for {
		sig := syscall.SIGTERM
		if kill || time.Now().After(deadline) {
			sig = syscall.SIGKILL
		}
		living := descendants()
		signalAll(living, sig, seen)
		if reap() {
			return ws, len(seen), nil, nil
		}
		if time.Now().After(last) {
			return ws, len(seen), living, nil
		}
		AwaitEnd(living, sweepPause)
	}
}

// reap collects every child that has ended and reports whether none is left.
func reap() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return true
		case err != nil || pid <= 0:
			return false
		}
	}
}

// descendants lists the living processes below this one.
func descendants() []Process {
	all, err := readStatuses()
	if err != nil {
		return nil
	}
	below := map[int]bool{syscall.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if below[p.ppid] && !below[p.pid] {
				below[p.pid], grown = true, true
			}
		}
	}
	var found []Process
	for _, p := range all {
		if below[p.pid] && p.pid != syscall.Getpid() && !p.zombie {
			found = append(found, p.process())
		}
	}
	return found
}

// reserveRoom takes room on the disk.
func reserveRoom(fd int, size int64) error { return unix.Fallocate(fd, 0, 0, size) }

// rssUnit is the unit of Rusage.Maxrss.
const rssUnit = 1024
