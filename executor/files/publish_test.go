package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/macexec/macexec/executor/files"
)

var verbs = []files.Verb{files.Create, files.Replace, files.Remove}

func TestPublishEachVerb(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, w *world, verb files.Verb) {
		if err := os.Mkdir(w.at("sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		s := w.place(w.step(verb, "sub/out.mp4"))
		if verb == files.Create && exists(w.at("sub/out.mp4")) {
			t.Error("G6: the destination shows something before it is carried")
		}
		for range 3 { // and again, as after a crash that lost the record of it
			w.carry(s, files.Done)
			w.assertDone(s)
		}
		if err := files.Undo(t.Context(), s); err == nil {
			t.Error("a step that was carried out was undone")
		}
		w.assertDone(s)
	})
}

// eachVerb runs a test with each verb, for a file and for a folder.
func eachVerb(t *testing.T, test func(*testing.T, *world, files.Verb)) {
	t.Helper()
	for _, verb := range verbs {
		for _, folder := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %t", verb, folder), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.folder = folder
				test(t, w, verb)
			})
		}
	}
}

func TestPlaceIsIdempotentAndUndoRestores(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, w *world, verb files.Verb) {
		s := w.step(verb, "out.mp4")
		once := w.place(s)
		twice := w.place(s)
		if w.folder {
			once = twice // a folder is made anew
		}
		if once != twice {
			t.Errorf("placed as %+v, then as %+v", once, twice)
		}
		want := map[files.Verb]string{files.Create: "", files.Replace: oldContent, files.Remove: oldContent}[verb]
		w.undo(once)
		w.assertUntouched(s, want)
		w.undo(once)
		w.place(s)
		w.undo(s) // as when the plan was never stored: no device and inode
		w.assertUntouched(s, want)
		again := w.place(s)
		w.carry(again, files.Done)
		w.assertDone(again)
	})
}

func TestCreateTaken(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, path string){
		"file":    func(t *testing.T, path string) { write(t, path, "somebody else's") },
		"folder":  func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) },
		"symlink": func(t *testing.T, path string) { must(t, os.Symlink("/nowhere", path)) },
		"same bytes": func(t *testing.T, path string) {
			write(t, path, newContent)
		},
	} {
		for _, w := range newWorlds(t) {
			t.Run(name+" "+w.kind(), func(t *testing.T) {
				t.Parallel()
				w.t = t
				s := w.place(w.step(files.Create, "out.mp4"))
				take(t, w.at("out.mp4"))
				before, err := os.Lstat(w.at("out.mp4"))
				must(t, err)
				for range 2 {
					if res := w.carry(s, files.Taken); !errors.Is(res.Err, files.ErrTaken) {
						t.Error(res.Err)
					}
				}
				w.undo(s)
				after, err := os.Lstat(w.at("out.mp4"))
				must(t, err)
				if !os.SameFile(before, after) || before.Mode() != after.Mode() {
					t.Error("what took the destination was changed")
				}
				if w.got(s.Source) != newContent || len(hiddenNames(t, w.project)) > 0 {
					t.Error("the artifact is not kept as it was")
				}
				if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrTaken) {
					t.Errorf("Place: %v", err)
				}
			})
		}
	}
}

// Somebody takes the destination between the look and the change: what is there
// stays (promise G6).
func TestG6CreateNeverReplaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.place(w.step(files.Create, "x"))
	must(t, files.CreateLate(t.Context(), s, func() { write(t, w.at("x"), "somebody else's") }))
	w.carry(s, files.Taken)
	w.undo(s)
	w.assertUntouched(s, "somebody else's")
	// The same way without anybody in between does publish.
	must(t, os.Remove(w.at("x")))
	s = w.place(s)
	must(t, files.CreateLate(t.Context(), s, func() {}))
	w.carry(s, files.Done)
	w.assertDone(s)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestChangedAfterApproval(t *testing.T) { // promise G8, the publish side
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		for name, change := range map[string]func(t *testing.T, path string){
			"rewritten": func(t *testing.T, path string) { write(t, path, "edited since") },
			"swapped": func(t *testing.T, path string) {
				write(t, path+".new", "edited since")
				must(t, os.Rename(path+".new", path))
			},
		} {
			t.Run(string(verb)+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s := w.place(w.step(verb, "out.mp4"))
				change(t, w.at("out.mp4"))
				for range 2 {
					if res := w.carry(s, files.Changed); !errors.Is(res.Err, files.ErrChanged) || res.Trash != "" {
						t.Errorf("%+v", res)
					}
				}
				w.undo(s)
				w.assertUntouched(s, "edited since")
				if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrChanged) {
					t.Errorf("Place: %v", err)
				}
			})
		}
		t.Run(string(verb)+" gone", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.place(w.step(verb, "out.mp4"))
			must(t, os.Remove(w.at("out.mp4")))
			w.carry(s, files.Changed)
			w.undo(s)
			w.assertUntouched(s, "")
		})
		t.Run(string(verb)+" became a folder", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.place(w.step(verb, "out.mp4"))
			must(t, os.Remove(w.at("out.mp4")))
			must(t, os.Mkdir(w.at("out.mp4"), 0o755))
			w.carry(s, files.Changed)
			w.undo(s)
			if left := hiddenNames(t, w.project); len(left) > 0 {
				t.Error(left)
			}
		})
	}
}

// A reader of the destination never misses it while it is replaced, never sees a
// part of it, and sees the new file only after the old one (promise G6).
func TestG6NobodySeesAHalf(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("new bytes ", 400_000)
	old := strings.Repeat("old bytes ", 300_000)
	for _, verb := range []files.Verb{files.Create, files.Replace} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.step(verb, "out.bin")
			must(t, os.Remove(s.Source))
			write(t, s.Source, big)
			s.SHA256 = sha(big)
			if verb == files.Replace {
				write(t, w.at("out.bin"), old)
				s.OldSHA256 = sha(old)
			}
			ctx, stop := context.WithCancel(t.Context())
			var watch sync.WaitGroup
			looking := make(chan struct{})
			var looks int
			watch.Go(func() {
				sawNew := false
				for last := false; ; {
					b, err := os.ReadFile(w.at("out.bin"))
					switch {
					case errors.Is(err, fs.ErrNotExist) && verb == files.Create && !sawNew:
					case err != nil:
						t.Errorf("G6: %v", err)
						stop()
					case string(b) == big:
						sawNew = true
					case verb == files.Replace && string(b) == old && !sawNew:
					default:
						t.Errorf("G6: saw %d bytes that are neither file", len(b))
						stop()
					}
					if looks++; looks == 1 {
						close(looking)
					}
					if last {
						if !sawNew {
							t.Error("the last look did not see the new file")
						}
						return
					}
					last = ctx.Err() != nil
				}
			})
			<-looking
			s = w.place(s)
			w.carry(s, files.Done)
			stop()
			watch.Wait()
		})
	}
}

func TestNamesAreBytes(t *testing.T) { // kinds B28 and B45
	t.Parallel()
	names := []string{
		"new\nline.mp4", "-rf", "emoji 🎬.mp4", " lead", "end ", "take:1.mp4", "b[1].png", "q*.png", "'\"`$(x)",
		"caf\u00e9.wav", strings.Repeat("x", 255), "info.json", "..hidden", "\\", "%s%d",
	}
	for _, verb := range verbs {
		for _, name := range names {
			t.Run(string(verb)+" "+name[:min(8, len(name))], func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s := w.place(w.step(verb, name))
				w.carry(s, files.Done)
				w.assertDone(s)
			})
		}
	}
	t.Run("NFC and NFD are two files", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		nfc, nfd := "caf\u00e9.wav", "cafe\u0301.wav"
		write(t, w.at(nfd), "the other one")
		if exists(w.at(nfc)) {
			t.Skip("the file system takes both names for one")
		}
		s := w.place(w.step(files.Create, nfc))
		w.carry(s, files.Done)
		w.assertDone(s)
		if read(t, w.at(nfd)) != "the other one" {
			t.Error("the wrong one of two files was changed")
		}
		must(t, os.Remove(w.at(nfc)))
		rm := files.Step{Verb: files.Remove, Root: w.root, Path: nfc, OldSHA256: sha(newContent), Trash: files.TrashPath("j", 1, nfc)}
		_, _, err := files.Place(t.Context(), rm)
		missing, ok := errors.AsType[*files.NotFoundError](err)
		if !ok || missing.Twin != nfd || !missing.Normalisation {
			t.Errorf("got %v", err)
		}
		if read(t, w.at(nfd)) != "the other one" {
			t.Error("the twin was touched")
		}
	})
}

func TestPlaceRefusesBeforeAnythingIsChanged(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, filepath.Join(outside, "victim"), oldContent)
	for name, test := range map[string]struct {
		verb files.Verb
		path string
		prep func(t *testing.T, w *world, s *files.Step)
		want error
	}{
		"name too long": {files.Create, strings.Repeat("x", 256), nil, files.ErrNameTooLong},
		"absolute":      {files.Create, "/etc/x", nil, files.ErrPath},
		"dots":          {files.Create, "a/../../x", nil, files.ErrPath},
		"own name":      {files.Create, ".macexec-trash", nil, files.ErrPath},
		"no folder":     {files.Create, "no/such/x", nil, fs.ErrNotExist},
		"folder is a file": {files.Create, "f/x", func(t *testing.T, w *world, _ *files.Step) {
			write(t, w.at("f"), "")
		}, files.ErrNotFolder},
		"folder leads out": {files.Create, "link/x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Symlink(outside, w.at("link")))
		}, files.ErrOutside},
		"folder leads up and out": {files.Create, "link/x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Symlink("../../..", w.at("link")))
		}, files.ErrOutside},
		"replace a link": {files.Replace, "x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Remove(w.at("x")))
			must(t, os.Symlink(filepath.Join(outside, "victim"), w.at("x")))
		}, files.ErrNotRegular},
		"replace a folder": {files.Replace, "x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Remove(w.at("x")))
			must(t, os.Mkdir(w.at("x"), 0o755))
		}, files.ErrNotRegular},
		"remove nothing": {files.Remove, "x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Remove(w.at("x")))
		}, fs.ErrNotExist},
		"artifact is gone": {files.Create, "x", func(t *testing.T, _ *world, s *files.Step) {
			must(t, os.Remove(s.Source))
		}, fs.ErrNotExist},
		"artifact is a link": {files.Create, "x", func(t *testing.T, _ *world, s *files.Step) {
			must(t, os.Remove(s.Source))
			must(t, os.Symlink(filepath.Join(outside, "victim"), s.Source))
		}, files.ErrNotRegular},
		"hidden name elsewhere": {files.Create, "x", func(_ *testing.T, _ *world, s *files.Step) {
			s.Temp = "sub/.macexec-1.tmp"
		}, files.ErrPath},
		"hidden name not ours": {files.Create, "x", func(_ *testing.T, _ *world, s *files.Step) {
			s.Temp = "y"
		}, files.ErrPath},
		"trash elsewhere": {files.Remove, "x", func(_ *testing.T, _ *world, s *files.Step) {
			s.Trash = "y"
		}, files.ErrPath},
		"trash is a link": {files.Remove, "x", func(t *testing.T, w *world, _ *files.Step) {
			must(t, os.Symlink(outside, w.at(files.TrashFolder)))
		}, files.ErrNotFolder},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var s files.Step
			if test.verb == files.Create {
				s = w.step(test.verb, test.path)
			} else {
				s = w.step(test.verb, "x")
			}
			if test.prep != nil {
				test.prep(t, w, &s)
			}
			_, _, err := files.Place(t.Context(), s)
			if !errors.Is(err, test.want) {
				t.Errorf("Place: %v, want %v", err, test.want)
			}
			if read(t, filepath.Join(outside, "victim")) != oldContent {
				t.Error("a file outside was changed")
			}
			s.Device, s.Inode = 1, 1
			if res := files.Carry(t.Context(), s); res.Outcome == files.Done || res.Outcome == files.Taken || res.Err == nil {
				t.Errorf("Carry: %+v", res)
			}
			if got, err := os.ReadDir(outside); err != nil || len(got) != 1 {
				t.Errorf("outside has %v (%v)", got, err)
			}
		})
	}
}

func TestSymlinkedFolderInsideIsFollowed(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		w := newWorld(t)
		must(t, os.Mkdir(w.at("real"), 0o755))
		must(t, os.Symlink("real", w.at("link")))
		s := w.place(w.step(verb, "link/x"))
		w.carry(s, files.Done)
		w.assertDone(s)
	}
}

func TestCarryWithoutPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.step(files.Create, "x")
	w.carry(s, files.Refused)
	w.assertUntouched(s, "")
}

// What was written to after it was verified is not shown (promise G6).
func TestG6DamagedArtifactIsNotPublished(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Create, files.Replace} {
		w := newWorld(t)
		s := w.place(w.step(verb, "x"))
		must(t, os.Chmod(w.at(s.Temp), 0o600))
		must(t, os.WriteFile(w.at(s.Temp), []byte("written in place"), 0o600))
		if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDigest) {
			t.Error(res.Err)
		}
		if verb == files.Create == exists(w.at("x")) {
			t.Error("the destination was changed")
		}
		w.undo(s)
		if left := hiddenNames(t, w.project); len(left) > 0 {
			t.Error(left)
		}
	}
}

// Steps of many jobs share one trash, and each may remove it when it was the last.
func TestTrashIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all sync.WaitGroup
	for i := range 24 {
		path := fmt.Sprintf("f%d", i)
		write(t, w.at(path), oldContent)
		s := files.Step{Verb: files.Remove, Root: w.root, Path: path, Trash: files.TrashPath("j", i, path), OldSHA256: sha(oldContent), Job: "j"}
		s = w.place(s)
		all.Go(func() {
			if i%2 == 0 {
				for range 20 {
					if _, err := files.Advance(t.Context(), s, 1); err != nil {
						t.Error(err)
					}
					if err := files.Undo(t.Context(), s); err != nil {
						t.Error(err)
					}
				}
				return
			}
			if res := files.Carry(t.Context(), s); res.Outcome != files.Done {
				t.Errorf("%+v", res)
			}
		})
	}
	all.Wait()
	for i := range 24 {
		if there := exists(w.at(fmt.Sprintf("f%d", i))); there != (i%2 == 0) {
			t.Errorf("f%d there: %t", i, there)
		}
	}
}

func TestUnprovenWhenOthersMoveThings(t *testing.T) {
	t.Parallel()
	t.Run("hidden name was deleted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Create, "x"))
		must(t, os.Remove(w.at(s.Temp)))
		w.carry(s, files.Unproven)
		if read(t, s.Source) != newContent {
			t.Error("the artifact is lost")
		}
	})
	t.Run("hidden name was replaced", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Create, "x"))
		write(t, w.at("evil"), "evil")
		must(t, os.Rename(w.at("evil"), w.at(s.Temp)))
		w.carry(s, files.Unproven)
		if exists(w.at("x")) {
			t.Error("published what was not placed")
		}
	})
	t.Run("folder was removed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		must(t, os.Mkdir(w.at("sub"), 0o755))
		s := w.place(w.step(files.Create, "sub/x"))
		must(t, os.RemoveAll(w.at("sub")))
		w.carry(s, files.Unproven)
		w.undo(s)
		if read(t, s.Source) != newContent {
			t.Error("the artifact is lost")
		}
	})
	t.Run("trash emptied after remove", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Remove, "x"))
		w.carry(s, files.Done)
		must(t, os.Remove(w.at(s.Trash)))
		w.carry(s, files.Unproven)
	})
	t.Run("destination edited after replace", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.place(w.step(files.Replace, "x"))
		w.carry(s, files.Done)
		write(t, w.at("y"), "a later edit")
		must(t, os.Rename(w.at("y"), w.at("x")))
		w.carry(s, files.Done) // the trash proves it
		if read(t, w.at("x")) != "a later edit" {
			t.Error("a later edit was lost")
		}
	})
}

func TestContextEndsCarryWithoutHarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.place(w.step(files.Replace, "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := files.Carry(ctx, s); res.Outcome != files.Unfinished || !errors.Is(res.Err, context.Canceled) {
		t.Errorf("%+v", res)
	}
	w.carry(s, files.Done)
	w.assertDone(s)
}

// A file system that numbers a file anew when it is renamed: the digest decides.
func TestInodeNumberedAnew(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, w *world, verb files.Verb) {
		s := w.place(w.step(verb, "x"))
		w.carry(s, files.Done)
		other := s
		other.Inode++
		w.carry(other, files.Done)
		w.assertDone(s)
	})
}

func TestRemoveTakesTheVeryFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.place(w.step(files.Remove, "x"))
	write(t, w.at("twin"), oldContent) // the same bytes, but another file
	must(t, os.Rename(w.at("twin"), w.at("x")))
	w.carry(s, files.Changed)
	w.undo(s)
	w.assertUntouched(s, oldContent)
}

func TestDeviceNumberedAnew(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, w *world, verb files.Verb) {
		s := w.place(w.step(verb, "x"))
		s.Device += 17 // as after a reboot
		for range 2 {
			w.carry(s, files.Done)
			w.assertDone(s)
		}
	})
}
