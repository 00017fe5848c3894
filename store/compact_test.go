package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// TestB09_CompactionShrinksAndKeepsEverything: what was free is given back, every record
// is there, and the store is the one that its witness knows.
func TestB09_CompactionShrinksAndKeepsEverything(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		submit(t, s, n)
	}
	if _, err := store.Compact(t.Context(), path); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("a store in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// What an earlier one left that was killed.
	left := filepath.Join(filepath.Dir(path), ".store.db.compact-1234")
	write(t, left, []byte("half"))
	first, err := store.Compact(t.Context(), path)
	if err != nil || first.After >= first.Before {
		t.Fatalf("%+v, %v", first, err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what was left behind is still there")
	}
	if info, err := os.Stat(path); err != nil || info.Size() != first.After || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := store.Compact(t.Context(), path); err != nil || again.After > again.Before {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	s = open(t, path)
	for n := range 300 {
		if _, err := s.Get(t.Context(), storetest.JobID(n)); err != nil {
			t.Fatal(err)
		}
	}
	submit(t, s, 300)
}

// TestCompactionOfADamagedStoreIsRefused: and the file is left as it is.
func TestCompactionOfADamagedStoreIsRefused(t *testing.T) {
	t.Parallel()
	path, _ := witnessed(t, 50)
	raw := read(t, path)
	for at := 2 * os.Getpagesize(); at+512 < len(raw); at += 2 * os.Getpagesize() {
		clear(raw[at : at+512])
	}
	write(t, path, raw)
	if c, err := store.Compact(t.Context(), path); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("%+v, %v", c, err)
	}
	if !bytes.Equal(read(t, path), raw) {
		t.Error("it was changed")
	}
}
