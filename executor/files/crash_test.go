package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/files"
)

// After a crash behind any change, a fresh Carry finishes what was begun, once.
func TestCrashBetweenAnyTwoChanges(t *testing.T) {
	t.Parallel()
	atLeast := map[files.Verb]int{files.Create: 2, files.Replace: 4, files.Remove: 2}
	eachVerb(t, func(t *testing.T, first *world, verb files.Verb) {
		for n := 0; ; n++ {
			w := newWorld(t)
			w.folder = first.folder
			s := w.place(w.step(verb, "out.mp4"))
			more, err := files.Advance(t.Context(), s, n)
			must(t, err)
			w.carry(s, files.Done)
			w.assertDone(s)
			w.carry(s, files.Done)
			w.assertDone(s)
			if more {
				continue
			}
			if n <= atLeast[verb] {
				t.Errorf("%s took %d changes: were they driven one at a time?", verb, n)
			}
			return
		}
	})
}

func TestCrashWhileTheTrashIsMade(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		for name, half := range map[string]func(t *testing.T, w *world, s files.Step){
			"trash":  func(t *testing.T, w *world, _ files.Step) { must(t, os.Mkdir(w.at(files.TrashFolder), 0o700)) },
			"folder": func(t *testing.T, w *world, s files.Step) { must(t, os.MkdirAll(filepath.Dir(w.at(s.Trash)), 0o700)) },
			"half a note": func(t *testing.T, w *world, s files.Step) {
				must(t, os.MkdirAll(filepath.Dir(w.at(s.Trash)), 0o700))
				write(t, filepath.Dir(w.at(s.Trash))+".tmp", `{"path": "an unfinished, but longer note, longer than the real one could ever be, so that its rest would show if it were not cut off before it is written anew `+strings.Repeat("x", 500))
			},
			"note without folder": func(t *testing.T, w *world, s files.Step) {
				write(t, filepath.Dir(w.at(s.Trash))+".json", "{}")
			},
		} {
			t.Run(string(verb)+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s := w.place(w.step(verb, "out.mp4"))
				half(t, w, s)
				w.carry(s, files.Done)
				w.assertDone(s)
				var note map[string]any
				if err := json.Unmarshal([]byte(read(t, filepath.Dir(w.at(s.Trash))+".json")), &note); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestCrashWhilePlacing(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		w := newWorld(t)
		s := w.step(files.Create, "out.mp4")
		more, err := files.PlaceSteps(t.Context(), s, n)
		must(t, err)
		s = w.place(s)
		w.carry(s, files.Done)
		w.assertDone(s)
		if !more {
			break
		}
	}
	t.Run("half a copy", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.step(files.Create, "out.mp4")
		write(t, w.at(s.Temp), newContent[:7])
		s = w.place(s)
		w.carry(s, files.Done)
		w.assertDone(s)
	})
	t.Run("half a copy, undone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.step(files.Create, "out.mp4")
		write(t, w.at(s.Temp), newContent[:7])
		w.undo(s)
		w.assertUntouched(s, "")
	})
	t.Run("artifact lost, hidden name whole", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Create, "out.mp4"))
		must(t, os.Remove(s.Source))
		again := w.place(s)
		if again != s {
			t.Errorf("%+v, then %+v", s, again)
		}
		w.undo(s) // gives it back
		w.assertUntouched(s, "")
	})
}

// childPlan is what a child process is told, and what a plan on disk holds.
type childPlan struct {
	Project, Path, Temp, Trash, Old, SHA, Source string
	Verb                                         files.Verb
	Folder                                       bool
	Device, Inode                                uint64
	PlaceSteps, CarrySteps                       int
	Plan                                         string // where the child stores the plan once it is placed
}

func (p childPlan) step(root *files.Root) files.Step {
	return files.Step{
		Verb: p.Verb, Root: root, Path: p.Path, Temp: p.Temp, Trash: p.Trash, OldSHA256: p.Old, SHA256: p.SHA,
		Source: p.Source, Job: "01J-host", Folder: p.Folder, Device: p.Device, Inode: p.Inode,
	}
}

// publishChild does so many changes and then dies as by a power cut.
func publishChild() {
	die := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var p childPlan
	fail(json.Unmarshal([]byte(os.Getenv(childVariable)), &p))
	root, err := files.OpenRoot(p.Project)
	fail(err)
	ctx := context.Background()
	if p.PlaceSteps >= 0 {
		_, err := files.PlaceSteps(ctx, p.step(root), p.PlaceSteps)
		fail(err)
		die()
	}
	p.Device, p.Inode, err = files.Place(ctx, p.step(root))
	fail(err)
	b, err := json.Marshal(p)
	fail(err)
	fail(os.WriteFile(p.Plan+".tmp", b, 0o600))
	fail(os.Rename(p.Plan+".tmp", p.Plan))
	if p.CarrySteps >= 0 {
		_, err = files.Advance(ctx, p.step(root), p.CarrySteps)
		fail(err)
		die()
	}
	files.Carry(ctx, p.step(root))
	die()
}

func (w *world) child(s files.Step, place, carry int) (*exec.Cmd, string) {
	w.t.Helper()
	plan := filepath.Join(w.state, "plan")
	b, err := json.Marshal(childPlan{
		Project: w.project, Path: s.Path, Temp: s.Temp, Trash: s.Trash, Old: s.OldSHA256, SHA: s.SHA256,
		Source: s.Source, Verb: s.Verb, Folder: s.Folder, PlaceSteps: place, CarrySteps: carry, Plan: plan,
	})
	must(w.t, err)
	exe, err := os.Executable()
	must(w.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childVariable+"="+string(b))
	cmd.Stderr = &bytes.Buffer{}
	return cmd, plan
}

// recover does what a daemon does after a crash: with a stored plan it carries on,
// without one it places anew.
func (w *world) recover(s files.Step, plan string) files.Step {
	w.t.Helper()
	b, err := os.ReadFile(plan)
	if errors.Is(err, os.ErrNotExist) {
		return w.place(s)
	}
	must(w.t, err)
	var p childPlan
	must(w.t, json.Unmarshal(b, &p))
	s.Device, s.Inode = p.Device, p.Inode
	return s
}

func TestKilledProcess(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, first *world, verb files.Verb) {
		for n := range 7 {
			for _, placing := range []bool{true, false} {
				if placing && (verb == files.Remove || n > 2) {
					continue
				}
				t.Run(fmt.Sprintf("placing=%t %d", placing, n), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					w.folder = first.folder
					s := w.step(verb, "out.mp4")
					place, carry := -1, n
					if placing {
						place = n
					}
					cmd, plan := w.child(s, place, carry)
					err := cmd.Run()
					if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
						t.Fatalf("child: %v\n%s", err, cmd.Stderr)
					}
					s = w.recover(s, plan)
					w.carry(s, files.Done)
					w.assertDone(s)
				})
			}
		}
	})
}

// A child is killed at a moment that nobody chose, again and again.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for i := range 2 * rounds {
		verb := verbs[i%len(verbs)]
		w := newWorlds(t)[i/len(verbs)%2]
		s := w.step(verb, "out.mp4")
		cmd, plan := w.child(s, -1, -1)
		must(t, cmd.Start())
		time.AfterFunc(time.Duration(rand.IntN(12_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		s = w.recover(s, plan)
		w.carry(s, files.Done)
		w.assertDone(s)
	}
}

// What the swap or the move took out of the way is not what was agreed on: the file
// was changed between the last look and the change (promise G8).
func TestChangedInTheLastMoment(t *testing.T) {
	t.Parallel()
	t.Run("replace", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Replace, "x"))
		advanceUntil(t, s, func() bool { return read(t, w.at("x")) == newContent })
		write(t, w.at(s.Temp), "edited in between")
		w.carry(s, files.Changed)
		w.undo(s)
		w.assertUntouched(s, "edited in between")
	})
	t.Run("replace, then edited after the swap", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Replace, "x"))
		advanceUntil(t, s, func() bool { return read(t, w.at("x")) == newContent })
		write(t, w.at("later"), "a later edit")
		must(t, os.Rename(w.at("later"), w.at("x")))
		w.carry(s, files.Done)
		if read(t, w.at("x")) != "a later edit" || read(t, w.at(s.Trash)) != oldContent {
			t.Error("a later edit or the old file was lost")
		}
	})
	t.Run("remove", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Remove, "x"))
		advanceUntil(t, s, func() bool { return !exists(w.at("x")) })
		write(t, w.at(s.Trash), "edited in between")
		w.carry(s, files.Changed)
		w.undo(s)
		w.assertUntouched(s, "edited in between")
	})
	t.Run("remove, name taken again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Remove, "x"))
		advanceUntil(t, s, func() bool { return !exists(w.at("x")) })
		write(t, w.at(s.Trash), "edited in between")
		write(t, w.at("x"), "a new one")
		res := w.carry(s, files.Changed)
		if res.Trash != s.Trash || read(t, w.at(s.Trash)) != "edited in between" || read(t, w.at("x")) != "a new one" {
			t.Errorf("%+v", res)
		}
		if err := files.Undo(t.Context(), s); err == nil {
			t.Error("Undo would lose the file in the trash")
		}
	})
}

func advanceUntil(t *testing.T, s files.Step, reached func() bool) {
	t.Helper()
	for range 10 {
		if reached() {
			return
		}
		if _, err := files.Advance(t.Context(), s, 1); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the state was never reached")
}

// Somebody saves the file while it is being replaced or removed. Whoever comes
// first, neither the old bytes, nor the edit, nor the artifact is lost.
func TestRaceWithAnEditor(t *testing.T) {
	t.Parallel()
	rounds := 300
	if testing.Short() {
		rounds = 40
	}
	seen := map[files.Outcome]int{}
	for i := range rounds {
		verb := verbs[1+i%2]
		w := newWorld(t)
		s := w.place(w.step(verb, "x"))
		write(t, w.at("edit"), "the edit")
		done := make(chan error)
		spins := rand.IntN(6000)
		go func() {
			for range spins {
				runtime.Gosched()
			}
			done <- os.Rename(w.at("edit"), w.at("x"))
		}()
		res := files.Carry(t.Context(), s)
		must(t, <-done)
		seen[res.Outcome]++
		if got := read(t, w.at("x")); got != "the edit" && res.Outcome != files.Unproven {
			t.Fatalf("%s %s: the edit is lost, %q is there", verb, res.Outcome, got)
		}
		switch res.Outcome {
		case files.Done:
			if read(t, w.at(s.Trash)) != oldContent {
				t.Fatalf("%s: the old file is not in the trash", verb)
			}
		case files.Changed:
			if verb == files.Replace && read(t, s.Source) != newContent {
				t.Fatal("the artifact is lost")
			}
		case files.Unproven:
			t.Logf("%s: %v", verb, res.Err)
		default:
			t.Fatalf("%s: %+v", verb, res)
		}
	}
	t.Logf("outcomes: %v", seen)
}
