package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

func (h *host) copyUnder(key, text string) (*jobs.Job, error) {
	r, err := h.Submit(h.t.Context(), owner(), Request{Tool: "copy", Key: key, Arguments: fmt.Appendf(nil, `{"output":%q}`, text), Purpose: jobs.PurposeProduction})
	return r.Job, err
}

// G2: what is kept no longer goes with its folder, and its key stays used: the same call
// is told that its result has expired, another one that the key is taken, and nothing
// runs. What is asked for without removing says the same and removes nothing.
func TestG2RetentionKeepsKeysUsed(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	var ended []*jobs.Job
	for i := range 3 {
		job, err := h.copyUnder(fmt.Sprint("k", i), fmt.Sprint("out", i))
		if err != nil {
			t.Fatal(err)
		}
		job = h.await(job.ID, settled)
		h.wantState(job, jobs.StateCompleted, jobs.EndOK)
		ended = append(ended, job)
	}
	later := time.Now().Add(91 * 24 * time.Hour)
	clock := func() time.Time { return later }
	h.clock.Store(&clock)
	stray := filepath.Join(h.state, "jobs", "01jqxw6q2w8y4n0000000000zz-"+h.store.HostID())
	other := filepath.Join(h.state, "jobs", "notes")
	for _, dir := range []string{stray, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	would, err := h.Prune(t.Context(), owner(), 0, true)
	if err != nil || would.Jobs != 3 || would.Folders != 1 || would.Bytes <= 0 {
		t.Errorf("would remove %+v, %v", would, err)
	}
	if status := h.RetentionStatus(); status.Removed != (Pruned{}) && status.Removed.Jobs > 0 {
		t.Errorf("removed %+v", status)
	}
	got, err := h.Prune(t.Context(), owner(), 0, false)
	if err != nil || got.Jobs != 3 || got.Folders != 1 {
		t.Errorf("removed %+v, %v", got, err)
	}
	for i, job := range ended {
		if _, err := os.Stat(filepath.Join(h.state, "jobs", job.ID)); !os.IsNotExist(err) {
			t.Errorf("the folder of job %s: %v", job.ID, err)
		}
		path := fmt.Sprint("out", i)
		if _, err := os.Stat(filepath.Join(h.state, h.project(path))); err != nil {
			t.Errorf("what was published is gone: %v", err)
		}
		_, err := h.copyUnder(job.Key, path)
		if jobs.CodeOf(err) != jobs.CodeKeyExpired || !strings.Contains(err.Error(), job.ID) {
			t.Errorf("the same call: %v", err)
		}
		_, err = h.copyUnder(job.Key, path+".other")
		if jobs.CodeOf(err) != jobs.CodeKeyConflict || !strings.Contains(err.Error(), job.ID) {
			t.Errorf("another call: %v", err)
		}
	}
	if _, err := os.Stat(stray); !os.IsNotExist(err) {
		t.Errorf("the stray folder: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a folder that is of no job: %v", err)
	}
}

// Of many jobs only as many are kept as are wanted, and of their folders only as many bytes.
func TestRetentionByCount(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	var last *jobs.Job
	for i := range 5 {
		job, err := h.copyUnder(fmt.Sprint("k", i), fmt.Sprint("out", i))
		if err != nil {
			t.Fatal(err)
		}
		last = h.await(job.ID, settled)
	}
	l := *h.bounds.Load()
	l.Retention.Completed.Count = 2
	h.bounds.Store(&l)
	l.Retention.JobBytes = 1
	h.bounds.Store(&l)
	if would, err := h.Prune(t.Context(), owner(), 0, true); err != nil || would.Jobs != 5 {
		t.Errorf("by both it would remove %+v, %v", would, err)
	}
	l.Retention.JobBytes = 0
	h.bounds.Store(&l)
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != 3 {
		t.Errorf("removed %+v, %v", got, err)
	}
	if _, err := h.store.Get(t.Context(), last.ID); err != nil {
		t.Error(err)
	}
	l.Retention.JobBytes = 1
	h.bounds.Store(&l)
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != 2 {
		t.Errorf("removed %+v for their bytes, %v", got, err)
	}
}

// TestSetClockPrunesNothing: what has ended is as old as the time that has gone by, to the
// passes of retention and to a person who asks for one.
func TestSetClockPrunesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	job, err := h.copyUnder("k", "out")
	if err != nil {
		t.Fatal(err)
	}
	h.await(job.ID, settled)
	stray := filepath.Join(h.state, "jobs", "01jqxw6q2w8y4n0000000000zz-"+h.store.HostID())
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	newest := h.store.Head()
	h.setWall(200 * 24 * time.Hour)
	for _, older := range []time.Duration{0, 100 * 24 * time.Hour} {
		if got, err := h.Prune(t.Context(), owner(), older, false); err != nil || got != (Pruned{}) {
			t.Errorf("by a clock that was set ahead: %+v, %v", got, err)
		}
	}
	if err := h.store.Journal(t.Context(), newest-1, 1, func(e jobs.Entry) bool { return e.Seq == newest }); err != nil {
		t.Errorf("the journal after that: %v", err)
	}
	h.setWall(0)
	h.setClock(91 * 24 * time.Hour)
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != 1 || got.Folders != 1 {
		t.Errorf("after its time: %+v, %v", got, err)
	}
}

// B09: a purge that fails is a state that can be asked for, not only a line in the log,
// and it is over once a pass succeeds.
func TestB09AFailingPurgeIsTold(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	broken := &unprunable{Store: h.Engine.store, why: jobs.Errorf(jobs.CodeRecordDamaged, "a page is damaged")}
	h.retention.pass.Lock()
	h.Engine.store = broken
	h.retention.pass.Unlock()
	for range 2 {
		if _, err := h.Prune(t.Context(), owner(), 0, false); jobs.CodeOf(err) != jobs.CodeRecordDamaged {
			t.Errorf("got %v", err)
		}
	}
	status := h.Gauges().Retention
	if !strings.Contains(status.Failing, "a page is damaged") || status.FailingSince.IsZero() || status.Failures != 2 {
		t.Errorf("it is told as %+v", status)
	}
	if info, err := h.Host(t.Context(), owner()); err != nil || info.Retention.Failing == "" {
		t.Errorf("the host tells %+v, %v", info.Retention, err)
	}
	broken.why = nil
	if _, err := h.Prune(t.Context(), owner(), 0, false); err != nil {
		t.Error(err)
	}
	if status := h.RetentionStatus(); status.Failing != "" || !status.FailingSince.IsZero() || status.Failures != 2 {
		t.Errorf("afterwards it is told as %+v", status)
	}
}

// G3: a pass goes on for long, and calls come meanwhile. What one of them is to read or to
// supersede stays, whether it is still being decided when the pass looks, or is accepted
// after that; and so does the folder of a job whose tool lives on.
func TestG3RetentionSparesWhatIsNamedMeanwhile(t *testing.T) {
	t.Parallel()
	made := manifest("make", "staged", "echo made > out/made.txt", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
result: "{'ok': true}"`)
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, made, manifest("cat", "none", "cat in/input", plainResult))
			read := h.await(h.mustCall(owner(), "make", "read", `{}`, jobs.Options{}).ID, settled)
			old := h.await(h.mustCall(owner(), "make", "old", `{}`, jobs.Options{}).ID, settled)
			h.await(h.mustCall(owner(), "make", "neither", `{}`, jobs.Options{}).ID, settled)
			h.setClock(91 * 24 * time.Hour)
			h.sched.close()
			var reader *jobs.Job
			call := func() {
				reader = h.mustCall(owner(), "cat", "r", fmt.Sprintf(`{"input":"job:%s/made"}`, read.ID), jobs.Options{Supersedes: old.ID})
			}
			passed := &meanwhile{Store: h.Engine.store, found: call}
			if early { // it is decided when the pass begins, and stored when the pass has looked
				deciding, looked := make(chan struct{}), make(chan struct{})
				h.store.deciding = func(context.Context) { close(deciding); <-looked }
				accepted := make(chan struct{})
				go func() { defer close(accepted); call() }()
				<-deciding
				passed.found = func() { close(looked); <-accepted }
			}
			h.retention.pass.Lock()
			h.Engine.store = passed
			h.retention.pass.Unlock()
			if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != 1 {
				t.Errorf("removed %+v, %v", got, err)
			}
			h.sched.open()
			h.dispatch()
			h.wantState(h.await(reader.ID, settled), jobs.StateCompleted, jobs.EndOK)
			if got, err := h.Prune(t.Context(), owner(), time.Millisecond, false); err != nil || got.Jobs < 2 {
				t.Errorf("when nothing names them any more: %+v, %v", got, err)
			}
			if len(h.retention.deciding) > 0 || h.retention.named != nil {
				t.Errorf("left over: %v and %v", h.retention.deciding, h.retention.named)
			}
		})
	}
	t.Run("living", func(t *testing.T) {
		t.Parallel()
		o := newOrphan(t, actTool(""), `{}`)
		if _, err := o.Resolve(t.Context(), owner(), o.job.ID, jobs.StateFailed, "looked"); err != nil {
			t.Fatal(err)
		}
		o.setClock(91 * 24 * time.Hour)
		if got, err := o.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != 0 {
			t.Errorf("removed %+v, %v", got, err)
		}
		if !o.IsTool(o.started.Pid) {
			t.Error("its tool is taken for a caller")
		}
	})
}

// meanwhile is a store of which something happens once it was asked what is too old.
type meanwhile struct {
	jobs.Store

	once  sync.Once
	found func()
}

func (s *meanwhile) Expired(ctx context.Context, q jobs.ExpiredQuery) (jobs.Expiry, error) {
	found, err := s.Store.Expired(ctx, q)
	if len(found.IDs) > 0 {
		s.once.Do(s.found)
	}
	return found, err
}

// What a pass would remove is said once of each job, whatever it would be removed for.
func TestDryPassCountsOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	for i := range 5 {
		job, err := h.copyUnder(fmt.Sprint("k", i), fmt.Sprint("out", i))
		if err != nil {
			t.Fatal(err)
		}
		h.await(job.ID, settled)
	}
	l := *h.bounds.Load()
	l.Retention.Completed.Count, l.Retention.JobBytes = 2, 1
	h.bounds.Store(&l)
	would, err := h.Prune(t.Context(), owner(), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Jobs != would.Jobs || got.Bytes != would.Bytes {
		t.Errorf("removed %+v, %v; it was said to be %+v", got, err, would)
	}
}

// unprunable is a store that cannot drop its journal.
type unprunable struct {
	jobs.Store

	why error
}

func (s *unprunable) DropJournal(ctx context.Context, before time.Time, keep int) (int, error) {
	if s.why != nil {
		return 0, s.why
	}
	return s.Store.DropJournal(ctx, before, keep)
}

// TestRetentionSaysWhatItCannotRemove: a folder that cannot be removed is no fault of macexec,
// and what else is due goes. A later pass finds it.
func TestRetentionSaysWhatItCannotRemove(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult))
	h.awaitPass()
	first, second := h.mustCall(owner(), "quick", "1", `{}`, jobs.Options{}), h.mustCall(owner(), "quick", "2", `{}`, jobs.Options{})
	h.await(first.ID, settled)
	h.await(second.ID, settled)
	held, err := h.exec.Prepare(first.ID, 7) // somebody has an attempt of it
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	got, err := h.Prune(t.Context(), owner(), time.Nanosecond, false)
	if jobs.CodeOf(err) != jobs.CodeNotRemoved || !strings.Contains(err.Error(), first.ID) || got.Jobs != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := os.Stat(h.exec.JobDir(second.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other folder: %v", err)
	}
}
