package keeper

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrNoProcess says that no living process has the pid, or that the one which
// has it is another than the one meant.
var ErrNoProcess = errors.New("no such process")

// Process is the identity of a process within one boot session. The pid alone
// proves nothing, since pids are given again.
type Process struct {
	Pid       int    `json:"pid"`
	StartTime string `json:"start_time"`
}

func (p Process) check() error {
	if p.Pid <= 1 || p.StartTime == "" {
		return fmt.Errorf("%w: no identity of a process", ErrDamaged)
	}
	return nil
}

// Identify reads the identity of a pid.
func Identify(pid int) (Process, error) {
	start, err := StartTime(pid)
	return Process{pid, start}, err
}

// Alive reports whether this very process lives. A zombie does not.
func (p Process) Alive() bool {
	s, err := readStatus(p.Pid)
	return err == nil && !s.zombie && s.start == p.StartTime
}

// StartTime is the moment at which the process began, in the kernel's own
// words; only equality means anything. A zombie still has one.
func StartTime(pid int) (string, error) {
	s, err := readStatus(pid)
	return s.start, err
}

// status is what the kernel tells of one process.
type status struct {
	pid, ppid, pgid, sid int
	start                string
	zombie               bool
}

func (s status) process() Process { return Process{s.pid, s.start} }

// Members lists the living processes that provably belong to an attempt: the
// tool's first process, those in its session as long as that one lives, and
// those which carry the attempt's tag in their environment.
func Members(s Started) ([]Process, error) {
	all, err := readStatuses()
	if err != nil {
		return nil, err
	}
	leads := s.Tool().Alive()
	var found []Process
	for _, p := range all {
		switch {
		case p.zombie || p.pid <= 1 || p.pid == os.Getpid():
		case p.process() == s.Tool(),
			leads && (p.sid == s.Pid || p.pgid == s.Pid),
			hasTag(p.pid, s.Token):
			found = append(found, p.process())
		}
	}
	return found, nil
}

// SignalGroup signals a group whose leader the caller has not reaped yet, which
// is what keeps the number from being given to another group.
func SignalGroup(pgid int, sig syscall.Signal) {
	if pgid > 1 && pgid != syscall.Getpgrp() {
		_ = syscall.Kill(-pgid, sig)
	}
}

// Reap collects a child that has ended, or waits for its end. After an error nothing
// is known of how it ended.
func Reap(pid int) (ws syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return ws, fmt.Errorf("reap process %d: %w", pid, err)
	}
	return ws, nil
}

// Belongs reports whether a living process is the attempt's: it, or one that it
// descends from, is the tool's keeper, is in the tool's session, or carries the
// attempt's tag. Ask it only while the attempt lives.
func Belongs(pid int, s Started) bool {
	for range maxAncestors {
		p, err := readStatus(pid)
		if err != nil || pid <= 1 {
			return false
		}
		if p.sid == s.Pid || p.process() == s.Keeper() || hasTag(pid, s.Token) {
			return true
		}
		pid = p.ppid
	}
	return false
}

// maxAncestors bounds the walk to the first process; no honest tree is as deep.
const maxAncestors = 256
