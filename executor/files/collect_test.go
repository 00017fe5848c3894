package files_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
)

func openTrash(t testing.TB, r *files.Root) *files.Trash {
	t.Helper()
	bin, err := r.OpenTrash()
	must(t, err)
	if bin == nil {
		t.Fatal("there is no trash")
	}
	t.Cleanup(bin.Close)
	return bin
}

// discarded is a world in whose trash lies what a step replaced or removed.
func discarded(t *testing.T, w *world, verb files.Verb) (files.Step, *files.Trash, files.Trashed) {
	t.Helper()
	s := w.place(w.step(verb, "out.mp4"))
	w.carry(s, files.Done)
	bin := openTrash(t, w.root)
	list, err := bin.List(t.Context())
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("in the trash are %v", list)
	}
	return s, bin, list[0]
}

// What macexec moved to the trash is found by its note, and goes as a whole, with all
// that belongs to it.
func TestTrashIsCollected(t *testing.T) {
	t.Parallel()
	eachVerb(t, func(t *testing.T, w *world, verb files.Verb) {
		if verb == files.Create {
			return
		}
		s, bin, one := discarded(t, w, verb)
		if age := time.Since(one.At); one.Path != "out.mp4" || one.Job != s.Job || age < 0 || age > time.Hour {
			t.Errorf("the note says %+v", one)
		}
		size, there, err := bin.Measure(t.Context(), one)
		if err != nil || !there || size < int64(len(oldContent)) {
			t.Errorf("%d bytes, %t, %v", size, there, err)
		}
		got, removed, err := bin.Remove(t.Context(), one)
		if err != nil || !removed || got != size {
			t.Errorf("removed %d bytes, %t, %v; want %d", got, removed, err, size)
		}
		must(t, bin.Drop())
		if left := hiddenNames(t, w.project); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if verb == files.Replace && w.got(w.at("out.mp4")) != newContent {
			t.Error("what was published is gone")
		}
	})
}

// A crash leaves a note with less than all beside it, and doing it again finishes that.
func TestCrashWhileTheTrashIsCollected(t *testing.T) {
	t.Parallel()
	for name, half := range map[string]func(t *testing.T, place string){
		"half a folder":   func(t *testing.T, place string) { must(t, os.Remove(filepath.Join(place, "out.mp4/a.txt"))) },
		"an empty folder": func(t *testing.T, place string) { must(t, os.RemoveAll(filepath.Join(place, "out.mp4/sub"))) },
		"an empty place":  func(t *testing.T, place string) { must(t, os.RemoveAll(filepath.Join(place, "out.mp4"))) },
		"no place":        func(t *testing.T, place string) { must(t, os.RemoveAll(place)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.folder = true
			s, bin, one := discarded(t, w, files.Remove)
			half(t, filepath.Dir(w.at(s.Trash)))
			_, removed, err := bin.Remove(t.Context(), one)
			if err != nil || removed != strings.Contains(name, "folder") {
				t.Errorf("removed %t, %v", removed, err)
			}
			must(t, bin.Drop())
			if left := hiddenNames(t, w.project); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// Nothing that macexec has not moved there itself is shown as such, measured or removed,
// whatever lies in the trash, and whatever it looks like.
func TestTrashHoldsWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	note := func(changed ...string) string {
		text := `{"path": "a/out.mp4", "job": "01J-host", "verb": "remove", "sha256": "", "at": "2020-01-02T03:04:05Z"}`
		return strings.NewReplacer(changed...).Replace(text)
	}
	pipe := func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o600)) }
	for name, c := range map[string]struct {
		listed bool
		put    func(t *testing.T, bin, outside string)
	}{
		"a file of one's own":   {false, func(t *testing.T, bin, _ string) { write(t, bin+"/letter.txt", "mine") }},
		"a folder without note": {false, func(t *testing.T, bin, _ string) { write(t, bin+"/01J-host-0/out.mp4", "mine") }},
		"no JSON": {false, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			write(t, bin+"/01J-host-0.json", "{")
		}},
		"another job's note": {false, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			write(t, bin+"/01J-host-0.json", note("01J-host", "01K-host"))
		}},
		"a note with a way out": {false, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			write(t, bin+"/01J-host-0.json", note("a/out.mp4", ".."))
		}},
		"a note that is a link": {false, func(t *testing.T, bin, outside string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			write(t, outside+"/note", note())
			must(t, os.Symlink(outside+"/note", bin+"/01J-host-0.json"))
		}},
		"a note that is a pipe": {false, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			pipe(t, bin+"/01J-host-0.json")
		}},
		"a huge note": {false, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4", "mine")
			write(t, bin+"/01J-host-0.json", note()+strings.Repeat(" ", 1<<20))
		}},
		"a place that is a link": {true, func(t *testing.T, bin, outside string) {
			write(t, outside+"/out.mp4", "mine")
			must(t, os.Symlink(outside, bin+"/01J-host-0"))
			write(t, bin+"/01J-host-0.json", note())
		}},
		"a place that is a file": {true, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0", "mine")
			write(t, bin+"/01J-host-0.json", note())
		}},
		"a link in its place": {true, func(t *testing.T, bin, outside string) {
			write(t, outside+"/out.mp4", "mine")
			must(t, os.Mkdir(bin+"/01J-host-0", 0o700))
			must(t, os.Symlink(outside, bin+"/01J-host-0/out.mp4"))
			write(t, bin+"/01J-host-0.json", note())
		}},
		"a pipe in its place": {true, func(t *testing.T, bin, _ string) {
			must(t, os.Mkdir(bin+"/01J-host-0", 0o700))
			pipe(t, bin+"/01J-host-0/out.mp4")
			write(t, bin+"/01J-host-0.json", note())
		}},
		"a folder with a link": {true, func(t *testing.T, bin, outside string) {
			write(t, outside+"/letter.txt", "mine")
			write(t, bin+"/01J-host-0/out.mp4/a.txt", "beside it")
			must(t, os.Symlink(outside, bin+"/01J-host-0/out.mp4/sub"))
			write(t, bin+"/01J-host-0.json", note())
		}},
		"a folder too deep": {true, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/out.mp4/"+strings.Repeat("d/", files.MaxTreeDepth)+"a.txt", "deep down")
			write(t, bin+"/01J-host-0.json", note())
		}},
		"another thing in the place": {true, func(t *testing.T, bin, _ string) {
			write(t, bin+"/01J-host-0/letter.txt", "mine")
			write(t, bin+"/01J-host-0.json", note())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			project, outside := t.TempDir(), t.TempDir()
			must(t, os.Mkdir(filepath.Join(project, files.TrashFolder), 0o700))
			c.put(t, filepath.Join(project, files.TrashFolder), outside)
			before := append(everything(t, project), everything(t, outside)...)
			bin := openTrash(t, openRoot(t, project))
			list, err := bin.List(t.Context())
			if err != nil || len(list) > 0 != c.listed {
				t.Fatalf("listed %v, %v", list, err)
			}
			for _, one := range list {
				if size, there, err := bin.Measure(t.Context(), one); size != 0 || there || err != nil {
					t.Errorf("measured %d, %t, %v", size, there, err)
				}
				if size, removed, err := bin.Remove(t.Context(), one); size != 0 || removed || err != nil {
					t.Errorf("removed %d, %t, %v", size, removed, err)
				}
			}
			must(t, bin.Drop())
			if diff := cmp.Diff(before, append(everything(t, project), everything(t, outside)...)); diff != "" {
				t.Errorf("what is there (-before +after):\n%s", diff)
			}
		})
	}
}

func everything(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			list = append(list, fmt.Sprint(path, " ", d.Type()))
		}
		return err
	})
	must(t, err)
	return list
}

// What somebody has put beside what macexec moved there stays, with its note; the rest goes.
func TestTrashKeepsWhatIsBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, bin, one := discarded(t, w, files.Remove)
	beside := filepath.Join(filepath.Dir(w.at(s.Trash)), "letter.txt")
	write(t, beside, "mine")
	if _, removed, err := bin.Remove(t.Context(), one); err != nil || !removed {
		t.Errorf("removed %t, %v", removed, err)
	}
	if exists(w.at(s.Trash)) || read(t, beside) != "mine" {
		t.Error("the wrong one is gone")
	}
	if _, removed, err := bin.Remove(t.Context(), one); err != nil || removed {
		t.Errorf("again: removed %t, %v", removed, err)
	}
	must(t, os.Remove(beside))
	if _, _, err := bin.Remove(t.Context(), one); err != nil {
		t.Error(err)
	}
	must(t, bin.Drop())
	if left := hiddenNames(t, w.project); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// What came into the place of what was listed is another thing.
func TestTrashThatChangesStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, bin, one := discarded(t, w, files.Remove)
	path := filepath.Dir(w.at(s.Trash)) + ".json"
	write(t, path, strings.Replace(read(t, path), "out.mp4", "other.mp4", 1))
	if _, removed, err := bin.Remove(t.Context(), one); err != nil || removed || !exists(w.at(s.Trash)) {
		t.Errorf("removed %t, %v", removed, err)
	}
}

// A trash that macexec cannot have made is none.
func TestNoTrash(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	write(t, elsewhere+"/01J-host-0/out.mp4", "mine")
	for name, put := range map[string]func(path string) error{
		"none":   func(string) error { return nil },
		"a link": func(path string) error { return os.Symlink(elsewhere, path) },
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		dir := t.TempDir()
		must(t, put(filepath.Join(dir, files.TrashFolder)))
		if bin, err := openRoot(t, dir).OpenTrash(); bin != nil || err != nil {
			t.Errorf("%s: %v, %v", name, bin, err)
		}
	}
}

// A folder that nobody may write to is removed all the same, as its owner may.
func TestReadOnlyTrashIsCollected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.folder = true
	s := w.step(files.Remove, "out.mp4")
	must(t, os.Chmod(w.at("out.mp4/sub"), 0o555))
	w.carry(w.place(s), files.Done)
	bin := openTrash(t, w.root)
	list, err := bin.List(t.Context())
	must(t, err)
	for _, one := range list {
		if _, removed, err := bin.Remove(t.Context(), one); err != nil || !removed {
			t.Errorf("removed %t, %v", removed, err)
		}
	}
	if exists(filepath.Dir(w.at(s.Trash))) {
		t.Error("it is still there")
	}
}

func FuzzTrashNote(f *testing.F) {
	f.Add("01J-host-0", `{"path": "a/out.mp4", "job": "01J-host", "verb": "remove", "sha256": "", "at": "2020-01-02T03:04:05Z"}`)
	f.Add("-0", `{"path": "../x", "job": "", "verb": "replace", "at": "2020-01-02T03:04:05+01:00"}`)
	f.Add("x/../../y-1", `{"path": "a", "job": "x/../../y", "verb": "replace", "at": "2020-01-02T03:04:05Z"}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		one, ok := files.ReadNote(name, []byte(text))
		if !ok {
			if one != (files.Trashed{}) {
				t.Errorf("a bad note says %+v", one)
			}
			return
		}
		if one.Name != name || strings.ContainsAny(name, "/\x00") || !filepath.IsLocal(one.Path) || slices.Contains([]string{".", "..", ""}, filepath.Base(one.Path)) {
			t.Errorf("%q with %q says %+v", name, text, one)
		}
		again, err := json.Marshal(map[string]any{"path": one.Path, "job": one.Job, "verb": "remove", "at": one.At})
		if err != nil {
			return // a year that JSON has no words for
		}
		if two, ok := files.ReadNote(name, again); !ok || two != one {
			t.Errorf("read again it says %+v, %t, and not %+v", two, ok, one)
		}
	})
}
