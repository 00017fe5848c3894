package endtoend

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G1: retention goes on while calls name what earlier jobs made. Each of them is refused
// before its key is used, or finds what it names.
func TestG1_WhatACallNamesIsThereOrItIsRefused(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	const many = 40
	accepted, refused := 0, 0
	for i := range many {
		source, reader := fmt.Sprint("source", i), fmt.Sprint("reader", i)
		id := d.submit(call(source, "ledger_staged", l.args(source, "write:10"))).GetId()
		d.wait(id, completed)
		var pruning sync.WaitGroup
		pruning.Go(func() {
			if _, err := d.prune(); err != nil {
				t.Error(err)
			}
		})
		req := call(reader, "ledger_staged", l.args(reader, "copy").with("input", "job:"+id+"/file").with("output", reader+".txt"))
		job, err := d.Submit(d.context(), req)
		pruning.Wait()
		if err == nil {
			accepted++
			got, err := d.Wait(d.context(), job.GetId())
			if err != nil || got.GetState() != completed {
				t.Errorf("it was accepted, and is %s: %s, %v", got.GetState(), got.GetMessage(), err)
			}
			l.wantStarts(reader, 1)
			continue
		}
		refused++
		wantCode(t, err, "ARGUMENTS_NOT_POSSIBLE")
		if found := findings(err); !strings.Contains(strings.Join(found, ""), id) {
			t.Fatalf("it is refused for %v", found)
		}
		if _, err := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: reader}); errorCode(err) != "JOB_NOT_FOUND" {
			t.Errorf("the key of a refused call: %v", err)
		}
	}
	t.Logf("%d calls were accepted and %d refused", accepted, refused)
}

// errorCode is the code of a refusal, or what else the error says.
func errorCode(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code()
	}
	return fmt.Sprint(err)
}

// G5, G10: a tool lives on without its keeper, and a person resolves its job. Until it has
// ended its job is kept, and says so; then nothing says that it runs, and the job goes.
func TestG5_TheJobOfALivingToolIsKept(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	names := []string{"unresolved", "resolved"}
	ids := map[string]string{}
	for _, name := range names {
		l.gate(name)
		id := d.submitRun(call(name, "ledger_external", l.args(name, "gate"))).GetId()
		l.await(name, "begin", 1)
		if err := d.started(id, 1).Keeper().Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.wait(id, unknown)
		ids[name] = id
	}
	resolved := ids["resolved"]
	if code, output := d.macexec("jobs", "resolve", resolved, "--as", "failed", "--reason", "looked at it"); code != 0 {
		t.Fatalf("resolve: exit code %d: %s", code, output)
	}
	if got, err := d.prune(); err != nil || got.GetPruned().GetJobs() != 0 {
		t.Errorf("with its tool alive, retention removes %v, %v", got, err)
	}
	for _, name := range names {
		pid := fmt.Sprint(d.started(ids[name], 1).Pid)
		if code, output := d.macexec("jobs", "show", ids[name]); code != 0 || !strings.Contains(output, "still lives:") || !strings.Contains(output, pid) {
			t.Errorf("while its tool lives: exit code %d: %s", code, output)
		}
		if err := d.started(ids[name], 1).Tool().Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		job := d.awaitState(ids[name], func(job *macexecv1.Job) bool {
			return slices.ContainsFunc(job.GetEvidence(), func(e *macexecv1.Evidence) bool {
				return e.GetKind() == macexecv1.EvidenceKind_EVIDENCE_KIND_TOOL_ENDED
			})
		})
		if len(job.GetAttempts()[0].GetLeft()) > 0 || strings.Contains(job.GetMessage(), "still runs") {
			t.Errorf("its tool has ended, and it says %v: %s", job.GetAttempts()[0].GetLeft(), job.GetMessage())
		}
		if code, output := d.macexec("jobs", "show", ids[name]); code != 0 || strings.Contains(output, "still") {
			t.Errorf("after its tool has ended: exit code %d: %s", code, output)
		}
	}
	for deadline := time.Now().Add(patience); ; { // its end is stored a moment before it is forgotten
		if _, err := d.prune(); err != nil {
			t.Fatal(err)
		}
		if code, output := d.macexec("jobs", "show", resolved); code != 0 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("it is still there: %s", output)
		}
	}
}
