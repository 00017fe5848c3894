package engine

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// TestG15FenceOrJob: a fence and a submission of the same key race, a thousand times.
// Either the key has the job, or it has the fence; both are told the same; and nothing
// starts under a fenced key.
func TestG15FenceOrJob(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.sched.close() // nothing is to start: a thousand processes are not what this is about
	fenced, accepted := 0, 0
	for i := range 1000 {
		key := fmt.Sprint("key ", i)
		var (
			both    sync.WaitGroup
			receipt Receipt
			refused error
			record  jobs.KeyRecord
			planted bool
			job     *jobs.Job
			err     error
		)
		begin := make(chan struct{})
		both.Go(func() {
			<-begin
			receipt, refused = h.Submit(t.Context(), owner(), Request{Tool: "wait", Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction})
		})
		both.Go(func() {
			<-begin
			for range i % 50 { // so that neither is always the first
				_, _, _ = h.LookupKey(t.Context(), owner(), "none")
			}
			record, planted, job, err = h.FenceKey(t.Context(), owner(), key, "moved to another host")
		})
		close(begin)
		both.Wait()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case planted && record.Kind == jobs.KeyFence && record.JobID == "" && job == nil && jobs.CodeOf(refused) == jobs.CodeKeyFenced:
			fenced++
		case !planted && record.Kind == jobs.KeyJob && refused == nil && job.ID == receipt.Job.ID && record.JobID == job.ID:
			accepted++
		default:
			t.Fatalf("%s: planted %t, %+v, %v; the submission: %+v, %v", key, planted, record, job, receipt.Job, refused)
		}
		again, _, err := h.LookupKey(t.Context(), owner(), key)
		if err != nil || again.Kind != record.Kind {
			t.Fatalf("%s: the key is a %s, %v", key, again.Kind, err)
		}
	}
	t.Logf("%d fences and %d jobs were first", fenced, accepted)
	open, _, err := h.store.Open(t.Context())
	if err != nil || len(open) != accepted {
		t.Errorf("%d jobs are open, want %d; %v", len(open), accepted, err)
	}
}

// TestG15FencedKey: a fence is for ever and for its principal only, and is planted once.
func TestG15FencedKey(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	for i, want := range []bool{true, false} {
		record, planted, _, err := h.FenceKey(t.Context(), owner(), "k", "why")
		if err != nil || planted != want || record.Kind != jobs.KeyFence {
			t.Errorf("fence %d: planted %t, %+v, %v", i+1, planted, record, err)
		}
	}
	submit := func(c Caller) error {
		_, err := h.Submit(t.Context(), c, Request{Tool: "copy", Key: "k", Arguments: []byte(`{"output":"a.txt"}`), Purpose: jobs.PurposeProduction})
		return err
	}
	for range 2 {
		if err := submit(owner()); jobs.CodeOf(err) != jobs.CodeKeyFenced {
			t.Errorf("a submission under a fenced key: %v", err)
		}
		h.Stop()
		h.start()
	}
	other := Caller{Principal: "somebody else"}
	if err := submit(other); err != nil {
		t.Errorf("the same key of somebody else: %v", err)
	}
	record, planted, job, err := h.FenceKey(t.Context(), other, "k", "")
	if err != nil || planted || job == nil || record.JobID != job.ID {
		t.Errorf("a key that has a job: planted %t, %+v, %v, %v", planted, record, job, err)
	}
	for _, bad := range []struct{ key, reason string }{{"", ""}, {strings.Repeat("k", maxKeyBytes+1), ""}, {"x", strings.Repeat("r", maxReasonBytes+1)}} {
		if _, _, _, err := h.FenceKey(t.Context(), owner(), bad.key, bad.reason); jobs.CodeOf(err) != jobs.CodeRequestInvalid {
			t.Errorf("%d bytes of key, %d of reason: %v", len(bad.key), len(bad.reason), err)
		}
	}
	var fences []jobs.Entry
	err = h.store.Journal(t.Context(), 0, 0, func(e jobs.Entry) bool {
		if e.Kind == jobs.EntryFence {
			fences = append(fences, e)
		}
		return true
	})
	if err != nil || len(fences) != 1 || fences[0].Message != "why" || fences[0].Principal != "owner" || string(fences[0].Data) != `{"key":"k"}` {
		t.Errorf("the journal tells of the fences %+v, %v", fences, err)
	}
}
