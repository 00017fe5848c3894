package engine

import (
	"testing"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
)

// setWall sets the wall clock, as a person or a time server does.
func (h *host) setWall(by time.Duration) { h.step.Store(int64(by)) }

// asked is a job that waits for a person.
func (h *host) asked(key string) *jobs.Job {
	h.t.Helper()
	h.write(h.project(key+".txt"), "old")
	job, err := h.call(owner(), "hold", key, `{"output":"`+key+`.txt"}`, jobs.Options{Replace: true})
	if err != nil || job.State != jobs.StateAwaitingApproval {
		h.t.Fatalf("%+v, %v", job, err)
	}
	return job
}

func (h *host) approve(job *jobs.Job) error {
	_, err := h.Approve(h.t.Context(), owner(), job.ID, "", "looked")
	return err
}

// TestSetClockExpiresNoApproval: only the time that goes by does, whatever the wall clock
// is set to in between.
func TestSetClockExpiresNoApproval(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			h := lockHost(t)
			h.sched.close()
			first, second := h.asked("first"), h.asked("second")
			h.setWall(step)
			h.wake(first.ID)
			if err := h.approve(first); err != nil {
				t.Errorf("when the clock was set by %v: %v", step, err)
			}
			h.setClock(25 * time.Hour)
			h.wake(second.ID)
			h.wantState(h.await(second.ID, settled), jobs.StateCancelled, jobs.EndApprovalExpired)
		})
	}
}

// TestG15SetClockAndStartBy: nothing starts after its start_by by either clock, and only
// the time that goes by cancels a job for that.
func TestG15SetClockAndStartBy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		step, passes time.Duration
		want         jobs.State
	}{
		"set ahead and back":         {2 * time.Hour, 0, jobs.StateCompleted},
		"set back while time passes": {-48 * time.Hour, 2 * time.Hour, jobs.StateCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, manifest("quick", "none", "true", plainResult))
			h.sched.close()
			job := h.mustCall(owner(), "quick", "k", `{}`, jobs.Options{StartBy: time.Now().Add(time.Hour)})
			h.setWall(test.step)
			h.setClock(test.passes)
			before := h.store.reads(job.ID)
			h.sched.open()
			h.dispatch()
			if test.want == jobs.StateCompleted {
				h.store.awaitReads(job.ID, before+4) // it was tried, and is again
				if now, err := h.store.Get(t.Context(), job.ID); err != nil || now.State != jobs.StateQueued {
					t.Errorf("by a clock that was set ahead: %+v, %v", now, err)
				}
				h.setWall(0)
			}
			job = h.await(job.ID, settled)
			if job.State != test.want || job.State == jobs.StateCancelled && (job.EndReason != jobs.EndTooLate || len(job.Attempts) > 0) {
				t.Errorf("it is %s (%s) after %d attempts", job.State, job.EndReason, len(job.Attempts))
			}
			h.wantNothingLeft()
		})
	}
}

// TestG15SetBackWhileItStages: what is left of a span is not worked out anew from a clock
// that was set back when the attempt had begun.
func TestG15SetBackWhileItStages(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult))
	h.sched.close()
	job := h.mustCall(owner(), "quick", "k", `{}`, jobs.Options{StartBy: time.Now().Add(time.Hour)})
	before := h.store.made.Load()
	h.store.mu.Lock()
	h.store.updating = func(string) {
		if h.store.made.Load() > before {
			h.setWall(-48 * time.Hour)
			h.setClock(2 * time.Hour)
		}
	}
	h.store.mu.Unlock()
	h.sched.open()
	h.dispatch()
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateCancelled, jobs.EndTooLate)
	if len(job.Attempts) != 1 || job.Attempts[0].Intent != nil {
		t.Errorf("attempts: %+v", job.Attempts)
	}
	h.wantNothingLeft()
}

// TestG15SetAheadWhileItStages: a clock that is set ahead when the attempt has begun, or
// while the plan of a tool without a process is stored, lets the job wait and ends it not.
func TestG15SetAheadWhileItStages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool, args string
		writes     int32 // before the clock is set
	}{
		"with a process":            {"quick", `{}`, 1},
		"before the plan is stored": {"delete_asset", `{"project_id":"default","asset":"some"}`, 1},
		"while the plan is stored":  {"delete_asset", `{"project_id":"default","asset":"some"}`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, manifest("quick", "none", "true", plainResult))
			h.write(h.project("some"), "some")
			h.sched.close()
			job := h.mustCall(owner(), test.tool, "k", test.args, jobs.Options{StartBy: time.Now().Add(time.Hour)})
			h.stepFrom.Store(h.store.made.Load() + test.writes)
			h.setWall(48 * time.Hour)
			h.sched.open()
			h.dispatch()
			job = h.await(job.ID, func(j *jobs.Job) bool { return j.State == jobs.StateQueued && len(j.Attempts) == 1 })
			if a := job.Attempts[0]; a.Lost != onlyWall || a.Intent != nil || job.Plan != nil {
				t.Errorf("attempt %+v, plan %v", a, job.Plan)
			}
			h.setWall(0)
			job = h.await(job.ID, settled)
			h.wantState(job, jobs.StateCompleted, jobs.EndOK)
			if len(job.Attempts) != 2 {
				t.Errorf("attempts: %+v", job.Attempts)
			}
			h.nothingHidden()
			h.wantNothingLeft()
		})
	}
}

// TestSuspendedEngineLooksFirst: a yes that came while the engine was suspended counts,
// though its time passed meanwhile; what nobody decided expires, somewhat later.
func TestSuspendedEngineLooksFirst(t *testing.T) {
	t.Parallel()
	h := lockHost(t)
	h.sched.close()
	decided, forgotten := h.asked("decided"), h.asked("forgotten")
	h.deadlines.mu.Lock()
	h.deadlines.grace = time.Hour
	h.deadlines.mu.Unlock()
	h.setClock(25 * time.Hour)
	for range 2 { // before it has noticed, and after
		h.wake(forgotten.ID)
		if job, err := h.store.Get(t.Context(), forgotten.ID); err != nil || job.State != jobs.StateAwaitingApproval {
			t.Fatalf("on waking the other job is %+v, %v", job, err)
		}
		h.deadlines.tick()
	}
	if err := h.approve(decided); err != nil {
		t.Errorf("a yes on waking: %v", err)
	}
	h.setClock(26*time.Hour + time.Minute)
	h.deadlines.mu.Lock()
	h.deadlines.grace = 0
	h.deadlines.mu.Unlock()
	h.wantState(h.await(forgotten.ID, settled), jobs.StateCancelled, jobs.EndApprovalExpired)
}

// TestSetClockRemovesNoUpload: an upload is as old as the time that has gone by.
func TestSetClockRemovesNoUpload(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.upload(owner(), "some bytes")
	blob := digestOf("some bytes")
	sweep := func() error {
		h.deadlines.tick()
		return h.sweepOnce(t.Context())
	}
	h.setWall(48 * time.Hour)
	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.GetBlob(t.Context(), blob); err != nil {
		t.Errorf("after the clock was set ahead: %v", err)
	}
	h.deadlines.mu.Lock()
	h.deadlines.grace = 0
	h.deadlines.mu.Unlock()
	h.setWall(0)
	h.setClock(25 * time.Hour)
	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.GetBlob(t.Context(), blob); jobs.CodeOf(err) != jobs.CodeFileNotFound {
		t.Errorf("after its time: %v", err)
	}
}

// TestClockOfTheBoot goes on, and nobody sets it.
func TestClockOfTheBoot(t *testing.T) {
	t.Parallel()
	first := keeper.SinceBoot()
	if first <= 0 || keeper.SinceBoot() < first {
		t.Errorf("%v, then %v", first, keeper.SinceBoot())
	}
}
