package breaks

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// really is set by `make breaks`.
var really = flag.Bool("really", false, "break a copy of the tree and run the tests that are to turn red")

// change is a text that a file has once, and what stands there after the break.
type change struct{ file, old, now string }

// guard is one of macexec's guards, how to remove it, and the test that notices.
type guard struct {
	name    string
	changes []change
	pkg     string
	test    string // for -run
}

func guards() []guard {
	return []guard{
		{
			"the exit record is flushed before it gets its name",
			[]change{{"executor/keeper/record.go", "\treturn f.Sync()\n}\n\n// at is", "\treturn nil\n}\n\n// at is"}},
			"./internal/endtoend", "^TestG5_PowerCut$/^wherever",
		},
		{
			"a record that could not be flushed is no record",
			[]change{{"executor/keeper/record.go", "\tif err := syncFile(f, path); err != nil {\n\t\tf.Close()\n\t\treturn err\n\t}\n\tif err := f.Close()", "\tif err := f.Close()"}},
			"./internal/endtoend", "TestFaultMatrix/external/record.exit.sync:EIO$",
		},
		{
			"the key is looked up inside the commit that uses it",
			[]change{{"store/submit.go", "take(p.place)); record != nil || err != nil {", "take(p.place)); record != nil && p.raw == nil || err != nil {"}},
			"./store", "^TestSuite$",
		},
		{
			"that a key was found to be free counts for one commit",
			[]change{{"store/read.go", "\tdelete(f.places, string(place))\n", ""}},
			"./store", "^TestG4ACommitLooksForHiddenKeys$",
		},
		{
			"a step of the clock does not make a job too late that has begun",
			[]change{{"jobs/engine/run.go", "if a.e.notTooLate(j) == nil {", "if false {"}},
			"./jobs/engine", "^TestG15SetAheadWhileItStages$",
		},
		{
			"room is made only where the exit record alone tells the end",
			[]change{{"jobs/engine/verify.go", "if found.Exit.NoRoom && a.mayBeCutShort() {", "if !a.tidied && found.Exit.NoRoom && a.mayBeCutShort() {"}},
			"./jobs/engine", "^TestRoomIsMadeBeforeTheRecord$",
		},
		{
			"what is about to be shown is verified before the rename",
			[]change{{"executor/files/carry.go", "\tif err := c.verify(ctx); err != nil {\n\t\treturn c.refusedUnless(ctx, err)\n\t}\n\tmode := ", "\tmode := "}},
			"./executor/files", "^TestG6DamagedArtifactIsNotPublished$",
		},
		{
			"a process is its pid and its start time",
			[]change{{"executor/keeper/process.go", "!s.zombie && s.start == p.StartTime", "!s.zombie"}},
			"./internal/endtoend", "TestFaultMatrix/none/tool.begun:reused$",
		},
		{
			"an attempt is fenced before it is judged",
			[]change{{"executor/found.go", "\tif err := keeper.WriteFence(d, keeper.Fence{At: fault.Now().UTC()}); err != nil {\n\t\treturn Found{}, fmt.Errorf(\"fence the attempt: %w\", err)\n\t}\n", ""}},
			"./executor", "^(TestKeeperKilledWhileTheToolLives|TestLateKeeper)$",
		},
		{
			"the start is on the disk before the tool is let go",
			[]change{
				{"executor/keeper/keeper.go", "\tif err := write(h.dir.Started(), started); err != nil {\n\t\treturn nil, fmt.Errorf(\"write the started record: %w\", err)\n\t}\n", ""},
				{"executor/keeper/keeper.go", "\tfault.Point(\"keeper.released\")\n", "\tfault.Point(\"keeper.released\")\n\tif err := write(h.dir.Started(), started); err != nil {\n\t\treturn nil, fmt.Errorf(\"write the started record: %w\", err)\n\t}\n"},
			},
			"./internal/endtoend", "TestFaultMatrix/external/record.started.rename:keeper$",
		},
		{
			"the intent is stored before the keeper has its orders",
			[]change{
				{"jobs/engine/run.go", "\terr = a.update(\"the start is recorded\"", "\tearly, earlyErr := a.startKeeper(prepared, command)\n\terr = a.update(\"the start is recorded\""},
				{"jobs/engine/run.go", "\trunning, err := a.startKeeper(prepared, command)\n", "\trunning, err := early, earlyErr\n"},
			},
			"./internal/endtoend", "TestFaultMatrix/external/store.running",
		},
		{
			"a lost tool with outside effects is not run again",
			[]change{
				{"jobs/outcome.go", "\tcase EndedKeeperLost, EndedUnwatched, EndedRebooted, EndedFolderGone:\n\t\tif effects.LeavesNothing() {", "\tcase EndedKeeperLost, EndedUnwatched, EndedRebooted, EndedFolderGone:\n\t\tif effects != \"\" {"},
				{"jobs/transition.go", "why.Kind != EvidenceNeverStarted && !j.Tool.Effects.LeavesNothing()", "j.Tool.Effects == \"\""},
			},
			"./internal/endtoend", "TestFaultMatrix/external/tool.begun:all$",
		},
		{
			"a lost tool is stopped before another one is started",
			[]change{{"jobs/engine/finish.go", "if found.Kind == executor.Unwatched {", "if found.Kind == \"\" {"}},
			"./internal/endtoend", "TestFaultMatrix/none/tool.begun:keeper$",
		},
		{
			"a stored plan is finished, not made again",
			[]change{{"jobs/engine/recover.go", "case a.job.Plan != nil:", "case a.job.Plan != nil && a.job.Stop != nil:"}},
			"./internal/endtoend", "TestFaultMatrix/staged/publish.created:daemon$",
		},
		{
			"outputs that did not reach the disk complete nothing",
			[]change{{"jobs/engine/finish.go", "\tcase x.Unflushed:\n\t\treturn jobs.EndedBadOutput\n", ""}},
			"./internal/endtoend", "TestFaultMatrix/staged/keeper.flush:EIO$",
		},
		{
			"a full disk is not the fault of the input that is staged",
			[]change{{"jobs/engine/stage.go", "!itsOwn {", "!itsOwn && pointer == \"\" {"}},
			"./internal/endtoend", "TestFaultMatrix/none/copy.more:ENOSPC$",
		},
		{
			"a disk that fails says nothing of what a tool made",
			[]change{{"jobs/engine/verify.go", "errors.Is(err, syscall.EIO)", "errors.Is(err, syscall.ENOSYS)"}},
			"./internal/endtoend", "TestFaultMatrix/none/record.exit.done:all>stage.again:EIO$",
		},
		{
			"who executes the tool asks first whether it is too late",
			[]change{{"executor/keeper/launcher.go", "\tif l.late() {", "\tif l.late() && l.Argv == nil {"}},
			"./executor", "^TestG15_NothingIsExecutedTooLate$",
		},
		{
			"nobody reads what is not yet on the disk",
			[]change{{"store/store.go", "\ts.gate.RLock()\n\ttx, err := s.beginRead()\n\ts.gate.RUnlock()\n", "\ttx, err := s.beginRead()\n"}},
			"./store", "^TestReadsWaitForTheCommit$",
		},
	}
}

const root = "../.."

// TestGuardsStand: every guard of the table is still there, once.
func TestGuardsStand(t *testing.T) {
	t.Parallel()
	for _, g := range guards() {
		for _, c := range g.changes {
			text, err := os.ReadFile(filepath.Join(root, c.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), c.old); n != 1 {
				t.Errorf("%s: %s has it %d times, want it once; mend the table", g.name, c.file, n)
			}
		}
	}
}

// TestGuardsAreNoticed removes one guard at a time.
func TestGuardsAreNoticed(t *testing.T) { //nolint:paralleltest // each one works the whole machine
	if !*really {
		t.Skip("make breaks does it: it takes minutes for each guard")
	}
	tree := copyTree(t)
	if out, err := run(tree, "build", "./..."); err != nil {
		t.Fatalf("the copy does not build: %v\n%s", err, out)
	}
	for _, g := range guards() {
		t.Run(g.name, func(t *testing.T) {
			originals := map[string][]byte{}
			for _, c := range g.changes {
				path := filepath.Join(tree, c.file)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := originals[path]; !ok {
					originals[path] = text
				}
				if err := os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.now, 1)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				for path, text := range originals {
					if err := os.WriteFile(path, text, 0o600); err != nil {
						t.Error(err)
					}
				}
			})
			if out, err := run(tree, "vet", "./executor/...", "./store", "./jobs/..."); err != nil {
				t.Fatalf("broken too much, it does not compile: %v\n%s", err, out)
			}
			out, err := run(tree, "test", "-count=1", "-timeout=15m", "-run", g.test, g.pkg)
			failed, ok := errors.AsType[*exec.ExitError](err)
			if !ok || failed.ExitCode() != 1 || !strings.Contains(out, "--- FAIL: ") {
				t.Fatalf("nobody noticed: %v\n%s", err, out)
			}
			fmt.Fprintf(os.Stdout, "removed: %s\n   red: %s\n", g.name, strings.Join(reds(out), ", "))
		})
	}
}

// reds names the tests that failed, the innermost ones only.
func reds(out string) []string {
	var names []string
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			if len(names) > 0 && strings.HasPrefix(name, names[len(names)-1]+"/") {
				names = names[:len(names)-1]
			}
			names = append(names, name)
		}
	}
	return names
}

func run(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyTree copies what git knows of the tree, as it is now.
func copyTree(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		from, dest := filepath.Join(root, name), filepath.Join(to, name)
		info, err := os.Lstat(from)
		if err != nil || !info.Mode().IsRegular() {
			continue // removed since, or a link that no test needs
		}
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(dest), 0o700)
		}
		if err == nil {
			err = os.WriteFile(dest, text, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}
