package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// manifest makes a tool that runs a shell line. It is given name, effects, line, and
// what else the manifest says.
func manifest(name, effects, line, more string) string {
	output := ""
	if strings.Contains(more, "publish:") {
		output = ", x-macexec: {path: output}"
	}
	return fmt.Sprintf(`
tool: %s
version: "2026-11-01"
title: A tool of a test
description: Does what its line says, for a test.
effects: %s
purposes: [production]
input:
  type: object
  additionalProperties: false
  properties:
    input: {type: string, maxLength: 100, description: a file, x-macexec: {path: input}}
    output: {type: string, maxLength: 100, description: a file%s}
    token: {type: string, maxLength: 100, description: a secret, writeOnly: true}
output: {type: object, additionalProperties: false, properties: {ok: {type: boolean}}}
run:
  - platforms: [linux, darwin]
    programs: {sh: {}}
    command:
      program: sh
      argv: ["-c", %q]
%s
`, name, effects, output, line, more)
}

// copyTool writes one output and publishes it.
func copyTool() string {
	return manifest("copy", "staged", "echo made > out/made.txt", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
publish: [{create: made, at: output}]
result: "{'ok': true}"`)
}

const plainResult = `    slot: one
    timeout: 1m
result: "{'ok': true}"`

// TestG3EveryWriteMayFailOnce: a write that the store says was not done is tried
// again. The job ends as it should, and its tool starts once.
func TestG3EveryWriteMayFailOnce(t *testing.T) {
	t.Parallel()
	full := jobs.Errorf(jobs.CodeDiskFull, "no room for a while")
	for write := 1; write <= 5; write++ {
		t.Run(fmt.Sprint("write ", write), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, copyTool())
			h.store.failing(false, func(n int) error {
				if n == write {
					return full
				}
				return nil
			})
			job := h.await(h.submit("copy", `{"output":"made.txt"}`).ID, settled)
			h.wantState(job, jobs.StateCompleted, jobs.EndOK)
			if n := starts(job); n != 1 {
				t.Errorf("the tool was started %d times", n)
			}
			if text, err := os.ReadFile(filepath.Join(h.state, h.project("made.txt"))); err != nil || string(text) != "made\n" {
				t.Errorf("published %q, %v", text, err)
			}
		})
	}
}

// TestG13APanicDelaysAJobOnly: whatever is done for a job may panic, before it begins, while
// it runs and when it is woken after that. Its records are looked at again, and it goes on.
func TestG13APanicDelaysAJobOnly(t *testing.T) {
	t.Parallel()
	type fault struct{ read, write int }
	for _, fault := range []fault{{read: 1}, {read: 2}, {write: 1}, {write: 2}, {write: 3}, {write: 4}} {
		t.Run(fmt.Sprintf("%+v", fault), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, copyTool())
			h.sched.close()
			job := h.mustCall(owner(), "copy", "k", `{"output":"made.txt"}`, jobs.Options{})
			before := h.store.reads(job.ID)
			var panics atomic.Int32
			at := func(now, want int) bool { return now == want && panics.Add(1) > 0 }
			h.store.mu.Lock()
			h.store.failRead = func(n int) error {
				// One at which the job is to begin comes with one at which it is woken after that.
				if at(n-before, fault.read) || fault.read > 0 && at(n-before, fault.read+2) {
					panic("a fault")
				}
				return nil
			}
			h.store.mu.Unlock()
			h.store.failing(false, func(n int) error {
				if at(n, fault.write) {
					panic("a fault")
				}
				return nil
			})
			h.sched.open()
			h.dispatch()
			for {
				head := h.store.Head()
				now, err := h.store.Store.Get(t.Context(), job.ID) // who awaits the end is not to panic
				if job = now; err != nil || job.State.Settled() {
					break
				}
				if err := h.store.Wait(t.Context(), head); err != nil {
					t.Fatal(err)
				}
			}
			h.wantState(job, jobs.StateCompleted, jobs.EndOK)
			if panics.Load() == 0 || starts(job) != 1 {
				t.Errorf("%d panics, %d starts", panics.Load(), starts(job))
			}
			h.wantNothingLeft()
		})
	}
}

// TestG6PlanOfUnknownCommitIsFinished: the plan's write cannot be told to be durable.
// Its hidden names stay, and the next daemon finishes the plan.
func TestG6PlanOfUnknownCommitIsFinished(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	unknown := jobs.Errorf(jobs.CodeCommitUnknown, "who knows")
	h.store.failing(true, func(int) error {
		if h.planStored() {
			return unknown
		}
		return nil
	})
	job := h.submit("copy", `{"output":"made.txt"}`)
	h.await(job.ID, func(j *jobs.Job) bool { return j.Plan != nil })
	h.Stop()
	h.store.failing(false, nil)
	h.start()
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateCompleted, jobs.EndOK)
	if job.SideEffect != jobs.SideEffectApplied || starts(job) != 1 {
		t.Errorf("side effect %s after %d starts", job.SideEffect, starts(job))
	}
	h.nothingHidden()
}

// TestG6NothingIsLeftOfAJobThatHasEnded: the engine leaves, or dies, when the end of a job is
// stored and before what the job does not need any more is removed.
func TestG6NothingIsLeftOfAJobThatHasEnded(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprintf("dies=%v", dies), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, copyTool())
			var planned atomic.Bool
			h.store.failing(true, func(int) error {
				switch {
				case !h.planStored():
				case !planned.Swap(true): // which so cannot be carried out
					h.write(h.project("made.txt"), "somebody's")
				case dies: // this is the end
					return jobs.Errorf(jobs.CodeCommitUnknown, "the engine does not live to hear of it")
				default:
					h.leave()
				}
				return nil
			})
			job := h.await(h.submit("copy", `{"output":"made.txt"}`).ID, settled)
			h.wantState(job, jobs.StateFailed, jobs.EndDestinationTaken)
			h.Stop()
			if dies {
				if !h.planStored() {
					t.Error("no hidden file was left, so nothing is tried")
				}
				h.store.failing(false, nil)
				h.start()
				if _, err := h.Prune(t.Context(), owner(), 0, false); err != nil {
					t.Error(err)
				}
			}
			h.nothingHidden()
			if _, err := os.Stat(h.exec.AttemptDir(job.ID, 1).Work()); !os.IsNotExist(err) {
				t.Errorf("the tool's folder: %v", err)
			}
		})
	}
}

// TestG5ResolvedPlanLeavesNothingHidden: the folder that a plan publishes into goes away, so
// the job is unknown, and comes back. With a person's word about the job its hidden file
// goes, and what the tool made can be had.
func TestG5ResolvedPlanLeavesNothingHidden(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	h.write(h.project("sub/other"), "other")
	sub := filepath.Join(h.state, h.project("sub"))
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Error(err)
		}
	}
	h.store.failing(false, func(int) error {
		if hidden, err := filepath.Glob(filepath.Join(sub, ".macexec-*.tmp")); err != nil || len(hidden) > 0 { // the plan
			move(sub, sub+".away")
		}
		return nil
	})
	job := h.await(h.submit("copy", `{"output":"sub/made.txt"}`).ID, settled)
	h.wantState(job, jobs.StateUnknown, jobs.EndNone)
	h.Stop() // nobody attends to it any more
	h.start()
	for h.RetentionStatus().LastPass.IsZero() { // nor tidies what has ended
		<-time.After(time.Millisecond)
	}
	h.store.failing(false, nil)
	move(sub+".away", sub)
	if _, err := h.Resolve(t.Context(), owner(), job.ID, jobs.StateFailed, "looked"); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(sub); err != nil || len(names) != 1 {
		t.Errorf("in the folder: %v, %v", names, err)
	}
	f, _, err := h.OpenFile(t.Context(), owner(), "job:"+job.ID+"/made")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "made\n" {
		t.Errorf("it made %q, %v", text, err)
	}
}

// planStored reports whether the next write is of a publish plan: the output lies
// under its hidden name by then.
func (h *host) planStored() bool {
	hidden, err := filepath.Glob(filepath.Join(h.state, ProjectsFolder, "p", ".macexec-*.tmp"))
	return err == nil && len(hidden) > 0
}

func (h *host) nothingHidden() {
	h.t.Helper()
	if h.planStored() {
		h.t.Error("a hidden file is left in the project")
	}
}

// TestG7UpgradedManifestFinishesWhatRuns: the tool ends while no daemon is there, and
// the next one has another manifest of it.
func TestG7UpgradedManifestFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	for _, effects := range []string{"staged", "none"} {
		t.Run(effects, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, manifest("wait", effects, "while [ ! -e go ]; do sleep 0.05; done", plainResult))
			job := h.submit("wait", `{}`)
			h.await(job.ID, running)
			h.Stop()
			h.write("tools/tool0.yaml", manifest("wait", effects, "exit 7", plainResult))
			h.write(filepath.Join("jobs", job.ID, "a1", "work", "go"), "")
			h.start()
			job = h.await(job.ID, settled)
			h.wantState(job, jobs.StateCompleted, jobs.EndOK)
			if starts(job) != 1 {
				t.Errorf("the tool was started %d times", starts(job))
			}
		})
	}
}

// TestG11SecretIsMaskedAfterARestart: the tool prints its secret and fails while no
// daemon is there.
func TestG11SecretIsMaskedAfterARestart(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("tell", "none", `while [ ! -e go ]; do sleep 0.05; done; echo "error: it is $TOKEN"; exit 3`,
		"      env: {TOKEN: {cel: secrets.token}}\n"+plainResult))
	job := h.submit("tell", `{"token":"hunter2hunter2"}`)
	h.await(job.ID, running)
	h.Stop()
	h.write(filepath.Join("jobs", job.ID, "a1", "work", "go"), "")
	h.start()
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateFailed, jobs.EndExitCode)
	if said := strings.Join(job.LogTail, "\n") + job.Cause + job.Message; strings.Contains(said, "hunter2") || !strings.Contains(said, "error: it is ******") {
		t.Errorf("the job says %q", said)
	}
}

// TestG7LeavingEngineConcludesNothing: it stops while a job is staging, again and
// again; the job is neither failed nor out of attempts, and completes in the end.
func TestG7LeavingEngineConcludesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("cat", "none", "cat in/input > /dev/null", plainResult))
	h.write(h.project("big"), strings.Repeat("0123456789abcdef", 4<<20)) // 64 MiB take a while to copy
	job := h.submit("cat", `{"input":"big"}`)
	for range 4 {
		h.await(job.ID, func(j *jobs.Job) bool { return j.State != jobs.StateQueued })
		h.Stop()
		h.start()
	}
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateCompleted, jobs.EndOK)
}

// TestCancelWhileStaging cancels when all is staged and the intent is about to be
// stored: the job ends as cancelled, with the proof that nothing started.
func TestCancelWhileStaging(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("cat", "none", "cat in/input > /dev/null", plainResult))
	h.write(h.project("some"), "some")
	var id atomic.Pointer[jobs.Job]
	jobID := func() string { return id.Load().ID }
	submitted := make(chan struct{})
	h.store.failing(false, func(n int) error {
		if n == 2 { // the first begins the attempt, the third is the cancel itself
			<-submitted
			if _, err := h.Cancel(context.Background(), owner(), jobID(), "enough"); err != nil {
				t.Errorf("cancel: %v", err)
			}
		}
		return nil
	})
	id.Store(h.submit("cat", `{"input":"some"}`))
	close(submitted)
	job := h.await(jobID(), settled)
	h.wantState(job, jobs.StateCancelled, jobs.EndCancelledByCaller)
	if starts(job) != 0 || job.Evidence[len(job.Evidence)-1].Kind != jobs.EvidenceNeverStarted {
		t.Errorf("%d starts, evidence %+v", starts(job), job.Evidence)
	}
}

// TestG15StartByHoldsUntilTheStart: the time passes while the job is staging.
func TestG15StartByHoldsUntilTheStart(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("cat", "none", "cat in/input > /dev/null", plainResult))
	h.write(h.project("some"), "some")
	by := time.Now().Add(time.Hour)
	clock := func() time.Time { // the hour passes once the attempt has begun
		if h.store.made.Load() > 0 {
			return by.Add(time.Second)
		}
		return time.Now()
	}
	h.clock.Store(&clock)
	r, err := h.Submit(t.Context(), owner(), Request{
		Tool: "cat", Key: "k", Arguments: []byte(`{"input":"some"}`), Purpose: jobs.PurposeProduction, Options: jobs.Options{StartBy: by},
	})
	if err != nil {
		t.Fatal(err)
	}
	job := h.await(r.Job.ID, settled)
	h.wantState(job, jobs.StateCancelled, jobs.EndTooLate)
	if starts(job) != 0 {
		t.Error("its tool was started")
	}
}

// TestG15StartByHoldsWithoutAProcess: a tool that only publishes starts with its plan.
// Whether the time passes before that is stored or while it is, nothing is changed.
func TestG15StartByHoldsWithoutAProcess(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]int32{"before the plan is stored": 1, "while the plan is stored": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.write(h.project("some"), "some")
			h.sched.close()
			by := time.Now().Add(time.Hour)
			job := h.mustCall(owner(), "delete_asset", "k", `{"project_id":"default","asset":"some"}`, jobs.Options{StartBy: by})
			before := h.store.made.Load()
			clock := func() time.Time {
				if h.store.made.Load() >= before+writes {
					return by.Add(time.Second)
				}
				return time.Now()
			}
			h.clock.Store(&clock)
			h.sched.open()
			h.dispatch()
			job = h.await(job.ID, settled)
			h.wantState(job, jobs.StateCancelled, jobs.EndTooLate)
			last := job.Evidence[len(job.Evidence)-1]
			if last.Kind != jobs.EvidenceNeverStarted || job.SideEffect != jobs.SideEffectNone || job.Plan != nil || len(job.Attempts) != 1 {
				t.Errorf("side effect %s, plan %v, %d attempts, evidence %+v", job.SideEffect, job.Plan, len(job.Attempts), last)
			}
			if _, err := os.Stat(filepath.Join(h.state, h.project("some"))); err != nil {
				t.Error(err)
			}
			h.nothingHidden()
			h.wantNothingLeft()
		})
	}
}

// TestG9NoJournalNoStart: when nothing can be written the answer is no, and nothing
// runs.
func TestG9NoJournalNoStart(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	h.store.refuse = jobs.Errorf(jobs.CodeDiskFull, "no room")
	for _, args := range []string{`{"output":"made.txt"}`, `{"output":`, `{"output":1}`} {
		_, err := h.Submit(t.Context(), owner(), Request{Tool: "copy", Key: "k", Arguments: []byte(args), Purpose: jobs.PurposeProduction})
		if jobs.CodeOf(err) != jobs.CodeDiskFull {
			t.Errorf("%s: %v", args, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(h.state, "jobs")); err != nil || len(entries) > 0 {
		t.Errorf("attempts: %v, %v", entries, err)
	}
}

// TestOutputThatToolLeavesOut: what a tool may leave out is not missed, and nothing is
// published for it.
func TestOutputThatToolLeavesOut(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("shy", "staged", "true", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: false}]
publish: [{create: made, at: output}]
result: "{'ok': true}"`))
	job := h.await(h.mustCall(owner(), "shy", "k", `{"output":"out.txt"}`, jobs.Options{}).ID, settled)
	h.wantState(job, jobs.StateCompleted, jobs.EndOK)
	if job.Plan != nil || len(job.Artifacts) != 0 {
		t.Errorf("plan %+v, artifacts %+v", job.Plan, job.Artifacts)
	}
}
