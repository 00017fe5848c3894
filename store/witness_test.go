package store_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// unheardOf is a job that no store knows.
const unheardOf = "01arz3ndektsv4rrffq69g5fav-abcdefgh"

// witnessed is a closed store with n jobs, and what an earlier state of it was.
func witnessed(t *testing.T, n int) (path string, earlier []byte) {
	t.Helper()
	path = newPath(t)
	s, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if i == n/2 {
			copied, err := s.Copy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if earlier, err = io.ReadAll(copied); err != nil || copied.Close() != nil {
				t.Fatal(err)
			}
		}
		submit(t, s, i)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path, earlier
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// G13: a host that had a store is told from a new one, and its store from another one,
// and from itself on an earlier day. The file is left as it is, and adopting it is the
// way out; then its newest entries say so, and it is known again.
func TestG13AStoreIsKnownByItsWitness(t *testing.T) {
	t.Parallel()
	page := os.Getpagesize()
	other, _ := witnessed(t, 20)
	for name, test := range map[string]struct {
		spoil func(path string, earlier []byte)
		want  jobs.Code
		empty bool
	}{
		"it is gone": {func(path string, _ []byte) {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}, jobs.CodeStoreMissing, true},
		"another host's": {func(path string, _ []byte) { write(t, path, read(t, other)) }, jobs.CodeStoreReplaced, false},
		"an older one":   {func(path string, earlier []byte) { write(t, path, earlier) }, jobs.CodeStoreOlder, false},
		"an older one that went on elsewhere": {func(path string, earlier []byte) {
			elsewhere := newPath(t)
			write(t, elsewhere, earlier)
			s := open(t, elsewhere)
			for i := range 30 {
				submit(t, s, 100+i)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			write(t, path, read(t, elsewhere))
		}, jobs.CodeStoreReplaced, false},
		"the witness is damaged": {func(path string, _ []byte) {
			w := filepath.Join(filepath.Dir(path), "witness.json")
			write(t, w, read(t, w)[:40])
		}, jobs.CodeStoreReplaced, false},
		"a head page is damaged and the newest write lost": {func(path string, _ []byte) {
			raw := read(t, path)
			newest := 0
			if bytes.Compare(raw[page+16+48:page+16+56], raw[16+48:16+56]) > 0 { // good enough: fewer than 256 transactions
				newest = page
			}
			clear(raw[newest : newest+page])
			write(t, path, raw)
		}, jobs.CodeStoreOlder, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, earlier := witnessed(t, 20)
			test.spoil(path, earlier)
			before, _ := os.ReadFile(path)
			if !test.empty && strings.Contains(name, "head page") {
				// What would read the whole store from the other page says so too.
				if problems, err := store.Check(path); err != nil || len(problems) == 0 || !strings.Contains(problems[0], "head pages") {
					t.Errorf("Check: %q, %v", problems, err)
				}
				if c, err := store.Compact(t.Context(), path); jobs.CodeOf(err) != jobs.CodeStoreFailed {
					t.Errorf("compacted: %+v, %v", c, err)
				}
			}
			if s, err := store.Open(t.Context(), store.Options{Path: path}); jobs.CodeOf(err) != test.want || !strings.Contains(err.Error(), "store adopt") {
				t.Fatalf("opened as %v: %v", s, err)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
				t.Fatal("the file was changed")
			}
			if _, err := store.Adopt(t.Context(), store.AdoptOptions{Path: path, Reason: "r", Empty: !test.empty}); err == nil {
				t.Error("it was adopted as what it is not")
			}
			a, err := store.Adopt(t.Context(), store.AdoptOptions{Path: path, By: "owner", Reason: "it is what we have", Empty: test.empty, Jobs: []string{"stray", unheardOf}})
			if err != nil || len(a.Forgotten) != 1 || a.Reason != "it is what we have" {
				t.Fatalf("%+v, %v", a, err)
			}
			s := open(t, path)
			r, err := s.Restored(t.Context())
			if err != nil || r == nil || r.By != "owner" || r.Head+1 != s.Head() {
				t.Fatalf("%+v, %v", r, err)
			}
			var last jobs.Entry
			if err := s.Journal(t.Context(), r.Head, 0, func(e jobs.Entry) bool { last = e; return true }); err != nil || last.Kind != jobs.EntryAdopted {
				t.Errorf("the newest entry is %+v, %v", last, err)
			}
			if c, err := s.ConfirmRestore(t.Context(), "owner", "looked"); err != nil || c == nil || c.Reason != r.Reason {
				t.Errorf("%+v, %v", c, err)
			}
			if c, err := s.ConfirmRestore(t.Context(), "owner", "again"); err != nil || c != nil {
				t.Errorf("a second time: %+v, %v", c, err)
			}
		})
	}
}

// TestDamagedHeadOfAWholeStore: where the witness proves that nothing is missing, one
// head page is enough, and the next write mends the other.
func TestDamagedHeadOfAWholeStore(t *testing.T) {
	t.Parallel()
	path, _ := witnessed(t, 21)
	page := os.Getpagesize()
	raw := read(t, path)
	oldest := page
	if bytes.Compare(raw[page+16+48:page+16+56], raw[16+48:16+56]) > 0 {
		oldest = 0
	}
	clear(raw[oldest : oldest+page])
	write(t, path, raw)
	s := open(t, path)
	submit(t, s, 21)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if raw := read(t, path); bytes.Count(raw[oldest:oldest+page], []byte{0}) == page {
		t.Error("the page was not written again")
	}
}

// TestWitnessIsExactAtTheEnd: and of a store without one, as an upgrade finds it, it is
// made.
func TestWitnessIsExactAtTheEnd(t *testing.T) {
	t.Parallel()
	path, _ := witnessed(t, 5)
	at := filepath.Join(filepath.Dir(path), "witness.json")
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	submit(t, s, 6)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var w struct {
		HostID string `json:"host_id"`
		Head   uint64 `json:"journal_head"`
	}
	if err := json.Unmarshal(read(t, at), &w); err != nil || w.HostID != s.HostID() || w.Head != s.Head() {
		t.Errorf("%+v, %v", w, err)
	}
}
