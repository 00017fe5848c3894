package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// submitChanged submits the n-th job after a change of it.
func submitChanged(t *testing.T, s jobs.Store, n int, change func(*jobs.Job)) (jobs.Submitted, error) {
	t.Helper()
	j := NewJob(n)
	change(j)
	return s.Submit(t.Context(), Submission(j))
}

func fenceTests() []suiteTest {
	return []suiteTest{
		{"G15: a free key is fenced once, and nothing starts under it", func(t *testing.T, s jobs.Store) {
			key := jobs.Key{Principal: "orchestrator", Text: "key-1"}
			record, planted, err := s.FenceKey(t.Context(), key, jobs.Entry{Message: "moved", TraceID: "t"})
			if err != nil || !planted || record.Kind != jobs.KeyFence || record.Key != key || record.CreatedAt.IsZero() || record.JobID != "" {
				t.Errorf("got %+v, %t, %v", record, planted, err)
			}
			again, planted, err := s.FenceKey(t.Context(), key, jobs.Entry{Message: "again"})
			if err != nil || planted {
				t.Errorf("the second fence: %t, %v", planted, err)
			}
			wantSame(t, "record", record, again)
			got, err := s.Submit(t.Context(), Submission(NewJob(1)))
			if err != nil || got.Outcome != jobs.SubmitFenced || got.Job != nil {
				t.Errorf("got %+v, %v", got, err)
			}
			if other := mustSubmit(t, s, 2); other.Seq != 1 {
				t.Errorf("another key's job has the seq %d", other.Seq)
			}
			list := entries(t, s, 0)
			wantSame(t, "kinds", []jobs.EntryKind{jobs.EntryFence, jobs.EntryConflict, jobs.EntrySubmitted}, kinds(list))
			if e := list[0]; e.Principal != "orchestrator" || e.Owner != "orchestrator" || e.Message != "moved" || e.TraceID != "t" {
				t.Errorf("entry %+v", e)
			}
			_, _, err = s.FenceKey(t.Context(), jobs.Key{Principal: "orchestrator"}, jobs.Entry{})
			wantCode(t, err, jobs.CodeInternal)
		}},
		{"a used key is returned as it is", func(t *testing.T, s jobs.Store) {
			j := mustSubmit(t, s, 1)
			record, planted, err := s.FenceKey(t.Context(), jobs.Key{Principal: j.Principal, Text: j.Key}, jobs.Entry{})
			if err != nil || planted || record.Kind != jobs.KeyJob || record.JobID != j.ID {
				t.Errorf("got %+v, %t, %v", record, planted, err)
			}
			wantSame(t, "head", uint64(1), s.Head())
		}},
		{"G15: of fences and submissions that race exactly one is first", func(t *testing.T, s jobs.Store) {
			var accepted, fenced atomic.Int64
			key := jobs.Key{Principal: "orchestrator", Text: "key-1"}
			together(func(i int) {
				if i%2 == 0 {
					record, planted, err := s.FenceKey(t.Context(), key, jobs.Entry{})
					if err != nil || planted && record.Kind != jobs.KeyFence {
						t.Errorf("got %+v, %t, %v", record, planted, err)
					}
					if planted {
						fenced.Add(1)
					}
					return
				}
				got, err := s.Submit(t.Context(), Submission(NewJob(1)))
				if err != nil {
					t.Error(err)
				}
				if got.Outcome == jobs.SubmitAccepted {
					accepted.Add(1)
				}
			})
			wantSame(t, "winners", int64(1), accepted.Load()+fenced.Load())
		}},
		{"the first moment of a boot session is kept", func(t *testing.T, s jobs.Store) {
			moment := func(boot string, after time.Duration) jobs.Moment {
				return jobs.Moment{BootSession: boot, SinceBoot: after, At: Time().Add(after)}
			}
			for _, test := range []struct{ now, want jobs.Moment }{
				{moment("a", time.Second), moment("a", time.Second)},
				{moment("a", time.Hour), moment("a", time.Second)},
				{moment("b", time.Minute), moment("b", time.Minute)},
				{moment("b", time.Hour), moment("b", time.Minute)},
			} {
				got, err := s.FirstMoment(t.Context(), test.now)
				if err != nil {
					t.Fatal(err)
				}
				wantSame(t, "moment", test.want, got)
			}
		}},
		{"the host's mode is kept, and told in the journal", func(t *testing.T, s jobs.Store) {
			if m, err := s.Mode(t.Context()); err != nil || m != (jobs.HostMode{}) {
				t.Errorf("never set: %+v, %v", m, err)
			}
			for _, mode := range jobs.Modes() {
				want := jobs.HostMode{Mode: mode, By: "operator", Reason: "a <disk>", Since: Time()}
				if err := s.SetMode(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				got, err := s.Mode(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				wantSame(t, "mode", want, got)
			}
			if err := s.SetMode(t.Context(), jobs.HostMode{Mode: jobs.ModeOpen}); err != nil {
				t.Fatal(err)
			}
			if m, err := s.Mode(t.Context()); err != nil || m.Since.IsZero() {
				t.Errorf("got %+v, %v", m, err)
			}
			wantCode(t, s.SetMode(t.Context(), jobs.HostMode{Mode: "closed"}), jobs.CodeRequestInvalid)
			list := entries(t, s, 0)
			wantSame(t, "kinds", []jobs.EntryKind{jobs.EntryHost, jobs.EntryHost, jobs.EntryHost, jobs.EntryHost}, kinds(list))
			if e := list[1]; e.Principal != "operator" || e.Message != "the host is paused: a <disk>" {
				t.Errorf("entry %+v", e)
			}
		}},
	}
}

func closeTests() []suiteTest {
	return []suiteTest{
		{"what is closed takes no job, and leaves its key free", func(t *testing.T, s jobs.Store) {
			closing := jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r", "r2", "r"}, Calls: []jobs.RunCall{{RunID: "r", CallID: "c"}}, Reason: "enough"}
			fresh, err := s.CloseRuns(t.Context(), closing)
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, "fresh", jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r", "r2"}, Calls: []jobs.RunCall{{RunID: "r", CallID: "c"}}, Reason: "enough"}, fresh)
			refused := map[string]func(*jobs.Job){
				"the run r was":         func(j *jobs.Job) { j.Call.Context.RunID = "r" },
				"the run r2 was":        func(j *jobs.Job) { j.Call.Context.RunID = "r2" },
				"the parent run r was":  func(j *jobs.Job) { j.Call.Context.ParentRunID = "r" },
				"the parent call c was": func(j *jobs.Job) { j.Call.Context.ParentCallID = "c" },
			}
			for words, change := range refused {
				got, err := submitChanged(t, s, 1, change)
				if err != nil || got.Outcome != jobs.SubmitClosed || got.Job != nil || !strings.HasPrefix(got.Closed, words) || !strings.Contains(got.Closed, "enough") {
					t.Errorf("%s: %+v, %v", words, got, err)
				}
				j := NewJob(1)
				change(j)
				if why, err := s.Closed(t.Context(), j); err != nil || why != got.Closed {
					t.Errorf("%s: of a job it is said %q, %v", words, why, err)
				}
			}
			_, err = s.LookupKey(t.Context(), jobs.Key{Principal: "orchestrator", Text: "key-1"})
			wantCode(t, err, jobs.CodeJobNotFound)
			wantSame(t, "head", uint64(1), s.Head())
			taken := map[string]func(*jobs.Job){
				"a call of the same name":     func(j *jobs.Job) { j.Call.Context.ToolCallID = "c" },
				"a run called as the call":    func(j *jobs.Job) { j.Call.Context.RunID, j.Call.Context.ParentRunID = "c", "c" },
				"a call called as the run":    func(j *jobs.Job) { j.Call.Context.ParentCallID = "r" },
				"another principal's run":     func(j *jobs.Job) { j.Principal, j.Call.Context.RunID = "other", "r" },
				"a thread called as the run":  func(j *jobs.Job) { j.Call.Context.ThreadID, j.Call.Context.ContextID = "r", "r" },
				"a run that begins as one":    func(j *jobs.Job) { j.Call.Context.RunID = "r3" },
				"a job that names no context": func(j *jobs.Job) { j.Call.Context = jobs.CallContext{} },
			}
			n := 10
			for name, change := range taken {
				n++
				got, err := submitChanged(t, s, n, change)
				if err != nil || got.Outcome != jobs.SubmitAccepted {
					t.Fatalf("%s: %+v, %v", name, got, err)
				}
				if why, err := s.Closed(t.Context(), got.Job); err != nil || why != "" {
					t.Errorf("%s: it is said %q, %v", name, why, err)
				}
			}
			e := entries(t, s, 0)[0]
			if e.Kind != jobs.EntryRun || e.RunID != "r" || e.Owner != "orchestrator" || e.Message != "enough" || string(e.Data) != `{"run_ids":["r","r2"],"calls":[{"run_id":"r","call_id":"c"}]}` {
				t.Errorf("entry %+v", e)
			}
		}},
		{"closing again writes only what is new", func(t *testing.T, s jobs.Store) {
			for i, want := range []jobs.RunClosing{
				{Principal: "orchestrator", RunIDs: []string{"r"}},
				{Principal: "orchestrator"},
				{Principal: "orchestrator", RunIDs: []string{"below"}, Calls: []jobs.RunCall{{RunID: "r", CallID: "c"}, {RunID: "r2", CallID: "c"}}},
				{Principal: "orchestrator"},
			} {
				c := jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r"}}
				if i >= 2 {
					c.RunIDs, c.Calls = append(c.RunIDs, "below"), []jobs.RunCall{{RunID: "r", CallID: "c"}, {RunID: "r2", CallID: "c"}}
				}
				fresh, err := s.CloseRuns(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				wantSame(t, fmt.Sprint("fresh ", i), want, fresh)
			}
			list := entries(t, s, 0)
			wantSame(t, "kinds", []jobs.EntryKind{jobs.EntryRun, jobs.EntryRun}, kinds(list))
			wantSame(t, "run of the entry", "r", list[1].RunID)
			_, err := s.CloseRuns(t.Context(), jobs.RunClosing{RunIDs: []string{"r"}})
			wantCode(t, err, jobs.CodeInternal)
			_, err = s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "p", Calls: []jobs.RunCall{{RunID: "r"}}})
			wantCode(t, err, jobs.CodeInternal)
		}},
		{"a call is looked for where the job came from", func(t *testing.T, s jobs.Store) {
			closing := jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r"}, Calls: []jobs.RunCall{{RunID: "r", CallID: "call_0"}, {RunID: "aside", CallID: "call_9"}, {CallID: "call_8"}}}
			if _, err := s.CloseRuns(t.Context(), closing); err != nil {
				t.Fatal(err)
			}
			n := 0
			submit := func(ids jobs.CallContext) jobs.SubmitOutcome {
				t.Helper()
				n++
				got, err := submitChanged(t, s, n, func(j *jobs.Job) { j.Call.Context = ids })
				if err != nil {
					t.Fatal(err)
				}
				if got.Outcome == jobs.SubmitAccepted {
					why, err := s.Closed(t.Context(), got.Job)
					wantSame(t, "closed once it is stored", "", why)
					wantSame(t, "error", nil, err)
				}
				return got.Outcome
			}
			for _, run := range []string{"r2", "aside", ""} { // each has a call of that name
				wantSame(t, "a call of run "+run, jobs.SubmitAccepted, submit(jobs.CallContext{RunID: run, ToolCallID: "call_0"}))
			}
			wantSame(t, "a call that is its own parent", jobs.SubmitClosed, submit(jobs.CallContext{RunID: "r4", ToolCallID: "call_0", ParentCallID: "call_0"}))
			for want, list := range map[jobs.SubmitOutcome][]jobs.CallContext{
				jobs.SubmitAccepted: {
					{RunID: "r2", ParentCallID: "call_0"},
					{RunID: "aside", ParentCallID: "call_0"},
					{RunID: "r2", ParentRunID: "aside", ParentCallID: "call_0"},
					{ParentRunID: "r2", ParentCallID: "call_0"},
					{ParentRunID: "r2", ParentCallID: "call_9"},
					{ParentRunID: "r2", ParentCallID: "call_8"},
					{RunID: "r2", ParentCallID: "call_1"},
				},
				jobs.SubmitClosed: {
					{RunID: "r3", ParentCallID: "call_0"},
					{ParentCallID: "call_0"},
					{ParentRunID: "r", ParentCallID: "call_1"},
					{RunID: "r2", ParentRunID: "aside", ParentCallID: "call_9"},
					{RunID: "aside", ParentCallID: "call_9"},
					{RunID: "r2", ParentCallID: "call_9"},
					{RunID: "r2", ParentCallID: "call_8"},
				},
			} {
				for _, ids := range list {
					if got := submit(ids); got != want {
						t.Errorf("%+v: outcome %d, want %d", ids, got, want)
					}
				}
			}
		}},
		{"a job knows the calls of its run that are as new as itself", func(t *testing.T, s jobs.Store) {
			if _, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r"}, Calls: []jobs.RunCall{{RunID: "r", CallID: "call_0"}}}); err != nil {
				t.Fatal(err)
			}
			together(func(i int) { // many share a commit
				ids := jobs.CallContext{RunID: fmt.Sprint("run-", i), ToolCallID: "call_0"}
				child := jobs.CallContext{RunID: ids.RunID, ParentCallID: "call_0"}
				for n, ids := range []jobs.CallContext{ids, child} {
					got, err := submitChanged(t, s, 2*i+n, func(j *jobs.Job) { j.Call.Context = ids })
					if err != nil || got.Outcome != jobs.SubmitAccepted {
						t.Errorf("%+v: outcome %d, %v", ids, got.Outcome, err)
					}
				}
			})
		}},
		{"G2: a repeat of a job of a closed run is a repeat", func(t *testing.T, s jobs.Store) {
			j := mustSubmit(t, s, 1)
			if _, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{j.Call.Context.RunID}}); err != nil {
				t.Fatal(err)
			}
			got, err := s.Submit(t.Context(), Submission(NewJob(1)))
			if err != nil || got.Outcome != jobs.SubmitReplayed || got.Job.ID != j.ID {
				t.Errorf("got %+v, %v", got, err)
			}
		}},
		{"no submission that comes after the closing is taken", func(t *testing.T, s jobs.Store) {
			var closed atomic.Bool
			together(func(i int) {
				if i == 0 {
					if _, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"r"}}); err != nil {
						t.Error(err)
					}
					closed.Store(true)
					return
				}
				late := closed.Load()
				got, err := submitChanged(t, s, i, func(j *jobs.Job) { j.Call.Context.RunID = "r" })
				if err != nil || late && got.Outcome != jobs.SubmitClosed {
					t.Errorf("outcome %d after the closing was answered, %v", got.Outcome, err)
				}
			})
		}},
	}
}

func supersedeTests() []suiteTest {
	supersedes := func(id string) func(*jobs.Job) { return func(j *jobs.Job) { j.Call.Options.Supersedes = id } }
	return []suiteTest{
		{"G5: an ended job is superseded once", func(t *testing.T, s jobs.Store) {
			old := mustSubmit(t, s, 1)
			_, err := submitChanged(t, s, 2, supersedes(old.ID))
			wantCode(t, err, jobs.CodeStateConflict)
			mustUpdate(t, s, old.ID, Cancel)
			head := s.Head()
			got, err := submitChanged(t, s, 2, supersedes(old.ID))
			if err != nil || got.Outcome != jobs.SubmitAccepted || got.Job.Seq != 2 {
				t.Fatalf("got %+v, %v", got, err)
			}
			after := mustGet(t, s, old.ID)
			if after.SupersededBy != got.Job.ID || after.Revision != 3 || after.State != jobs.StateCancelled {
				t.Errorf("the old job: superseded by %q, revision %d, %s", after.SupersededBy, after.Revision, after.State)
			}
			list := entries(t, s, head)
			wantSame(t, "kinds", []jobs.EntryKind{jobs.EntrySubmitted, jobs.EntryChanged}, kinds(list))
			if e := list[1]; e.JobID != old.ID || e.Revision != 3 || e.Event != "" || e.Owner != "orchestrator" || !strings.Contains(e.Message, got.Job.ID) {
				t.Errorf("entry %+v", e)
			}
			head = s.Head()
			_, err = submitChanged(t, s, 3, supersedes(old.ID))
			wantCode(t, err, jobs.CodeSuperseded)
			if e, ok := errors.AsType[*jobs.Error](err); !ok || e.JobID != got.Job.ID {
				t.Errorf("the error names job %q, not the successor", e.JobID)
			}
			_, err = submitChanged(t, s, 3, supersedes(JobID(99)))
			wantCode(t, err, jobs.CodeJobNotFound)
			other := NewJob(3)
			other.Principal, other.Call.Options.Supersedes = "other", got.Job.ID
			_, err = s.Submit(t.Context(), Submission(other))
			wantCode(t, err, jobs.CodeJobNotFound)
			wantSame(t, "head", head, s.Head())
			_, err = s.LookupKey(t.Context(), jobs.Key{Principal: "orchestrator", Text: "key-3"})
			wantCode(t, err, jobs.CodeJobNotFound)

			again, err := submitChanged(t, s, 2, supersedes(old.ID))
			if err != nil || again.Outcome != jobs.SubmitReplayed || again.Job.ID != got.Job.ID {
				t.Errorf("a repeat of the successor: %+v, %v", again, err)
			}
		}},
		{"G5: an unknown job may be superseded, and stays unknown", func(t *testing.T, s jobs.Store) {
			old := mustSubmit(t, s, 1)
			mustUpdate(t, s, old.ID, Start)
			mustUpdate(t, s, old.ID, Lose)
			if _, err := submitChanged(t, s, 2, supersedes(old.ID)); err != nil {
				t.Fatal(err)
			}
			if j := mustGet(t, s, old.ID); j.State != jobs.StateUnknown || j.SupersededBy != JobID(2) {
				t.Errorf("got %s, superseded by %q", j.State, j.SupersededBy)
			}
		}},
		{"G5: of a crowd exactly one supersedes", func(t *testing.T, s jobs.Store) {
			old := mustSubmit(t, s, crowd)
			mustUpdate(t, s, old.ID, Cancel)
			var taken atomic.Int64
			together(func(i int) {
				_, err := submitChanged(t, s, i, supersedes(old.ID))
				switch jobs.CodeOf(err) {
				case "":
					taken.Add(1)
				case jobs.CodeSuperseded:
				default:
					t.Error(err)
				}
			})
			wantSame(t, "successors", int64(1), taken.Load())
		}},
	}
}

func pinTests() []suiteTest {
	const digest = "abababababababababababababababababababababababababababababababab"
	reads := func(j *jobs.Job) {
		j.Inputs = []jobs.InputFile{{Pointer: "/input", Reference: "sha256:" + digest}, {Pointer: "/again", Reference: "sha256:" + digest}, {Pointer: "/clip", Reference: "in/clip.mov", SHA256: digest}}
	}
	put := func(t *testing.T, s jobs.Store, who string, at time.Time) {
		t.Helper()
		if err := s.PutBlob(t.Context(), jobs.Blob{SHA256: digest, Size: 3, Principals: []string{who}, StoredAt: at}); err != nil {
			t.Fatal(err)
		}
	}
	collect := func(t *testing.T, s jobs.Store, since time.Time, want int) {
		t.Helper()
		got, err := s.CollectBlobs(t.Context(), since, 0)
		if err != nil || len(got) != want {
			t.Errorf("collected %+v, %v; want %d", got, err, want)
		}
	}
	return []suiteTest{
		{"a job needs its uploaded files, of its own principal", func(t *testing.T, s jobs.Store) {
			_, err := submitChanged(t, s, 1, reads)
			wantCode(t, err, jobs.CodeFileNotFound)
			put(t, s, "other", Time())
			_, err = submitChanged(t, s, 1, reads)
			wantCode(t, err, jobs.CodeFileNotFound)
			wantSame(t, "head", uint64(1), s.Head())
			put(t, s, "orchestrator", Time())
			if got, err := submitChanged(t, s, 1, reads); err != nil || got.Job.Seq != 1 {
				t.Errorf("got %+v, %v", got, err)
			}
		}},
		{"a file is kept while a job reads it, and for a while after", func(t *testing.T, s jobs.Store) {
			put(t, s, "orchestrator", Time().Add(-time.Hour))
			for n := 1; n <= 2; n++ {
				if _, err := submitChanged(t, s, n, reads); err != nil {
					t.Fatal(err)
				}
			}
			later := Time().AddDate(100, 0, 0)
			collect(t, s, later, 0)
			mustUpdate(t, s, JobID(1), Cancel)
			collect(t, s, later, 0)
			mustUpdate(t, s, JobID(2), Start)
			mustUpdate(t, s, JobID(2), Lose)
			collect(t, s, later, 0)
			mustUpdate(t, s, JobID(2), Resolve)
			blob, err := s.GetBlob(t.Context(), digest)
			if err != nil || !blob.UsedAt.After(blob.StoredAt) {
				t.Errorf("got %+v, %v", blob, err)
			}
			collect(t, s, blob.UsedAt, 0)
			collect(t, s, blob.UsedAt.Add(time.Second), 1)
			_, err = s.GetBlob(t.Context(), digest)
			wantCode(t, err, jobs.CodeFileNotFound)
			collect(t, s, later, 0)
			_, err = submitChanged(t, s, 3, reads)
			wantCode(t, err, jobs.CodeFileNotFound)
			last := entries(t, s, s.Head()-1)[0]
			if last.Kind != jobs.EntryHost || strings.Contains(last.Message, digest) || !strings.Contains(last.Message, "1 uploaded file") {
				t.Errorf("entry %+v", last)
			}
		}},
		{"a file that is sent again counts as used", func(t *testing.T, s jobs.Store) {
			put(t, s, "orchestrator", Time())
			put(t, s, "other", Time().Add(time.Hour))
			collect(t, s, Time().Add(time.Minute), 0)
			collect(t, s, Time().Add(time.Hour+time.Second), 1)
		}},
		{"no more files are collected than were asked for", func(t *testing.T, s jobs.Store) {
			for n := range 7 {
				if err := s.PutBlob(t.Context(), jobs.Blob{SHA256: fmt.Sprintf("%064x", n), Principals: []string{"a"}, StoredAt: Time()}); err != nil {
					t.Fatal(err)
				}
			}
			seen := map[string]bool{}
			for _, want := range []int{3, 3, 1, 0} {
				got, err := s.CollectBlobs(t.Context(), Time().Add(time.Second), 3)
				if err != nil || len(got) != want {
					t.Errorf("collected %d, want %d, %v", len(got), want, err)
				}
				for _, blob := range got {
					seen[blob.SHA256] = true
				}
			}
			wantSame(t, "collected", 7, len(seen))
		}},
		{"of a submission and a collection that race one is told", func(t *testing.T, s jobs.Store) {
			put(t, s, "orchestrator", Time())
			var gone, taken atomic.Int64
			together(func(i int) {
				if i%2 == 0 {
					got, err := s.CollectBlobs(t.Context(), Time().Add(time.Hour), 0)
					if err != nil {
						t.Error(err)
					}
					gone.Add(int64(len(got)))
					return
				}
				switch _, err := submitChanged(t, s, i, reads); jobs.CodeOf(err) {
				case "":
					taken.Add(1)
				case jobs.CodeFileNotFound:
				default:
					t.Error(err)
				}
			})
			if (gone.Load() == 1) == (taken.Load() > 0) {
				t.Errorf("%d jobs read the file, which was collected %d times", taken.Load(), gone.Load())
			}
		}},
	}
}
