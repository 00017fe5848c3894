package endtoend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// smallDisk is an empty folder that is a file system of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir, ok := tryDisk(t, size)
	if !ok {
		t.Skip("SKIPPED, NOT TESTED: no small file system")
	}
	return dir
}

// tryDisk is smallDisk, where it can be had.
func tryDisk(t *testing.T, size string) (dir string, ok bool) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Logf("no small file system: %v", err)
		return "", false
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

// fill takes all room of the daemon's disk.
func (d *daemon) fill() {
	d.t.Helper()
	ballast, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 1 << 12} {
		for err = nil; err == nil; {
			_, err = ballast.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			d.t.Fatal(err)
		}
	}
	if err := ballast.Close(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) ballast() string { return filepath.Join(d.state, "ballast") }

// empty gives back what fill took.
func (d *daemon) empty() {
	d.t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		d.t.Fatal(err)
	}
}

// useUp fills the disk and repeats a known call until not even that can be journaled:
// a store has room of its own, which it took before.
func (d *daemon) useUp(known *macexecv1.SubmitJobRequest) {
	d.t.Helper()
	d.fill()
	for written := true; written; {
		written = len(d.repeat(known).GetWarnings()) == 0
	}
}

// repeat makes a call again that must be answered with its job.
func (d *daemon) repeat(req *macexecv1.SubmitJobRequest) *macexecv1.SubmitJobResponse {
	d.t.Helper()
	resp, err := d.Jobs.SubmitJob(d.context(), req)
	if err != nil || !resp.GetReplayed() {
		d.t.Fatalf("the call again: %v %v", resp, err)
	}
	return resp
}

func (d *daemon) wantMetric(line string) {
	d.t.Helper()
	if text := scrape(d.context(), d.t, d.metricsURL()); !strings.Contains(text, "\n"+line+"\n") {
		d.t.Errorf("no line %s in\n%s", line, text)
	}
}

// The disk with everything of macexec on it fills up while three tools run, and they end
// then. Nothing new is taken, known keys are answered, and nothing runs unrecorded. With
// room again each job gets its end, without a restart; or, if the daemon was killed with
// the disk full, from the records of the keepers.
func TestB11_DiskFullWhileToolsRun(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			t.Parallel()
			d := startDaemonAt(t, built.bin, nil, smallDisk(t, "90m"), "slots: {ledger: 4}", `metrics: {listen: "127.0.0.1:0"}`)
			l := newLedgers(t)
			first := call("known", "ledger_"+none, l.args("known"))
			known := d.wait(d.submit(first).GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
			calls := map[string]*macexecv1.SubmitJobRequest{}
			ids, gates := map[string]string{}, map[string]func(){}
			for _, effects := range []string{none, staged, external} {
				gates[effects] = l.gate(effects)
				calls[effects] = call(effects, "ledger_"+effects, l.args(effects, "gate"))
				ids[effects] = d.submitRun(calls[effects]).GetId()
				l.await(effects, "begin", 1)
				d.awaitState(ids[effects], func(job *macexecv1.Job) bool {
					at := job.GetAttempts()
					return len(at) == 1 && at[0].GetStarted() != nil // shown, so nothing more is written until the end
				})
			}
			d.useUp(first)
			d.signal(syscall.SIGSTOP) // a keeper gives room back, and that is to be taken first
			for effects, open := range gates {
				was := d.started(ids[effects], 1)
				open()
				awaitDead(t, was.Keeper())
				if _, err := keeper.ReadExit(d.attempt(ids[effects], 1)); err != nil {
					t.Errorf("the end of %s on a full disk: %v", effects, err)
				}
			}
			d.fill()
			if killed {
				d.kill()
				d.start()
			} else {
				d.signal(syscall.SIGCONT)
			}
			refused := func() {
				t.Helper()
				for _, effects := range []string{none, staged, external} {
					_, err := d.Submit(d.context(), call("new "+effects, "ledger_"+effects, l.args("new_"+effects)))
					wantCode(t, err, "DISK_FULL")
					if job := d.get(ids[effects]); job.GetState() != macexecv1.JobState_JOB_STATE_RUNNING {
						t.Errorf("%s is %s, and there is no room to know it", effects, job.GetState())
					}
				}
			}
			refused()
			const repeats = 5
			for i := range repeats {
				first.Context = &macexecv1.CallContext{ToolCallId: fmt.Sprint("again ", i)}
				resp := d.repeat(first)
				if resp.GetJob().GetId() != known.GetId() || len(resp.GetWarnings()) != 1 {
					t.Errorf("the known key was answered with %v", resp)
				}
			}
			_, err := d.Submit(d.context(), call("known", "ledger_"+none, l.args("another")))
			wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT")
			refused()
			d.wantMetric("macexec_disk_full 1")
			if code, output := d.macexec("host", "show"); code != 0 || !strings.Contains(output, "not taken: the disk is full") {
				t.Errorf("host show of a full disk: exit code %d: %s", code, output)
			}

			d.empty()
			for effects, id := range ids {
				if effects == staged {
					// It made nothing, and nobody knows whether it had room to.
					d.wait(id, macexecv1.JobState_JOB_STATE_FAILED)
				} else {
					d.wait(id, macexecv1.JobState_JOB_STATE_COMPLETED)
				}
				l.wantStarts(effects, 1)
				if got := d.repeat(calls[effects]).GetJob().GetId(); got != id {
					t.Errorf("the key of %s has job %s, and had %s", effects, got, id)
				}
			}
			// What was owed to the journal is in it, in the order of the asking.
			var again []string
			for len(again) < repeats || !d.has("call.conflict") {
				again = nil
				for _, e := range d.journal("job.replayed") {
					if strings.HasPrefix(e.GetToolCallId(), "again ") {
						again = append(again, e.GetToolCallId())
					}
				}
			}
			for i, id := range again {
				if id != fmt.Sprint("again ", i) {
					t.Errorf("the journal tells of the repeats %q", again)
				}
			}
			for _, effects := range []string{none, staged, external} {
				name := "new_" + effects
				l.wantStarts(name, 0)
				d.wait(d.submitRun(call("new "+effects, "ledger_"+effects, l.args(name))).GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
				l.wantStarts(name, 1)
			}
			d.wantMetric("macexec_disk_full 0")
			if n := strings.Count(d.process.log.String(), "panic"); n > 0 {
				t.Errorf("%d panics", n)
			}
		})
	}
}

// Everything dies while the disk is full: what the keepers wrote down holds, and of what
// they did not nothing is said before the fence could be written.
func TestB11_AllKilledOnAFullDisk(t *testing.T) {
	t.Parallel()
	d := startDaemonAt(t, built.bin, nil, smallDisk(t, "90m"))
	l := newLedgers(t)
	first := call("known", "ledger_"+none, l.args("known"))
	d.wait(d.submit(first).GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
	ids := map[string]string{}
	for _, effects := range []string{none, external} {
		l.gate(effects) // never opened
		ids[effects] = d.submitRun(call(effects, "ledger_"+effects, l.args(effects, "gate"))).GetId()
		l.await(effects, "begin", 1)
	}
	d.useUp(first)
	d.kill()
	for _, id := range ids {
		was := d.started(id, 1)
		kill9(t, was.Keeper())
		kill9(t, was.Tool())
	}
	d.fill()
	d.start()
	d.repeat(first)
	for effects, id := range ids {
		if job := d.get(id); job.GetState() != macexecv1.JobState_JOB_STATE_RUNNING {
			t.Errorf("%s is %s, and nothing could be fenced", effects, job.GetState())
		}
		l.wantStarts(effects, 1)
	}
	d.empty()
	d.wait(ids[external], macexecv1.JobState_JOB_STATE_UNKNOWN)
	l.wantStarts(external, 1)
	l.await(none, "begin", 2) // it left nothing, so it is run again
}

// A tool whose output fills the disk and that exits with 0, without a word: its output
// is not taken for whole. The room it took is there again for the record of that.
func TestB11_SilentEndOfTheDisk(t *testing.T) {
	t.Parallel()
	d := startDaemonAt(t, built.bin, nil, smallDisk(t, "90m"))
	l := newLedgers(t)
	job := d.submit(call("k", "ledger_"+staged, l.args("k", "fill").with("output", "out.txt")))
	job = d.wait(job.GetId(), macexecv1.JobState_JOB_STATE_FAILED)
	if job.GetEndReason() != macexecv1.EndReason_END_REASON_DISK_FULL || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE {
		t.Errorf("it ended for %s with side effect %s: %s", job.GetEndReason(), job.GetSideEffect(), job.GetMessage())
	}
	exit, err := keeper.ReadExit(d.attempt(job.GetId(), 1))
	if err != nil || exit.Code != 0 || exit.DiskFull || !exit.NoRoom {
		t.Errorf("the keeper wrote down %+v, %v", exit, err)
	}
	if _, err := os.Lstat(filepath.Join(d.project, "out.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the destination: %v", err)
	}
	d.wait(d.submit(call("next", "ledger_"+staged, l.args("next", "write:5").with("output", "next.txt"))).GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
}

// journal returns the entries of a kind.
func (d *daemon) journal(kind string) (list []*macexecv1.Entry) {
	d.t.Helper()
	err := d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if e.GetKind() == kind {
			list = append(list, e)
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return list
}

func (d *daemon) has(kind string) bool { return len(d.journal(kind)) > 0 }
