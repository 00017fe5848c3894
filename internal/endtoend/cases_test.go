package endtoend

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// B01: a healthy job that says nothing for long is not taken for dead, whoever looks at
// it: daemons that come and go, one that stood still, a clock that runs on. What says that
// it lives is the process, not the age of a record.
func TestB01_AQuietJobIsNotStartedTwice(t *testing.T) {
	t.Parallel()
	for _, effects := range []string{none, staged, external} {
		t.Run(effects, func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t), newLedgers(t)
			open := l.gate("a")
			req := call("k", "ledger_"+effects, l.args("a", "gate"))
			id := d.submitRun(req).GetId()
			l.await("a", "begin", 1)
			tool := d.started(id, 1).Tool()
			for range 3 {
				d.kill()
				d.start()
				d.signal(syscall.SIGSTOP)
				d.signal(syscall.SIGCONT)
				if job := d.submit(req); job.GetId() != id || job.GetState() != running || !job.GetReplayed() {
					t.Errorf("the same call again is %s %s", job.GetId(), job.GetState())
				}
			}
			if !tool.Alive() {
				t.Error("the tool was ended")
			}
			open()
			if job := d.wait(id, completed); len(job.GetAttempts()) != 1 {
				t.Errorf("it had %d attempts", len(job.GetAttempts()))
			}
			l.wantStarts("a", 1)
		})
	}
}

// B01, the other half: an attempt that is given up is over before the next one begins, and
// so cannot end the job when it comes late. (A keeper that comes late: TestLateKeeper in
// package executor.)
func TestB01_ALateFinisherChangesNothing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	id := d.submit(call("k", "ledger_"+staged, l.args("a", "gate", "write:3").with("output", "out.txt"))).GetId()
	l.await("a", "begin", 1)
	was := d.started(id, 1)
	if err := was.Tool().Signal(syscall.SIGSTOP); err != nil { // as good as dead, and alive
		t.Fatal(err)
	}
	kill9(t, was.Keeper())
	l.await("a", "begin", 2) // the first one was stopped for good before
	if was.Tool().Alive() {
		t.Error("two attempts live side by side")
	}
	open()
	open()
	job := d.wait(id, completed)
	if starts, lost := len(job.GetAttempts()), job.GetAttempts()[0].GetLost(); starts != 2 || lost == "" {
		t.Errorf("%d attempts, the first was lost for %q", starts, lost)
	}
	if _, err := keeper.ReadExit(d.attempt(id, 1)); err == nil {
		t.Error("the attempt that was given up has an exit record")
	}
}

// B03: duplicates that arrive while the first call still runs get its job at once,
// through every door.
func TestB03_DuplicatesWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	second, err := client.Dial(d.Address(), client.Patience(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	open := l.gate("a")
	req := call("one", "ledger_"+external, l.args("a", "gate"))
	args := filepath.Join(d.state, "args.json")
	d.write(args, string(req.GetArguments()))
	const callers = 64
	ids := make([]string, callers)
	errs := make([]error, callers)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range callers {
		all.Go(func() {
			<-begin
			if i%16 == 0 {
				cmd := exec.CommandContext(d.context(), filepath.Join(built.bin, "macexec"), "call", "ledger_"+external, "--key", "one", "--args", args, "--detach", "-q")
				cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + d.state, "MACEXEC_STATE=" + d.state}
				var out []byte
				out, errs[i] = cmd.Output()
				ids[i] = strings.TrimSpace(string(out))
				if failed, ok := errors.AsType[*exec.ExitError](errs[i]); ok && failed.ExitCode() == 5 {
					errs[i] = nil // it awaits approval
				}
				return
			}
			var job *macexecv1.Job
			job, errs[i] = []*client.Client{d.Client, second}[i%2].Submit(d.context(), req)
			ids[i] = job.GetId()
		})
	}
	close(begin)
	all.Wait()
	for i, id := range ids {
		if errs[i] != nil || id != ids[0] {
			t.Errorf("caller %d got %q, caller 0 %q; %v", i, id, ids[0], errs[i])
		}
	}
	d.approve(d.get(ids[0]))
	l.await("a", "begin", 1)
	for range 8 { // while it runs
		if job := d.submit(req); job.GetId() != ids[0] || job.GetState() != running {
			t.Errorf("while it runs the same call is %s %s", job.GetId(), job.GetState())
		}
	}
	open()
	d.wait(ids[0], completed)
	l.wantStarts("a", 1)
}

// impatient is how many calls TestB05 makes with each deadline.
var impatient = flag.Int("impatient", 12, "how many calls are made with each of six short deadlines") //nolint:gochecknoglobals // a flag of the tests

// B05: a caller gives up after some milliseconds, or its connection breaks right after the
// call was sent. What was accepted is run once all the same, and the same call again finds it.
func TestB05_ImpatientCallers(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	var sent atomic.Bool
	cutting := &proxy{refuse: never, before: pass, after: func([]byte) bool { return sent.Load() }}
	cutting.before = func(piece []byte) bool {
		if bytes.Contains(piece, []byte("cut-")) {
			sent.Store(true) // from here on nothing comes back
		}
		return false
	}
	d.startProxy(cutting)
	keys := map[string]string{} // → the id that the first try was told, if it was
	late := 0
	for _, ms := range []int{1, 2, 5, 10, 20, 50} {
		for i := range *impatient {
			key := fmt.Sprintf("p-%d-%d", ms, i)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
			resp, err := d.Jobs.SubmitJob(ctx, call(key, "ledger_"+none, l.args(key)))
			cancel()
			if err != nil {
				late++
			}
			keys[key] = resp.GetJob().GetId()
		}
	}
	for i := range *impatient {
		key := fmt.Sprintf("cut-%d", i)
		sent.Store(false)
		c := cutting.dial(t, time.Nanosecond)
		if _, err := c.Submit(d.context(), call(key, "ledger_"+none, l.args(key))); err == nil {
			t.Errorf("%s: an answer came through the broken connection", key)
		}
		_ = c.Close()
		keys[key] = ""
	}
	replayed := 0
	for key, told := range keys {
		job := d.submit(call(key, "ledger_"+none, l.args(key)))
		if told != "" && job.GetId() != told {
			t.Errorf("%s had job %s, and now has %s", key, told, job.GetId())
		}
		if job.GetReplayed() {
			replayed++
		}
		d.wait(job.GetId(), completed) // not cancelled by anybody's deadline
		l.wantStarts(key, 1)
	}
	t.Logf("%d calls, %d gave up in time, %d had been accepted before", len(keys), late, replayed)
	if replayed < *impatient { // those whose connection broke
		t.Errorf("only %d calls had been accepted before", replayed)
	}
}
