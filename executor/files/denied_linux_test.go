package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/files"
)

// asNobody runs f without the powers of root over files. Only the calling thread
// loses them.
func asNobody(f func()) {
	if os.Geteuid() != 0 {
		f()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _ = unix.SetfsgidRetGid(65534)
	_, _ = unix.SetfsuidRetUid(65534)
	defer func() {
		_, _ = unix.SetfsuidRetUid(0)
		_, _ = unix.SetfsgidRetGid(0)
	}()
	f()
}

// nobodysWorld is a world that the user of asNobody owns.
func nobodysWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // t.TempDir lies in a folder that only its owner may enter
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	project, state := filepath.Join(dir, "project"), filepath.Join(dir, "state")
	must(t, os.Chmod(dir, 0o755))
	for _, d := range []string{project, state, filepath.Join(project, "sub")} {
		must(t, os.Mkdir(d, 0o755))
		if os.Geteuid() == 0 {
			must(t, os.Chown(d, 65534, 65534))
		}
	}
	return worldIn(t, project, state)
}

func TestFolderIsReadOnly(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			want := map[files.Verb]string{files.Create: "", files.Replace: oldContent, files.Remove: oldContent}[verb]
			w := nobodysWorld(t)
			asNobody(func() {
				s := w.step(verb, "sub/x")
				must(t, os.Chmod(w.at("sub"), 0o555))
				if verb != files.Remove {
					if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrDenied) {
						t.Errorf("Place: %v", err)
					}
					must(t, os.Chmod(w.at("sub"), 0o755))
				}
				s = w.place(s)
				must(t, os.Chmod(w.at("sub"), 0o555))
				if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDenied) {
					t.Error(res.Err)
				}
				must(t, os.Chmod(w.at("sub"), 0o755))
				w.undo(s)
				w.assertUntouched(s, want)
				s = w.place(s)
				w.carry(s, files.Done)
				w.assertDone(s)
			})
		})
	}
}

func TestTrashIsReadOnly(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		t.Run(string(verb)+" from the beginning", func(t *testing.T) {
			t.Parallel()
			w := nobodysWorld(t)
			asNobody(func() {
				s := w.place(w.step(verb, "sub/x"))
				must(t, os.Chmod(w.project, 0o555))
				if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDenied) {
					t.Error(res.Err)
				}
				must(t, os.Chmod(w.project, 0o755))
				w.undo(s)
				w.assertUntouched(s, oldContent)
			})
		})
		t.Run(string(verb)+" in the middle", func(t *testing.T) {
			t.Parallel()
			w := nobodysWorld(t)
			asNobody(func() {
				s := w.place(w.step(verb, "sub/x"))
				advanceUntil(t, s, func() bool {
					if verb == files.Replace {
						return read(t, w.at("sub/x")) == newContent
					}
					return exists(filepath.Dir(w.at(s.Trash)) + ".json")
				})
				bin := filepath.Dir(w.at(s.Trash))
				must(t, os.Chmod(bin, 0o555))
				if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDenied) {
					t.Error(res.Err)
				}
				must(t, os.Chmod(bin, 0o755))
				w.undo(s)
				w.assertUntouched(s, oldContent)
			})
		})
	}
}

func TestOldFileCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Replace, files.Remove} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			w := nobodysWorld(t)
			asNobody(func() {
				s := w.place(w.step(verb, "sub/x"))
				must(t, os.Chmod(w.at("sub/x"), 0))
				if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDenied) {
					t.Error(res.Err)
				}
				if _, _, err := w.root.Open("sub/x"); !errors.Is(err, files.ErrDenied) {
					t.Errorf("Open: %v", err)
				}
				must(t, os.Chmod(w.at("sub/x"), 0o644))
				w.undo(s)
				w.assertUntouched(s, oldContent)
			})
		})
	}
}

func TestRootGivesFilesToTheOwnerOfTheFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: needs root")
	}
	for _, verb := range verbs {
		w := nobodysWorld(t)
		s := w.step(verb, "sub/x")
		if verb != files.Create {
			must(t, os.Chown(w.at("sub/x"), 65534, 65534))
			must(t, os.Chmod(w.at("sub/x"), 0o640))
		}
		s = w.place(s)
		w.carry(s, files.Done)
		paths := []string{"sub/x"}
		if verb == files.Remove {
			paths = nil
		}
		if verb != files.Create {
			paths = append(paths, files.TrashFolder, filepath.Dir(s.Trash), s.Trash)
		}
		for _, p := range paths {
			var st unix.Stat_t
			must(t, unix.Lstat(w.at(p), &st))
			if st.Uid != 65534 || st.Gid != 65534 {
				t.Errorf("%s: %q belongs to %d:%d", verb, p, st.Uid, st.Gid)
			}
			if p == "sub/x" && verb == files.Replace && st.Mode&0o777 != 0o640 {
				t.Errorf("the replaced file's mode became %o", st.Mode&0o777)
			}
		}
	}
}
