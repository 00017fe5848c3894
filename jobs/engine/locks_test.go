package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// lockTools are a tool that holds the path that it writes until it is let go, and one
// that reads a path.
func lockTools() []string {
	return []string{
		manifest("hold", "staged", "while [ ! -e go ]; do sleep 0.05; done; echo held > out/made.txt", `    slot: many
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
publish: [{create: made, at: output}]
result: "{'ok': true}"`),
		manifest("read", "none", "true", `    slot: many
    timeout: 1m
result: "{'ok': true}"`),
	}
}

// lockHost is a host whose tools have slots enough.
func lockHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t, lockTools()...)
	if err := h.Reconfigure(t.Context(), owner(), Limits{Slots: map[string]int{"many": 8}}, nil, []string{"slots"}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) call(c Caller, tool, key, args string, o jobs.Options) (*jobs.Job, error) {
	r, err := h.Submit(h.t.Context(), c, Request{Tool: tool, Key: key, Arguments: []byte(args), Purpose: jobs.PurposeProduction, Options: o})
	return r.Job, err
}

// mustCall is call, with a person's yes for a call that needs one.
func (h *host) mustCall(c Caller, tool, key, args string, o jobs.Options) *jobs.Job {
	h.t.Helper()
	job, err := h.call(c, tool, key, args, o)
	if err == nil && job.State == jobs.StateAwaitingApproval {
		job, err = h.Approve(h.t.Context(), c, job.ID, "", "looked at it")
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return job
}

func (h *host) goOn(id string) {
	h.t.Helper()
	h.write(filepath.Join("jobs", id, "a1", "work", "go"), "")
}

func (h *host) wantWaiting(c Caller, id string, want *jobs.WaitingFor) {
	h.t.Helper()
	job, err := h.Job(h.t.Context(), c, id)
	if err != nil {
		h.t.Fatal(err)
	}
	if diff := cmp.Diff(want, job.WaitingFor); diff != "" {
		h.t.Errorf("job %s, which is %s, waits for (-want +got):\n%s", id, job.State, diff)
	}
}

// TestG10LockOfAnotherPrincipal: who waits for a lock of another principal's job, or is
// refused because of it, learns that it is held, and nothing of that job.
func TestG10LockOfAnotherPrincipal(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	held := h.mustCall(caller(0), "hold", "k", `{"output":"a.txt"}`, jobs.Options{})
	h.await(held.ID, running)
	waits := h.mustCall(caller(1), "hold", "k", `{"output":"A.txt"}`, jobs.Options{})
	h.wantWaiting(caller(1), waits.ID, &jobs.WaitingFor{Kind: jobs.WaitLock, Detail: "A.txt", JobState: jobs.StateRunning, Position: 1})
	_, err := h.call(caller(1), "hold", "other", `{"output":"a.txt"}`, jobs.Options{OnLock: jobs.OnLockRefuse})
	refused, ok := errors.AsType[*jobs.Error](err)
	if !ok || refused.Code != jobs.CodeLockHeld || refused.JobID != "" || strings.Contains(refused.Message, held.ID) || refused.Verdicts == nil || refused.Decision == nil {
		t.Errorf("refused with %+v", err)
	}
	mine, err := h.call(caller(0), "hold", "other", `{"output":"a.txt"}`, jobs.Options{OnLock: jobs.OnLockRefuse})
	if refused, ok := errors.AsType[*jobs.Error](err); !ok || refused.JobID != held.ID {
		t.Errorf("refused with %+v, %+v", mine, err)
	}
	h.goOn(held.ID)
	h.wantState(h.await(held.ID, settled), jobs.StateCompleted, jobs.EndOK)
	h.await(waits.ID, running)
	h.goOn(waits.ID)
	h.await(waits.ID, settled)
}

// TestLinkThatLeadsElsewhere: what a job really uses is looked at again when it is
// about to start.
func TestLinkThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	link := func(to string) {
		t.Helper()
		alias := filepath.Join(h.state, h.project("alias"))
		_ = os.Remove(alias)
		if err := os.Symlink(to, alias); err != nil {
			t.Fatal(err)
		}
	}
	h.write(h.project("one.txt"), "one")
	h.write(h.project("two.txt"), "two")
	link("one.txt")
	holder := h.mustCall(owner(), "hold", "h", `{"output":"two.txt"}`, jobs.Options{Replace: true})
	h.await(holder.ID, running)
	h.sched.pause(true)
	reader := h.mustCall(owner(), "read", "r", `{"input":"alias"}`, jobs.Options{})
	h.wantWaiting(owner(), reader.ID, &jobs.WaitingFor{Kind: jobs.WaitPaused, Position: 1})
	link("two.txt")
	h.sched.pause(false)
	h.dispatch()
	h.goOn(holder.ID)
	h.wantState(h.await(holder.ID, settled), jobs.StateCompleted, jobs.EndOK)
	reader = h.await(reader.ID, settled)
	h.wantState(reader, jobs.StateCompleted, jobs.EndOK)
	holder = h.await(holder.ID, settled)
	if reader.StartedAt.Before(holder.EndedAt) || len(reader.Attempts) != 1 {
		t.Errorf("the reader began at %v in %d attempts, and the writer ended at %v", reader.StartedAt, len(reader.Attempts), holder.EndedAt)
	}
}

// TestOneKeyThatDoesNotWait: many submissions of one call that does not wait for locks
// are one job, and none of them is refused because of another.
func TestOneKeyThatDoesNotWait(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	var group sync.WaitGroup
	ids := make(chan string, 20)
	for range cap(ids) {
		group.Go(func() {
			job, err := h.call(owner(), "hold", "k", `{"output":"a.txt"}`, jobs.Options{OnLock: jobs.OnLockRefuse})
			if err != nil {
				t.Error(err)
				return
			}
			ids <- job.ID
		})
	}
	group.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Errorf("jobs %s and %s", first, id)
		}
	}
	h.await(first, running)
	h.goOn(first)
	h.wantState(h.await(first, settled), jobs.StateCompleted, jobs.EndOK)
}

// TestLocksAreGivenBack: whatever ends a job, or keeps it from being one, gives its
// locks back.
func TestLocksAreGivenBack(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	h.write(h.project("a.txt"), "old")
	replace := jobs.Options{OnLock: jobs.OnLockRefuse, Replace: true}
	const args = `{"output":"a.txt"}`
	take := func(key string) *jobs.Job {
		t.Helper()
		job, err := h.call(owner(), "hold", key, args, replace)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.call(owner(), "hold", key+" other", args, replace); jobs.CodeOf(err) != jobs.CodeLockHeld {
			t.Errorf("beside %s: %v", key, err)
		}
		return job
	}
	if _, err := h.Deny(t.Context(), owner(), take("denied").ID, "no"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Cancel(t.Context(), owner(), take("cancelled").ID, "enough"); err != nil {
		t.Fatal(err)
	}
	h.store.refuse = jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
	if _, err := h.call(owner(), "hold", "never stored", args, replace); jobs.CodeOf(err) != jobs.CodeDiskFull {
		t.Errorf("not stored: %v", err)
	}
	h.store.refuse = nil
	job := take("run")
	if _, err := h.Approve(t.Context(), owner(), job.ID, "", "yes"); err != nil {
		t.Fatal(err)
	}
	h.await(job.ID, running)
	if _, err := h.Cancel(t.Context(), owner(), job.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	h.wantState(h.await(job.ID, settled), jobs.StateCancelled, jobs.EndCancelledByCaller)
	h.Stop() // every attempt has let go
	h.sched.mu.Lock()
	defer h.sched.mu.Unlock()
	if len(h.sched.locks) > 0 || len(h.sched.turns) > 0 {
		t.Errorf("left over: %v and %v", h.sched.locks, h.sched.turns)
	}
}
