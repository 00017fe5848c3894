package keeper_test

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/keeper"
)

// No signal goes to everybody, to the first process, or to the own group, whatever number
// a record or a fault may bring.
//
//nolint:paralleltest // signals are of the whole process
func TestNoSignalToOthers(t *testing.T) {
	// SIGCONT does no harm to whom it may reach, and comes before SIGWINCH.
	got := make(chan os.Signal, 8)
	signal.Notify(got, syscall.SIGCONT, syscall.SIGWINCH)
	defer signal.Stop(got)
	for _, pgid := range []int{0, 1, -1, syscall.Getpgrp(), -syscall.Getpgrp()} {
		keeper.SignalGroup(pgid, syscall.SIGCONT)
	}
	for _, pid := range []int{0, 1, -1, -syscall.Getpgrp()} {
		start, _ := keeper.StartTime(pid)
		if err := (keeper.Process{Pid: pid, StartTime: start}).Signal(syscall.SIGCONT); !errors.Is(err, keeper.ErrNoProcess) {
			t.Errorf("a signal to %d: %v", pid, err)
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-got:
		if s != syscall.SIGWINCH {
			t.Errorf("this process got %v", s)
		}
	case <-time.After(time.Minute):
		t.Error("no signal at all came")
	}
}
