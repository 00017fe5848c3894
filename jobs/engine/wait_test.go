package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// waitTool runs until its work folder has a file "go".
func waitTool() string {
	return manifest("wait", "none", "while [ ! -e go ]; do sleep 0.05; done", `    slot: many
    timeout: 1m
result: "{'ok': true}"`)
}

// letGo lets the first attempt of a job of waitTool end.
func (h *host) letGo(id string) {
	h.t.Helper()
	h.write(filepath.Join("jobs", id, "a1", "work", "go"), "")
}

// TestWaitJobIsCheap: however many wait for one job, and whatever else happens
// meanwhile, each of them reads the job twice: when it comes and when it goes.
func TestWaitJobIsCheap(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool(), copyTool())
	h.awaitPass() // it looks at jobs, too
	job := h.submit("wait", `{}`)
	h.await(job.ID, running)
	const many = 500
	before := h.store.reads(job.ID)
	answers := make(chan error, many)
	for range many {
		go func() {
			got, err := h.WaitJob(t.Context(), owner(), job.ID, time.Minute)
			if err == nil && got.State != jobs.StateCompleted {
				err = fmt.Errorf("the job is %s", got.State)
			}
			answers <- err
		}()
	}
	h.store.awaitReads(job.ID, before+many)
	other, err := h.Submit(t.Context(), owner(), Request{Tool: "copy", Key: "other", Arguments: []byte(`{"output":"a.txt"}`), Purpose: jobs.PurposeProduction})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.WaitJob(t.Context(), owner(), other.Job.ID, time.Minute); err != nil || got.State != jobs.StateCompleted {
		t.Fatalf("the other job: %v, %v", got, err)
	}
	if n := h.store.reads(job.ID) - before; n != many {
		t.Errorf("%d reads by %d who wait, although nothing happened to their job", n, many)
	}
	h.letGo(job.ID)
	for range many {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if n := len(h.waiting.rooms); n != 0 {
		t.Errorf("%d waiting rooms are left", n)
	}
}

// TestWaitJobEnds: by its own time, by the caller, by the daemon's end, and at once
// when there is nothing to wait for.
func TestWaitJobEnds(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool())
	job := h.submit("wait", `{}`)
	h.await(job.ID, running)
	for _, wait := range []time.Duration{0, time.Millisecond} {
		if got, err := h.WaitJob(t.Context(), owner(), job.ID, wait); err != nil || got.State != jobs.StateRunning {
			t.Errorf("after %v: %v, %v", wait, got, err)
		}
	}
	for id, want := range map[string]jobs.Code{
		"nosuch": jobs.CodeJobNotFound, job.ID: jobs.CodeJobNotFound,
	} {
		c := owner()
		if id == job.ID {
			c.Principal = "somebody else"
		}
		if _, err := h.WaitJob(t.Context(), c, id, time.Minute); jobs.CodeOf(err) != want {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
	}
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	ends := make(chan error, 2)
	before := h.store.reads(job.ID)
	go func() {
		_, err := h.WaitJob(ctx, owner(), job.ID, time.Minute)
		ends <- err
	}()
	h.store.awaitReads(job.ID, before+1)
	cancel(gone)
	if err := <-ends; !errors.Is(err, gone) {
		t.Errorf("the caller went away: %v", err)
	}
	before = h.store.reads(job.ID)
	go func() {
		_, err := h.WaitJob(t.Context(), owner(), job.ID, time.Minute)
		ends <- err
	}()
	h.store.awaitReads(job.ID, before+1)
	h.Stop()
	if err := <-ends; jobs.CodeOf(err) != jobs.CodeDraining {
		t.Errorf("the daemon stopped: %v", err)
	}
	h.start()
	h.letGo(job.ID)
	if got, err := h.WaitJob(t.Context(), owner(), job.ID, time.Minute); err != nil || got.State != jobs.StateCompleted {
		t.Errorf("the next daemon: %v, %v", got, err)
	}
}
