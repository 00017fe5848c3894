package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// crowd is how many callers act at once in the tests of concurrency.
const crowd = 64

// together calls f from a crowd of goroutines that start at the same moment.
func together(f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range crowd {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func submitTests() []suiteTest {
	return []suiteTest{
		{"a free key is only looked at when there is no job", func(t *testing.T, s jobs.Store) {
			sub := Submission(NewJob(1))
			sub.Job = nil
			got, err := s.Submit(t.Context(), sub)
			if err != nil || got.Outcome != jobs.SubmitFree || got.Job != nil {
				t.Errorf("got %+v, %v", got, err)
			}
			_, err = s.LookupKey(t.Context(), sub.Key)
			wantCode(t, err, jobs.CodeJobNotFound)
			wantSame(t, "head", uint64(0), s.Head())
		}},
		{"a new job is stored as it was given", func(t *testing.T, s jobs.Store) {
			want := NewJob(1)
			want.Seq, want.Revision = 1, 1
			got := mustSubmit(t, s, 1)
			wantSame(t, "answer", want, got)
			wantSame(t, "record", want, mustGet(t, s, got.ID))
			e := entries(t, s, 0)
			if len(e) != 1 || e[0].Kind != jobs.EntrySubmitted || e[0].JobID != got.ID || e[0].State != jobs.StateQueued ||
				e[0].Revision != 1 || e[0].ToolCallID != "call-1" || e[0].RunID != "run-1" || e[0].Principal != "orchestrator" {
				t.Errorf("entries: %+v", e)
			}
		}},
		{"G2: the same call again is a replay with its own ids", func(t *testing.T, s jobs.Store) {
			first := mustSubmit(t, s, 1)
			mustUpdate(t, s, first.ID, Start)
			again := Submission(NewJob(1))
			again.Job.ID = JobID(99) // the engine makes an id before it knows
			again.Entry.ToolCallID = "call-again"
			got, err := s.Submit(t.Context(), again)
			if err != nil || got.Outcome != jobs.SubmitReplayed || got.Job.ID != first.ID || got.Job.State != jobs.StateRunning {
				t.Fatalf("got %+v, %v", got, err)
			}
			e := entries(t, s, 2)
			if len(e) != 1 || e[0].Kind != jobs.EntryReplayed || e[0].ToolCallID != "call-again" || e[0].JobID != first.ID ||
				e[0].State != jobs.StateRunning || e[0].Phase != jobs.PhaseStaging || e[0].Revision != 2 {
				t.Errorf("entries: %+v", e)
			}
			again.Job = nil
			if got, err = s.Submit(t.Context(), again); err != nil || got.Outcome != jobs.SubmitReplayed {
				t.Errorf("without a job: %+v, %v", got, err)
			}
			_, err = s.Get(t.Context(), JobID(99))
			wantCode(t, err, jobs.CodeJobNotFound)
		}},
		{"G2: another call under a used key is a conflict that names the first job", func(t *testing.T, s jobs.Store) {
			first := mustSubmit(t, s, 1)
			other := NewJob(2)
			other.Key = first.Key
			got, err := s.Submit(t.Context(), Submission(other))
			if err != nil || got.Outcome != jobs.SubmitConflict || got.Job.ID != first.ID || got.Key.JobID != first.ID {
				t.Fatalf("got %+v, %v", got, err)
			}
			e := entries(t, s, 1)
			if len(e) != 1 || e[0].Kind != jobs.EntryConflict || e[0].JobID != first.ID || e[0].ToolCallID != "call-2" || e[0].State != "" {
				t.Errorf("entries: %+v", e)
			}
			_, err = s.Get(t.Context(), other.ID)
			wantCode(t, err, jobs.CodeJobNotFound)
		}},
		{"G2: keys of principals are apart, however they are cut", func(t *testing.T, s jobs.Store) {
			for n, key := range []jobs.Key{{Principal: "ab", Text: "c"}, {Principal: "a", Text: "bc"}, {Principal: "a", Text: "b\x00c"}, {Principal: "a\x00b", Text: "c"}} {
				j := NewJob(n)
				j.Principal, j.Key = key.Principal, key.Text
				got, err := s.Submit(t.Context(), Submission(j))
				if err != nil || got.Outcome != jobs.SubmitAccepted {
					t.Errorf("%q: outcome %d, %v", key, got.Outcome, err)
				}
			}
		}},
		{"a job that is not of its submission is refused", func(t *testing.T, s jobs.Store) {
			mustSubmit(t, s, 1)
			for name, spoil := range map[string]func(*jobs.Submission){
				"id taken":          func(sub *jobs.Submission) { sub.Job.ID = JobID(1) },
				"no id":             func(sub *jobs.Submission) { sub.Job.ID = "" },
				"no state":          func(sub *jobs.Submission) { sub.Job.State = "" },
				"other key":         func(sub *jobs.Submission) { sub.Key.Text = "other" },
				"other principal":   func(sub *jobs.Submission) { sub.Key.Principal = "other" },
				"other fingerprint": func(sub *jobs.Submission) { sub.Fingerprint = "v1:other" },
				"no key":            func(sub *jobs.Submission) { sub.Key.Text, sub.Job.Key = "", "" },
				"no JSON":           func(sub *jobs.Submission) { sub.Job.Call.Arguments = []byte("{") },
				"entry no JSON":     func(sub *jobs.Submission) { sub.Entry.Data = []byte("{") },
			} {
				sub := Submission(NewJob(2))
				spoil(&sub)
				if _, err := s.Submit(t.Context(), sub); jobs.CodeOf(err) != jobs.CodeInternal {
					t.Errorf("%s: got %v", name, err)
				}
			}
			wantSame(t, "head", uint64(1), s.Head())
			if next := mustSubmit(t, s, 2); next.Seq != 2 {
				t.Errorf("the next job has the seq %d", next.Seq)
			}
		}},
		{"G2: a crowd with one key gets one job", func(t *testing.T, s jobs.Store) {
			var accepted atomic.Int64
			together(func(i int) {
				j := NewJob(1)
				j.ID = JobID(i)
				got, err := s.Submit(t.Context(), Submission(j))
				switch {
				case err != nil:
					t.Error(err)
				case got.Outcome == jobs.SubmitAccepted:
					accepted.Add(1)
				case got.Outcome != jobs.SubmitReplayed:
					t.Errorf("outcome %d", got.Outcome)
				}
				if err == nil && got.Job.ID != got.Key.JobID {
					t.Errorf("job %s under the key of job %s", got.Job.ID, got.Key.JobID)
				}
			})
			wantSame(t, "accepted", int64(1), accepted.Load())
			wantSame(t, "head", uint64(crowd), s.Head())
		}},
		{"G2: a crowd with one key and many calls gets one job and conflicts", func(t *testing.T, s jobs.Store) {
			var accepted atomic.Int64
			together(func(i int) {
				j := NewJob(i)
				j.Key = "the one"
				got, err := s.Submit(t.Context(), Submission(j))
				switch {
				case err != nil:
					t.Error(err)
				case got.Outcome == jobs.SubmitAccepted:
					accepted.Add(1)
				case got.Outcome != jobs.SubmitConflict || got.Job.Fingerprint == j.Fingerprint:
					t.Errorf("outcome %d", got.Outcome)
				}
			})
			wantSame(t, "accepted", int64(1), accepted.Load())
			wantSame(t, "head", uint64(crowd), s.Head())
		}},
		{"G3: a crowd of jobs is numbered without holes and shown to all at once", func(t *testing.T, s jobs.Store) {
			var mu sync.Mutex
			seqs := map[uint64]bool{}
			together(func(i int) {
				got, err := s.Submit(t.Context(), Submission(NewJob(i)))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.LookupKey(t.Context(), got.Key.Key); err != nil {
					t.Errorf("answered but not shown: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				seqs[got.Job.Seq] = true
			})
			for n := uint64(1); n <= crowd; n++ {
				if !seqs[n] {
					t.Errorf("no job has the seq %d", n)
				}
			}
		}},
		{"a caller that has gone changes nothing", func(t *testing.T, s jobs.Store) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.Submit(ctx, Submission(NewJob(1)))
			wantCode(t, err, jobs.CodeCallerGone)
			_, err = s.Get(ctx, JobID(1))
			wantCode(t, err, jobs.CodeCallerGone)
			wantSame(t, "head", uint64(0), s.Head())
		}},
		{"a caller that leaves meanwhile gets an answer that is true", func(t *testing.T, s jobs.Store) {
			together(func(i int) {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				_, err := s.Submit(ctx, Submission(NewJob(i)))
				_, stored := s.Get(t.Context(), JobID(i))
				if (err == nil) != (stored == nil) {
					t.Errorf("submission: %v; record: %v", err, stored)
				}
			})
		}},
	}
}
