package endtoend

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G4, G5: an unknown job is never run again by itself. Somebody who has seen what is
// known of it runs it again as another job, under another key, and once only; and the
// unknown job is left only by a resolution.
func TestG5_UnknownIsRunAgainByAPerson(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	s := &scene{daemon: d, l: l, open: l.gate("a")}
	req := call("first", "ledger_"+external, l.args("a", "gate"))
	req.Context = &macexecv1.CallContext{RunId: "r", ToolCallId: "c", ContextId: "one at a time"}
	req.Options = &macexecv1.Options{SerialContext: true}
	s.id = d.submitRun(req).GetId()
	l.await("a", "begin", 1)
	s.was = d.started(s.id, 1)
	s.killAll()
	d.start()
	d.wait(s.id, macexecv1.JobState_JOB_STATE_UNKNOWN)

	code, said := d.macexec("jobs", "rerun", s.id)
	if code != 2 || !strings.Contains(said, "no end is recorded") || !strings.Contains(said, "macexec jobs resolve "+s.id) {
		t.Errorf("without a yes: exit %d\n%s", code, said)
	}
	// The answer is lost, or taken for lost: the same key is the same successor.
	for range 2 {
		if code, said := d.macexec("jobs", "rerun", s.id, "--yes", "--key", "second", "--detach"); code != 0 {
			t.Fatalf("exit %d\n%s", code, said)
		}
	}
	record, err := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: "second"})
	if err != nil {
		t.Fatal(err)
	}
	next := record.GetRecord().GetJob()
	if next.GetCall().GetOptions().GetSupersedes() != s.id || next.GetCall().GetContext().GetToolCallId() != "c" {
		t.Errorf("the successor is %v", next.GetCall())
	}
	if old := d.get(s.id); old.GetSupersededBy() != next.GetId() || old.GetState() != macexecv1.JobState_JOB_STATE_UNKNOWN {
		t.Errorf("the old job is %s, superseded by %q", old.GetState(), old.GetSupersededBy())
	}
	if code, said := d.macexec("jobs", "rerun", s.id, "--yes"); code != 10 || !strings.Contains(said, next.GetId()) {
		t.Errorf("a second successor: exit %d\n%s", code, said)
	}

	// Meanwhile it waits, since nobody knows whether the old one is over, and whoever
	// waits for it is told how to end that.
	d.approve(next)
	code, said = d.macexec("jobs", "wait", "--wait", "3s", next.GetId())
	if code != 12 || !strings.Contains(said, "held by unknown job "+s.id) || !strings.Contains(said, "macexec jobs resolve "+s.id) {
		t.Errorf("while it waits for the unknown job: exit %d\n%s", code, said)
	}
	l.wantStarts("a", 1)

	if code, said := d.macexec("jobs", "resolve", s.id, "--as", "failed", "--reason", "the ledger has no end"); code != 0 {
		t.Fatalf("exit %d\n%s", code, said)
	}
	s.open()
	d.wait(next.GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
	l.wantStarts("a", 2)
	if old := d.get(s.id); old.GetState() != macexecv1.JobState_JOB_STATE_FAILED || old.GetEndReason() != macexecv1.EndReason_END_REASON_RESOLVED {
		t.Errorf("the old job is %s (%s)", old.GetState(), old.GetEndReason())
	}
}

// G5: of many reruns of one unknown job at once one becomes its successor; the others
// are refused, are told which it is, and have used no key.
func TestG5_UnknownHasOneSuccessor(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	s := &scene{daemon: d, l: l, open: l.gate("a")}
	s.id = d.submitRun(call("first", "ledger_"+external, l.args("a", "gate"))).GetId()
	l.await("a", "begin", 1)
	s.was = d.started(s.id, 1)
	s.killAll()
	d.start()
	d.wait(s.id, unknown)
	const many = 8
	next, refused := make([]*macexecv1.Job, many), make([]error, many)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range many {
		all.Go(func() {
			<-begin
			req := call(fmt.Sprint("rerun", i), "ledger_"+external, l.args("a", "gate"))
			req.Options = &macexecv1.Options{Supersedes: s.id}
			next[i], refused[i] = d.Submit(d.context(), req)
		})
	}
	close(begin)
	all.Wait()
	old := d.get(s.id)
	successors := 0
	for i, err := range refused {
		_, lookup := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: fmt.Sprint("rerun", i)})
		if err == nil {
			successors++
			if next[i].GetId() != old.GetSupersededBy() || next[i].GetCall().GetOptions().GetSupersedes() != s.id || lookup != nil {
				t.Errorf("job %s supersedes %q; the old job says %q; %v", next[i].GetId(), next[i].GetCall().GetOptions().GetSupersedes(), old.GetSupersededBy(), lookup)
			}
			continue
		}
		if e := wantCode(t, err, "ALREADY_SUPERSEDED"); e.JobID() != old.GetSupersededBy() {
			t.Errorf("rerun %d is told of %q, want %q", i, e.JobID(), old.GetSupersededBy())
		}
		wantCode(t, lookup, "JOB_NOT_FOUND")
	}
	if successors != 1 || old.GetState() != unknown {
		t.Errorf("%d successors of a job that is %s", successors, old.GetState())
	}
}
