package programs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/programs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sha(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

const script = "#!/bin/sh\necho version 1.2.3\n"

// put makes a program, in one step, so that a test that runs it never meets a file
// that is open for writing.
func put(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path+".new", []byte(content), mode))
	must(t, os.Rename(path+".new", path))
}

// tempDir is a real path, as Resolve gives them.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

func resolver(t *testing.T, dirs ...string) *programs.Resolver {
	t.Helper()
	r, err := programs.New(dirs)
	must(t, err)
	return r
}

func TestResolve(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	at := func(p string) string { return filepath.Join(dir, p) }
	r := resolver(t, at("none"), at("first"), at("second"))
	put(t, at("first/both"), "#!first", 0o755)
	put(t, at("second/both"), "#!second", 0o755)
	put(t, at("second/one"), script, 0o700)
	put(t, at("cellar/real-tool"), script, 0o755)
	must(t, os.Symlink("../cellar/real-tool", at("first/linked")))
	// What cannot be run does not hide what can.
	put(t, at("first/plain"), "#!first", 0o644)
	put(t, at("second/plain"), "#!second", 0o755)
	must(t, os.MkdirAll(at("first/folder"), 0o755))
	put(t, at("second/folder"), "#!second", 0o755)
	must(t, os.Symlink("nowhere", at("first/broken")))
	put(t, at("second/broken"), "#!second", 0o755)
	must(t, os.Symlink("loop", at("first/loop")))
	put(t, at("second/loop"), "#!second", 0o755)

	for name, want := range map[string]programs.Program{
		"both":             {Path: at("first/both"), Found: at("first/both"), SHA256: sha("#!first")},
		"one":              {Path: at("second/one"), Found: at("second/one"), SHA256: sha(script)},
		"linked":           {Path: at("cellar/real-tool"), Found: at("first/linked"), SHA256: sha(script)},
		"plain":            {Path: at("second/plain"), Found: at("second/plain"), SHA256: sha("#!second")},
		"folder":           {Path: at("second/folder"), Found: at("second/folder"), SHA256: sha("#!second")},
		"broken":           {Path: at("second/broken"), Found: at("second/broken"), SHA256: sha("#!second")},
		"loop":             {Path: at("second/loop"), Found: at("second/loop"), SHA256: sha("#!second")},
		at("second/both"):  {Path: at("second/both"), Found: at("second/both"), SHA256: sha("#!second")},
		at("first/linked"): {Path: at("cellar/real-tool"), Found: at("first/linked"), SHA256: sha(script)},
	} {
		for range 2 { // from the file, then from memory
			got, err := r.Resolve(name)
			must(t, err)
			fi, err := os.Stat(want.Path)
			must(t, err)
			if got.Inode == 0 || got.Size != fi.Size() || !got.ModTime.Equal(fi.ModTime()) || got.ChangeTime.IsZero() {
				t.Errorf("%s: identity %+v", name, got.Identity)
			}
			want.Name, got.Identity = name, programs.Identity{}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	put(t, filepath.Join(dir, "plain"), script, 0o644)
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "broken")))
	put(t, filepath.Join(dir, "sub/tool"), script, 0o755)
	r := resolver(t, dir, "/no/such/folder")
	for name, says := range map[string]string{
		"none": "/no/such/folder", "plain": "not executable", "folder": "not a regular file", "broken": "a link to nothing",
		filepath.Join(dir, "none"): dir,
	} {
		_, err := r.Resolve(name)
		missing, ok := errors.AsType[*programs.NotFoundError](err)
		if !ok || !errors.Is(err, fs.ErrNotExist) || missing.Name != name || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "sub/tool", "./plain", "../tool", "a\x00b", dir + "/sub/../plain", dir + "//plain"} {
		if _, err := r.Resolve(name); !errors.Is(err, programs.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, bad := range []string{"", ".", "relative", "./x", "~/bin"} {
		if _, err := programs.New([]string{"/usr/bin", bad}); err == nil {
			t.Errorf("a path with %q was taken", bad)
		}
	}
	if d := cmp.Diff(programs.DefaultPath(), resolver(t).Dirs()); d != "" {
		t.Error(d)
	}
}

// A program planted in the working folder or on PATH is never found. It changes the
// process's own folder and environment, so it is not parallel.
func TestPlantedProgramIsNotUsed(t *testing.T) {
	planted := tempDir(t)
	put(t, filepath.Join(planted, "planted-tool"), script, 0o755)
	t.Chdir(planted)
	t.Setenv("PATH", planted+":.:"+os.Getenv("PATH"))
	if _, err := exec.LookPath("planted-tool"); err != nil {
		t.Fatalf("the trap is not set: %v", err)
	}
	for _, r := range []*programs.Resolver{resolver(t), resolver(t, "/usr/bin")} {
		if p, err := r.Resolve("planted-tool"); err == nil {
			t.Errorf("found %+v", p)
		}
		if p, err := r.Resolve("./planted-tool"); err == nil {
			t.Errorf("found %+v", p)
		}
	}
}

func changeTime(t *testing.T, path string) time.Time {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return time.Unix(st.Ctim.Unix())
}

// count is a runner that runs nothing and counts.
func count(n *atomic.Int32, out string) programs.Runner {
	return func(context.Context, []string) ([]byte, error) {
		n.Add(1)
		return []byte(out), nil
	}
}

var versionRE = regexp.MustCompile(`version (\S+)`)

func TestReplacedProgramIsSeen(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, path string){
		"renamed over": func(t *testing.T, path string) { put(t, path, "#!other", 0o755) },
		"same size and times": func(t *testing.T, path string) {
			fi, err := os.Stat(path)
			must(t, err)
			before := changeTime(t, path)
			must(t, os.WriteFile(path, []byte(strings.Replace(script, "1.2.3", "9.9.9", 1)), 0o755))
			for changeTime(t, path).Equal(before) { // a coarse clock stands still for some milliseconds
				must(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			path := filepath.Join(dir, "tool")
			put(t, path, script, 0o755)
			r := resolver(t, dir)
			old, err := r.Resolve("tool")
			must(t, err)
			must(t, old.Same())
			var runs atomic.Int32
			if _, err := r.Version(t.Context(), old, nil, versionRE, count(&runs, "version 1")); err != nil {
				t.Fatal(err)
			}
			replace(t, path)
			if err := old.Same(); !errors.Is(err, programs.ErrReplaced) {
				t.Errorf("Same: %v", err)
			}
			fresh, err := r.Resolve("tool")
			must(t, err)
			b, err := os.ReadFile(path)
			must(t, err)
			if fresh.SHA256 != sha(string(b)) || fresh.SHA256 == old.SHA256 {
				t.Errorf("digest %s, was %s", fresh.SHA256, old.SHA256)
			}
			v, err := r.Version(t.Context(), fresh, nil, versionRE, count(&runs, "version 2"))
			if err != nil || v != "2" || runs.Load() != 2 {
				t.Error(v, err, runs.Load())
			}
			// One that is replaced while it answers gives no answer, and leaves none.
			_, err = r.Features(t.Context(), fresh, nil, versionRE, func(context.Context, []string) ([]byte, error) {
				put(t, path, "#!third", 0o755)
				return []byte("version 3"), nil
			})
			if !errors.Is(err, programs.ErrReplaced) {
				t.Error(err)
			}
		})
	}
	t.Run("link led elsewhere", func(t *testing.T) {
		t.Parallel()
		dir := tempDir(t)
		put(t, filepath.Join(dir, "v1"), script, 0o755)
		put(t, filepath.Join(dir, "v2"), script, 0o755)
		must(t, os.Symlink("v1", filepath.Join(dir, "tool")))
		p, err := resolver(t, dir).Resolve("tool")
		must(t, err)
		must(t, os.Remove(filepath.Join(dir, "tool")))
		must(t, os.Symlink("v2", filepath.Join(dir, "tool")))
		if err := p.Same(); !errors.Is(err, programs.ErrReplaced) {
			t.Error(err)
		}
	})
}

func TestVersionAndFeaturesAreKept(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	put(t, filepath.Join(dir, "real"), script, 0o755)
	must(t, os.Symlink("real", filepath.Join(dir, "tool")))
	r := resolver(t, dir)
	p, err := r.Resolve("tool")
	must(t, err)

	var argv []string
	run := func(_ context.Context, a []string) ([]byte, error) {
		argv = a
		return []byte("tool version 4.5 built\n V..... libx264 \n A..... aac\n V..... libx264\n"), nil
	}
	v, err := r.Version(t.Context(), p, []string{"-version"}, versionRE, run)
	if err != nil || v != "4.5" {
		t.Error(v, err)
	}
	if d := cmp.Diff([]string{filepath.Join(dir, "tool"), "-version"}, argv); d != "" {
		t.Error(d)
	}
	features := regexp.MustCompile(`(?m)^ [VA]\S+ (\S+)`)
	got, err := r.Features(t.Context(), p, []string{"-encoders"}, features, run)
	must(t, err)
	if d := cmp.Diff([]string{"aac", "libx264"}, got); d != "" {
		t.Error(d)
	}
	got[0] = "changed by the caller"

	never := func(context.Context, []string) ([]byte, error) { return nil, errors.New("was run again") }
	if v, err := r.Version(t.Context(), p, []string{"-version"}, versionRE, never); err != nil || v != "4.5" {
		t.Error(v, err)
	}
	if again, err := r.Features(t.Context(), p, []string{"-encoders"}, features, never); err != nil || again[0] != "aac" {
		t.Error(again, err)
	}
	// Another question is another answer.
	if _, err := r.Version(t.Context(), p, []string{"--version"}, versionRE, never); err == nil {
		t.Error("another question had the first one's answer")
	}
	if v, err := r.Version(t.Context(), p, []string{"-version"}, regexp.MustCompile(`built`), run); err != nil || v != "built" {
		t.Error(v, err)
	}
	if got, err := r.Features(t.Context(), p, []string{"-none"}, regexp.MustCompile(`no such`), run); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
}

func TestBadAnswersAreNotKept(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	put(t, filepath.Join(dir, "tool"), script, 0o755)
	r := resolver(t, dir)
	p, err := r.Resolve("tool")
	must(t, err)
	broken := errors.New("broken")
	if _, err := r.Version(t.Context(), p, nil, versionRE, func(context.Context, []string) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	var runs atomic.Int32
	if _, err := r.Version(t.Context(), p, nil, versionRE, count(&runs, "nothing")); err == nil {
		t.Error("a version was made up")
	}
	if v, err := r.Version(t.Context(), p, nil, versionRE, count(&runs, "version 7")); err != nil || v != "7" {
		t.Error(v, err)
	}
}

func TestRealProgram(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	put(t, filepath.Join(dir, "tool"), script, 0o755)
	r := resolver(t, dir)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			p, err := r.Resolve("tool")
			if err != nil {
				t.Error(err)
				return
			}
			v, err := r.Version(t.Context(), p, []string{"--version"}, versionRE, func(ctx context.Context, argv []string) ([]byte, error) {
				return exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
			})
			if err != nil || v != "1.2.3" {
				t.Error(v, err)
			}
		})
	}
	all.Wait()
}
