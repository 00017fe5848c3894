package files_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/files"
)

// otherDevice is a folder on another file system than t.TempDir.
func otherDevice(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mx") //nolint:usetesting // t.TempDir is what it must differ from
	if err != nil {
		t.Skipf("NOT TESTED: no second file system: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var here, there unix.Stat_t
	must(t, unix.Stat(t.TempDir(), &here))
	must(t, unix.Stat(dir, &there))
	if here.Dev == there.Dev {
		t.Skip("NOT TESTED: /dev/shm is on the same file system as the temporary folder")
	}
	return dir
}

// mount puts something on an empty folder for the time of the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	must(t, os.MkdirAll(target, 0o755))
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		t.Skipf("NOT TESTED: mounting needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestArtifactOnAnotherFileSystem(t *testing.T) {
	t.Parallel()
	for _, verb := range []files.Verb{files.Create, files.Replace} {
		for n := range 12 {
			t.Run(fmt.Sprint(verb, n), func(t *testing.T) {
				t.Parallel()
				w := worldIn(t, t.TempDir(), otherDevice(t))
				w.folder = n%2 == 1
				s := w.place(w.step(verb, "x"))
				if !exists(s.Source) {
					t.Fatal("the artifact is gone before it is published")
				}
				_, err := files.Advance(t.Context(), s, n/2)
				must(t, err)
				w.carry(s, files.Done)
				w.assertDone(s)
			})
		}
		t.Run(fmt.Sprint(verb, " given up"), func(t *testing.T) {
			t.Parallel()
			w := worldIn(t, t.TempDir(), otherDevice(t))
			s := w.step(verb, "x")
			w.place(s)
			s = w.place(s) // placed twice: the first copy is thrown away
			w.undo(s)
			w.assertUntouched(s, map[files.Verb]string{files.Create: "", files.Replace: oldContent}[verb])
		})
		t.Run(fmt.Sprint(verb, " artifact lost"), func(t *testing.T) {
			t.Parallel()
			w := worldIn(t, t.TempDir(), otherDevice(t))
			s := w.place(w.step(verb, "x"))
			must(t, os.Remove(s.Source))
			w.undo(s)
			w.assertUntouched(s, map[files.Verb]string{files.Create: "", files.Replace: oldContent}[verb])
		})
	}
	t.Run("artifact is not what it was", func(t *testing.T) {
		t.Parallel()
		w := worldIn(t, t.TempDir(), otherDevice(t))
		s := w.step(files.Create, "x")
		s.SHA256 = sha("something else")
		if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrDigest) {
			t.Error(err)
		}
		w.assertUntouched(s, "")
	})
}

// A folder of the project on a file system of its own: the trash is out of reach
// (kind EXDEV), and that is said before anything is changed.
func TestTrashOnAnotherFileSystem(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			mount(t, "macexec-test", w.at("sub"), "tmpfs", 0)
			s := w.step(verb, "sub/x")
			if verb == files.Create { // needs no trash
				s = w.place(s)
				w.carry(s, files.Done)
				w.assertDone(s)
				return
			}
			if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrCrossDevice) {
				t.Errorf("Place: %v", err)
			}
			w.assertUntouched(s, oldContent)
		})
		if verb == files.Create {
			continue
		}
		// A bind mount has the same device number and still no way across.
		t.Run(string(verb)+" bind", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			must(t, os.Mkdir(w.at("real"), 0o755))
			mount(t, w.at("real"), w.at("sub"), "", unix.MS_BIND)
			s := w.place(w.step(verb, "sub/x"))
			if res := w.carry(s, files.Refused); !errors.Is(res.Err, files.ErrCrossDevice) {
				t.Error(res.Err)
			}
			w.undo(s)
			w.assertUntouched(s, oldContent)
		})
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			mount(t, "macexec-test", w.at("mnt"), "tmpfs", 0)
			in := worldIn(t, w.at("mnt"), w.state)
			s := in.step(verb, "x")
			must(t, unix.Mount("", w.at("mnt"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			if verb == files.Remove {
				s = in.place(s)
				if res := in.carry(s, files.Refused); !errors.Is(res.Err, files.ErrDenied) {
					t.Error(res.Err)
				}
			} else if _, _, err := files.Place(t.Context(), s); !errors.Is(err, files.ErrDenied) {
				t.Error(err)
			}
			in.assertUntouched(s, map[files.Verb]string{files.Create: "", files.Replace: oldContent, files.Remove: oldContent}[verb])
		})
	}
}

// The disk fills up: nothing is left half done, and the artifact stays.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, os.Mkdir(w.at("mnt"), 0o755))
	if err := unix.Mount("macexec-test", w.at("mnt"), "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("NOT TESTED: mounting needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.at("mnt"), unix.MNT_DETACH) })
	in := worldIn(t, w.at("mnt"), w.state)
	big := string(make([]byte, 1<<20))
	s := in.step(files.Create, "x")
	must(t, os.Remove(s.Source))
	write(t, s.Source, big)
	s.SHA256 = sha(big)
	if _, _, err := files.Place(t.Context(), s); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if left := hiddenNames(t, in.project); len(left) > 0 || !exists(s.Source) {
		t.Errorf("left behind: %q", left)
	}
}

// What lies on another file system is not entered: neither the trash itself, nor a place
// in it, nor a folder in a folder.
func TestCollectingEntersNoOtherFileSystem(t *testing.T) {
	t.Parallel()
	for _, at := range []string{files.TrashFolder, files.TrashFolder + "/01J-host-0", files.TrashFolder + "/01J-host-0/out.mp4", files.TrashFolder + "/01J-host-0/out.mp4/sub"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			mount(t, "tmpfs", dir+"/"+at, "tmpfs", 0)
			write(t, dir+"/"+files.TrashFolder+"/01J-host-0/out.mp4/sub/a.txt", "mine")
			write(t, dir+"/"+files.TrashFolder+"/01J-host-0.json", `{"path": "out.mp4", "job": "01J-host", "verb": "remove", "at": "2020-01-02T03:04:05Z"}`)
			bin, err := openRoot(t, dir).OpenTrash()
			must(t, err)
			if at == files.TrashFolder {
				if bin != nil {
					t.Error("the trash is another file system, and is taken for the project's")
				}
				return
			}
			defer bin.Close()
			list, err := bin.List(t.Context())
			must(t, err)
			for _, one := range list {
				if _, removed, err := bin.Remove(t.Context(), one); err != nil || removed {
					t.Errorf("removed %t, %v", removed, err)
				}
			}
			if len(list) != 1 || read(t, dir+"/"+files.TrashFolder+"/01J-host-0/out.mp4/sub/a.txt") != "mine" {
				t.Errorf("of %v something is gone", list)
			}
		})
	}
}
