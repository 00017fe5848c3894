package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
)

// workedExample is the folder of docs/manifests.md, in which the digest is shown.
func workedExample(t testing.TB) (dir, digest string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "poster")
	write(t, filepath.Join(dir, "hello.txt"), "hello\n")
	write(t, filepath.Join(dir, "bin/run"), "#!/bin/sh\necho hello\n")
	must(t, os.Chmod(filepath.Join(dir, "bin/run"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	return dir, "58ad616fef01acb946c7198072ab4014a2c22ad02557b795feb561e436505b3a"
}

func digestFolder(t testing.TB, dir string) files.Tree {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	tree, err := files.DigestFolder(t.Context(), f, files.TreeRules{})
	must(t, err)
	return tree
}

// The digest never changes for the same content, and is what the page says.
func TestTreeDigest(t *testing.T) {
	t.Parallel()
	dir, want := workedExample(t)
	tree := digestFolder(t, dir)
	if got := tree.Digest(); got != want || tree.Files != 2 || tree.Size != 27 {
		t.Errorf("digest %s of %+v, want %s", got, tree, want)
	}
	page := read(t, "../../docs/manifests.md")
	if !strings.Contains(page, want) {
		t.Errorf("docs/manifests.md does not show the digest %s", want)
	}
	script := regexp.MustCompile("(?s)<!-- tree digest -->\n```sh\n(.*?)```").FindStringSubmatch(page)
	if script == nil {
		t.Fatal("docs/manifests.md has no script for the digest")
	}
	cmd := exec.Command("/bin/sh", "-c", script[1])
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil || strings.Fields(string(out))[0] != want {
		t.Errorf("the script of docs/manifests.md gives %q (%v), want %s", out, err, want)
	}
	for name, change := range map[string]func(){
		"a mode":            func() { must(t, os.Chmod(filepath.Join(dir, "hello.txt"), 0o755)) },
		"a byte":            func() { write(t, filepath.Join(dir, "hello.txt"), "hallo\n") },
		"a name":            func() { must(t, os.Rename(filepath.Join(dir, "bin"), filepath.Join(dir, "ban"))) },
		"an empty folder":   func() { must(t, os.Remove(filepath.Join(dir, "empty"))) },
		"an empty file":     func() { write(t, filepath.Join(dir, "none"), "") },
		"nothing but times": nil,
	} {
		before := digestFolder(t, dir).Digest()
		if change != nil {
			change()
		} else {
			must(t, os.Chtimes(filepath.Join(dir, "hello.txt"), timeOne(), timeOne()))
		}
		if after := digestFolder(t, dir).Digest(); (before == after) != (change == nil) {
			t.Errorf("%s: %s, then %s", name, before, after)
		}
	}
}

// Whole paths are sorted, as bytes: a folder's content does not follow it at once.
func TestTreeOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, p := range []string{"a/b", "a-b", "a.b/c", "B", "é/x"} {
		write(t, filepath.Join(dir, p), p)
	}
	var got []string
	for _, e := range digestFolder(t, dir).Entries {
		got = append(got, e.Path)
	}
	if d := cmp.Diff([]string{"B", "a", "a-b", "a.b", "a.b/c", "a/b", "é", "é/x"}, got); d != "" {
		t.Error(d)
	}
	if !slices.IsSorted(got) {
		t.Error("not sorted")
	}
}

// hostile are folders that are never taken, and why.
func hostile() map[string]struct {
	make func(t *testing.T, dir string)
	want error
	says string
} {
	type row = struct {
		make func(t *testing.T, dir string)
		want error
		says string
	}
	file := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { write(t, filepath.Join(dir, name), "x") }
	}
	return map[string]row{
		"symbolic link": {func(t *testing.T, dir string) { must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "sub/link"))) }, files.ErrTree, `"sub/link": not a plain folder: it is a symbolic link`},
		"linked folder": {func(t *testing.T, dir string) { must(t, os.Symlink("/etc", filepath.Join(dir, "etc"))) }, files.ErrTree, "a symbolic link"},
		"pipe":          {func(t *testing.T, dir string) { must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)) }, files.ErrTree, "a named pipe"},
		"socket": {func(t *testing.T, dir string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			must(t, err)
			defer syscall.Close(fd)
			if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Join(dir, "s")}); err != nil {
				t.Skipf("no socket there: %v", err)
			}
		}, files.ErrTree, "a socket"},
		"hard link": {func(t *testing.T, dir string) {
			other := filepath.Join(t.TempDir(), "other")
			write(t, other, "x")
			if err := os.Link(other, filepath.Join(dir, "hard")); err != nil {
				t.Skip(err)
			}
		}, files.ErrTree, "hard link"},
		"line break": {file("a\nb"), files.ErrTree, "control character"},
		"escape":     {file("a\x1b[2J"), files.ErrTree, "control character"},
		"separator":  {file("a\u2028b"), files.ErrTree, "control character"},
		"our own":    {file(".MacExec-x"), files.ErrTree, "belong to macexec"},
		"case twins": {func(t *testing.T, dir string) { twins(t, dir, "Frame.png", "frame.png") }, files.ErrTree, "letter case"},
		"NFC twins":  {func(t *testing.T, dir string) { twins(t, dir, "é.png", "e\u0301.png") }, files.ErrTree, "normalisation"},
		"not UTF-8":  {func(t *testing.T, dir string) { nameBytes(t, dir, "a\xff") }, files.ErrTree, "not UTF-8"},
		"name":       {file("sub/frame.txt"), files.ErrTree, `"sub/frame.txt": not a plain folder: the name does not match`},
		"too many":   {func(t *testing.T, dir string) { many(t, dir, 9) }, files.ErrTooLarge, "more than 8 files"},
		"folders":    {func(t *testing.T, dir string) { manyFolders(t, dir, 9) }, files.ErrTooLarge, "more than 8 folders"},
		"too large":  {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "big.png"), strings.Repeat("x", 1<<16)) }, files.ErrTooLarge, "more than 65536 bytes"},
		"too deep":   {file("a/b/c/d.png"), files.ErrTooLarge, "deeper than 3 levels"},
		"no folder":  {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)); write(t, dir, "x") }, files.ErrNotFolder, ""},
		"a link":     {func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+"2")); must(t, os.Symlink(dir+"2", dir)) }, files.ErrNotFolder, ""},
		"nothing":    {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, fs.ErrNotExist, ""},
		"without any": {func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "sub")))
			must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
		}, files.ErrEmpty, "holds no file"},
	}
}

func twins(t *testing.T, dir, a, b string) {
	t.Helper()
	write(t, filepath.Join(dir, a), "a")
	write(t, filepath.Join(dir, b), "b")
	if names, err := os.ReadDir(dir); err != nil || len(names) < 3 {
		t.Skip("the file system takes both names for one")
	}
}

func nameBytes(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
		t.Skipf("the file system takes no such name: %v", err)
	}
}

func many(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.png", i)), "x")
	}
}

func manyFolders(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		must(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700))
	}
}

// A folder that is not plain, or beyond its limits, is refused with a reason, and
// nothing of it is kept or staged.
func TestHostileFolders(t *testing.T) {
	t.Parallel()
	rules := files.TreeRules{Files: 8, Bytes: 1 << 16, Depth: 3, Names: regexp.MustCompile(`^[^t]*\.png$|^[^.]*$|[\n\x1b\x{2028}\xff]|^\.M`)}
	for name, test := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			from := filepath.Join(dir, "work/out/frames")
			write(t, filepath.Join(from, "sub/1.png"), "one")
			test.make(t, from)
			kept, err := files.KeepFolder(t.Context(), from, dir, "frames", rules)
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("kept %+v, %v; want %v that says %q", kept, err, test.want, test.says)
			}
			if exists(filepath.Join(dir, "artifacts/frames")) || len(hiddenNames(t, filepath.Join(dir, "artifacts"))) > 0 {
				t.Error("a part of it is kept")
			}
			if errors.Is(test.want, fs.ErrNotExist) || errors.Is(test.want, files.ErrNotFolder) || name == "hard link" {
				return
			}
			f, err := os.Open(from)
			must(t, err)
			defer f.Close()
			in := t.TempDir()
			staged, err := files.StageFolder(t.Context(), f, in, "input", rules)
			if !errors.Is(err, test.want) {
				t.Errorf("staged %+v, %v; want %v", staged, err, test.want)
			}
			if left, err := os.ReadDir(in); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
		})
	}
}

func TestKeepFolder(t *testing.T) {
	t.Parallel()
	for name, prep := range map[string]func(t *testing.T, from string){
		"plain": func(*testing.T, string) {},
		"still open for writing": func(t *testing.T, from string) {
			f, err := os.OpenFile(filepath.Join(from, "hello.txt"), os.O_WRONLY, 0)
			must(t, err)
			t.Cleanup(func() {
				_, err := f.WriteAt([]byte("late"), 0)
				if err = errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
			})
		},
		"half was moved before a crash": func(t *testing.T, from string) {
			hidden := filepath.Join(filepath.Dir(from), "../../artifacts/.macexec-keep.tree")
			must(t, os.MkdirAll(filepath.Join(hidden, "bin"), 0o700))
			must(t, os.Chmod(filepath.Join(from, "bin/run"), 0o500))
			must(t, os.Rename(filepath.Join(from, "bin/run"), filepath.Join(hidden, "bin/run")))
		},
		"half a copy was there at a crash": func(t *testing.T, from string) {
			hidden := filepath.Join(filepath.Dir(from), "../../artifacts/.macexec-keep.tree")
			must(t, os.MkdirAll(filepath.Join(hidden, "bin"), 0o700))
			write(t, filepath.Join(hidden, "bin/.macexec-keep.tmp"), "#!/bin")
			write(t, filepath.Join(hidden, ".macexec-keep.tmp"), "hel")
		},
		"all was moved before a crash": func(t *testing.T, from string) {
			hidden := filepath.Join(filepath.Dir(from), "../../artifacts/.macexec-keep.tree")
			must(t, os.MkdirAll(filepath.Join(hidden, "bin"), 0o700))
			for f, mode := range map[string]fs.FileMode{"bin/run": 0o500, "hello.txt": 0o400} {
				must(t, os.Chmod(filepath.Join(from, f), mode))
				must(t, os.Rename(filepath.Join(from, f), filepath.Join(hidden, f)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made, want := workedExample(t)
			dir := t.TempDir()
			from := filepath.Join(dir, "work/out/f")
			must(t, os.MkdirAll(filepath.Dir(from), 0o700))
			must(t, os.Rename(made, from))
			var got files.KeptFolder
			t.Run("", func(t *testing.T) {
				prep(t, from)
				var err error
				got, err = files.KeepFolder(t.Context(), from, dir, "f", files.TreeRules{})
				must(t, err)
			})
			if got.Digest() != want || got.Files != 2 || got.Path != filepath.Join(dir, "artifacts/f") || exists(from) {
				t.Errorf("kept %+v with digest %s", got, got.Digest())
			}
			if again := digestFolder(t, got.Path).Digest(); again != want {
				t.Errorf("what is kept has the digest %s", again)
			}
			for file, mode := range map[string]fs.FileMode{"hello.txt": 0o400, "bin/run": 0o500} {
				fi, err := os.Stat(filepath.Join(got.Path, file))
				must(t, err)
				if fi.Mode() != mode || fi.Sys().(*syscall.Stat_t).Nlink != 1 {
					t.Errorf("%s is kept as %v", file, fi.Mode())
				}
			}
			again, err := files.KeepFolder(t.Context(), from, dir, "f", files.TreeRules{})
			must(t, err)
			if d := cmp.Diff(got, again); d != "" {
				t.Errorf("after a crash: %s", d)
			}
			if left := hiddenNames(t, dir); len(left) > 0 {
				t.Error(left)
			}
		})
	}
}

func TestStageFolder(t *testing.T) {
	t.Parallel()
	dir, want := workedExample(t)
	in := t.TempDir()
	write(t, filepath.Join(in, "input/left/from/before"), "half")
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	staged, err := files.StageFolder(t.Context(), f, in, "input", files.TreeRules{})
	must(t, err)
	wanted := files.Staged{Path: filepath.Join(in, "input"), Size: 27, SHA256: want, Files: 2, MediaType: files.MediaTypeFolder, Kind: files.KindFolder}
	if d := cmp.Diff(wanted, staged); d != "" {
		t.Error(d)
	}
	write(t, filepath.Join(dir, "hello.txt"), "changed")
	if got := digestFolder(t, staged.Path).Digest(); got != want {
		t.Errorf("the copy changed with the original: %s", got)
	}
}

func timeOne() time.Time { return time.Unix(1, 0) }
