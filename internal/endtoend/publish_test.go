package endtoend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// watchFile looks at a file all the time until the function it returns is called,
// and holds that it is always one of the allowed contents; "" is no file.
func watchFile(t *testing.T, path string, allowed ...string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for looks := 0; ; looks++ {
			content, err := os.ReadFile(path)
			ok := errors.Is(err, os.ErrNotExist) && allowed[0] == ""
			for _, a := range allowed {
				ok = ok || err == nil && a != "" && string(content) == a
			}
			if !ok {
				t.Errorf("after %d looks %s has %d bytes that nobody should see: %v", looks, filepath.Base(path), len(content), err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() {
		close(done)
		watcher.Wait()
	}
}

const million = 1 << 20

// G6: a destination shows nothing until everything is there, over a crash too; an
// existing file is replaced only when the call asks and a person agrees, and then
// there is no moment without one of the two.
func TestG6_DestinationIsNothingOrWhole(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	path := filepath.Join(d.project, "out.txt")
	first, second := strings.Repeat("a", 2*million), strings.Repeat("b", 3*million)

	stop := watchFile(t, path, "", first)
	open := l.gate("a")
	req := call("a", "ledger_staged", l.args("a", "write:1048576", "gate", "write:1048576").with("output", "out.txt"))
	id := d.submit(req).GetId()
	l.await("a", "begin", 1)
	open()
	d.wait(id, completed)
	stop()
	wantFile(t, path, first)

	_, err := d.Submit(d.context(), call("b", "ledger_staged", l.args("b", "write:3145728").with("output", "out.txt")))
	refused := wantCode(t, err, "ARGUMENTS_NOT_POSSIBLE")
	if v := refused.Verdicts(); !v.GetSchemaValid() || v.GetBusinessValid() || !v.GetBusinessChecked() || refused.Findings()[0].GetKeyword() != "destination_taken" {
		t.Errorf("verdicts %v with %v", v, findings(err))
	}
	l.wantStarts("b", 0)

	replace := call("c", "ledger_staged", l.args("b", "write:3145728").with("output", "out.txt"))
	replace.Options = &macexecv1.Options{Replace: true}
	job := d.submit(replace)
	if job.GetState() != awaiting {
		t.Fatalf("replacing is %s, want it to wait for a person", job.GetState())
	}
	wantFile(t, path, first)
	l.wantStarts("b", 0)
	stop = watchFile(t, path, first, second)
	d.approve(job)
	job = d.wait(job.GetId(), completed)
	stop()
	wantFile(t, path, second)
	wantFile(t, filepath.Join(d.project, job.GetPlan().GetSteps()[0].GetTrash()), first)
	if again := d.submit(req); again.GetId() != id {
		t.Errorf("the first call again is job %s, want %s", again.GetId(), id)
	}
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil || string(content) != want {
		t.Errorf("%s has %d bytes (%v), want %d", path, len(content), err, len(want))
	}
}

// G6: a file that comes to the destination while the tool runs stays, and what the
// tool made can still be had.
func TestG6_DestinationTakenMeanwhile(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	for _, replace := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "replacing"}[replace]
		open := l.gate(name)
		req := call(name, "ledger_staged", l.args(name, "gate", "write:1000").with("output", name+".txt"))
		req.Options = &macexecv1.Options{Replace: replace}
		id := d.submit(req).GetId()
		l.await(name, "begin", 1)
		d.put(name+".txt", "mine")
		open()
		job := d.wait(id, failed)
		if job.GetEndReason() != macexecv1.EndReason_END_REASON_DESTINATION_TAKEN || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE {
			t.Errorf("%s: it ended by %s with side effect %s", name, job.GetEndReason(), job.GetSideEffect())
		}
		wantFile(t, filepath.Join(d.project, name+".txt"), "mine")
		var made bytes.Buffer
		if _, err := d.Fetch(d.context(), "job:"+id+"/file", &made); err != nil || made.String() != strings.Repeat(name[:1], 1000) {
			t.Errorf("%s: the artifact has %d bytes: %v", name, made.Len(), err)
		}
		d.wantNothingHidden()
	}
}

// G6, G7: wherever the daemon is killed on the way, the file comes once and whole.
func TestG6_KilledInEachPhase(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	phases := []macexecv1.JobPhase{
		macexecv1.JobPhase_JOB_PHASE_STAGING, macexecv1.JobPhase_JOB_PHASE_RUNNING,
		macexecv1.JobPhase_JOB_PHASE_VERIFYING, macexecv1.JobPhase_JOB_PHASE_PUBLISHING,
	}
	d.put("input.txt", strings.Repeat("i", 4*million))
	for _, phase := range phases {
		for try := range 3 {
			name := fmt.Sprintf("%c_%s_%d", 'a'+try, strings.ToLower(phase.String()), try)
			path := filepath.Join(d.project, name+".txt")
			whole := strings.Repeat(name[:1], 4*million)
			stop := watchFile(t, path, "", whole)
			id := d.submit(call(name, "ledger_staged", l.args(name, "write:4194304").with("output", name+".txt").with("input", "input.txt"))).GetId()
			d.awaitState(id, func(j *macexecv1.Job) bool { return j.GetPhase() >= phase || client.Settled(j.GetState()) })
			d.kill()
			d.start()
			d.wait(id, completed)
			stop()
			wantFile(t, path, whole)
			l.wantStarts(name, 1)
		}
	}
	d.wantNothingHidden()
}

// wantNothingHidden holds that no temporary file is left in the project.
func (d *daemon) wantNothingHidden() {
	d.t.Helper()
	entries, err := os.ReadDir(d.project)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			d.t.Errorf("%s is left in the project", e.Name())
		}
	}
}

// G8: nothing is deleted before a person has agreed; then the file is in the trash,
// and the journal says who agreed to what.
func TestG8_DeleteNeedsAPerson(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.put("asset.txt", "precious")
	path := filepath.Join(d.project, "asset.txt")
	job := d.submit(call("k", "delete_asset", `{"project_id":"default","asset":"asset.txt"}`))
	if job.GetState() != awaiting {
		t.Fatalf("deleting is %s, want it to wait for a person", job.GetState())
	}
	d.kill()
	d.start()
	wantFile(t, path, "precious")
	_, err := d.Jobs.ApproveJob(d.context(), &macexecv1.ApproveJobRequest{Id: job.GetId(), BindingDigest: strings.Repeat("0", 64)})
	wantCode(t, err, "JOB_STATE_CONFLICT")
	wantFile(t, path, "precious")
	d.approve(job)
	done := d.wait(job.GetId(), completed)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	wantFile(t, filepath.Join(d.project, done.GetPlan().GetSteps()[0].GetTrash()), "precious")
	me, err := d.WhoAmI(d.context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	err = d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if e.GetEvent() != macexecv1.JobEvent_JOB_EVENT_APPROVE {
			return nil
		}
		found = true
		var data struct {
			Approver string `json:"approver"`
			Binding  struct {
				Digest      string `json:"digest"`
				Fingerprint string `json:"fingerprint"`
			} `json:"binding"`
		}
		if err := json.Unmarshal(e.GetData(), &data); err != nil {
			return err
		}
		binding := job.GetApproval().GetBinding()
		if e.GetPrincipal() != me.GetPrincipal() || data.Approver != me.GetPrincipal() ||
			data.Binding.Digest != binding.GetDigest() || data.Binding.Fingerprint != job.GetFingerprint() || binding.GetDigest() == "" {
			t.Errorf("the journal says that %q approved %+v", e.GetPrincipal(), data)
		}
		return nil
	})
	if err != nil || !found {
		t.Errorf("the journal has no approval: %v", err)
	}
}

// G8: what changed after it was looked at is not touched.
func TestG8_ChangedAssetVoidsTheApproval(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.put("asset.txt", "precious")
	job := d.submit(call("k", "delete_asset", `{"project_id":"default","asset":"asset.txt"}`))
	d.put("asset.txt", "more precious")
	d.approve(job)
	d.wantVoid(job.GetId())
	wantFile(t, filepath.Join(d.project, "asset.txt"), "more precious")
}

// wantVoid: the job did not start, and says why.
func (d *daemon) wantVoid(id string) {
	d.t.Helper()
	job := d.wait(id, cancelled)
	if job.GetEndReason() != macexecv1.EndReason_END_REASON_APPROVAL_VOID || !strings.Contains(job.GetMessage(), "changed") || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE {
		d.t.Errorf("it ended by %s with side effect %s and says %q", job.GetEndReason(), job.GetSideEffect(), job.GetMessage())
	}
}

// G8: what changes between the approval and the start is found on the copy that the
// tool would read, or on the program that would run.
func TestG8_ChangeBetweenApprovalAndStart(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	d.put("input.txt", "approved")
	open := l.gate("first")
	first := d.submit(call("first", "ledger_none", l.args("first", "gate"))).GetId()
	l.await("first", "begin", 1)
	held := d.submit(call("held", "ledger_external", l.args("held").with("input", "input.txt")))
	d.approve(held)
	if job := d.get(held.GetId()); job.GetState() != queued || job.GetWaitingFor().GetKind() != macexecv1.WaitKind_WAIT_KIND_SLOT {
		t.Errorf("the approved job is %s, waiting for %v", job.GetState(), job.GetWaitingFor())
	}
	d.put("input.txt", "changed!")
	open()
	d.wait(first, completed)
	d.wantVoid(held.GetId())
	l.wantStarts("held", 0)
}

// G8: the program that was approved is the one that runs.
func TestG8_ChangedProgramVoidsTheApproval(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	program, err := os.ReadFile(filepath.Join(built.tools, "testtool"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	install := func(content []byte) {
		t.Helper()
		path := filepath.Join(dir, "testtool")
		if err := os.WriteFile(path+".new", content, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	install(program)
	d.end(syscall.SIGTERM)
	d.configure(dir)
	d.start()
	first := d.submit(call("first", "ledger_external", l.args("first")))
	d.approve(first)
	d.wait(first.GetId(), completed)
	held := d.submit(call("held", "ledger_external", l.args("held")))
	install(append(program, "and more"...))
	d.approve(held)
	d.wantVoid(held.GetId())
	l.wantStarts("first", 1)
	l.wantStarts("held", 0)
}
