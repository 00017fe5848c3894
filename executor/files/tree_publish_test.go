package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/files"
)

// watchFolder looks at a folder all the time, and holds that it is always the old one
// or the new one, and the new one at last (promise G6). An empty digest is no folder.
func watchFolder(t *testing.T, path, before, after string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watcher sync.WaitGroup
	looking := make(chan struct{})
	watcher.Go(func() {
		last, seen := false, ""
		for looks := 0; ; looks++ {
			digest, err := digestNow(path)
			switch {
			case err != nil:
				t.Errorf("G6: look %d: %v", looks, err)
			case digest != before && digest != after, seen == after && digest != after:
				t.Errorf("G6: look %d saw the folder %q, after %q", looks, digest, seen)
			}
			if seen = digest; looks == 0 {
				close(looking)
			}
			if last || t.Failed() {
				if seen != after {
					t.Errorf("the last look saw %q", seen)
				}
				return
			}
			last = ctx.Err() != nil
		}
	})
	<-looking
	return func() {
		cancel()
		watcher.Wait()
	}
}

func digestNow(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	tree, err := files.DigestFolder(context.Background(), f, files.TreeRules{})
	return tree.Digest(), err
}

func fill(t testing.TB, dir, content string, n int) {
	t.Helper()
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("%02d/%04d.txt", i%7, i)), fmt.Sprint(content, i))
	}
}

// A reader of the destination never sees a part of a folder, whenever the process that
// publishes it is killed, and the folder is the very one that was placed.
func TestG6NobodySeesAHalfFolder(t *testing.T) {
	t.Parallel()
	rounds := 5
	if testing.Short() {
		rounds = 3
	}
	for _, verb := range []files.Verb{files.Create, files.Replace} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			for range rounds {
				w := newWorld(t)
				w.folder = true
				s := w.step(verb, "out")
				fill(t, s.Source, "new", 60)
				s.SHA256 = digestFolder(t, s.Source).Digest()
				before := ""
				if verb == files.Replace {
					fill(t, w.at("out"), "old", 40)
					before = digestFolder(t, w.at("out")).Digest()
					s.OldSHA256 = before
				}
				stop := watchFolder(t, w.at("out"), before, s.SHA256)
				cmd, plan := w.child(s, -1, -1)
				must(t, cmd.Start())
				kill := time.AfterFunc(time.Duration(rand.IntN(40_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
				_ = cmd.Wait()
				kill.Stop()
				s = w.recover(s, plan)
				w.carry(s, files.Done)
				stop()
				if fi, err := os.Stat(w.at("out")); err != nil || inode(fi) != s.Inode {
					t.Errorf("another folder than the placed one is there: %v", err)
				}
				if verb == files.Replace && digestFolder(t, w.at(s.Trash)).Digest() != before {
					t.Error("the old folder is not whole in the trash")
				}
				if exists(s.Source) || exists(w.at(s.Temp)) {
					t.Error("something is left behind")
				}
			}
		})
	}
}

// What was changed after it was verified is not shown (promise G6).
func TestG6DamagedFolderIsNotPublished(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, dir string){
		"content": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "a.txt")))
			write(t, filepath.Join(dir, "a.txt"), newContent[1:]+"x")
		},
		"mode":  func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "a.txt"), 0o755)) },
		"more":  func(t *testing.T, dir string) { write(t, filepath.Join(dir, "b.txt"), "b") },
		"less":  func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "sub/run"))) },
		"empty": func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "empty"))) },
		"link":  func(t *testing.T, dir string) { must(t, os.Symlink("/etc", filepath.Join(dir, "etc"))) },
	} {
		for _, verb := range []files.Verb{files.Create, files.Replace} {
			t.Run(name+" "+string(verb), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.folder = true
				s := w.place(w.step(verb, "x"))
				damage(t, w.at(s.Temp))
				if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDigest) {
					t.Error(res.Err)
				}
				if verb == files.Create && exists(w.at("x")) || verb == files.Replace && w.got(w.at("x")) != oldContent {
					t.Error("the destination was changed")
				}
				w.undo(s)
				if left := hiddenNames(t, w.project); len(left) > 0 {
					t.Error(left)
				}
			})
		}
	}
}

// A folder takes the place of a folder only, and a file that of a file.
func TestPlaceKeepsFilesAndFoldersApart(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		for _, w := range newWorlds(t) {
			s := w.step(verb, "x")
			must(t, os.RemoveAll(w.at("x")))
			w.folder = !w.folder
			w.put(w.at("x"), oldContent)
			s.OldSHA256 = w.digest(oldContent)
			want := files.ErrNotFolder
			if w.folder {
				want = files.ErrNotRegular
			}
			if _, _, err := files.Place(t.Context(), s); !errors.Is(err, want) {
				t.Errorf("%s of a %s: %v", verb, w.kind(), err)
			}
		}
	}
}

// A folder that was changed after it was looked at stays where it is (promise G8).
func TestChangedFolderStays(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		w := newWorld(t)
		w.folder = true
		s := w.place(w.step(verb, "x"))
		write(t, w.at("x/sub/later.txt"), "later")
		w.carry(s, files.Changed)
		w.undo(s)
		if read(t, w.at("x/sub/later.txt")) != "later" || len(hiddenNames(t, w.project)) > 0 {
			t.Error("the changed folder was touched")
		}
		// Between the last look and the move: it is put back.
		w = newWorld(t)
		w.folder = true
		s = w.place(w.step(verb, "x"))
		moved := w.at(s.Temp)
		if verb == files.Remove {
			moved = w.at(s.Trash)
		}
		advanceUntil(t, s, func() bool { return exists(moved) && w.got(moved) == oldContent })
		write(t, filepath.Join(moved, "late.txt"), "late")
		w.carry(s, files.Changed)
		w.undo(s)
		if read(t, w.at("x/late.txt")) != "late" || len(hiddenNames(t, w.project)) > 0 {
			t.Error("the changed folder is not back")
		}
	}
}

func inode(fi os.FileInfo) uint64 { return fi.Sys().(*syscall.Stat_t).Ino }
