package store_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// A full disk refuses writes, says so, and is survived: what was refused was not
// done, and when there is room again the same store goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("a small file system needs privileges: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 300_000), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "store.db"))
	big := func(n int) jobs.Submission {
		sub := storetest.Submission(storetest.NewJob(n))
		sub.Job.Message = strings.Repeat("x", 20_000)
		return sub
	}
	n := 0
	for ; n < 1000; n++ {
		if _, err := s.Submit(context.Background(), big(n)); err != nil {
			if jobs.CodeOf(err) != jobs.CodeDiskFull {
				t.Fatal(err)
			}
			break
		}
	}
	if n == 0 || n == 1000 {
		t.Fatalf("the disk was full after %d jobs", n)
	}
	head := s.Head()
	if _, err := s.Get(t.Context(), storetest.JobID(n)); jobs.CodeOf(err) != jobs.CodeJobNotFound {
		t.Errorf("the refused job: %v", err)
	}
	if _, err := s.Get(t.Context(), storetest.JobID(n-1)); err != nil {
		t.Errorf("the last job that fitted: %v", err)
	}
	select {
	case <-s.Failed():
		t.Error("the store failed")
	default:
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	got, err := s.Submit(t.Context(), big(n))
	if err != nil || got.Outcome != jobs.SubmitAccepted || got.Job.Seq != uint64(n+1) || s.Head() != head+1 {
		t.Errorf("with room again: %+v, %v", got.Key, err)
	}
}
