package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// queue makes a call that stays in the queue, since nothing starts.
func (h *host) queue(c Caller, key string, ids jobs.CallContext) (*jobs.Job, error) {
	r, err := h.Submit(h.t.Context(), c, Request{Tool: "wait", Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction, Context: ids})
	return r.Job, err
}

// TestCancelRunReachesWhatCameFromIt: the run, the runs below it, and the calls that
// its jobs made, through jobs that have ended too; and nothing else.
func TestCancelRunReachesWhatCameFromIt(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool(), manifest("quick", "none", "true", plainResult))
	h.say("quick", "ended", jobs.CallContext{RunID: "r", ToolCallID: "c-ended"})
	h.sched.close()
	other := Caller{Principal: "somebody else"}
	reached, spared := map[string]bool{}, map[string]bool{}
	for _, call := range []struct {
		name string
		c    Caller
		ids  jobs.CallContext
		hit  bool
	}{
		{"of the run", owner(), jobs.CallContext{RunID: "r", ToolCallID: "c1"}, true},
		{"without a call id", owner(), jobs.CallContext{RunID: "r"}, true},
		{"of a run below", owner(), jobs.CallContext{RunID: "below", ParentRunID: "r"}, true},
		{"of that run, which does not name its parent", owner(), jobs.CallContext{RunID: "below", ToolCallID: "c2"}, true},
		{"of a run below that", owner(), jobs.CallContext{RunID: "lower", ParentRunID: "below"}, true},
		{"of no run, but below", owner(), jobs.CallContext{ParentRunID: "r", ToolCallID: "c3"}, true},
		{"from a call", owner(), jobs.CallContext{RunID: "aside", ParentCallID: "c1", ToolCallID: "c4"}, true},
		{"from that call", owner(), jobs.CallContext{RunID: "aside", ParentCallID: "c4"}, true},
		{"from a call below", owner(), jobs.CallContext{ParentCallID: "c2"}, true},
		{"from a call of no run", owner(), jobs.CallContext{ParentCallID: "c3"}, true},
		{"from a call that has ended", owner(), jobs.CallContext{ParentCallID: "c-ended"}, true},
		{"of a run that has such a call", owner(), jobs.CallContext{RunID: "aside", ToolCallID: "c5"}, false},
		{"from another call", owner(), jobs.CallContext{ParentCallID: "c5"}, false},
		{"of another run", owner(), jobs.CallContext{RunID: "r2", ParentRunID: "r3"}, false},
		{"of nothing", owner(), jobs.CallContext{}, false},
		{"of a thread called so", owner(), jobs.CallContext{ThreadID: "r", ContextID: "r", TaskID: "r"}, false},
		{"of somebody else", other, jobs.CallContext{RunID: "r", ToolCallID: "c1"}, false},
	} {
		job, err := h.queue(call.c, call.name, call.ids)
		if err != nil {
			t.Fatalf("%s: %v", call.name, err)
		}
		if call.hit {
			reached[job.ID] = true
		} else {
			spared[job.ID] = true
		}
	}
	done, err := h.CancelRun(t.Context(), owner(), "r", "enough of it")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"r", "below", "lower"}, done.Runs); diff != "" {
		t.Errorf("runs: %s", diff)
	}
	stopped := map[string]bool{}
	for _, id := range done.Stopped {
		stopped[id] = true
	}
	if diff := cmp.Diff(reached, stopped); diff != "" || len(done.TooLate)+len(done.Unknown) > 0 || !slices.IsSorted(done.Stopped) {
		t.Errorf("%+v\n%s", done, diff)
	}
	for id := range reached {
		job := h.await(id, settled)
		h.wantState(job, jobs.StateCancelled, jobs.EndRunCancelled)
		if job.Stop.Principal != "owner" || job.Stop.Reason != "enough of it" {
			t.Errorf("%s: %+v", job.Key, job.Stop)
		}
	}
	for id := range spared {
		if job, err := h.store.Get(t.Context(), id); err != nil || job.State != jobs.StateQueued {
			t.Errorf("%s is %s, %v", job.Key, job.State, err)
		}
	}
	for name, late := range map[string]struct {
		ids    jobs.CallContext
		closed bool
	}{
		"the run":            {jobs.CallContext{RunID: "r"}, true},
		"a run below":        {jobs.CallContext{RunID: "lower"}, true},
		"a new run below":    {jobs.CallContext{RunID: "new", ParentRunID: "below"}, true},
		"from a call":        {jobs.CallContext{RunID: "new", ParentCallID: "c1"}, true},
		"from a call aside":  {jobs.CallContext{RunID: "new", ParentCallID: "c4"}, true},
		"aside, a call more": {jobs.CallContext{RunID: "aside"}, false},
	} {
		_, err := h.queue(owner(), "late "+name, late.ids)
		if closed := jobs.CodeOf(err) == jobs.CodeRunClosed; closed != late.closed || !closed && err != nil {
			t.Errorf("late, %s: %v", name, err)
		}
	}
	again, err := h.CancelRun(t.Context(), owner(), "r", "once more")
	if diff := cmp.Diff(RunCancellation{Runs: done.Runs}, again); diff != "" || err != nil {
		t.Errorf("a repeat: %v\n%s", err, diff)
	}
	// A repeat is answered with its job all the same (G2).
	if job, err := h.queue(owner(), "of the run", jobs.CallContext{RunID: "r", ToolCallID: "again"}); err != nil || job.State != jobs.StateCancelled {
		t.Errorf("a replay: %v, %v", job, err)
	}
}

// TestCancelRunWhereIdsRepeat: models number their calls anew in each run. What came
// from a call of the run goes with it, wherever it is, and nothing of another run does
// that has a call of the same id.
func TestCancelRunWhereIdsRepeat(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.sched.close()
	reached, spared := []string{}, map[string]bool{}
	calls := []struct {
		name string
		ids  jobs.CallContext
		hit  bool
	}{
		{"of the run", jobs.CallContext{RunID: "r", ToolCallID: "call_0"}, true},
		{"of another run", jobs.CallContext{RunID: "r2", ToolCallID: "call_0"}, false},
		{"from that", jobs.CallContext{RunID: "r2", ParentCallID: "call_0", ToolCallID: "call_1"}, false},
		{"from that in turn", jobs.CallContext{RunID: "r2", ParentCallID: "call_1", ToolCallID: "call_2"}, false},
		{"from it, by its parent run", jobs.CallContext{RunID: "r3", ParentRunID: "r2", ParentCallID: "call_0", ToolCallID: "call_1"}, false},
		{"from the run, by the parent run", jobs.CallContext{RunID: "below", ParentRunID: "r", ParentCallID: "call_0"}, true},
		{"in a run that has no such call", jobs.CallContext{RunID: "aside", ParentCallID: "call_0", ToolCallID: "call_1"}, true},
		{"in no run", jobs.CallContext{ParentCallID: "call_0"}, true},
		{"from a call aside, by its run", jobs.CallContext{RunID: "r4", ParentRunID: "aside", ParentCallID: "call_1"}, true},
		{"aside, from another call", jobs.CallContext{RunID: "aside", ToolCallID: "call_2"}, false},
		{"from that, by its run", jobs.CallContext{RunID: "r4", ParentRunID: "aside", ParentCallID: "call_2"}, false},
	}
	for _, call := range calls {
		job, err := h.queue(owner(), call.name, call.ids)
		if err != nil {
			t.Fatalf("%s: %v", call.name, err)
		}
		if call.hit {
			reached = append(reached, job.ID)
		} else {
			spared[job.ID] = true
		}
	}
	done, err := h.CancelRun(t.Context(), owner(), "r", "enough of it")
	slices.Sort(reached)
	if diff := cmp.Diff(RunCancellation{Runs: []string{"r", "below"}, Stopped: reached}, done); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for id := range spared {
		if job, err := h.store.Get(t.Context(), id); err != nil || job.State != jobs.StateQueued {
			t.Errorf("%s is %s, %v", job.Key, job.State, err)
		}
	}
	for _, call := range calls {
		_, err := h.queue(owner(), "late, "+call.name, call.ids)
		if closed := jobs.CodeOf(err) == jobs.CodeRunClosed; closed != call.hit || !closed && err != nil {
			t.Errorf("late, %s: %v", call.name, err)
		}
	}
}

// TestCancelRunWithoutJobs: a run needs no job to be closed, and its name is bounded.
func TestCancelRunWithoutJobs(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	if done, err := h.CancelRun(t.Context(), owner(), "r", ""); err != nil || !slices.Equal(done.Runs, []string{"r"}) || len(done.Stopped) > 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := h.queue(owner(), "k", jobs.CallContext{RunID: "r"}); jobs.CodeOf(err) != jobs.CodeRunClosed {
		t.Errorf("a call of it: %v", err)
	}
	for _, bad := range []string{"", string(make([]byte, maxContextBytes+1))} {
		if _, err := h.CancelRun(t.Context(), owner(), bad, ""); jobs.CodeOf(err) != jobs.CodeRequestInvalid {
			t.Errorf("a run of %d bytes: %v", len(bad), err)
		}
	}
}

// TestCancelRunManyCalls: more than one write closes goes the same way.
func TestCancelRunManyCalls(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.sched.close()
	const many = closeAtOnce + 50
	for i := range many {
		if _, err := h.queue(owner(), fmt.Sprint(i), jobs.CallContext{RunID: "r", ToolCallID: fmt.Sprint("c", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		if _, err := h.queue(owner(), fmt.Sprint("from ", i), jobs.CallContext{ParentCallID: fmt.Sprint("c", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := h.CancelRun(t.Context(), owner(), "r", ""); err != nil || len(done.Stopped) != 2*many {
		t.Errorf("%d jobs, %v", len(done.Stopped), err)
	}
}

// TestCancelRunCutShort: the closing is stored and the stops are not, because the
// store fails or because the daemon dies. No job of the run starts, and each ends.
func TestCancelRunCutShort(t *testing.T) {
	t.Parallel()
	for _, died := range []bool{false, true} {
		t.Run(fmt.Sprint("died ", died), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, waitTool(), copyTool())
			running := h.submitAnd(jobs.CallContext{RunID: "r", ToolCallID: "c"}, running)
			h.sched.close()
			waiting, err := h.queue(owner(), "queued", jobs.CallContext{ParentCallID: "c"})
			if err != nil {
				t.Fatal(err)
			}
			full := jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
			h.store.failing(false, func(int) error { return full })
			if _, err := h.CancelRun(t.Context(), owner(), "r", "enough"); jobs.CodeOf(err) != jobs.CodeDiskFull {
				t.Fatalf("a cancel that could not be stored: %v", err)
			}
			h.store.failing(false, nil)
			if died {
				h.Stop()
				h.start()
				running = h.await(running.ID, settled)
				h.wantState(running, jobs.StateCancelled, jobs.EndRunCancelled)
			} else {
				h.sched.open()
				h.dispatch()
			}
			waiting = h.await(waiting.ID, settled)
			h.wantState(waiting, jobs.StateCancelled, jobs.EndRunCancelled)
			if len(waiting.Attempts) != 0 {
				t.Errorf("attempts: %+v", waiting.Attempts)
			}
			done, err := h.CancelRun(t.Context(), owner(), "r", "enough")
			if err != nil || len(done.Stopped) != 0 && died || len(done.Stopped) != 1 && !died {
				t.Errorf("a repeat: %+v, %v", done, err)
			}
			h.wantState(h.await(running.ID, settled), jobs.StateCancelled, jobs.EndRunCancelled)
		})
	}
}

// TestStartBeforeClosedJobsEnd: an engine is ready before the waiting jobs of a cancelled
// run have ended. None of them starts meanwhile, approved or not, and all of them end.
func TestStartBeforeClosedJobsEnd(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool(), manifest("ask", "external", "true", plainResult), manifest("quick", "none", "true", plainResult))
	h.sched.close()
	var left []string
	for i := range 2 * stopAtOnce {
		job, err := h.queue(owner(), fmt.Sprint(i), jobs.CallContext{RunID: "r"})
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, job.ID)
	}
	r, err := h.Submit(t.Context(), owner(), Request{
		Tool: "ask", Key: "ask", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction, Context: jobs.CallContext{RunID: "r"},
	})
	if err != nil || r.Job.State != jobs.StateAwaitingApproval {
		t.Fatalf("%+v, %v", r.Job, err)
	}
	if _, err := h.store.CloseRuns(t.Context(), jobs.RunClosing{Principal: owner().Principal, RunIDs: []string{"r"}}); err != nil {
		t.Fatal(err)
	}
	h.Stop()
	waiting, stops := slices.Clone(left), make(chan struct{})
	h.store.updating = func(id string) {
		if slices.Contains(waiting, id) {
			<-stops
		}
	}
	h.start()
	if _, err := h.Approve(t.Context(), owner(), r.Job.ID, "", "quickly"); err != nil {
		t.Fatal(err)
	}
	h.wantState(h.say("quick", "another", jobs.CallContext{}), jobs.StateCompleted, jobs.EndOK)
	close(stops)
	for _, id := range append(left, r.Job.ID) {
		job := h.await(id, settled)
		h.wantState(job, jobs.StateCancelled, jobs.EndRunCancelled)
		if len(job.Attempts) > 0 {
			t.Errorf("attempts: %+v", job.Attempts)
		}
	}
	h.wantNothingLeft()
}

// submitAnd makes a call that is told apart by its context, and returns its job once ok
// says so.
func (h *host) submitAnd(ids jobs.CallContext, ok func(*jobs.Job) bool) *jobs.Job {
	h.t.Helper()
	job, err := h.queue(owner(), "first", ids)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.await(job.ID, ok)
}
