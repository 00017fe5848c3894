package endtoend

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/store"
)

// shows is everything that a loss lets a reader of a path see, "" if it is not there.
func (d *disk) shows(l loss, rel string) string {
	var b strings.Builder
	d.each(l, rel, func(p string, n *inode) {
		if !n.dir {
			fmt.Fprintf(&b, "%s: %q\n", strings.TrimPrefix(p, rel), l.has(n).bytes())
		}
	})
	return b.String()
}

// realShows is the same of a real folder.
func realShows(root string) string {
	var b strings.Builder
	_ = filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			data, err := os.ReadFile(p)
			fmt.Fprintf(&b, "%s: %q\n", strings.TrimPrefix(p, root), data)
			return err
		}
		return err
	})
	return b.String()
}

// replay is a look at every point of a recording.
type replay struct {
	*recorded

	t    *testing.T
	disk *disk
	at   int // calls that were made
	// moves are the files and folders that steps move, by job and step.
	moves  map[string]*inode
	seen   map[string]bool // what was looked at before
	stores map[[32]byte]map[string]*jobs.Job
	points int // with something new to look at
	looks  int
	broken []string
	known  map[loss]map[string]*jobs.Job // what the store says after each loss
	// What the last call may have changed.
	inStore, all bool
	inJob        map[string]bool

	told   map[string]bool // what the caller had been told at the last look
	enough int             // broken ones after which it stops; 0: none
}

// replay makes the calls again on a disk of its own, and looks at what every loss at
// every point leaves.
func (r *recorded) replay(t *testing.T, calls []sysCall, enough int) *replay {
	t.Helper()
	p := &replay{
		recorded: r, t: t, disk: r.first.clone(), moves: map[string]*inode{},
		seen: map[string]bool{}, told: map[string]bool{}, known: map[loss]map[string]*jobs.Job{}, stores: map[[32]byte]map[string]*jobs.Job{}, enough: enough,
	}
	for i, c := range calls {
		turns := p.disk.turns
		if err := p.disk.do(c); err != nil {
			t.Fatalf("call %d, %s: %v", i, c, err)
		}
		p.at = i + 1
		if p.all = p.marks(i, c.at); turns == p.disk.turns && !p.all {
			continue
		}
		p.followMoves()
		p.begin(c)
		before := p.looks
		for _, l := range losses() {
			p.look(l, c.at)
		}
		if p.looks > before {
			p.points++
		}
		if enough > 0 && len(p.broken) >= enough {
			break
		}
	}
	return p
}

// begin finds out what a call may have changed, so that nothing else is looked at.
func (p *replay) begin(c sysCall) {
	paths := c.paths()
	p.inStore, p.inJob = strings.Contains(paths, "/store.db") || strings.Contains(paths, "/witness"), map[string]bool{}
	one := p.inStore
	for _, j := range p.jobs {
		p.inJob[j.id] = strings.Contains(paths, j.id)
		one = one || p.inJob[j.id]
	}
	p.all = p.all || !one
}

// marks says whether something is true from a call on that was not before it.
func (p *replay) marks(i int, now time.Time) bool {
	return slices.ContainsFunc(p.jobs, func(j *recordedJob) bool {
		return i == j.toolBegan || i == j.toolEnded || i == j.keeperEnded ||
			now.After(j.accepted) != p.told[j.name+" accepted"] || now.After(j.settled) != p.told[j.name+" settled"]
	})
}

// followMoves finds out which file a step of a plan is about, once it is there: on the
// disk of the test it has another number.
func (p *replay) followMoves() {
	for _, j := range p.jobs {
		for i, s := range j.steps {
			key := fmt.Sprint(j.id, i)
			if p.moves[key] != nil {
				continue
			}
			name := s.Temp
			if s.Verb == jobs.VerbRemove {
				name = s.Path
			}
			if n := p.disk.at(path.Join(p.state, "projects/default", name)); n != nil {
				p.moves[key] = n
			}
		}
	}
}

func (p *replay) brokef(l loss, format string, args ...any) {
	p.broken = append(p.broken, fmt.Sprintf("after call %d, if %s: %s", p.at, l.name, fmt.Sprintf(format, args...)))
}

// fresh says whether something was not looked at before.
func (p *replay) fresh(key string, sum [32]byte) bool {
	key = fmt.Sprintf("%s %x", key, sum)
	if p.seen[key] {
		return false
	}
	p.seen[key] = true
	p.looks++
	return true
}

// look holds everything that must be true after a loss here.
func (p *replay) look(l loss, now time.Time) {
	if p.inStore || p.all || p.known[l] == nil {
		sum := p.disk.sum(l, "store.db", "witness.json")
		if _, ok := p.stores[sum]; !ok {
			p.looks++
			p.stores[sum] = p.openStore(l)
		}
		p.known[l] = p.stores[sum]
	}
	known := p.known[l]
	for _, j := range p.jobs {
		if !p.inStore && !p.all && !p.inJob[j.id] {
			continue
		}
		p.told[j.name+" accepted"], p.told[j.name+" settled"] = now.After(j.accepted), now.After(j.settled)
		p.lookAtAttempt(l, j)
		job := known[j.id]
		switch {
		case job == nil && now.After(j.accepted):
			p.brokef(l, "%s was accepted and is forgotten", j.name)
		case now.After(j.settled) && (job == nil || string(job.State) != stateWord(j.end)):
			p.brokef(l, "%s was said to be %s", j.name, stateWord(j.end))
		}
		if len(j.steps) > 0 {
			p.lookAtPublish(l, j, job)
		} else if job != nil && job.State == jobs.StateCompleted {
			p.lookAtKept(l, j, job)
		}
		if job != nil && job.State == jobs.StateRunning && job.Plan == nil {
			p.lookAtOutputs(l, j)
		}
	}
}

func stateWord(s macexecv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

// folder is a fresh folder, in memory if there is such a place.
func (p *replay) folder() (dir string, done func()) {
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "mx")
	if err != nil {
		p.t.Fatal(err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }
}

func (p *replay) build(l loss, paths ...string) (dir string, at map[*inode]string, done func()) {
	p.t.Helper()
	dir, done = p.folder()
	at, err := p.disk.build(l, dir, paths...)
	if err != nil {
		p.t.Fatal(err)
	}
	return dir, at, done
}

// openStore opens the store as the next daemon would.
func (p *replay) openStore(l loss) map[string]*jobs.Job {
	if p.disk.under(l, "store.db") == nil {
		return nil
	}
	dir, _, done := p.build(l, "store.db", "witness.json")
	defer done()
	s, err := store.Open(p.t.Context(), store.Options{Path: filepath.Join(dir, "store.db")})
	if err != nil {
		p.brokef(l, "the store does not open: %v", err)
		return nil
	}
	defer s.Close()
	if _, err := s.VerifyJournal(p.t.Context()); err != nil {
		p.brokef(l, "the journal is broken: %v", err)
	}
	known := map[string]*jobs.Job{}
	for _, j := range p.jobs {
		job, err := s.Get(p.t.Context(), j.id)
		switch jobs.CodeOf(err) {
		case "":
			known[j.id] = job
		case jobs.CodeJobNotFound:
		default:
			p.brokef(l, "the record of %s: %v", j.name, err)
		}
	}
	return known
}

// lookAtAttempt lets the executor find out what became of an attempt.
func (p *replay) lookAtAttempt(l loss, j *recordedJob) {
	rel := path.Join("jobs", j.id, "a1")
	when := "before the tool"
	switch {
	case !j.ran:
		return
	case p.at > j.keeperEnded:
		when = "after the keeper"
	case p.at > j.toolEnded:
		when = "after the tool"
	case p.at > j.toolBegan:
		when = "with the tool"
	}
	if !p.fresh("attempt of "+j.name+" "+when, p.disk.sum(l, path.Join(rel, "keeper"))) {
		return
	}
	dir, _, done := p.build(l, path.Join(rel, "keeper"))
	defer done()
	x, err := executor.New(executor.Options{Root: filepath.Join(dir, "jobs"), Keeper: []string{"/nowhere"}, BootSession: "after the power cut"})
	if err != nil {
		p.t.Fatal(err)
	}
	found, err := x.Inspect(j.id, 1)
	switch {
	case err != nil:
		p.brokef(l, "%s, %s: the attempt cannot be looked at: %v", j.name, when, err)
	case found.Damaged != nil:
		p.brokef(l, "%s, %s: a record is not whole: %v", j.name, when, found.Damaged)
	case found.Kind == executor.Exited && (p.at <= j.toolEnded || !reflect.DeepEqual(*found.Exit, j.exit)):
		p.brokef(l, "%s, %s: an end is concluded that is not proved: %+v", j.name, when, *found.Exit)
	case found.Kind != executor.Exited && p.at > j.keeperEnded:
		p.brokef(l, "%s: the keeper wrote down the end, and found is %s", j.name, found.Kind)
	case p.at > j.toolBegan && (found.Started == nil || !reflect.DeepEqual(*found.Started, j.started)):
		p.brokef(l, "%s, %s: the tool had begun, and found is %s", j.name, when, found.Kind)
	}
}

// lookAtKept holds that what a completed job keeps is there.
func (p *replay) lookAtKept(l loss, j *recordedJob, job *jobs.Job) {
	for _, art := range job.Artifacts {
		if at := path.Join("jobs", j.id, art.Kept); p.disk.shows(l, at) != j.made[art.Name] {
			p.brokef(l, "%s is completed, and its artifact %s is not whole", j.name, art.Name)
		}
	}
}

// lookAtOutputs lets the outputs of a tool that ended well be taken out of its reach, as
// the next daemon does: the record of the end stands for them.
func (p *replay) lookAtOutputs(l loss, j *recordedJob) {
	a1 := path.Join("jobs", j.id, "a1")
	if p.disk.under(l, path.Join(a1, "keeper/exit")) == nil || j.exit.Code != 0 {
		return
	}
	if !p.fresh("outputs of "+j.name, p.disk.sum(l, path.Join(a1, "work/out"), path.Join(a1, files.ArtifactsFolder))) {
		return
	}
	dir, _, done := p.build(l, path.Join(a1, "work/out"), path.Join(a1, files.ArtifactsFolder))
	defer done()
	at := filepath.Join(dir, a1)
	for name, want := range j.made {
		var err error
		file := name
		if name == "folder" {
			_, err = files.KeepFolder(p.t.Context(), filepath.Join(at, "work/out", file), at, file, files.TreeRules{})
		} else {
			file += ".txt"
			_, err = files.KeepArtifact(p.t.Context(), filepath.Join(at, "work/out", file), at, file)
		}
		if got := realShows(filepath.Join(at, files.ArtifactsFolder, file)); err != nil || got != want {
			p.brokef(l, "%s: the end is there, and its output %s is not: %v", j.name, name, err)
		}
	}
}

// lookAtPublish holds that nobody ever sees a half, and lets the publish be finished.
func (p *replay) lookAtPublish(l loss, j *recordedJob, job *jobs.Job) {
	shown := p.disk.shows(l, j.dest)
	if shown != j.old && shown != j.new {
		p.brokef(l, "%s shows a half: %.200s", j.dest, shown)
	}
	switch {
	case job == nil:
		return
	case job.State == jobs.StateCompleted:
		if shown != j.new {
			p.brokef(l, "%s is completed, and its destination is not what it made", j.name)
		}
		return
	case job.Plan == nil:
		if shown != j.old {
			p.brokef(l, "%s has no plan, and its destination is changed", j.name)
		}
		return
	}
	paths := []string{"projects", path.Join("jobs", j.id)}
	if !p.fresh("publish of "+j.name, p.disk.sum(l, paths...)) {
		return
	}
	dir, at, done := p.build(l, paths...)
	defer done()
	root, err := files.OpenRoot(filepath.Join(dir, "projects", "default"))
	if err != nil {
		p.brokef(l, "%s: the project is gone: %v", j.name, err)
		return
	}
	defer root.Close()
	for i, s := range job.Plan.Steps {
		step := files.Step{
			Verb: files.Verb(s.Verb), Root: root, Path: s.Path, Temp: s.Temp, Trash: s.Trash, Folder: s.Folder,
			OldSHA256: s.OldSHA256, SHA256: s.SHA256, Job: j.id, Source: filepath.Join(dir, "jobs", j.id, "none"),
		}
		for _, art := range job.Artifacts {
			if art.Name == s.Artifact {
				step.Source = filepath.Join(dir, "jobs", j.id, art.Kept)
			}
		}
		step.Device, step.Inode = identity(dir, at[p.moves[fmt.Sprint(j.id, i)]])
		result := files.Carry(context.Background(), step)
		if result.Outcome != files.Done {
			p.brokef(l, "%s: the plan is stored, and carrying it out is %s: %v", j.name, result.Outcome, result.Err)
			return
		}
		if s.Verb != jobs.VerbCreate && realShows(filepath.Join(dir, "projects/default", s.Trash)) == "" {
			p.brokef(l, "%s: what it replaced or removed is not in the trash", j.name)
		}
		if s.Temp != "" {
			if _, err := os.Lstat(filepath.Join(dir, "projects/default", s.Temp)); err == nil {
				p.brokef(l, "%s: %s is left over", j.name, s.Temp)
			}
		}
	}
	if realShows(filepath.Join(dir, j.dest)) != j.new {
		p.brokef(l, "%s: the finished publish is not what was made", j.name)
	}
}

// identity is what a step says of what it moves: what is there, or, if the loss took it,
// something that nothing has.
func identity(dir, file string) (device, inode uint64) {
	f, err := os.Open(dir)
	if err != nil {
		return 1, 1 << 62
	}
	defer f.Close()
	facts, err := files.FactsOf(f)
	if err != nil || file == "" {
		return max(facts.Device, 1), 1 << 62
	}
	g, err := os.Open(file)
	if err != nil {
		return facts.Device, 1 << 62
	}
	defer g.Close()
	facts, _ = files.FactsOf(g)
	return facts.Device, facts.Inode
}

// omission is syncs that might have been forgotten: those of some files or folders, and
// of folders perhaps only those behind a rename to some names.
type omission struct{ of, after string }

func omissions() map[string]omission {
	return map[string]omission{
		"the started record":            {of: `/keeper/started\.tmp$`},
		"the exit record":               {of: `/keeper/reserve$`},
		"the folder of the exit record": {of: `/keeper$`, after: `/exit$`},
		"the folders of an attempt":     {of: `/jobs(/[^/]+(/a1)?)?$`},
		"the outputs":                   {of: `/(out|artifacts)/[^/]+$`},
		"the folder of the artifacts":   {of: `/artifacts$`},
		"the folder of the destination": {of: `/projects/default$`},
		"the trash":                     {of: `/\.macexec-trash$`},
		"the store":                     {of: `/store\.db$`},
	}
}

// without is the calls without some syncs. They keep their places.
func without(calls []sysCall, o omission) (left []sysCall, missing int) {
	of, after := regexp.MustCompile(o.of), regexp.MustCompile(o.after)
	renamed := map[string]string{} // the last new name in each folder
	left = slices.Clone(calls)
	for i, c := range left {
		switch {
		case c.name == "renameat":
			renamed[path.Dir(c.path(2, 3))] = c.path(2, 3)
		case c.name == "fsync" && of.MatchString(opened(c.args[0])) && after.MatchString(renamed[opened(c.args[0])]):
			left[i].name, missing = "nothing", missing+1
		}
	}
	return left, missing
}

// A power cut: wherever it comes, and whatever of the bytes and names that nobody had
// synced it takes, what is found afterwards concludes no end that is not proved (G5),
// forgets nothing that was said (G3), and shows no half of a file (G6). The writes are
// those of a real daemon with real keepers and tools; each point of them is looked at by
// the code that looks after a real restart.
func TestG5_PowerCut(t *testing.T) {
	t.Parallel()
	r := record(t)
	t.Run("wherever it comes", func(t *testing.T) {
		t.Parallel()
		p := r.replay(t, r.calls, 0)
		for _, d := range p.disk.difference("projects", "jobs", "store.db") {
			t.Errorf("the replay is no picture of what happened: %s", d)
		}
		for _, b := range p.broken[:min(len(p.broken), 20)] {
			t.Error(b)
		}
		t.Logf("%d points were different ones; %d looks; %d broken", p.points, p.looks, len(p.broken))
	})
	for name, o := range omissions() {
		t.Run("red without the sync of "+name, func(t *testing.T) {
			t.Parallel()
			left, missing := without(r.calls, o)
			if missing == 0 {
				t.Fatal("there is no such sync")
			}
			p := r.replay(t, left, 1)
			if len(p.broken) == 0 {
				t.Fatal("nobody notices that it is missing")
			}
			t.Logf("%d syncs are missing; %s", missing, p.broken[0])
		})
	}
}
