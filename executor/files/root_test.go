package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/macexec/macexec/executor/files"
)

func TestOpenRefuses(t *testing.T) { // kind B42: named cause, and a pipe must not block
	t.Parallel()
	dir := t.TempDir()
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), "secret")
	root := openRoot(t, dir)
	at := func(p string) string { return filepath.Join(dir, p) }
	write(t, at("a/file"), "content")
	write(t, at("a/empty"), "")
	must(t, syscall.Mkfifo(at("pipe"), 0o644))
	must(t, os.Symlink("a/file", at("in")))
	must(t, os.Symlink(at("a/file"), at("absolute")))
	must(t, os.Symlink(filepath.Join(outside, "secret"), at("out")))
	must(t, os.Symlink("../"+filepath.Base(outside)+"/secret", at("up")))
	must(t, os.Symlink("loop", at("loop")))
	must(t, os.Symlink("nothing", at("broken")))
	must(t, os.Symlink("/dev/zero", at("zero")))
	must(t, os.Symlink(outside, at("outdir")))
	must(t, os.Symlink("pipe", at("pipelink")))

	for path, want := range map[string]error{
		"a/file": nil, "./a//file": nil, "in": nil, "a/empty": nil,
		"a": files.ErrNotRegular, "pipe": files.ErrNotRegular, "pipelink": files.ErrNotRegular,
		"absolute": files.ErrOutside, "out": files.ErrOutside, "up": files.ErrOutside, "zero": files.ErrOutside,
		"outdir/secret": files.ErrOutside,
		"broken":        fs.ErrNotExist, "no": fs.ErrNotExist, "a/no": fs.ErrNotExist, "no/no": fs.ErrNotExist,
		"a/file/x": files.ErrNotFolder, "loop": syscall.ELOOP,
		"": files.ErrPath, ".": files.ErrPath, "..": files.ErrPath, "a/../a/file": files.ErrPath, "/etc/passwd": files.ErrPath,
		"a/": files.ErrPath, "a\x00b": files.ErrPath, ".macexec-x": files.ErrPath, "a/.MACEXEC-trash/x": files.ErrPath,
		".mac\u200bexec-x": files.ErrPath, strings.Repeat("n", 256): files.ErrNameTooLong, strings.Repeat("d/", 3000) + "x": files.ErrNameTooLong,
	} {
		f, got, err := root.Open(path)
		if !errors.Is(err, want) {
			t.Errorf("Open(%q): %v, want %v", path, err, want)
		}
		if err != nil {
			if f != nil || strings.Contains(err.Error(), "secret\"") && path != "outdir/secret" {
				t.Errorf("Open(%q): file %v, error %v", path, f, err)
			}
			continue
		}
		if !got.Regular() || got.Inode == 0 || got.Links != 1 {
			t.Errorf("Open(%q): %+v", path, got)
		}
		if stat, err := root.Stat(path); err != nil || !stat.SameFile(got) || !stat.Unchanged(got) {
			t.Errorf("Stat(%q): %+v, %v; opened %+v", path, stat, err, got)
		}
		must(t, f.Close())
	}
	if _, err := files.OpenRoot("relative"); !errors.Is(err, files.ErrPath) {
		t.Error(err)
	}
	if _, err := files.OpenRoot(at("a/file")); !errors.Is(err, files.ErrNotFolder) {
		t.Error(err)
	}
	if _, err := files.OpenRoot(at("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestDeviceIsNotOpened(t *testing.T) {
	t.Parallel()
	root := openRoot(t, "/dev")
	if _, _, err := root.Open("zero"); !errors.Is(err, files.ErrNotRegular) {
		t.Error(err)
	}
}

func TestNotFoundTellsOfATwin(t *testing.T) { // kind B45
	t.Parallel()
	dir := t.TempDir()
	root := openRoot(t, dir)
	nfc, nfd := "caf\u00e9", "cafe\u0301"
	write(t, filepath.Join(dir, nfd, "Take.WAV"), "x")
	if _, err := root.Stat(nfc); err == nil {
		t.Skip("the file system takes both forms for one name")
	}
	for _, test := range []struct {
		path, twin    string
		normalisation bool
	}{
		{nfc + "/Take.WAV", nfd + "/Take.WAV", true},
		{nfd + "/take.wav", nfd + "/Take.WAV", false},
		{nfc + "/none", "", false},
		{"none", "", false},
	} {
		for _, look := range []func() error{
			func() error { _, err := root.Stat(test.path); return err },
			func() error { _, _, err := root.Open(test.path); return err },
		} {
			err := look()
			got, ok := errors.AsType[*files.NotFoundError](err)
			if !ok || got.Path != test.path || got.Twin != test.twin || got.Normalisation != test.normalisation {
				t.Errorf("%+q: %v (%+v)", test.path, err, got)
			}
			if test.twin != "" && !strings.Contains(err.Error(), "differ") && !strings.Contains(err.Error(), "another Unicode normalisation") {
				t.Error(err)
			}
		}
	}
}

func TestLockKeys(t *testing.T) { // kinds B45 and B57
	t.Parallel()
	dir := t.TempDir()
	root := openRoot(t, dir)
	write(t, filepath.Join(dir, "real/out.mp4"), "x")
	write(t, filepath.Join(dir, "real/other.mp4"), "x")
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("real/out.mp4", filepath.Join(dir, "alias")))
	must(t, os.Link(filepath.Join(dir, "real/out.mp4"), filepath.Join(dir, "hard")))
	shares := func(a, b string) bool {
		t.Helper()
		x, err := root.LockKeys(a)
		must(t, err)
		y, err := root.LockKeys(b)
		must(t, err)
		return slices.ContainsFunc(x, func(k string) bool { return slices.Contains(y, k) })
	}
	for _, pair := range [][2]string{
		{"real/out.mp4", "./real//out.mp4"},
		{"real/out.mp4", "link/out.mp4"},
		{"real/out.mp4", "alias"},
		{"real/out.mp4", "hard"},
		{"real/out.mp4", "real/OUT.MP4"},
		{"real/new", "link/new"},
		{"real/caf\u00e9", "link/CAFE\u0301"},
		{"no/such/x", "NO/such/X"},
		{"real/straße", "real/STRASSE"},
	} {
		if !shares(pair[0], pair[1]) {
			t.Errorf("%q and %q share no key", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{
		{"real/out.mp4", "real/other.mp4"}, {"real/new", "new"}, {"no/a/x", "no/b/x"}, {"no/x", "x"},
	} {
		if shares(pair[0], pair[1]) {
			t.Errorf("%q and %q share a key", pair[0], pair[1])
		}
	}
	// A key that a lock was taken by before the file was there still meets it after.
	before, err := root.LockKeys("real/late")
	must(t, err)
	write(t, filepath.Join(dir, "real/late"), "x")
	after, err := root.LockKeys("real/late")
	must(t, err)
	if before[len(before)-1] != after[len(after)-1] {
		t.Errorf("%q, then %q", before, after)
	}
	if _, err := root.LockKeys("../x"); !errors.Is(err, files.ErrPath) {
		t.Error(err)
	}
	// Who is at work in a folder meets who uses the folder, by whatever name.
	for _, pair := range [][2]string{{"real/out.mp4", "real"}, {"link/new", "real"}, {"real/deep/new", "link"}} {
		folder, err := root.LockKeys(pair[1])
		must(t, err)
		if !slices.ContainsFunc(root.FolderLockKeys(pair[0]), func(k string) bool { return slices.Contains(folder, k) }) {
			t.Errorf("%q has no key of the folder %q", pair[0], pair[1])
		}
	}
	// Also if that is another project, which holds this one.
	outer, err := files.OpenRoot(filepath.Dir(dir))
	must(t, err)
	defer outer.Close()
	folder, err := outer.LockKeys(filepath.Base(dir))
	must(t, err)
	if !slices.ContainsFunc(root.FolderLockKeys("new"), func(k string) bool { return slices.Contains(folder, k) }) {
		t.Error("a path has no key of its project's own folder")
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"a/b", "./a", "../a", "/a", "a//b", ".macexec-x", "a/\x00", ".\u200bmacexec-", "a/..", "\xff", ".", "a/."} {
		f.Add(s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, p string) {
		got, err := files.Clean(p)
		if err != nil {
			return
		}
		if !filepath.IsLocal(got) || filepath.Clean(got) != got || got == "." {
			t.Fatalf("%q became %q", p, got)
		}
		for part := range strings.SplitSeq(got, "/") {
			if part == ".." || strings.HasPrefix(strings.ToLower(part), files.Reserved) {
				t.Fatalf("%q became %q", p, got)
			}
		}
		if again, err := files.Clean(got); err != nil || again != got {
			t.Fatalf("%q, then %q (%v)", got, again, err)
		}
		if full := filepath.Join(dir, got); !strings.HasPrefix(full, dir+"/") {
			t.Fatalf("%q leads to %q", p, full)
		}
	})
}

func TestFreeBytes(t *testing.T) {
	t.Parallel()
	if n, err := files.FreeBytes(t.TempDir()); err != nil || n <= 0 {
		t.Error(n, err)
	}
	if _, err := files.FreeBytes(filepath.Join(t.TempDir(), "no")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
