package endtoend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// ofRun makes a call of a run.
func ofRun(run, key string, args arguments) *macexecv1.SubmitJobRequest {
	req := call(key, "ledger_none", args)
	req.Context = &macexecv1.CallContext{RunId: run, ToolCallId: "call-" + key}
	return req
}

// A run is cancelled while a hundred more submissions of it are on their way. Each of
// them gets a job that is cancelled, or hears that the run is closed; none of them
// runs, although the cancel frees the slot that they wait for.
func TestCancelRunAgainstSubmissions(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	l.gate("first")
	first := d.submit(ofRun("r", "first", l.args("first", "gate"))).GetId()
	l.await("first", "begin", 1)
	other := d.submit(ofRun("another", "other", l.args("other"))).GetId()

	const many, lanes = 100, 10
	ids := make([]string, many)
	answered := make(chan struct{}, many)
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < many; i += lanes {
				name := fmt.Sprint("k", i)
				job, err := d.Submit(d.context(), ofRun("r", name, l.args(name)))
				answered <- struct{}{}
				if e, ok := errors.AsType[*client.Error](err); err != nil && (!ok || e.Code() != "RUN_CLOSED" || e.Detail.GetToolCallId() != "call-"+name) {
					t.Errorf("submission %d: %v", i, err)
				}
				ids[i] = job.GetId()
			}
		})
	}
	for range many / 10 {
		<-answered
	}
	done, err := d.Jobs.CancelRun(d.context(), &macexecv1.CancelRunRequest{RunId: "r", Reason: "enough"})
	if err != nil {
		t.Fatal(err)
	}
	all.Wait()
	accepted := 1
	for i, id := range slices.Concat(ids, []string{first}) {
		if id == "" {
			_, err := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: fmt.Sprint("k", i)})
			wantCode(t, err, "JOB_NOT_FOUND") // the key is free
			continue
		}
		job := d.wait(id, cancelled)
		if job.GetEndReason() != macexecv1.EndReason_END_REASON_RUN_CANCELLED || job.GetStop().GetReason() != "enough" {
			t.Errorf("job %s ended by %s: %v", id, job.GetEndReason(), job.GetStop())
		}
		if id != first {
			accepted++
			l.wantStarts(fmt.Sprint("k", i), 0)
		}
	}
	t.Logf("%d of %d submissions were first", accepted-1, many)
	if len(done.GetJobIds()) != accepted || len(done.GetRunIds()) != 1 || len(done.GetUnknownJobIds())+len(done.GetTooLateJobIds()) > 0 {
		t.Errorf("%d jobs were stopped, want %d: %v", len(done.GetJobIds()), accepted, done)
	}
	d.wait(other, completed)
	if code, output := d.macexec("call", "ledger_none", "--run-id", "r", "-a", "folder="+l.dir, "-a", "ledger=late"); code != 10 {
		t.Errorf("macexec call exits with %d, want 10: %s", code, output)
	}
	l.wantStarts("late", 0)
	l.wantStarts("first", 1)
}

// The daemon is killed in the middle of the cancelling of a run, as soon as the run is
// closed. Its successor stops what is left, and none of that has run.
func TestCancelRunAgainstAKill(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	l.gate("first")
	ids := []string{d.submit(ofRun("r", "first", l.args("first", "gate"))).GetId()}
	l.await("first", "begin", 1)
	const many = 200
	for i := range many {
		ids = append(ids, d.submit(ofRun("r", fmt.Sprint("k", i), l.args(fmt.Sprint("k", i)))).GetId())
	}
	ctx, cancel := context.WithCancel(d.context())
	defer cancel()
	closing := make(chan error, 1)
	go func() {
		// Not to be repeated: a daemon that is killed has to finish it by itself.
		_, err := d.Jobs.CancelRun(ctx, &macexecv1.CancelRunRequest{RunId: "r", Reason: "enough"})
		closing <- err
	}()
	enough := errors.New("enough")
	err := d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{Follow: true}, func(e *macexecv1.Entry) error {
		if e.GetKind() == "run.closed" {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	d.kill()
	answer := <-closing
	d.start()
	late := 0
	for i, id := range ids {
		job := d.wait(id, cancelled)
		if job.GetEndReason() != macexecv1.EndReason_END_REASON_RUN_CANCELLED {
			t.Errorf("job %s ended by %s", id, job.GetEndReason())
		}
		if job.GetStop().GetReason() != "enough" {
			late++
		}
		if i > 0 {
			l.wantStarts(fmt.Sprint("k", i-1), 0)
		}
	}
	t.Logf("the cancel answered %v; %d of %d jobs were stopped by the next daemon", answer, late, len(ids))
	again, err := d.Jobs.CancelRun(d.context(), &macexecv1.CancelRunRequest{RunId: "r"})
	if err != nil || len(again.GetJobIds()) > 0 || len(again.GetRunIds()) != 1 {
		t.Errorf("a repeat: %v, %v", again, err)
	}
	l.wantStarts("first", 1)
}
