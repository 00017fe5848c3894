package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func readStatus(pid int) (status, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return status{}, ErrNoProcess
		}
		return status{}, err
	}
	s, err := parseStat(data)
	s.pid = pid
	return s, err
}

// parseStat reads /proc/<pid>/stat. The name in parentheses may hold anything,
// so fields are counted from the last closing one: 3 is the state, 4 the parent,
// 5 the group, 6 the session, 22 the start in clock ticks since boot.
func parseStat(data []byte) (status, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return status{}, fmt.Errorf("%w: process status", ErrDamaged)
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) < 20 {
		return status{}, fmt.Errorf("%w: process status", ErrDamaged)
	}
	var s status
	var errs [3]error
	s.ppid, errs[0] = strconv.Atoi(string(fields[1]))
	s.pgid, errs[1] = strconv.Atoi(string(fields[2]))
	s.sid, errs[2] = strconv.Atoi(string(fields[3]))
	if err := errors.Join(errs[:]...); err != nil {
		return status{}, fmt.Errorf("%w: process status: %w", ErrDamaged, err)
	}
	s.start = string(fields[19])
	s.zombie = fields[0][0] == 'Z' || fields[0][0] == 'X'
	return s, nil
}

func readStatuses() ([]status, error) {
	f, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []status
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStatus(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

func hasTag(pid int, token string) bool {
	if token == "" {
		return false
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	want := []byte(TagVariable + "=" + token)
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(v, want) {
			return true
		}
	}
	return false
}

// Signal sends a signal to this very process and to no later one with its pid:
// the pidfd is taken first and the identity is proved after, so the number
// cannot change hands in between.
func (p Process) Signal(sig syscall.Signal) error {
	if p.Pid <= 1 {
		return ErrNoProcess
	}
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrNoProcess
		}
		return err
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return ErrNoProcess
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrNoProcess
		}
		return err
	}
	return nil
}

// AwaitEnd waits until these processes have ended, at most for the given time.
func AwaitEnd(procs []Process, limit time.Duration) {
	deadline := time.Now().Add(limit)
	var watched []unix.PollFd
	defer func() {
		for _, w := range watched {
			unix.Close(int(w.Fd))
		}
	}()
	for _, p := range procs {
		fd, err := unix.PidfdOpen(p.Pid, 0)
		if err != nil {
			continue
		}
		watched = append(watched, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if !p.Alive() {
			unix.Close(fd)
			watched = watched[:len(watched)-1]
		}
	}
	for len(watched) > 0 {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		n, err := unix.Poll(watched, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if n > 0 {
			watched = slices.DeleteFunc(watched, func(w unix.PollFd) bool {
				if w.Revents != 0 {
					unix.Close(int(w.Fd))
				}
				return w.Revents != 0
			})
		}
	}
}
