package endtoend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G3, G4: the daemon is killed again and again while callers submit. Every job that
// a caller was told of is there afterwards, and no key ran twice.
func TestG3_AcknowledgedJobsSurviveKills(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 4}"), newLedgers(t)
	const callers, each, kills = 4, 15, 5
	type answer struct {
		key, id string
		staged  bool
	}
	var mu sync.Mutex
	var answers []answer
	progress := make(chan struct{}, callers*each)
	var all sync.WaitGroup
	ctx := d.context()
	for c := range callers {
		all.Go(func() {
			for i := range each {
				key := fmt.Sprintf("key-%d-%d", c, i)
				req := call(key, "ledger_none", l.args(key))
				if c%2 == 1 {
					req = call(key, "ledger_staged", l.args(key, "write:100").with("output", key+".txt"))
				}
				job, err := d.submitReached(ctx, req)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				mu.Lock()
				answers = append(answers, answer{key, job.GetId(), c%2 == 1})
				mu.Unlock()
				progress <- struct{}{}
			}
		})
	}
	for range kills {
		for range callers * each / (kills + 1) {
			<-progress
		}
		d.kill()
		d.start()
	}
	all.Wait()
	ids := map[string]bool{}
	for _, a := range answers {
		ids[a.id] = true
		if job := d.wait(a.id, completed); job.GetKey() != a.key {
			t.Errorf("job %s has the key %s, its caller gave %s", a.id, job.GetKey(), a.key)
		}
		l.wantStarts(a.key, 1)
		if a.staged {
			wantFile(t, filepath.Join(d.project, a.key+".txt"), strings.Repeat("k", 100))
		}
	}
	if len(ids) != callers*each {
		t.Errorf("%d jobs for %d keys", len(ids), callers*each)
	}
	d.wantNothingHidden()
}

// submitReached makes a call until the daemon is there to be asked: a call that was
// never sent is for the caller to make again.
func (d *daemon) submitReached(ctx context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.Job, error) {
	for {
		job, err := d.Submit(ctx, req)
		if e, ok := errors.AsType[*client.Error](err); !ok || !e.NotReached() || ctx.Err() != nil {
			return job, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// G10: an id that nobody has and one that nobody can have get the same answer.
func TestG10_MissingAndMalformedIdsLookTheSame(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	id := d.submit(call("k", "ledger_none", l.args("a"))).GetId()
	d.wait(id, completed)
	missing := strings.Replace(id, id[:10], "0000000000", 1)
	for _, other := range []string{missing, "nonsense", "../../etc/passwd", strings.Repeat("x", 100), strings.ToUpper(id)} {
		_, err := d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: other})
		e := wantCode(t, err, "JOB_NOT_FOUND")
		if want := "there is no job " + other; e.Detail.GetMessage() != want {
			t.Errorf("%.40q gets %q, want %q", other, e.Detail.GetMessage(), want)
		}
		_, err = d.Jobs.CancelJob(d.context(), &macexecv1.CancelJobRequest{Id: other})
		wantCode(t, err, "JOB_NOT_FOUND")
	}
}

// The records of the keeper are out of its tool's reach, so a tool cannot forge its
// own end.
func TestG5_AToolCannotForgeItsEnd(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	if !keeper.ConfinementOn(keeper.Confine{}).Files {
		t.Skip("SKIPPED, NOT TESTED: this host cannot confine a tool to its own folder (no Landlock, no seatbelt)")
	}
	id := d.submit(call("k", "ledger_none", l.args("a", "forge", "exit:7"))).GetId()
	job := d.wait(id, failed)
	if job.GetEndReason() != macexecv1.EndReason_END_REASON_EXIT_CODE || job.GetAttempts()[0].GetExit().GetCode() != 7 {
		t.Errorf("it ended by %s with %v, want exit code 7", job.GetEndReason(), job.GetAttempts()[0].GetExit())
	}
	if forged := l.lines("a", "forged"); len(forged) > 0 {
		t.Errorf("the tool could %v", forged)
	}
}

// G4, G5: on a host that cannot confine, an operator's word that its tool leaves
// nothing behind is not taken.
func TestG4_AnOperatorsToolIsExternalWithoutConfinement(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	content, err := os.ReadFile(d.manifest(external))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("ledger_external", "ledger_claims", "effects: external", "effects: none", "paths: {write:", "paths: {cache:").Replace(string(content))
	d.write(d.manifest("claims"), text)
	d.end(syscall.SIGTERM)
	d.start()
	job := d.submit(call("k", "ledger_claims", l.args("a")))
	want := queued
	if !keeper.ConfinementOn(keeper.Confine{}).Files {
		want = awaiting
	}
	if job.GetState() != want {
		t.Errorf("it is %s, want %s", job.GetState(), want)
	}
	if want == awaiting {
		d.approve(job)
	}
	d.wait(job.GetId(), completed)
	l.wantStarts("a", 1)
}
