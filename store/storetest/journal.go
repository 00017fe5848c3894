package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/macexec/macexec/jobs"
)

func journalTests() []suiteTest {
	return []suiteTest{
		{"G12: entries are chained and have no holes", func(t *testing.T, s jobs.Store) {
			for i := range 5 {
				err := s.Append(t.Context(), jobs.Entry{Kind: jobs.EntryHost, Message: fmt.Sprint("<", i, ">"), Data: []byte(`{ "a": "<>" }`)})
				if err != nil {
					t.Fatal(err)
				}
			}
			prev := strings.Repeat("0", 64)
			for i, e := range entries(t, s, 0) {
				if e.Seq != uint64(i+1) || e.Prev != prev || len(e.Hash) != 64 || e.At.IsZero() {
					t.Errorf("entry %d: %+v", i+1, e)
				}
				prev = e.Hash
			}
			wantSame(t, "head", uint64(5), s.Head())
		}},
		{"a reader begins where it wants and stops when it wants", func(t *testing.T, s jobs.Store) {
			const n = 700 // more than is read at once
			together(func(i int) {
				for range n / crowd {
					if err := s.Append(t.Context(), jobs.Entry{Kind: jobs.EntryRejected, Principal: fmt.Sprint(i)}); err != nil {
						t.Error(err)
					}
				}
			})
			total := uint64(n / crowd * crowd)
			for _, test := range []struct {
				after uint64
				limit int
				want  uint64
			}{{0, 0, total}, {0, 3, 3}, {5, 0, total - 5}, {300, 300, 300}, {total - 1, 9, 1}, {total, 0, 0}} {
				var got uint64
				err := s.Journal(t.Context(), test.after, test.limit, func(e jobs.Entry) bool {
					if got++; e.Seq != test.after+got {
						t.Errorf("after %d: entry %d is number %d", test.after, e.Seq, got)
					}
					return true
				})
				if err != nil || got != test.want {
					t.Errorf("after %d, limit %d: %d entries, want %d, %v", test.after, test.limit, got, test.want, err)
				}
			}
			err := s.Journal(t.Context(), total+9, 0, func(jobs.Entry) bool { return true })
			gone, ok := errors.AsType[*jobs.Error](err)
			if !ok || gone.Code != jobs.CodeCursorExpired || gone.Metadata["oldest"] != "1" {
				t.Errorf("G12: a cursor that was never given: %v", err)
			}
			calls := 0
			if err := s.Journal(t.Context(), 0, 0, func(jobs.Entry) bool { calls++; return calls < 4 }); err != nil || calls != 4 {
				t.Errorf("%d calls, %v", calls, err)
			}
		}},
		{"a reader may use the store while it reads", func(t *testing.T, s jobs.Store) {
			mustSubmit(t, s, 1)
			mustSubmit(t, s, 2)
			seen := 0
			err := s.Journal(t.Context(), 0, 0, func(e jobs.Entry) bool {
				seen++
				mustUpdate(t, s, e.JobID, Start)
				return true
			})
			if err != nil || seen != 2 {
				t.Errorf("%d entries, %v", seen, err)
			}
		}},
		{"a job's entries are found", func(t *testing.T, s jobs.Store) {
			a, b := mustSubmit(t, s, 1), mustSubmit(t, s, 11)
			mustUpdate(t, s, a.ID, Start)
			if _, err := s.Submit(t.Context(), Submission(NewJob(1))); err != nil {
				t.Fatal(err)
			}
			if err := s.Append(t.Context(), jobs.Entry{Kind: jobs.EntryRejected, JobID: a.ID}); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[string][]jobs.EntryKind{
				a.ID:      {jobs.EntrySubmitted, jobs.EntryChanged, jobs.EntryReplayed, jobs.EntryRejected},
				b.ID:      {jobs.EntrySubmitted},
				JobID(99): nil,
			} {
				var got []jobs.Entry
				if err := s.JobJournal(t.Context(), id, func(e jobs.Entry) bool { got = append(got, e); return true }); err != nil {
					t.Fatal(err)
				}
				wantSame(t, id, want, kinds(got))
			}
		}},
		{"who waits is told of the next entry", func(t *testing.T, s jobs.Store) {
			errs := make(chan error, crowd)
			for range crowd {
				go func() { errs <- s.Wait(t.Context(), 0) }()
			}
			mustSubmit(t, s, 1)
			for range crowd {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { errs <- s.Wait(ctx, 1) }()
			cancel()
			wantCode(t, <-errs, jobs.CodeCallerGone)
		}},
	}
}

func fileTests() []suiteTest {
	return []suiteTest{
		{"a manifest is kept by its digest", func(t *testing.T, s jobs.Store) {
			digest := fmt.Sprintf("%x", sha256.Sum256([]byte("tool: x\n")))
			_, err := s.Manifest(t.Context(), digest)
			wantCode(t, err, jobs.CodeToolNotFound)
			wantCode(t, s.PutManifest(t.Context(), digest, []byte("tool: y\n")), jobs.CodeInternal)
			for range 2 {
				if err := s.PutManifest(t.Context(), digest, []byte("tool: x\n")); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := s.Manifest(t.Context(), digest); err != nil || string(got) != "tool: x\n" {
				t.Errorf("manifest %q, %v", got, err)
			}
		}},
		{"a file belongs to everyone who sent it", func(t *testing.T, s jobs.Store) {
			digest := strings.Repeat("ab", 32)
			_, err := s.GetBlob(t.Context(), digest)
			wantCode(t, err, jobs.CodeFileNotFound)
			for _, who := range []string{"b", "a", "b"} {
				blob := jobs.Blob{SHA256: digest, Size: 3, MediaType: "text/plain", Principals: []string{who}, StoredAt: Time()}
				if err := s.PutBlob(t.Context(), blob); err != nil {
					t.Fatal(err)
				}
			}
			got, err := s.GetBlob(t.Context(), digest)
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, "file", jobs.Blob{SHA256: digest, Size: 3, MediaType: "text/plain", Principals: []string{"a", "b"}, StoredAt: Time()}, got)
			wantSame(t, "entries", []jobs.EntryKind{jobs.EntryFile, jobs.EntryFile, jobs.EntryFile}, kinds(entries(t, s, 0)))
			wantCode(t, s.PutBlob(t.Context(), jobs.Blob{SHA256: digest, Size: 4, Principals: []string{"a"}}), jobs.CodeDigestMismatch)
		}},
		{"projects", func(t *testing.T, s jobs.Store) {
			for _, p := range []jobs.Project{{Name: "b", Root: "/srv/b"}, {Name: "a", Root: "/srv/a"}, {Name: "b", Root: "/srv/b"}} {
				if err := s.PutProject(t.Context(), p, "operator"); err != nil {
					t.Fatal(err)
				}
			}
			wantCode(t, s.PutProject(t.Context(), jobs.Project{Name: "a", Root: "/elsewhere"}, "operator"), jobs.CodeProjectExists)
			wantCode(t, s.DeleteProject(t.Context(), "c", "operator"), jobs.CodeProjectNotFound)
			got, err := s.Projects(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, "projects", []jobs.Project{{Name: "a", Root: "/srv/a"}, {Name: "b", Root: "/srv/b"}}, got)
			if err := s.DeleteProject(t.Context(), "a", "operator"); err != nil {
				t.Fatal(err)
			}
			if got, err = s.Projects(t.Context()); err != nil || len(got) != 1 {
				t.Errorf("got %v, %v", got, err)
			}
			wantSame(t, "entries", []jobs.EntryKind{jobs.EntryProject, jobs.EntryProject, jobs.EntryProject}, kinds(entries(t, s, 0)))
		}},
		{"projects are replaced all or none", func(t *testing.T, s jobs.Store) {
			a, b, c := jobs.Project{Name: "a", Root: "/srv/a"}, jobs.Project{Name: "b", Root: "/srv/b"}, jobs.Project{Name: "c", Root: "/srv/c"}
			replace := func(inUse func(*jobs.Job, []jobs.Project) error, list ...jobs.Project) error {
				return s.ReplaceProjects(t.Context(), list, "operator", inUse)
			}
			asked := 0
			free := func(_ *jobs.Job, changed []jobs.Project) error {
				asked++
				wantSame(t, "changed", []jobs.Project{{Name: "a", Root: "/srv/new"}}, changed)
				return nil
			}
			want := func(want ...jobs.Project) {
				t.Helper()
				got, err := s.Projects(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				wantSame(t, "projects", want, got)
			}
			open := mustSubmit(t, s, 1)
			mustUpdate(t, s, mustSubmit(t, s, 2).ID, Cancel)
			if err := replace(free, a, b); err != nil || asked > 0 {
				t.Fatalf("asked %d times about new projects: %v", asked, err)
			}
			want(a, b)
			before := s.Head()
			if err := replace(free, a, b); err != nil || s.Head() != before || asked > 0 {
				t.Errorf("the same again: %v, asked %d times", err, asked)
			}
			moved := jobs.Project{Name: "a", Root: "/srv/new"}
			used := jobs.Errorf(jobs.CodeProjectInUse, "it is used")
			wantCode(t, replace(func(j *jobs.Job, _ []jobs.Project) error {
				if j.ID != open.ID {
					t.Errorf("asked about job %s", j.ID)
				}
				return used
			}, c, moved), jobs.CodeProjectInUse)
			wantCode(t, replace(free, c, jobs.Project{Name: "d"}), jobs.CodeRequestInvalid)
			want(a, b)
			if s.Head() != before {
				t.Error("the journal tells of what was refused")
			}
			if err := replace(free, c, moved, b); err != nil || asked != 1 {
				t.Errorf("%v, asked %d times", err, asked)
			}
			want(moved, b, c)
			var told []string
			for _, e := range entries(t, s, before) {
				told = append(told, string(e.Kind)+" "+e.Principal+" "+e.Message)
			}
			wantSame(t, "entries", []string{"project.changed operator added project c", "project.changed operator gave project a another folder"}, told)
		}},
	}
}
