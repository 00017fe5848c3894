package store_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// The text of a manifest stays as long as one job that was accepted with it has a record,
// the oldest of many for one, and as long as calls may be accepted with it. What would go
// is what goes.
func TestManifestsAreCollected(t *testing.T) {
	t.Parallel()
	const n = 9000 // more than is read in two transactions
	text := func(i int) []byte { return fmt.Appendf(nil, "tool: x%d\n", i) }
	digest := func(i int) string { return fmt.Sprintf("%x", sha256.Sum256(text(i))) }
	oldest, newest, unused, offered := digest(1), digest(2), digest(3), digest(4)
	path := newPath(t)
	err := store.Load(t.Context(), path, func(yield func(*jobs.Job) bool) {
		for i := range n {
			j := storetest.NewJob(i)
			j.Tool.ManifestDigest = newest
			if i == 0 {
				j.Tool.ManifestDigest = oldest
			}
			if _, err := storetest.Cancel(j); err != nil || !yield(j) {
				t.Error(err)
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	all := []string{oldest, newest, unused, offered}
	for i, d := range all {
		if err := s.PutManifest(t.Context(), d, text(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want ...string) {
		t.Helper()
		var kept []string
		for _, d := range all {
			if _, err := s.Manifest(t.Context(), d); err == nil {
				kept = append(kept, d)
			}
		}
		if diff := cmp.Diff(want, kept); diff != "" {
			t.Errorf("the manifests that are kept (-want +got):\n%s", diff)
		}
	}
	collect := func(dry bool, gone ...string) int {
		t.Helper()
		q := jobs.ManifestQuery{Spare: map[string]bool{offered: true}, Gone: map[string]bool{}, Dry: dry}
		for _, id := range gone {
			q.Gone[id] = true
		}
		n, size, err := s.CollectManifests(t.Context(), q)
		if err != nil || size != int64(n*len(text(1))) {
			t.Fatalf("%d with %d bytes, %v", n, size, err)
		}
		return n
	}
	if one, two := collect(true), collect(true, storetest.JobID(0)); one != 1 || two != 2 {
		t.Errorf("%d would go, and %d without the oldest job", one, two)
	}
	want(all...)
	head := s.Head()
	if got := collect(false); got != 1 || s.Head() != head+1 {
		t.Errorf("%d went, with %d entries", got, s.Head()-head)
	}
	want(oldest, newest, offered)
	if got := collect(false); got != 0 || s.Head() != head+1 {
		t.Errorf("%d went again, with %d entries", got, s.Head()-head)
	}
	var told string
	if err := s.Journal(t.Context(), head, 1, func(e jobs.Entry) bool { told = e.Message; return true }); err != nil || !strings.HasSuffix(told, "accepted with: 1") {
		t.Errorf("the journal says %q, %v", told, err)
	}
	if gone, err := s.Prune(t.Context(), []string{storetest.JobID(0)}, "that are old"); err != nil || len(gone) != 1 {
		t.Fatalf("pruned %v, %v", gone, err)
	}
	if got := collect(false); got != 1 {
		t.Errorf("%d went after the oldest job", got)
	}
	want(newest, offered)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantClean(t, path)
}
