package store_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// childRole, when set, makes the test binary play another process.
const childRole = "STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childRole) {
	case "hold":
		os.Exit(holdStore(os.Args[len(os.Args)-1]))
	case "submit":
		submitForever(os.Args[len(os.Args)-1])
		os.Exit(1)
	case "limit":
		os.Exit(writeOverLimit(os.Args[len(os.Args)-1]))
	}
	goleak.VerifyTestMain(m)
}

// open opens a store and, in the end, closes and checks it.
func open(t testing.TB, path string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{Path: path, Now: storetest.Time})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wantClean(t, path)
	})
	return s
}

func wantClean(t testing.TB, path string) {
	t.Helper()
	problems, err := store.Check(path)
	if err != nil || len(problems) > 0 {
		t.Errorf("the store is not clean: %q, %v", problems, err)
	}
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

func submit(t testing.TB, s *store.Store, n int) *jobs.Job {
	t.Helper()
	got, err := s.Submit(context.Background(), storetest.Submission(storetest.NewJob(n)))
	if err != nil {
		t.Fatal(err)
	}
	return got.Job
}

func TestSuite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) jobs.Store { return open(t, newPath(t)) })
}

// G3: what was answered is there after a restart, host id and numbers included.
func TestReopen(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	host := s.HostID()
	first := submit(t, s, 1)
	if _, err := s.Update(t.Context(), first.ID, storetest.Start); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), first.ID); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("a closed store answers %v", err)
	}
	if _, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(2))); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("a closed store answers %v", err)
	}
	if err := s.Wait(t.Context(), 99); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("a closed store answers %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 { // the witness is the other
		t.Errorf("beside the store: %v, %v", left, err)
	}

	s = open(t, path)
	if s.HostID() != host || len(host) != 8 || s.Head() != 2 {
		t.Errorf("host %q was %q, head %d", s.HostID(), host, s.Head())
	}
	got, err := s.Get(t.Context(), first.ID)
	if err != nil || got.Revision != 2 || got.State != jobs.StateRunning {
		t.Errorf("got %+v, %v", got, err)
	}
	again, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(1)))
	if err != nil || again.Outcome != jobs.SubmitReplayed {
		t.Errorf("got %+v, %v", again, err)
	}
	if next := submit(t, s, 2); next.Seq != 2 {
		t.Errorf("the next job has the seq %d", next.Seq)
	}
}

// A write that waits when the store is closed is written, and what comes after is
// refused; nothing hangs.
func TestCloseWhileWriting(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := open(t, path)
	answers := make(chan error)
	for n := range 64 {
		go func() {
			_, err := s.Submit(context.Background(), storetest.Submission(storetest.NewJob(n)))
			answers <- err
		}()
	}
	stored := 0
	for i := range 64 {
		if i == 3 {
			go s.Close()
		}
		switch err := <-answers; jobs.CodeOf(err) {
		case "":
			stored++
		case jobs.CodeStoreFailed:
		default:
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	page, err := s.List(t.Context(), jobs.Query{})
	if err != nil || len(page.Jobs) != stored {
		t.Errorf("%d jobs are there, %d were answered, %v", len(page.Jobs), stored, err)
	}
}

// holdStore is a process that has a store open until its input ends.
func holdStore(path string) int {
	s, err := store.Open(context.Background(), store.Options{Path: path})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	fmt.Println("held")
	bufio.NewScanner(os.Stdin).Scan()
	return 0
}

func describe(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want a word of %q", err, part)
		}
	}
}
