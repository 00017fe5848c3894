package engine

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// restoredStore is a store that has forgotten something until it is confirmed.
type restoredStore struct {
	jobs.Store

	damaged   bool // why it was restored cannot be read
	confirmed atomic.Bool
}

func (s *restoredStore) Restored(context.Context) (*jobs.Restore, error) {
	switch {
	case s.confirmed.Load():
		return nil, nil //nolint:nilnil // as a rule there is none
	case s.damaged:
		return nil, jobs.Errorf(jobs.CodeRecordDamaged, "the record is damaged")
	}
	return &jobs.Restore{Reason: "the disk failed"}, nil
}

func (s *restoredStore) ConfirmRestore(context.Context, string, string) (*jobs.Restore, error) {
	s.confirmed.Store(true)
	return &jobs.Restore{Reason: "the disk failed"}, nil
}

// G4: while a restored store may have forgotten what it did, nothing with outside effects
// starts, neither what it finds queued nor what comes, also when why it was restored
// cannot be read; what only reads goes on. A word ends that, and must say something.
func TestG4NothingExternalStartsOnARestoredStore(t *testing.T) {
	t.Parallel()
	for _, damaged := range []bool{false, true} {
		h := newHost(t, manifest("act", "external", "true", plainResult), manifest("quick", "none", "true", plainResult))
		submit := func(tool, key string) *jobs.Job {
			r, err := h.Submit(t.Context(), owner(), Request{Tool: tool, Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction})
			if err != nil {
				t.Fatal(err)
			}
			job := r.Job
			if job.State == jobs.StateAwaitingApproval {
				if job, err = h.Approve(t.Context(), owner(), job.ID, job.Approval.Binding.Digest, "yes"); err != nil {
					t.Fatal(err)
				}
			}
			return job
		}
		h.setHost(jobs.ModePaused)
		earlier := submit("act", "earlier")
		h.Stop()
		h.store.Store = &restoredStore{Store: h.store.Store, damaged: damaged}
		h.start()
		h.setHost(jobs.ModeOpen)
		later := submit("act", "later")
		h.wantState(h.await(submit("quick", "reading").ID, settled), jobs.StateCompleted, jobs.EndOK)
		for _, held := range []string{earlier.ID, later.ID} {
			job, err := h.Job(t.Context(), owner(), held)
			if err != nil || job.State != jobs.StateQueued || job.WaitingFor == nil || job.WaitingFor.Kind != jobs.WaitRestored {
				t.Fatalf("%+v, %v", job, err)
			}
		}
		if n := h.Gauges().Held; n != 2 {
			t.Errorf("%d jobs are held", n)
		}
		if info, err := h.Host(t.Context(), owner()); err != nil || info.Restored == nil || info.Restored.Reason == "" {
			t.Errorf("%+v, %v", info.Restored, err)
		}
		if _, err := h.ConfirmRestore(t.Context(), owner(), " "); jobs.CodeOf(err) != jobs.CodeRequestInvalid {
			t.Errorf("without a word: %v", err)
		}
		if _, err := h.ConfirmRestore(t.Context(), owner(), "nothing was done since"); err != nil {
			t.Fatal(err)
		}
		h.wantState(h.await(earlier.ID, settled), jobs.StateCompleted, jobs.EndOK)
		h.wantState(h.await(later.ID, settled), jobs.StateCompleted, jobs.EndOK)
		if n := h.Gauges().Held; n != 0 {
			t.Errorf("after the word %d jobs are held", n)
		}
	}
}
