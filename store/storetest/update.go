package storetest

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

func updateTests() []suiteTest {
	return []suiteTest{
		{"a change is stored with the next revision and told in the journal", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			got := mustUpdate(t, s, id, func(j *jobs.Job) (jobs.Note, error) {
				_, err := Cancel(j)
				return jobs.Note{Principal: "operator", Message: "enough", Data: map[string]int{"n": 1}}, err
			})
			if got.Revision != 2 || got.State != jobs.StateCancelled {
				t.Errorf("got revision %d, %s", got.Revision, got.State)
			}
			wantSame(t, "record", got, mustGet(t, s, id))
			e := entries(t, s, 1)[0]
			e.At, e.Prev, e.Hash = Time(), "", ""
			wantSame(t, "entry", jobs.Entry{
				Seq: 2, At: Time(), Kind: jobs.EntryChanged, Principal: "operator", Owner: "orchestrator", JobID: id, Event: jobs.EventCancel, Revision: 2,
				State: jobs.StateCancelled, EndReason: jobs.EndCancelledByCaller, SideEffect: jobs.SideEffectNone,
				ToolCallID: "call-1", RunID: "run-1", TraceID: "trace-1", Message: "enough", Data: []byte(`{"n":1}`),
			}, e)
		}},
		{"a change that is refused leaves nothing", func(t *testing.T, s jobs.Store) {
			before := mustSubmit(t, s, 1)
			refusal := errors.New("no")
			_, err := s.Update(t.Context(), before.ID, func(j *jobs.Job) (jobs.Note, error) {
				j.Message = "half"
				return jobs.Note{}, refusal
			})
			if !errors.Is(err, refusal) {
				t.Errorf("got %v", err)
			}
			_, err = s.Update(t.Context(), before.ID, func(*jobs.Job) (jobs.Note, error) { panic("a fault of the caller") })
			wantCode(t, err, jobs.CodeInternal)
			_, err = s.Update(t.Context(), before.ID, func(*jobs.Job) (jobs.Note, error) { return jobs.Note{Data: math.NaN()}, nil })
			wantCode(t, err, jobs.CodeInternal)
			_, err = s.Update(t.Context(), JobID(9), Start)
			wantCode(t, err, jobs.CodeJobNotFound)
			wantSame(t, "record", before, mustGet(t, s, before.ID))
			wantSame(t, "head", uint64(1), s.Head())
		}},
		{"a change cannot touch what identifies a job", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			for name, spoil := range map[string]func(*jobs.Job){
				"id": func(j *jobs.Job) { j.ID = "other" }, "host": func(j *jobs.Job) { j.Host = "other" },
				"principal": func(j *jobs.Job) { j.Principal = "other" }, "key": func(j *jobs.Job) { j.Key = "other" },
				"fingerprint": func(j *jobs.Job) { j.Fingerprint = "other" }, "seq": func(j *jobs.Job) { j.Seq = 7 },
				"revision": func(j *jobs.Job) { j.Revision = 7 },
			} {
				_, err := s.Update(t.Context(), id, func(j *jobs.Job) (jobs.Note, error) { spoil(j); return jobs.Note{}, nil })
				if jobs.CodeOf(err) != jobs.CodeInternal {
					t.Errorf("%s: got %v", name, err)
				}
			}
			wantSame(t, "head", uint64(1), s.Head())
		}},
		{"a snapshot never changes, whatever a change does to its copy", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			mustUpdate(t, s, id, func(j *jobs.Job) (jobs.Note, error) {
				j.Warnings, j.Sealed = []string{"one"}, map[string][]byte{"/pw": []byte("sealed")}
				return Start(j)
			})
			snap := mustGet(t, s, id)
			want := mustGet(t, s, id)
			var kept *jobs.Job
			vandal := func(j *jobs.Job) (jobs.Note, error) {
				j.Warnings[0], j.Attempts[0].BootSession = "changed", "changed"
				j.Call.Context.Labels["batch"], j.Call.Arguments[0] = "changed", ' '
				j.Sealed["/pw"][0], j.Decision.Rules[0], j.Call.Context.VisibleTools[0] = 'X', "changed", "changed"
				kept = j
				return jobs.Note{}, errors.New("refused")
			}
			for range 2 {
				if _, err := s.Update(t.Context(), id, vandal); err == nil {
					t.Fatal("the change was not refused")
				}
				if snap.Warnings[0] != "one" || snap.Attempts[0].BootSession != "boot-1" || snap.Sealed["/pw"][0] != 's' || snap.Call.Context.Labels["batch"] != "1" {
					t.Errorf("the snapshot changed: %+v", snap)
				}
				wantSame(t, "record", want, mustGet(t, s, id))
			}
			got := mustUpdate(t, s, id, func(j *jobs.Job) (jobs.Note, error) {
				kept = j
				return jobs.Note{Message: "kept"}, nil
			})
			kept.Warnings[0], kept.Message = "changed afterwards", "changed afterwards"
			if got.Warnings[0] != "one" || got.Message != "" || mustGet(t, s, id).Warnings[0] != "one" {
				t.Error("what the change kept is what others see")
			}
		}},
		{"a submitted job that the caller changes later stays as it was", func(t *testing.T, s jobs.Store) {
			sub := Submission(NewJob(1))
			if _, err := s.Submit(t.Context(), sub); err != nil {
				t.Fatal(err)
			}
			sub.Job.Call.Context.Labels["batch"], sub.Job.Call.Arguments[0], sub.Job.Decision.Rules[0] = "changed", ' ', "changed"
			want := NewJob(1)
			want.Seq, want.Revision = 1, 1
			wantSame(t, "record", want, mustGet(t, s, want.ID))
		}},
		{"of a crowd exactly one starts a job", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			var started atomic.Int64
			together(func(int) {
				_, err := s.Update(t.Context(), id, Start)
				switch jobs.CodeOf(err) {
				case "":
					started.Add(1)
				case jobs.CodeStateConflict:
				default:
					t.Error(err)
				}
			})
			wantSame(t, "started", int64(1), started.Load())
		}},
		{"of the changes of a crowd none is lost", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			together(func(i int) {
				want := fmt.Sprint(i)
				j, err := s.Update(t.Context(), id, func(j *jobs.Job) (jobs.Note, error) {
					j.Warnings = append(j.Warnings, want)
					return jobs.Note{}, nil
				})
				if err != nil || j.Warnings[len(j.Warnings)-1] != want || int(j.Revision) != len(j.Warnings)+1 {
					t.Errorf("got %+v, %v", j, err)
				}
			})
			seen := map[string]int{}
			for _, w := range mustGet(t, s, id).Warnings {
				seen[w]++
			}
			if len(seen) != crowd {
				t.Errorf("%d of %d changes are there", len(seen), crowd)
			}
		}},
		{"what is read never goes back", func(t *testing.T, s jobs.Store) {
			const rounds = 50
			id := mustSubmit(t, s, 1).ID
			var done atomic.Bool
			together(func(i int) {
				if i == 0 {
					defer done.Store(true)
					for range rounds {
						mustUpdate(t, s, id, func(*jobs.Job) (jobs.Note, error) { return jobs.Note{}, nil })
					}
					return
				}
				for last := uint64(0); !done.Load(); {
					head := s.Head()
					j, err := s.Get(t.Context(), id)
					if err != nil || j.Revision < last || j.Revision < head {
						t.Errorf("revision %d after %d, head %d, %v", j.Revision, last, head, err)
						return
					}
					last = j.Revision
					page, err := s.List(t.Context(), jobs.Query{Limit: 1})
					if err != nil || len(page.Jobs) != 1 || page.Jobs[0].Revision < last {
						t.Errorf("List: %+v, %v", page, err)
						return
					}
				}
			})
			wantSame(t, "revision", uint64(rounds+1), mustGet(t, s, id).Revision)
		}},
		{"Open lists what is not terminal, oldest first", func(t *testing.T, s jobs.Store) {
			for _, n := range []int{3, 1, 2} {
				mustSubmit(t, s, n)
			}
			mustUpdate(t, s, JobID(1), Cancel)
			open, broken, err := s.Open(t.Context())
			if err != nil || len(broken) != 0 {
				t.Fatal(broken, err)
			}
			var got []string
			for _, j := range open {
				got = append(got, j.ID)
			}
			if diff := cmp.Diff([]string{JobID(3), JobID(2)}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			mustUpdate(t, s, JobID(2), Start)
			counts, err := s.Counts(t.Context())
			if diff := cmp.Diff(map[jobs.State]int{jobs.StateQueued: 1, jobs.StateRunning: 1}, counts); diff != "" || err != nil {
				t.Errorf("counts (-want +got):\n%s%v", diff, err)
			}
		}},
	}
}
