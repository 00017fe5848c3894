package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// evidenceOf returns the evidence of a kind that a job has.
func evidenceOf(job *macexecv1.Job, kind macexecv1.EvidenceKind) (list []*macexecv1.Evidence) {
	for _, e := range job.GetEvidence() {
		if e.GetKind() == kind {
			list = append(list, e)
		}
	}
	return list
}

// awaitEvidence waits until a job has evidence of a kind, also one that is settled.
func (d *daemon) awaitEvidence(id string, kind macexecv1.EvidenceKind) *macexecv1.Job {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		job := d.get(id)
		if len(evidenceOf(job, kind)) > 0 {
			return job
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("job %s is %s without evidence %s: %v", id, job.GetState(), kind, job.GetEvidence())
		}
	}
}

// TestG5_ExitRecordThatComesBack: the disk of an attempt was away when the daemon looked
// for it, so its job is unknown. When the disk is there again, the keeper's record decides
// how the job ended, as if it had been there all the time; but not against a person's word.
func TestG5_ExitRecordThatComesBack(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 3} {
		for _, how := range []string{"at the next start", "when somebody asks", "after a person's word", "from a keeper that still holds it"} {
			t.Run(fmt.Sprintf("exit_%d_%s", code, strings.ReplaceAll(how, " ", "_")), func(t *testing.T) {
				t.Parallel()
				lateRecord(t, code, how)
			})
		}
	}
}

func lateRecord(t *testing.T, code int, how string) {
	d, l := startDaemon(t), newLedgers(t)
	script := []string{"gate"}
	if code != 0 {
		script = append(script, fmt.Sprint("exit:", code))
	}
	open := l.gate("a")
	id := d.submitRun(call("a", "ledger_external", l.args("a", script...))).GetId()
	l.await("a", "begin", 1)
	here, away := string(d.attempt(id, 1)), filepath.Join(d.state, "away")
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	held := how == "from a keeper that still holds it"
	d.kill()
	if !held {
		open()
		awaitFree(t, d.attempt(id, 1))
	}
	move(here, away)
	d.start()
	d.wait(id, unknown)
	asked, err := d.Jobs.ProbeJob(d.context(), &macexecv1.ProbeJobRequest{Id: id})
	if err == nil {
		t.Errorf("while its disk is away the probe says %v", asked)
	}
	ask := func() {
		move(away, here)
		if _, err := d.Jobs.ProbeJob(d.context(), &macexecv1.ProbeJobRequest{Id: id}); err != nil {
			t.Error(err)
		}
	}
	want, reason := completed, macexecv1.EndReason_END_REASON_OK
	if code != 0 {
		want, reason = failed, macexecv1.EndReason_END_REASON_EXIT_CODE
	}
	switch how {
	case "when somebody asks":
		ask()
	case "after a person's word":
		want, reason = cancelled, macexecv1.EndReason_END_REASON_RESOLVED
		_, err := d.Jobs.ResolveJob(d.context(), &macexecv1.ResolveJobRequest{Id: id, State: cancelled, Reason: "looked"})
		if err != nil {
			t.Fatal(err)
		}
		ask()
	default:
		d.kill()
		move(away, here)
		d.start()
		if held {
			open()
		}
	}
	job := d.awaitEvidence(id, macexecv1.EvidenceKind_EVIDENCE_KIND_EXIT_RECORD)
	proof := evidenceOf(job, macexecv1.EvidenceKind_EVIDENCE_KIND_EXIT_RECORD)
	if job.GetState() != want || job.GetEndReason() != reason || len(proof) != 1 || proof[0].GetAfterEnd() != (how == "after a person's word") {
		t.Errorf("it is %s by %s with the evidence %v", job.GetState(), job.GetEndReason(), job.GetEvidence())
	}
	if want == completed && !strings.Contains(string(job.GetResult()), `"a"`) {
		t.Errorf("its result is %s", job.GetResult())
	}
	l.wantStarts("a", 1)
	d.kill()
	d.start()
	if again := d.get(id); again.GetRevision() != job.GetRevision() {
		t.Errorf("after another start it is %v", again)
	}
}

// TestG10_AToolIsNoCallerAfterAResolution: a tool outlives its keeper, a person resolves
// its job, and another daemon goes on. The tool is still no caller, and its end is seen.
func TestG10_AToolIsNoCallerAfterAResolution(t *testing.T) {
	t.Parallel()
	programs, err := os.MkdirTemp("/opt", "mx") //nolint:usetesting // a place of the system, where a confined tool may start it
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: this user cannot add a program to the system: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(programs) })
	binary, err := os.ReadFile(filepath.Join(built.bin, "macexec"))
	if err == nil {
		err = os.WriteFile(filepath.Join(programs, "macexec"), binary, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, l := startDaemon(t), newLedgers(t)
	d.write(filepath.Join(d.state, "tools", "caller.yaml"), fmt.Sprintf(`
tool: caller
version: "2026-01-01"
title: Ask the daemon
description: Asks the daemon who it is when it may, for a test.
effects: external
purposes: [production]
input: {type: object, additionalProperties: false, properties: {}}
output: {type: object, additionalProperties: false, properties: {ok: {type: boolean}}}
run:
  - platforms: [linux, darwin]
    programs: {sh: {}}
    command:
      program: sh
      argv: ["-c", "cd %s; : > begun; while ! [ -e go ]; do sleep 0.05; done; %s/macexec --address unix:%s/macexec.sock whoami > said 2>&1; mv said answer"]
    network: true
    paths: {write: [%q]}
    timeout: 5m
    slot: one
result: "{'ok': true}"
`, l.dir, programs, d.state, l.dir))
	d.end(syscall.SIGTERM)
	d.start()
	id := d.submitRun(call("ask", "caller", "{}")).GetId()
	awaitFile(t, filepath.Join(l.dir, "begun"))
	kill9(t, d.started(id, 1).Keeper())
	job := d.wait(id, unknown)
	if !slices.Contains(job.GetAttempts()[0].GetLeft(), int64(d.started(id, 1).Pid)) {
		t.Errorf("what is left is %v", job.GetAttempts()[0].GetLeft())
	}
	if _, err := d.Jobs.ResolveJob(d.context(), &macexecv1.ResolveJobRequest{Id: id, State: failed, Reason: "looked"}); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d.start()
	d.write(filepath.Join(l.dir, "go"), "")
	if said := awaitFile(t, filepath.Join(l.dir, "answer")); !strings.Contains(said, "NOT_AUTHENTICATED") {
		t.Errorf("the tool was told %q", said)
	}
	job = d.awaitEvidence(id, macexecv1.EvidenceKind_EVIDENCE_KIND_TOOL_ENDED)
	ended := evidenceOf(job, macexecv1.EvidenceKind_EVIDENCE_KIND_TOOL_ENDED)
	if job.GetState() != failed || !ended[0].GetAfterEnd() {
		t.Errorf("it is %s with the evidence %v", job.GetState(), job.GetEvidence())
	}
}

// awaitFile waits until there is a file, and returns what it holds.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		content, err := os.ReadFile(path)
		if err == nil {
			return string(content)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
