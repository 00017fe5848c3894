package storetest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// Run tests the invariants on stores made by open, which gives each call a new, empty
// one, closes it in the end and checks whatever only the implementation can check.
// Whatever is done to a store, in whatever order and at once:
//
//  1. A key has at most one job, for ever, and every submission is in the journal (G2).
//  2. What was answered is stored, and what is stored is shown unchanged (G3).
//  3. The revision of a job goes up by one with each change, and no change is lost.
//  4. A write that is refused has left nothing: no record, no entry, no number used.
//  5. The journal has no holes, its chain holds, and its newest entry about a job
//     says what the job is.
//  6. Open lists exactly the jobs that are not terminal.
//  7. A snapshot never changes.
func Run(t *testing.T, open func(t *testing.T) jobs.Store) {
	for _, group := range []struct {
		name  string
		tests []suiteTest
	}{
		{"Submit", submitTests()},
		{"Update", updateTests()},
		{"List", listTests()},
		{"Journal", journalTests()},
		{"Files", fileTests()},
		{"Pins", pinTests()},
		{"Fence", fenceTests()},
		{"Close", closeTests()},
		{"Supersede", supersedeTests()},
		{"Usage", usageTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					s := open(t)
					test.run(t, s)
					checkInvariants(t, s)
				})
			}
		})
	}
}

type suiteTest struct {
	name string
	run  func(*testing.T, jobs.Store)
}

// checkInvariants checks what can be seen of the invariants from outside.
func checkInvariants(t *testing.T, s jobs.Store) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	good, err := s.VerifyJournal(ctx)
	if err != nil || good != s.Head() {
		t.Errorf("the journal has %d good entries of %d, %v", good, s.Head(), err)
	}
	newest := map[string]jobs.Entry{}
	var seq uint64
	err = s.Journal(ctx, 0, 0, func(e jobs.Entry) bool {
		if seq++; e.Seq != seq {
			t.Errorf("entry %d came after entry %d", e.Seq, seq-1)
		}
		if e.Kind == jobs.EntrySubmitted || e.Kind == jobs.EntryChanged {
			if want := newest[e.JobID].Revision + 1; e.Revision != want {
				t.Errorf("entry %d says job %s has revision %d, want %d", e.Seq, e.JobID, e.Revision, want)
			}
			newest[e.JobID] = e
		}
		return true
	})
	if err != nil || seq != s.Head() {
		t.Errorf("the journal was read up to %d of %d, %v", seq, s.Head(), err)
	}
	open := map[string]bool{}
	for id, e := range newest {
		j := mustGet(t, s, id)
		if j.Revision != e.Revision || j.State != e.State || j.Phase != e.Phase {
			t.Errorf("job %s is %s at revision %d; entry %d says %s at %d", id, j.State, j.Revision, e.Seq, e.State, e.Revision)
		}
		key, err := s.LookupKey(ctx, jobs.Key{Principal: j.Principal, Text: j.Key})
		if err != nil || key.JobID != id || key.Kind != jobs.KeyJob || key.Fingerprint != j.Fingerprint {
			t.Errorf("the key of job %s is %+v, %v", id, key, err)
		}
		if !j.State.Terminal() {
			open[id] = true
		}
	}
	listed, broken, err := s.Open(ctx)
	if err != nil || len(broken) > 0 {
		t.Errorf("Open: %v, damaged: %v", err, broken)
	}
	got := map[string]bool{}
	for _, j := range listed {
		got[j.ID] = true
	}
	if diff := cmp.Diff(open, got); diff != "" {
		t.Errorf("open jobs (-want +got):\n%s", diff)
	}
}

func mustSubmit(t *testing.T, s jobs.Store, n int) *jobs.Job {
	t.Helper()
	got, err := s.Submit(t.Context(), Submission(NewJob(n)))
	if err != nil || got.Outcome != jobs.SubmitAccepted {
		t.Fatalf("submission %d: outcome %d, %v", n, got.Outcome, err)
	}
	return got.Job
}

func mustGet(t *testing.T, s jobs.Store, id string) *jobs.Job {
	t.Helper()
	j, err := s.Get(context.WithoutCancel(t.Context()), id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func mustUpdate(t *testing.T, s jobs.Store, id string, change func(*jobs.Job) (jobs.Note, error)) *jobs.Job {
	t.Helper()
	j, err := s.Update(t.Context(), id, change)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func wantCode(t *testing.T, err error, want jobs.Code) {
	t.Helper()
	if got := jobs.CodeOf(err); got != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// entries returns the journal behind a place.
func entries(t *testing.T, s jobs.Store, after uint64) (out []jobs.Entry) {
	t.Helper()
	if err := s.Journal(t.Context(), after, 0, func(e jobs.Entry) bool { out = append(out, e); return true }); err != nil {
		t.Fatal(err)
	}
	return out
}

func kinds(entries []jobs.Entry) (out []jobs.EntryKind) {
	for _, e := range entries {
		out = append(out, e.Kind)
	}
	return out
}

func wantSame(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
