package endtoend

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/store"
)

// recorded is a daemon's work, as its system calls tell it, and what it told its caller.
type recorded struct {
	state string // its state folder, which is still there
	first *disk  // before the first call
	calls []sysCall
	jobs  []*recordedJob
}

// recordedJob is one job of it.
type recordedJob struct {
	name, id string
	// accepted and settled are when the caller had been told so.
	accepted, settled time.Time
	end               macexecv1.JobState

	ran     bool
	started keeper.Started // what its keeper wrote in the end
	exit    keeper.Exit
	// toolBegan, toolEnded and keeperEnded are places in the calls.
	toolBegan, toolEnded, keeperEnded int

	steps    []jobs.PublishStep
	made     map[string]string // what the artifacts show, by the name of the file that the tool wrote
	dest     string            // in the project
	old, new string            // what was there, and what is
}

// record lets a real daemon, its keepers and its tools work under strace.
func record(t *testing.T) *recorded {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	command := tracer(t, file)
	d, l := startDaemon(t), newLedgers(t)
	d.end(syscall.SIGTERM)
	if err := os.RemoveAll(d.state); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{d.state, filepath.Join(d.state, "tools"), filepath.Dir(d.project), d.project, filepath.Join(d.project, "replaced_folder")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeManifest(d.manifest(external), "2026-01-01", external); err != nil {
		t.Fatal(err)
	}
	d.configure(built.tools)
	d.put("replaced.txt", "the old one")
	d.put("removed.txt", "the one to go")
	d.put("replaced_folder/old.txt", "an old one")
	r := &recorded{state: d.state}
	var err error
	if r.first, err = newDisk(d.state); err != nil {
		t.Fatal(err)
	}
	d.wrap = command
	d.start()
	r.work(d, l)
	d.end(syscall.SIGTERM)
	d.wrap = nil
	r.calls = readTrace(t, file)
	for _, j := range r.jobs {
		r.find(t, j)
	}
	t.Logf("%d calls, %d jobs", len(r.calls), len(r.jobs))
	return r
}

// work is what is recorded: jobs of every kind of effects, ends and publishes.
func (r *recorded) work(d *daemon, l *ledgers) {
	call := func(name, tool string, args arguments, replace bool, want macexecv1.JobState) {
		req := call(name, tool, args)
		req.Options = &macexecv1.Options{Replace: replace}
		job := d.submitRun(req)
		j := &recordedJob{name: name, id: job.GetId(), accepted: time.Now()}
		d.wait(j.id, want)
		j.settled, j.end = time.Now(), want
		r.jobs = append(r.jobs, j)
	}
	call("external", "ledger_external", l.args("external", "print:hello"), false, completed)
	call("fails", "ledger_none", l.args("fails", "complain:no", "exit:3"), false, failed)
	call("created", "ledger_staged", l.args("created", "write:5000").with("output", "created.txt"), false, completed)
	call("replaced", "ledger_staged", l.args("replaced", "write:6000").with("output", "replaced.txt"), true, completed)
	call("kept", "ledger_staged", l.args("kept", "write:7000"), false, completed)
	call("folder", "ledger_staged", l.args("folder", "folder:file sub/a.txt 10", "folder:file b.txt 20").with("folder_output", "folder"), false, completed)
	call("new_folder", "ledger_staged", l.args("new_folder", "folder:file c.txt 30").with("folder_output", "replaced_folder"), true, completed)
	call("removed", "delete_asset", arguments{"project_id": "default", "asset": "removed.txt"}, false, completed)
}

// find works out of the trace and of what the daemon left when things happened to a job.
func (r *recorded) find(t *testing.T, j *recordedJob) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(r.state, "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	job, err := s.Get(t.Context(), j.id)
	if err != nil {
		t.Fatal(err)
	}
	j.made = map[string]string{}
	for _, art := range job.Artifacts {
		at := filepath.Join(r.state, "jobs", j.id, art.Kept)
		if art.Kept == "" {
			at = filepath.Join(r.state, "projects/default", art.Path)
		}
		j.made[art.Name] = realShows(at)
	}
	if job.Plan != nil {
		j.steps = job.Plan.Steps
		j.dest = path.Join("projects/default", j.steps[0].Path)
		j.old, j.new = r.first.shows(loss{}, j.dest), realShows(filepath.Join(r.state, j.dest))
	}
	d := keeper.Dir(filepath.Join(r.state, "jobs", j.id, "a1"))
	if j.started, err = keeper.ReadStarted(d); errors.Is(err, fs.ErrNotExist) {
		return // no process makes this one's changes
	}
	if err == nil {
		j.exit, err = keeper.ReadExit(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.ran = true
	for i, c := range r.calls {
		switch {
		case c.pid == j.started.Pid && c.name == "execve" && strings.HasSuffix(c.text(0), "/testtool"):
			j.toolBegan = i
		case c.phase == gone && c.pid == j.started.Pid:
			j.toolEnded = i
		case c.phase == gone && c.pid == j.started.KeeperPid && c.result == "0":
			j.keeperEnded = i
		}
	}
	if j.toolBegan == 0 || j.toolEnded < j.toolBegan || j.keeperEnded < j.toolEnded {
		t.Fatalf("%s: the tool began at call %d and ended at %d, its keeper at %d", j.name, j.toolBegan, j.toolEnded, j.keeperEnded)
	}
}
