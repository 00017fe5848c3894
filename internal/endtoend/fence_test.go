package endtoend

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G15: a fence and a submission of the same key race through a real daemon, a thousand
// times. Each key ends up with a job that ran once, or with a fence and no process.
func TestG15_AKeyHasAJobOrAFence(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 4}"), newLedgers(t)
	const keys, lanes = 1000, 20
	jobOf := make([]string, keys) // empty: fenced
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < keys; i += lanes {
				id, err := d.race(l, i)
				if err != nil {
					t.Errorf("key %d: %v", i, err)
				}
				jobOf[i] = id
			}
		})
	}
	all.Wait()
	fenced := 0
	for i, id := range jobOf {
		want := 0
		if id == "" {
			fenced++
		} else {
			want = 1
			d.wait(id, completed)
		}
		l.wantStarts(fmt.Sprint("r", i), want)
	}
	t.Logf("%d of %d keys were fenced", fenced, keys)
	d.kill()
	d.start()
	for i, id := range jobOf {
		record, err := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: fmt.Sprint("r", i)})
		if err != nil || record.GetRecord().GetJobId() != id {
			t.Fatalf("key %d is of %q after a restart, want %q; %v", i, record.GetRecord().GetJobId(), id, err)
		}
	}
	d.end(syscall.SIGTERM)
}

// race submits a call and fences its key at the same time, and returns the job that
// the key has.
func (d *daemon) race(l *ledgers, i int) (id string, err error) {
	name := fmt.Sprint("r", i)
	var (
		both         sync.WaitGroup
		submitted    *macexecv1.Job
		refused, bad error
		fence        *macexecv1.FenceKeyResponse
	)
	submit := func() { submitted, refused = d.Submit(d.context(), call(name, "ledger_none", l.args(name))) }
	plant := func() {
		for range i % 4 { // so that neither is always the first
			_, _ = d.WhoAmI(d.context())
		}
		fence, bad = d.Jobs.FenceKey(d.context(), &macexecv1.FenceKeyRequest{Key: name, Reason: "moved"})
	}
	both.Go(submit)
	both.Go(plant)
	both.Wait()
	kind := fence.GetRecord().GetKind()
	e, ok := errors.AsType[*client.Error](refused)
	switch {
	case bad != nil:
		return "", bad
	case fence.GetPlanted() && kind == macexecv1.KeyKind_KEY_KIND_FENCE && ok && e.Code() == "KEY_FENCED":
		return "", nil
	case !fence.GetPlanted() && kind == macexecv1.KeyKind_KEY_KIND_JOB && refused == nil && fence.GetRecord().GetJobId() == submitted.GetId():
		return submitted.GetId(), nil
	default:
		return "", fmt.Errorf("the fence says %v, and the submission %v, %w", fence, submitted, refused)
	}
}
