package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// setClock lets the engine's clock show what the system's does, and so much more.
func (h *host) setClock(ahead time.Duration) {
	clock := func() time.Time { return time.Now().Add(ahead) }
	h.clock.Store(&clock)
}

// wantNothingLeft stops the engine and holds that it keeps nothing of its jobs.
func (h *host) wantNothingLeft() {
	h.t.Helper()
	h.Stop() // every attempt has let go
	h.sched.mu.Lock()
	defer h.sched.mu.Unlock()
	if len(h.sched.locks) > 0 || len(h.sched.turns) > 0 {
		h.t.Errorf("left over: %v and %v", h.sched.locks, h.sched.turns)
	}
	for class, c := range h.sched.classes {
		if c.used != 0 {
			h.t.Errorf("%d slots of class %s are used", c.used, class)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.live) > 0 || len(h.wakeups) > 0 {
		h.t.Errorf("left over: %v and %v", h.live, h.wakeups)
	}
}

// TestG15TooLateAtItsStart: a job whose start_by is found to have passed when it would
// start is cancelled at once, whatever its timer says: a clock can be set, and a Mac can
// sleep. A full disk only delays that.
func TestG15TooLateAtItsStart(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]int{"stored at once": 0, "stored later": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, waitTool())
			h.sched.close()
			job := h.mustCall(owner(), "wait", "k", `{}`, jobs.Options{StartBy: time.Now().Add(time.Hour)})
			h.setClock(2 * time.Hour)
			h.store.failing(false, func(n int) error {
				if 1 < n && n <= 1+failed {
					return jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
				}
				return nil
			})
			h.sched.open()
			h.dispatch()
			job = h.await(job.ID, settled)
			h.wantState(job, jobs.StateCancelled, jobs.EndTooLate)
			if len(job.Attempts) > 0 {
				t.Errorf("attempts: %+v", job.Attempts)
			}
			h.wantNothingLeft()
		})
	}
}

// TestWakingGoesByTheJob: whatever a job was to be woken for, what is done is what is
// due, and what is not due yet is asked for again.
func TestWakingGoesByTheJob(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	h.sched.close()
	h.write(h.project("a.txt"), "old")
	startBy := time.Now().Add(48 * time.Hour)
	asked, err := h.call(owner(), "hold", "k", `{"output":"a.txt"}`, jobs.Options{Replace: true, StartBy: startBy})
	if err != nil || asked.State != jobs.StateAwaitingApproval {
		t.Fatalf("%+v, %v", asked, err)
	}
	if _, err := h.Approve(t.Context(), owner(), asked.ID, "", "quickly"); err != nil {
		t.Fatal(err)
	}
	h.Engine.queue(asked, turn{}) // its submission comes to that only now
	h.wantWakeup(asked.ID, asked.Approval.ExpiresAt)
	h.setClock(25 * time.Hour)
	h.forget(asked.ID) // as its timer does
	h.wake(asked.ID)
	if job, err := h.store.Get(t.Context(), asked.ID); err != nil || job.State != jobs.StateQueued {
		t.Fatalf("%+v, %v", job, err)
	}
	h.wantWakeup(asked.ID, startBy)
	h.setClock(49 * time.Hour)
	h.wake(asked.ID)
	h.wantState(h.await(asked.ID, settled), jobs.StateCancelled, jobs.EndTooLate)
	h.wantNothingLeft()
}

// wantWakeup holds when a job will be woken, to the hour.
func (h *host) wantWakeup(id string, want time.Time) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.wakeups[id]
	if w == nil {
		h.t.Fatal("nothing wakes it")
	}
	if got, want := time.Until(w.at).Round(time.Hour), want.Sub(h.now()).Round(time.Hour); got != want {
		h.t.Errorf("it is woken in %v, want %v", got, want)
	}
}

// TestWakeups: a job has one, the first that was asked for, and none when that has come.
func TestWakeups(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	now := time.Now()
	h.wakeIn(2*time.Hour, "x")
	h.wakeIn(time.Hour, "x")
	h.wakeIn(3*time.Hour, "x")
	h.wantWakeup("x", now.Add(time.Hour))
	h.wakeIn(0, "x")
	h.store.awaitReads("x", 1)
	h.wantNothingLeft()
}

// TestWaitingJobIsReadUntilItCanBe: that a job cannot be read for a while leaves it
// nowhere.
func TestWaitingJobIsReadUntilItCanBe(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult))
	h.sched.close()
	job := h.submit("quick", `{}`)
	h.store.mu.Lock()
	before := h.store.read[job.ID]
	h.store.failRead = func(read int) error {
		if read <= before+4 {
			return jobs.Errorf(jobs.CodeInternal, "the disk does not answer")
		}
		return nil
	}
	h.store.mu.Unlock()
	h.sched.open()
	h.dispatch()
	h.store.awaitReads(job.ID, before+5)
	h.wantState(h.await(job.ID, settled), jobs.StateCompleted, jobs.EndOK)
}

// TestFaultsGiveSlotsBack: however often an attempt cannot be concluded, and however
// soon that is tried again, it has one slot and gives it back.
func TestFaultsGiveSlotsBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult))
	h.retryDelay = 0
	h.store.failing(false, func(n int) error {
		if n%7 == 0 {
			return jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
		}
		return nil
	})
	var ids []string
	for i := range 20 {
		ids = append(ids, h.mustCall(owner(), "quick", fmt.Sprint(i), `{}`, jobs.Options{}).ID)
	}
	for _, id := range ids {
		h.wantState(h.await(id, settled), jobs.StateCompleted, jobs.EndOK)
	}
	h.wantNothingLeft()
}

// TestAttendGivesTheSlotBackFirst: what comes after an attempt finds the slot free.
func TestAttendGivesTheSlotBackFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.sched.expect(turn{id: "x", principal: "owner", class: "one", state: jobs.StateRunning})
	if !h.sched.occupy("x") {
		t.Fatal("a job that runs was not taken up")
	}
	free := make(chan bool)
	h.attend("x", func() func() { return func() { free <- h.sched.occupy("x") } })
	if !<-free {
		t.Error("it cannot be taken up again")
	}
}

// TestRecoveryOfACancelledRunThatCannotBeStored: a job whose run was cancelled, and that
// cannot be ended at the start of the engine, ends as soon as it can be.
func TestRecoveryOfACancelledRunThatCannotBeStored(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.sched.close()
	job, err := h.queue(owner(), "k", jobs.CallContext{RunID: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.CloseRuns(t.Context(), jobs.RunClosing{Principal: owner().Principal, RunIDs: []string{"r"}}); err != nil {
		t.Fatal(err)
	}
	h.Stop()
	h.store.failing(false, func(n int) error {
		if n <= 3 {
			return jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
		}
		return nil
	})
	h.start()
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateCancelled, jobs.EndRunCancelled)
	if len(job.Attempts) > 0 {
		t.Errorf("attempts: %+v", job.Attempts)
	}
	h.wantNothingLeft()
}

// TestRestartLeavesALockToWhoHasIt: a job that does not wait for locks does when, after
// a restart, what it needs is another's.
func TestRestartLeavesALockToWhoHasIt(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	h.write(h.project("one.txt"), "one")
	h.write(h.project("two.txt"), "two")
	alias := filepath.Join(h.state, h.project("alias"))
	if err := os.Symlink("one.txt", alias); err != nil {
		t.Fatal(err)
	}
	holder := h.mustCall(owner(), "hold", "h", `{"output":"two.txt"}`, jobs.Options{Replace: true})
	h.await(holder.ID, running)
	h.sched.pause(true)
	reader := h.mustCall(owner(), "read", "r", `{"input":"alias"}`, jobs.Options{OnLock: jobs.OnLockRefuse})
	h.Stop()
	if err := os.Remove(alias); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("two.txt", alias); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.wantWaiting(owner(), reader.ID, &jobs.WaitingFor{Kind: jobs.WaitLock, Detail: "alias", JobID: holder.ID, JobState: jobs.StateRunning, Position: 1})
	h.goOn(holder.ID)
	holder = h.await(holder.ID, settled)
	h.wantState(holder, jobs.StateCompleted, jobs.EndOK)
	reader = h.await(reader.ID, settled)
	h.wantState(reader, jobs.StateCompleted, jobs.EndOK)
	if reader.StartedAt.Before(holder.EndedAt) {
		t.Errorf("the reader began at %v, and the writer ended at %v", reader.StartedAt, holder.EndedAt)
	}
	h.wantNothingLeft()
}

// TestIDsAfterForeignOnes: an id that another maker gave a job tells no time, and keeps
// no new job from an id.
func TestIDsAfterForeignOnes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, id := range []string{"", "job-1", "0123456789012345678901234u-host"} {
		h.sawID(id)
	}
	first, err := h.newJobID(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h.sawID("7z" + first[2:])
	later, err := h.newJobID(time.Now())
	if err != nil || later < "7z" {
		t.Errorf("%s after the clock was set back: %v", later, err)
	}
}

// TestRestartLeavesLocksAndSlotWithTheirJob: what a job has does not depend on whether
// the manifest that it was accepted with can still be read, nor on a record that says it.
func TestRestartLeavesLocksAndSlotWithTheirJob(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"no manifest": false, "an older record": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := lockHost(t)
			job := h.mustCall(owner(), "hold", "k", `{"output":"a.txt"}`, jobs.Options{})
			h.await(job.ID, running)
			h.Stop()
			h.write(filepath.Join("tools", "tool0.yaml"), lockTools()[0]+"# mended\n")
			if older {
				if _, err := h.store.Store.Update(t.Context(), job.ID, func(j *jobs.Job) (jobs.Note, error) {
					j.Needs = jobs.Needs{}
					return jobs.Note{}, nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			h.store.noManifests = !older
			h.start()
			if _, err := h.call(owner(), "hold", "other", `{"output":"a.txt"}`, jobs.Options{OnLock: jobs.OnLockRefuse}); jobs.CodeOf(err) != jobs.CodeLockHeld {
				t.Errorf("beside the running job: %v", err)
			}
			used := map[string]int{}
			for _, slot := range h.sched.slots() {
				if slot.Used > 0 {
					used[slot.Class] = slot.Used
				}
			}
			if len(used) != 1 || used["many"] != 1 {
				t.Errorf("slots in use: %v", used)
			}
			if _, err := h.Cancel(t.Context(), owner(), job.ID, "enough"); err != nil {
				t.Fatal(err)
			}
			h.wantState(h.await(job.ID, settled), jobs.StateCancelled, jobs.EndCancelledByCaller)
			h.wantNothingLeft()
		})
	}
}

// TestRestartLeavesLocksThatNamesHaveLeft: a job's lock on a file is its own also when
// the name that it was worked out from is gone.
func TestRestartLeavesLocksThatNamesHaveLeft(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	h.write(h.project("file.txt"), "x")
	alias := filepath.Join(h.state, h.project("alias"))
	if err := os.Link(filepath.Join(h.state, h.project("file.txt")), alias); err != nil {
		t.Fatal(err)
	}
	job := h.mustCall(owner(), "hold", "k", `{"output":"alias"}`, jobs.Options{Replace: true})
	h.await(job.ID, running)
	h.Stop()
	if err := os.Remove(alias); err != nil {
		t.Fatal(err)
	}
	h.start()
	_, err := h.call(owner(), "hold", "other", `{"output":"file.txt"}`, jobs.Options{OnLock: jobs.OnLockRefuse, Replace: true})
	if jobs.CodeOf(err) != jobs.CodeLockHeld {
		t.Errorf("beside the running job: %v", err)
	}
	if _, err := h.Cancel(t.Context(), owner(), job.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	h.await(job.ID, settled)
	h.wantNothingLeft()
}
