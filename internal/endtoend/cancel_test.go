package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (d *daemon) cancel(id string) error {
	_, err := d.Jobs.CancelJob(d.context(), &macexecv1.CancelJobRequest{Id: id, Reason: "changed my mind"})
	return err
}

func (d *daemon) wantCancelled(id string, reason macexecv1.EndReason, evidence macexecv1.EvidenceKind) {
	d.t.Helper()
	job := d.wait(id, cancelled)
	last := job.GetEvidence()[len(job.GetEvidence())-1]
	if job.GetEndReason() != reason || last.GetKind() != evidence {
		d.t.Errorf("it ended by %s with evidence %s, want %s with %s", job.GetEndReason(), last.GetKind(), reason, evidence)
	}
}

// A job that has not started is cancelled at once and never starts.
func TestG5_CancelBeforeTheStart(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	open := l.gate("first")
	first := d.submit(call("first", "ledger_none", l.args("first", "gate"))).GetId()
	l.await("first", "begin", 1)
	waits := d.submit(call("queued", "ledger_none", l.args("queued"))).GetId()
	held := d.submit(call("held", "ledger_external", l.args("held"))).GetId()
	if s := d.get(waits).GetState(); s != queued {
		t.Errorf("the second job is %s, want queued", s)
	}
	for _, id := range []string{waits, held} {
		if err := d.cancel(id); err != nil {
			t.Fatal(err)
		}
		d.wantCancelled(id, macexecv1.EndReason_END_REASON_CANCELLED_BY_CALLER, macexecv1.EvidenceKind_EVIDENCE_KIND_NEVER_STARTED)
		wantCode(t, d.cancel(id), "STOP_TOO_LATE")
	}
	_, err := d.Jobs.ApproveJob(d.context(), &macexecv1.ApproveJobRequest{Id: held})
	wantCode(t, err, "APPROVAL_ALREADY_DECIDED")
	d.kill()
	d.start()
	open()
	d.wait(first, completed)
	d.wait(d.submit(call("last", "ledger_none", l.args("last"))).GetId(), completed)
	l.wantStarts("queued", 0)
	l.wantStarts("held", 0)
}

// A running job is cancelled when its whole tree is gone, however deaf it is, and a
// stop that was acknowledged outlives the daemon.
func TestG5_CancelARunningTree(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		for _, effects := range []string{none, external} {
			t.Run(map[bool]string{false: "alone", true: "and_kill_the_daemon"}[kill]+"/"+effects, func(t *testing.T) {
				t.Parallel()
				d, l := startDaemon(t), newLedgers(t)
				l.gate("a")
				l.gate("a_child")
				id := d.submitRun(call("k", "ledger_"+effects, l.args("a", "deaf", "child", "gate"))).GetId()
				l.await("a_child", "begin", 1)
				child, err := keeper.Identify(l.awaitPid("a", "child", 1))
				if err != nil {
					t.Fatal(err)
				}
				tool := d.started(id, 1).Tool()
				if err := d.cancel(id); err != nil {
					t.Fatal(err)
				}
				if kill {
					d.kill()
					d.start()
				}
				job := d.awaitState(id, func(j *macexecv1.Job) bool { return j.GetState() == cancelled })
				if tool.Alive() || child.Alive() {
					t.Errorf("it is cancelled while the tool lives (%v) or its child (%v)", tool.Alive(), child.Alive())
				}
				want := macexecv1.SideEffect_SIDE_EFFECT_NONE
				if effects == external {
					want = macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE
				}
				if job.GetSideEffect() != want || job.GetStop().GetReason() != "changed my mind" {
					t.Errorf("side effect %s, want %s; the stop request is %v", job.GetSideEffect(), want, job.GetStop())
				}
				d.wantCancelled(id, macexecv1.EndReason_END_REASON_CANCELLED_BY_CALLER, macexecv1.EvidenceKind_EVIDENCE_KIND_EXIT_RECORD)
				l.wantStarts("a", 1)
			})
		}
	}
}

// G6: once the result is being published a stop comes too late and says so; either
// the whole result is there, or nothing and the job is cancelled.
func TestG6_CancelWhilePublishing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	for _, when := range []macexecv1.JobPhase{macexecv1.JobPhase_JOB_PHASE_VERIFYING, macexecv1.JobPhase_JOB_PHASE_PUBLISHING} {
		name := strings.ToLower(strings.TrimPrefix(when.String(), "JOB_PHASE_"))
		path := filepath.Join(d.project, name+".txt")
		id := d.submit(call(name, "ledger_staged", l.args(name, "write:4194304").with("output", name+".txt"))).GetId()
		d.awaitState(id, func(j *macexecv1.Job) bool { return j.GetPhase() >= when || j.GetState() == completed })
		refused := d.cancel(id)
		job, err := d.Follow(d.context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, statErr := os.Stat(path)
		switch job.GetState() {
		case completed: // always, once the plan was seen
			wantCode(t, refused, "STOP_TOO_LATE")
			wantFile(t, path, strings.Repeat(name[:1], 4<<20))
		case cancelled:
			if when == macexecv1.JobPhase_JOB_PHASE_PUBLISHING {
				t.Error("it was cancelled although its plan was stored")
			}
			if refused != nil || !errors.Is(statErr, os.ErrNotExist) || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE {
				t.Errorf("cancelled with side effect %s, the stop answered %v, the file %v", job.GetSideEffect(), refused, statErr)
			}
		default:
			t.Errorf("it is %s: %s", job.GetState(), job.GetMessage())
		}
	}
	d.wantNothingHidden()
}

// G15: nothing starts after the time that its caller called too late, not even when
// that time passes while no daemon is there.
func TestG15_NothingStartsTooLate(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	late := func(name, tool string, by time.Time) *macexecv1.SubmitJobRequest {
		req := call(name, tool, l.args(name))
		req.Options = &macexecv1.Options{StartBy: timestamppb.New(by)}
		return req
	}
	tooLate := func(id string) {
		t.Helper()
		d.wantCancelled(id, macexecv1.EndReason_END_REASON_TOO_LATE, macexecv1.EvidenceKind_EVIDENCE_KIND_NEVER_STARTED)
	}
	_, err := d.Submit(d.context(), late("past", "ledger_none", time.Now().Add(-time.Minute)))
	wantCode(t, err, "START_BY_PASSED")
	open := l.gate("first")
	first := d.submit(call("first", "ledger_none", l.args("first", "gate"))).GetId()
	l.await("first", "begin", 1)
	soon := time.Now().Add(500 * time.Millisecond)
	tooLate(d.submit(late("queued", "ledger_none", soon)).GetId())
	tooLate(d.submit(late("held", "ledger_external", time.Now().Add(500*time.Millisecond))).GetId())
	by := time.Now().Add(time.Second)
	down := d.submit(late("down", "ledger_none", by)).GetId()
	d.kill()
	<-time.After(time.Until(by))
	open()
	l.await("first", "end", 1)
	d.start()
	tooLate(down)
	d.wait(first, completed)
	intime := d.submit(late("in_time", "ledger_none", time.Now().Add(time.Hour))).GetId()
	d.wait(intime, completed)
	for name, want := range map[string]int{"past": 0, "queued": 0, "held": 0, "down": 0, "in_time": 1} {
		l.wantStarts(name, want)
	}
}
