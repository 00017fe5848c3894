package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/jobs"
)

// smallJobs gives the folder of the jobs a small disk of its own.
func (h *host) smallJobs(size string) {
	h.t.Helper()
	root := h.exec.Root()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		h.t.Skipf("SKIPPED, NOT TESTED: no small file system: %v", err)
	}
	h.t.Cleanup(func() {
		h.Stop()
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			h.t.Error(err)
		}
	})
}

// TestRoomIsMadeBeforeTheRecord: what was made on a disk that is full is gone before its
// end is stored. An engine that finds it gone says what the one before would have said.
func TestRoomIsMadeBeforeTheRecord(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("fill", "staged", "while ! [ -e in/gate ]; do sleep 0.01; done; head -c 200000000 /dev/zero > out/made.txt 2>&-; true", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
result: "{'ok': true}"`))
	h.smallJobs("80m")
	job := h.await(h.mustCall(owner(), "fill", "k", `{}`, jobs.Options{}).ID, func(j *jobs.Job) bool {
		return len(j.Attempts) == 1 && j.Attempts[0].Started != nil
	})
	h.store.full.Store(true)
	dir := h.exec.AttemptDir(job.ID, 1)
	if err := os.WriteFile(filepath.Join(dir.In(), "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := os.Lstat(dir.Work()); err == nil; _, err = os.Lstat(dir.Work()) {
		select {
		case <-t.Context().Done():
			t.Fatal("no room was made")
		case <-time.After(time.Millisecond):
		}
	}
	h.Stop()
	h.store.full.Store(false)
	h.start()
	job = h.await(job.ID, settled)
	h.wantState(job, jobs.StateFailed, jobs.EndDiskFull)
	if x := job.Attempts[0].Exit; x == nil || x.Code != 0 || job.SideEffect != jobs.SideEffectNone {
		t.Errorf("its exit was %+v, side effect %s", x, job.SideEffect)
	}
}

// TestOutputThatDoesNotFitTwice: a file that has another name is kept as a copy. That there
// is no room for one says nothing of what the tool has made.
func TestOutputThatDoesNotFitTwice(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("make", "staged", "yes made | head -c 50000000 > out/made.txt && ln out/made.txt out/again", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
result: "{'ok': true}"`))
	h.smallJobs("80m")
	job := h.await(h.mustCall(owner(), "make", "k", `{}`, jobs.Options{}).ID, settled)
	h.wantState(job, jobs.StateFailed, jobs.EndDiskFull)
}
