package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

const day = 24 * time.Hour

// discard puts into the trash of a project what a job would have moved there.
func (h *host) discard(root, job string, n int, at time.Time, content string) (path string) {
	h.t.Helper()
	note, err := json.Marshal(map[string]any{"path": "a/old.txt", "job": job, "verb": "remove", "sha256": "", "at": at})
	if err != nil {
		h.t.Fatal(err)
	}
	place := filepath.Join(root, files.TrashFolder, fmt.Sprint(job, "-", n))
	if err := os.MkdirAll(place, 0o700); err != nil {
		h.t.Fatal(err)
	}
	path = filepath.Join(place, "old.txt")
	for name, text := range map[string]string{path: content, place + ".json": string(note)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	return path
}

// awaitPass returns when the pass of the start is over, so that it is the test's own that
// removes something.
func (h *host) awaitPass() {
	h.t.Helper()
	for h.RetentionStatus().LastPass.IsZero() {
		select {
		case <-h.t.Context().Done():
			h.t.Fatal("there was no pass at the start")
		case <-time.After(time.Millisecond):
		}
	}
}

func (h *host) retain(change func(*Retention)) {
	l := h.limits()
	change(&l.Retention)
	h.bounds.Store(&l)
}

func (h *host) wantGone(want map[string]bool) {
	h.t.Helper()
	got := map[string]bool{}
	for path := range want {
		_, err := os.Lstat(path)
		_, noted := os.Lstat(filepath.Dir(path) + ".json")
		if os.IsNotExist(err) != os.IsNotExist(noted) {
			h.t.Errorf("%s: %v, but its note: %v", path, err, noted)
		}
		got[path] = os.IsNotExist(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		h.t.Errorf("what is gone (-want +got):\n%s", diff)
	}
}

// unknownJob is one whose end nobody saw.
func (h *host) unknownJob(key string) *jobs.Job {
	h.t.Helper()
	h.setHost(jobs.ModePaused)
	job, err := h.copyUnder(key, key)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, change := range []func(*jobs.Job) (jobs.Note, error){storetest.Start, storetest.Lose} {
		if _, err := h.store.Update(h.t.Context(), job.ID, change); err != nil {
			h.t.Fatal(err)
		}
	}
	return job
}

// What jobs of this host have moved to the trash goes after its time, unless the job may
// still need it. A clock that is set ahead makes nothing old, and what would be removed is
// what is removed.
func TestTrashIsKeptForItsTime(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool(), manifest("hold", "staged", "true", `    slot: one
    timeout: 1m
artifacts: [{name: made, file: "'made.txt'", media_types: [text/plain], required: true}]
publish: [{create: made, at: output}]
result: "{'ok': true}"`))
	done, err := h.copyUnder("k", "out")
	if err != nil {
		t.Fatal(err)
	}
	h.await(done.ID, settled)
	open, unknown := h.asked("open"), h.unknownJob("unknown")
	root, long, short := filepath.Join(h.state, h.project("")), time.Now().Add(-91*day), time.Now().Add(-89*day)
	young := h.discard(root, done.ID, 0, short, "young")
	old := h.discard(root, done.ID, 1, long, "old")
	ofOpen := h.discard(root, open.ID, 0, long, "open")
	ofUnknown := h.discard(root, unknown.ID, 0, long, "unknown")
	pruned := h.discard(root, "01jqxw6q2w8y4n0000000000zz-"+h.store.HostID(), 0, long, "without a record")
	foreign := h.discard(root, "01jqxw6q2w8y4n0000000000zz-aaaaaaaa", 0, long, "another host's")
	want := map[string]bool{young: false, old: false, ofOpen: false, ofUnknown: false, pruned: false, foreign: false}

	use, err := h.DescribeStore(t.Context(), owner())
	if diff := cmp.Diff([]TrashUse{{Project: DefaultProject, Count: 5, Bytes: int64(len("youngoldopenunknownwithout a record"))}}, use.Trash); diff != "" || err != nil {
		t.Errorf("%v; in the trash (-want +got):\n%s", err, diff)
	}
	would, err := h.Prune(t.Context(), owner(), 0, true)
	if err != nil || would.Trash != 2 || would.TrashBytes != int64(len("oldwithout a record")) {
		t.Errorf("would remove %+v, %v", would, err)
	}
	h.wantGone(want)
	head := h.store.Head()
	h.store.full.Store(true)
	if _, err := h.prune(t.Context(), h.limits().Retention, pruning{all: true}); jobs.CodeOf(err) != jobs.CodeDiskFull || !strings.Contains(h.RetentionStatus().Failing, "trash of project default") {
		t.Errorf("without a journal: %v, %+v", err, h.RetentionStatus())
	}
	h.wantGone(want) // G9
	h.store.full.Store(false)
	got, err := h.Prune(t.Context(), owner(), 0, false)
	if err != nil || got.Trash != would.Trash || got.TrashBytes != would.TrashBytes {
		t.Errorf("removed %+v, %v; would have removed %+v", got, err, would)
	}
	want[old], want[pruned] = true, true
	h.wantGone(want)
	told := false
	if err := h.store.Journal(t.Context(), head, 0, func(e jobs.Entry) bool {
		told = told || strings.HasSuffix(e.Message, "in the trash of project default is removed: 2 with 19 bytes")
		return true
	}); err != nil || !told {
		t.Errorf("the journal does not tell of it; %v", err)
	}

	h.setWall(2 * day)
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Trash != 0 {
		t.Errorf("by a clock that was set ahead: %+v, %v", got, err)
	}
	h.setWall(0)
	if _, err := h.store.Update(t.Context(), unknown.ID, storetest.Resolve); err != nil {
		t.Fatal(err)
	}
	h.setClock(2 * day)
	if got, err := h.Prune(t.Context(), owner(), 0, false); err != nil || got.Trash != 2 {
		t.Errorf("after its time: %+v, %v", got, err)
	}
	want[young], want[ofUnknown] = true, true
	h.wantGone(want)
}

// Of what lies in the trash of all projects only so much is kept as is wanted, the newest.
// What is needed counts, and stays. One folder is not counted twice.
func TestTrashByBytes(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	done, err := h.copyUnder("k", "out")
	if err != nil {
		t.Fatal(err)
	}
	h.await(done.ID, settled)
	unknown := h.unknownJob("unknown")
	root, other := filepath.Join(h.state, h.project("")), t.TempDir()
	for name, folder := range map[string]string{"other": other, "same": other} {
		if _, err := h.AddProject(t.Context(), owner(), jobs.Project{Name: name, Root: folder}); err != nil {
			t.Fatal(err)
		}
	}
	kilobyte := strings.Repeat("x", 1000)
	at := func(days int) time.Time { return time.Now().Add(-time.Duration(days) * day) }
	needed := h.discard(root, unknown.ID, 0, at(9), kilobyte)
	first := h.discard(other, done.ID, 0, at(8), kilobyte)
	second := h.discard(root, done.ID, 1, at(7), kilobyte)
	third := h.discard(other, done.ID, 2, at(6), kilobyte)
	want := map[string]bool{needed: false, first: false, second: false, third: false}
	for _, step := range []struct {
		most  int64
		count int
		gone  []string
	}{{4000, 0, nil}, {3999, 1, []string{first}}, {2000, 1, []string{second}}, {1, 1, []string{third}}} {
		h.retain(func(r *Retention) { r.TrashBytes = step.most })
		for _, dry := range []bool{true, false} {
			if got, err := h.Prune(t.Context(), owner(), 0, dry); err != nil || got.Trash != step.count || got.TrashBytes != int64(1000*step.count) {
				t.Errorf("at most %d bytes: %+v, %v; want %d", step.most, got, err, step.count)
			}
		}
		for _, path := range step.gone {
			want[path] = true
		}
		h.wantGone(want)
	}
}

// A project that is not there is no failure. One that cannot be looked into is, and stops
// no other.
func TestTrashOfProjectsThatAreNotThere(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	root, dir := filepath.Join(h.state, h.project("")), t.TempDir()
	old := h.discard(root, "01jqxw6q2w8y4n0000000000zz-"+h.store.HostID(), 0, time.Now().Add(-91*day), "old")
	for _, name := range []string{"away", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := h.AddProject(t.Context(), owner(), jobs.Project{Name: name, Root: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := h.Prune(t.Context(), owner(), 0, true); err != nil || got.Trash != 1 {
		t.Errorf("without the disk of two projects: %+v, %v", got, err)
	}
	if err := os.Symlink("b", filepath.Join(dir, "b")); err != nil { // the system will not go round
		t.Fatal(err)
	}
	got, err := h.Prune(t.Context(), owner(), 0, false)
	if err == nil || got.Trash != 1 {
		t.Errorf("removed %+v, %v", got, err)
	}
	h.wantGone(map[string]bool{old: true})
	if failing := h.RetentionStatus().Failing; !strings.Contains(failing, "the trash of project b") || strings.Contains(failing, "away") {
		t.Errorf("failing: %q", failing)
	}
	use, err := h.DescribeStore(t.Context(), owner())
	if err != nil || len(use.Trash) != 3 || use.Trash[0].Problem != "" || use.Trash[1].Problem == "" || use.Trash[2].Problem != "" {
		t.Errorf("df says %+v, %v", use.Trash, err)
	}
}
