package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// slowBinaries are those of a folder, with a keeper that sets out only when the gate is
// there.
func slowBinaries(t *testing.T, of string) (bin, gate string) {
	t.Helper()
	bin, err := os.MkdirTemp(filepath.Dir(of), "slow") //nolint:usetesting // on the file system of the binaries
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(of, "macexec"), filepath.Join(bin, "macexec")); err != nil {
		t.Fatal(err)
	}
	gate = filepath.Join(bin, "gate")
	script := fmt.Sprintf("#!/bin/sh\nwhile ! [ -e %s ]; do sleep 0.05; done\nexec %s \"$@\"\n", gate, filepath.Join(of, "macexec-keeper"))
	if err := os.WriteFile(filepath.Join(bin, "macexec-keeper"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return bin, gate
}

// awaitFree waits until nobody holds the lock of an attempt.
func awaitFree(t *testing.T, d keeper.Dir) {
	t.Helper()
	lock, err := os.OpenFile(d.Lock(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for deadline := time.Now().Add(patience); syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		if time.Now().After(deadline) {
			t.Fatalf("%s is still held", d)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestG15_NoSlowStart: start_by passes between the intent and the tool's first
// instruction, because the keeper is slow. Nothing starts, whatever the tool's effects;
// the job is cancelled by what the keeper recorded, whether the daemon lives, is started
// again while the keeper still waits, or only after its end.
func TestG15_NoSlowStart(t *testing.T) {
	t.Parallel()
	for _, daemon := range []string{"lives", "comes back to the keeper", "comes back to the record"} {
		t.Run(strings.ReplaceAll(daemon, " ", "_"), func(t *testing.T) {
			t.Parallel()
			bin, gate := slowBinaries(t, built.bin)
			d, l := startDaemonOf(t, bin, nil, "slots: {ledger: 3}"), newLedgers(t)
			var ids map[string]string
			var by time.Time
			// A host that is busy for longer than this has not come to the intent.
			for wait := 2 * time.Second; ids == nil; wait *= 2 {
				if wait > patience {
					t.Fatal("no job comes to its intent")
				}
				by = time.Now().Add(wait)
				ids = intended(d, l, fmt.Sprint(wait), by)
			}
			<-time.After(time.Until(by) + time.Millisecond)
			if daemon != "lives" {
				d.kill()
			}
			if daemon == "comes back to the keeper" {
				d.start()
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if daemon == "comes back to the record" {
				for _, id := range ids {
					awaitFree(t, d.attempt(id, 1))
				}
				d.start()
			}
			for name, id := range ids {
				d.wantCancelled(id, macexecv1.EndReason_END_REASON_TOO_LATE, macexecv1.EvidenceKind_EVIDENCE_KIND_NEVER_STARTED)
				job := d.get(id)
				if job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE || len(job.GetAttempts()) != 1 || job.GetAttempts()[0].GetStarted() != nil {
					t.Errorf("%s: side effect %s, attempts %v", name, job.GetSideEffect(), job.GetAttempts())
				}
				// A daemon that died before the keeper had its orders finds that there was no start.
				last := job.GetEvidence()[len(job.GetEvidence())-1]
				if daemon == "lives" && !strings.Contains(last.GetDetail(), "the keeper recorded not started: start_by") {
					t.Errorf("%s: the evidence is %v", name, last)
				}
				l.wantStarts(name, 0)
			}
			intime := d.submit(call("in_time", "ledger_none", l.args("in_time"))).GetId()
			d.wait(intime, completed)
		})
	}
}

// intended makes a call of each effects and waits until the intent of each is stored. It
// returns nil if start_by came first.
func intended(d *daemon, l *ledgers, name string, by time.Time) map[string]string {
	d.t.Helper()
	ids := map[string]string{}
	for _, effects := range []string{none, staged, external} {
		name := name + "_" + effects
		req := call(name, "ledger_"+effects, l.args(name))
		req.Options = &macexecv1.Options{StartBy: timestamppb.New(by)}
		job, err := d.Submit(d.context(), req)
		if err != nil {
			wantCode(d.t, err, "START_BY_PASSED")
			return nil
		}
		if job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
			_, err := d.Jobs.ApproveJob(d.context(), &macexecv1.ApproveJobRequest{
				Id: job.GetId(), BindingDigest: job.GetApproval().GetBinding().GetDigest(), Reason: "looked at it",
			})
			if err != nil {
				return nil // it has ended by its start_by
			}
		}
		ids[name] = job.GetId()
	}
	for _, id := range ids {
		job := d.awaitState(id, func(j *macexecv1.Job) bool {
			return j.GetPhase() == macexecv1.JobPhase_JOB_PHASE_RUNNING || j.GetState() == cancelled
		})
		if job.GetState() == cancelled {
			return nil
		}
	}
	return ids
}
