package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// mode sets the host's mode.
func (h *host) setHost(mode jobs.Mode) {
	h.t.Helper()
	info, err := h.SetMode(h.t.Context(), owner(), mode, "for a test")
	if err != nil {
		h.t.Fatal(err)
	}
	if m := info.Mode; m.Mode != mode || m.By != "owner" || m.Reason != "for a test" || m.Since.IsZero() || info.Accepting != (mode != jobs.ModeDraining) {
		h.t.Errorf("%s: %+v, accepting %t", mode, m, info.Accepting)
	}
}

// TestPausedHostStartsNothing: calls are taken and wait, what runs goes on, and the
// next daemon keeps to it until somebody opens the host.
func TestPausedHostStartsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	first, err := h.queue(owner(), "first", jobs.CallContext{})
	if err != nil {
		t.Fatal(err)
	}
	h.await(first.ID, running)
	h.setHost(jobs.ModePaused)
	second, err := h.queue(owner(), "second", jobs.CallContext{})
	if err != nil {
		t.Fatal(err)
	}
	if w := second.WaitingFor; second.State != jobs.StateQueued || w == nil || w.Kind != jobs.WaitPaused {
		t.Errorf("a call that came to a paused host is %s and waits for %+v", second.State, w)
	}
	h.letGo(first.ID)
	for range 2 {
		h.wantState(h.await(first.ID, settled), jobs.StateCompleted, jobs.EndOK)
		if job, err := h.Job(t.Context(), owner(), second.ID); err != nil || job.State != jobs.StateQueued || job.WaitingFor.Kind != jobs.WaitPaused {
			t.Errorf("the other job is %s and waits for %+v, %v", job.State, job.WaitingFor, err)
		}
		h.Stop()
		h.start()
		if info, err := h.Host(t.Context(), owner()); err != nil || info.Mode.Mode != jobs.ModePaused || info.Mode.Reason != "for a test" {
			t.Errorf("the next daemon is %+v, %v", info.Mode, err)
		}
	}
	h.setHost(jobs.ModeOpen)
	h.await(second.ID, running)
	h.letGo(second.ID)
	h.wantState(h.await(second.ID, settled), jobs.StateCompleted, jobs.EndOK)
}

// TestPauseHoldsOnceStored: jobs are submitted all the while; behind the entry that
// tells of a pause the journal has no beginning of an attempt, until the host is opened.
func TestPauseHoldsOnceStored(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult))
	ctx, cancel := context.WithCancel(t.Context())
	submit := func(key string) *jobs.Job {
		r, err := h.Submit(t.Context(), owner(), Request{Tool: "quick", Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction})
		if err != nil {
			t.Error(err)
			return &jobs.Job{}
		}
		return r.Job
	}
	var all sync.WaitGroup
	for lane := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := h.WaitJob(t.Context(), owner(), submit(fmt.Sprint(lane, " ", i)).ID, maxWait); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		h.setHost(jobs.ModePaused)
		for range 3 {
			if job := submit(fmt.Sprint("paused ", i)); job.State != jobs.StateQueued {
				t.Errorf("a job of a paused host is %s", job.State)
			}
		}
		h.setHost(jobs.ModeOpen)
		submit(fmt.Sprint("open ", i))
	}
	cancel()
	all.Wait()
	begun, paused := 0, false
	err := h.store.Journal(t.Context(), 0, 0, func(e jobs.Entry) bool {
		switch {
		case e.Kind == jobs.EntryHost && strings.HasPrefix(e.Message, "the host is "):
			paused = strings.Contains(e.Message, "paused")
		case e.Event == jobs.EventStart:
			if begun++; paused {
				t.Errorf("entry %d begins an attempt of a paused host", e.Seq)
			}
		}
		return true
	})
	if err != nil || begun == 0 {
		t.Errorf("%d attempts began, %v", begun, err)
	}
	open, _, err := h.store.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range open {
		if _, err := h.WaitJob(t.Context(), owner(), job.ID, maxWait); err != nil {
			t.Error(err)
		}
	}
}

// TestDrainHoldsOnceAnswered: after a drain is answered no job is accepted, what was
// accepted runs to its end, and whoever repeats a known call gets its job (G2).
func TestDrainHoldsOnceAnswered(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("quick", "none", "true", plainResult), copyTool())
	const lanes, calls = 8, 20
	var all sync.WaitGroup
	accepted, began := make([][]string, lanes), make(chan struct{}, lanes*calls)
	submit := func(key string) (Receipt, error) {
		return h.Submit(t.Context(), owner(), Request{Tool: "quick", Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction})
	}
	for lane := range lanes {
		all.Go(func() {
			for i := range calls {
				key := fmt.Sprint(lane/2, " ", i) // two lanes make the same calls
				switch _, err := submit(key); jobs.CodeOf(err) {
				case "":
					accepted[lane] = append(accepted[lane], key)
				case jobs.CodeDraining:
				default:
					t.Error(err)
				}
				began <- struct{}{}
			}
		})
	}
	for range lanes * calls / 4 {
		<-began
	}
	h.setHost(jobs.ModeDraining)
	head := h.store.Head()
	all.Wait()
	keys := map[string]bool{}
	for _, list := range accepted {
		for _, key := range list {
			keys[key] = true
		}
	}
	for i := range calls {
		for pair := range lanes / 2 {
			key := fmt.Sprint(pair, " ", i)
			receipt, err := submit(key)
			if keys[key] && (err != nil || !receipt.Replayed) || !keys[key] && jobs.CodeOf(err) != jobs.CodeDraining {
				t.Errorf("%s, which was accepted: %t; again: %+v, %v", key, keys[key], receipt, err)
			}
		}
	}
	rejected := 0
	err := h.store.Journal(t.Context(), head, 0, func(e jobs.Entry) bool {
		if e.Kind == jobs.EntrySubmitted {
			t.Errorf("entry %d accepts a job of a draining host", e.Seq)
		}
		if e.Kind == jobs.EntryRejected {
			rejected++
		}
		return true
	})
	if err != nil || rejected == 0 {
		t.Errorf("%d refusals are in the journal, %v", rejected, err)
	}
	t.Logf("%d of %d keys were accepted", len(keys), lanes/2*calls)
	open, _, err := h.store.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range open {
		if job, err := h.WaitJob(t.Context(), owner(), job.ID, maxWait); err != nil || job.State != jobs.StateCompleted {
			t.Errorf("an accepted job is %s, %v", job.State, err)
		}
	}
	if _, err := h.Upload(t.Context(), owner(), UploadRequest{Size: 1}); jobs.CodeOf(err) != jobs.CodeDraining {
		t.Errorf("an upload: %v", err)
	}
	if _, _, err := h.LookupKey(t.Context(), owner(), "none"); jobs.CodeOf(err) != jobs.CodeJobNotFound {
		t.Errorf("a free key: %v", err)
	}
	if check, err := h.Check(t.Context(), owner(), Request{Tool: "quick", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}); jobs.CodeOf(err) != jobs.CodeDraining {
		t.Errorf("a check: %+v, %v", check, err)
	}
	h.setHost(jobs.ModeOpen)
	receipt, err := submit("new")
	if err != nil {
		t.Fatalf("after the drain: %v", err)
	}
	if job, err := h.WaitJob(t.Context(), owner(), receipt.Job.ID, maxWait); err != nil || job.State != jobs.StateCompleted {
		t.Errorf("the job after the drain is %s, %v", job.State, err)
	}
}

// TestModeThatCannotBeStored is not in force, and nobody is told of it.
func TestModeThatCannotBeStored(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	var told []jobs.Mode
	h.OnMode(func(m jobs.Mode) { told = append(told, m) })
	h.store.refuseMode = jobs.Errorf(jobs.CodeDiskFull, "no room")
	for _, mode := range []jobs.Mode{jobs.ModePaused, jobs.ModeDraining} {
		if _, err := h.SetMode(t.Context(), owner(), mode, ""); jobs.CodeOf(err) != jobs.CodeDiskFull {
			t.Errorf("%s: %v", mode, err)
		}
	}
	h.store.refuseMode = nil
	for _, mode := range []jobs.Mode{"", "shut"} {
		if _, err := h.SetMode(t.Context(), owner(), mode, ""); jobs.CodeOf(err) != jobs.CodeRequestInvalid {
			t.Errorf("%q: %v", mode, err)
		}
	}
	job, err := h.queue(owner(), "k", jobs.CallContext{})
	if err != nil {
		t.Fatal(err)
	}
	h.await(job.ID, running)
	h.letGo(job.ID)
	h.await(job.ID, settled)
	h.setHost(jobs.ModePaused)
	if told[0] != jobs.ModeOpen || told[len(told)-1] != jobs.ModePaused || slices.Contains(told, jobs.ModeDraining) {
		t.Errorf("told of %v", told)
	}
}

// TestModeThatCannotBeRead pauses the host: nothing is started on a guess, and all that
// was promised is answered (G13).
func TestModeThatCannotBeRead(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	h.Stop()
	h.store.brokenMode = jobs.Errorf(jobs.CodeRecordDamaged, "the host's mode is damaged")
	h.start()
	job, err := h.queue(owner(), "k", jobs.CallContext{})
	if err != nil || job.WaitingFor == nil || job.WaitingFor.Kind != jobs.WaitPaused {
		t.Fatalf("%+v, %v", job, err)
	}
	h.setHost(jobs.ModeOpen)
	h.await(job.ID, running)
	h.letGo(job.ID)
	if _, err := h.WaitJob(t.Context(), owner(), job.ID, time.Minute); err != nil {
		t.Error(err)
	}
}
