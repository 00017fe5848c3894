package executor_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

// A keeper is suspended until the time limit of its tool has passed. What the tool did by
// itself meanwhile it did by itself; one that still runs is stopped then.
func TestSuspendedKeeperJudgesByWhatItFinds(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"ended": true, "runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			cmd := command("block")
			cmd.Timeout, cmd.Grace = 3*time.Second, 50*time.Millisecond
			r := b.start("j", cmd)
			s := b.started(r)
			b.ready("j", 1)
			send := func(p executor.Proc, sig syscall.Signal) {
				t.Helper()
				if err := p.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
			send(s.Keeper(), syscall.SIGSTOP)
			if ends {
				send(s.Tool(), syscall.SIGKILL)
			}
			<-time.After(time.Until(s.At.Add(cmd.Timeout + 200*time.Millisecond)))
			send(s.Keeper(), syscall.SIGCONT)
			want := keeper.StoppedForTimeout
			if ends {
				want = keeper.StoppedForNothing
			}
			if e := b.exited(r); e.StoppedFor != want || e.Signal == 0 {
				t.Errorf("exit: %+v, want it stopped for %q", e, want)
			}
		})
	}
}
