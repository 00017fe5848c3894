package endtoend

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/keeper"
)

// A tool ends while a grandchild, deaf to all polite requests, holds its output open. The
// job is neither held up nor failed, and nothing of it is left.
func TestAGrandchildThatHoldsThePipe(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	l.gate("a_child") // never opened
	id := d.submit(call("k", "ledger_"+none, l.args("a", "child", "print:done"))).GetId()
	job := d.wait(id, completed)
	pid := l.awaitPid("a", "child", 1)
	if _, err := keeper.StartTime(pid); !errors.Is(err, keeper.ErrNoProcess) {
		t.Errorf("the grandchild %d lives on: %v", pid, err)
	}
	if escaped := job.GetAttempts()[0].GetExit().GetEscaped(); len(escaped) > 0 {
		t.Errorf("these are said to have escaped: %v", escaped)
	}
	exit, err := keeper.ReadExit(d.attempt(id, 1))
	if err != nil || exit.Leftover != 1 || exit.Code != 0 {
		t.Errorf("the keeper wrote down %+v, %v", exit, err)
	}
	l.wantStarts("a", 1)
}

// Daemon, keeper and tool have groups and sessions of their own, so that a signal to one
// of them reaches no other.
func TestGroupsOfTheirOwn(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	id := d.submit(call("k", "ledger_"+none, l.args("a", "gate"))).GetId()
	l.await("a", "begin", 1)
	was := d.started(id, 1)
	groups := map[int]string{}
	for name, pid := range map[string]int{"daemon": d.process.cmd.Process.Pid, "keeper": was.KeeperPid, "tool": was.Pid} {
		group, err := syscall.Getpgid(pid)
		if err != nil {
			t.Fatal(err)
		}
		if other := groups[group]; other != "" {
			t.Errorf("%s and %s are in the group %d", name, other, group)
		}
		groups[group] = name
	}
	open()
	d.wait(id, completed)
}

// Whatever ends and however, neither the daemon nor a keeper leaves a zombie.
func TestNoZombies(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ps"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: there is no ps")
	}
	d, l := startDaemon(t), newLedgers(t)
	l.gate("tree_child")
	gate := l.gate("killed")
	d.wait(d.submit(call("tree", "ledger_"+none, l.args("tree", "child"))).GetId(), completed)
	d.wait(d.submit(call("fails", "ledger_"+none, l.args("fails", "exit:3"))).GetId(), failed)
	id := d.submit(call("killed", "ledger_"+none, l.args("killed", "gate"))).GetId()
	l.await("killed", "begin", 1)
	kill9(t, d.started(id, 1).Keeper()) // it is run again
	l.await("killed", "begin", 2)
	gate()
	gate()
	d.wait(id, completed)
	daemon := d.process.cmd.Process.Pid
	// A process that has just ended is a zombie until its parent has looked.
	for deadline := time.Now().Add(patience); ; {
		zombies := zombiesOf(t, daemon)
		if len(zombies) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon has the zombies %v", zombies)
		}
	}
}

func zombiesOf(t *testing.T, parent int) (pids []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[1] == strconv.Itoa(parent) && strings.HasPrefix(f[2], "Z") {
			pids = append(pids, f[0])
		}
	}
	return pids
}

// A daemon that is suspended while a tool ends concludes from the records, and no sooner.
func TestSuspendedDaemonConcludesFromTheRecords(t *testing.T) {
	t.Parallel()
	for _, effects := range []string{none, external} {
		t.Run(effects, func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t), newLedgers(t)
			open := l.gate("a")
			id := d.submitRun(call("k", "ledger_"+effects, l.args("a", "gate"))).GetId()
			l.await("a", "begin", 1)
			was := d.started(id, 1)
			d.signal(syscall.SIGSTOP)
			open()
			awaitDead(t, was.Keeper())
			d.signal(syscall.SIGCONT)
			job := d.wait(id, completed)
			if n := len(job.GetAttempts()); n != 1 {
				t.Errorf("it had %d attempts", n)
			}
			l.wantStarts("a", 1)
		})
	}
}
