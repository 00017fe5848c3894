package files_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/executor/files"
)

const childVariable = "MACEXEC_TEST_PUBLISH_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		publishChild()
		return
	}
	goleak.VerifyTestMain(m)
}

func sha(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func openRoot(t testing.TB, dir string) *files.Root {
	t.Helper()
	r, err := files.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// world is a project and a kept artifact, a file or a folder.
type world struct {
	folder  bool
	t       testing.TB
	project string
	state   string
	root    *files.Root
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return worldIn(t, t.TempDir(), t.TempDir())
}

func worldIn(t testing.TB, project, state string) *world {
	t.Helper()
	return &world{t: t, project: project, state: state, root: openRoot(t, project)}
}

func (w *world) at(path string) string { return filepath.Join(w.project, path) }

// newWorlds are a world for files and one for folders.
func newWorlds(t testing.TB) []*world {
	t.Helper()
	of := newWorld(t)
	of.folder = true
	return []*world{newWorld(t), of}
}

func (w *world) kind() string {
	if w.folder {
		return "folder"
	}
	return "file"
}

// put makes a file with the content, or a folder in which it is.
func (w *world) put(path, content string) {
	w.t.Helper()
	if !w.folder {
		write(w.t, path, content)
		return
	}
	write(w.t, filepath.Join(path, "a.txt"), content)
	write(w.t, filepath.Join(path, "sub/run"), "#!/bin/sh\n")
	must(w.t, os.Chmod(filepath.Join(path, "sub/run"), 0o755))
	if !exists(filepath.Join(path, "empty")) {
		must(w.t, os.Mkdir(filepath.Join(path, "empty"), 0o755))
	}
}

// got is the content that put made. Of a folder that is not whole it is something else.
func (w *world) got(path string) string {
	w.t.Helper()
	if !w.folder {
		return read(w.t, path)
	}
	var list []string
	for _, e := range digestFolder(w.t, path).Entries {
		list = append(list, e.Path)
		if e.Executable {
			list = append(list, "*")
		}
	}
	if have := strings.Join(list, " "); have != "a.txt empty sub sub/run *" {
		return "a torn folder: " + have
	}
	return read(w.t, filepath.Join(path, "a.txt"))
}

// digest is that of what put makes.
func (w *world) digest(content string) string {
	w.t.Helper()
	if !w.folder {
		return sha(content)
	}
	dir := filepath.Join(w.t.TempDir(), "folder")
	w.put(dir, content)
	return digestFolder(w.t, dir).Digest()
}

const (
	oldContent = "the old file"
	newContent = "the new file, longer than the old one"
)

// step is a step for path with a new artifact kept; for replace and remove the old
// file is put at path.
func (w *world) step(verb files.Verb, path string) files.Step {
	w.t.Helper()
	s := files.Step{Verb: verb, Root: w.root, Path: path, Job: "01J-host", At: time.Now(), Folder: w.folder}
	if verb != files.Remove {
		s.Temp = files.TempPath("01J-host", 0, path)
		s.Source = filepath.Join(w.state, "artifact")
		s.SHA256 = w.digest(newContent)
		w.put(s.Source, newContent)
		if w.folder {
			must(w.t, os.Chmod(s.Source, 0o700))
		} else {
			must(w.t, os.Chmod(s.Source, 0o400))
		}
	}
	if verb != files.Create {
		s.Trash = files.TrashPath("01J-host", 0, path)
		s.OldSHA256 = w.digest(oldContent)
		w.put(w.at(path), oldContent)
	}
	return s
}

func (w *world) place(s files.Step) files.Step {
	w.t.Helper()
	var err error
	if s.Device, s.Inode, err = files.Place(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) carry(s files.Step, want files.Outcome) files.Result {
	w.t.Helper()
	res := files.Carry(w.t.Context(), s)
	if res.Outcome != want {
		w.t.Fatalf("%s %q: %s (%v), want %s", s.Verb, s.Path, res.Outcome, res.Err, want)
	}
	if (res.Err == nil) != (want == files.Done) {
		w.t.Fatalf("%s: error is %v", want, res.Err)
	}
	return res
}

func (w *world) undo(s files.Step) {
	w.t.Helper()
	if err := files.Undo(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
}

// assertDressed checks the modes in a published folder, and that nobody else has its
// files.
func (w *world) assertDressed(path string) {
	w.t.Helper()
	for name, mode := range map[string]os.FileMode{
		"": os.ModeDir | 0o755, "empty": os.ModeDir | 0o755, "sub": os.ModeDir | 0o755, "a.txt": 0o644, "sub/run": 0o755,
	} {
		fi, err := os.Stat(filepath.Join(w.at(path), name))
		if err != nil {
			w.t.Fatal(err)
		}
		if links := fi.Sys().(*syscall.Stat_t).Nlink; fi.Mode() != mode || !fi.IsDir() && links != 1 {
			w.t.Errorf("%s/%s has mode %v, want %v; %d links", path, name, fi.Mode(), mode, links)
		}
	}
}

// assertDone checks the whole picture after a step was carried out.
func (w *world) assertDone(s files.Step) {
	w.t.Helper()
	if s.Verb == files.Remove {
		if exists(w.at(s.Path)) {
			w.t.Error("the removed file is still there")
		}
	} else {
		if got := w.got(w.at(s.Path)); got != newContent {
			w.t.Errorf("destination has %q", got)
		}
		if exists(w.at(s.Temp)) {
			w.t.Error("the hidden name is still there")
		}
		if exists(s.Source) {
			w.t.Error("the kept artifact is still there")
		}
		fi, err := os.Stat(w.at(s.Path))
		if err != nil {
			w.t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		if st.Ino != s.Inode || !w.folder && (st.Nlink != 1 || fi.Mode() != 0o644) {
			w.t.Errorf("destination: inode %d, want %d; %d links, mode %v", st.Ino, s.Inode, st.Nlink, fi.Mode())
		}
		if w.folder {
			w.assertDressed(s.Path)
		}
	}
	if s.Verb != files.Create {
		if got := w.got(w.at(s.Trash)); got != oldContent {
			w.t.Errorf("trash has %q", got)
		}
		note := read(w.t, filepath.Dir(w.at(s.Trash))+".json")
		for _, want := range []string{s.Job, s.OldSHA256, string(s.Verb)} {
			if !strings.Contains(note, want) {
				w.t.Errorf("note %s lacks %q", note, want)
			}
		}
	}
}

// assertUntouched checks that nothing but old, and what others put there, is left
// after a step was given up and undone.
func (w *world) assertUntouched(s files.Step, wantDest string) {
	w.t.Helper()
	if wantDest == "" {
		if exists(w.at(s.Path)) {
			w.t.Error("something is at the destination")
		}
	} else if got := w.got(w.at(s.Path)); got != wantDest {
		w.t.Errorf("destination has %q, want %q", got, wantDest)
	}
	if s.Verb != files.Remove {
		if got := w.got(s.Source); got != newContent {
			w.t.Errorf("kept artifact has %q", got)
		}
	}
	if left := hiddenNames(w.t, w.project); len(left) > 0 {
		w.t.Errorf("left behind: %q", left)
	}
}

func hiddenNames(t testing.TB, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if base := filepath.Base(path); len(base) > len(files.Reserved) && base[:len(files.Reserved)] == files.Reserved {
			left = append(left, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}
