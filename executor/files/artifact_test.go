package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
)

const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR and so on"

func TestKeepArtifact(t *testing.T) {
	t.Parallel()
	for name, prep := range map[string]func(t *testing.T, out string){
		"plain": func(*testing.T, string) {},
		"has another name": func(t *testing.T, out string) {
			must(t, os.Link(out, filepath.Join(t.TempDir(), "other")))
		},
		"still open for writing": func(t *testing.T, out string) {
			f, err := os.OpenFile(out, os.O_WRONLY, 0)
			must(t, err)
			t.Cleanup(func() {
				_, err := f.WriteAt([]byte("late"), 0)
				if err = errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
			})
		},
		"an earlier one is kept": func(t *testing.T, out string) {
			write(t, filepath.Join(filepath.Dir(out), "../../artifacts/result.png"), "stale")
		},
		"half a copy is left": func(t *testing.T, out string) {
			write(t, filepath.Join(filepath.Dir(out), "../../artifacts/.macexec-keep.tmp"), "half")
			must(t, os.Link(out, filepath.Join(t.TempDir(), "other")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			out := filepath.Join(dir, "work/out/o.png")
			write(t, out, png)
			var got files.Kept
			// The subtest is over before what it kept is read again: a late writer has
			// had its chance by then.
			t.Run("", func(t *testing.T) {
				prep(t, out)
				var err error
				got, err = files.KeepArtifact(t.Context(), out, dir, "result.png")
				must(t, err)
			})
			want := files.Kept{
				Name: "result.png", Path: filepath.Join(dir, "artifacts/result.png"), Size: int64(len(png)), SHA256: sha(png),
				MediaType: "image/png", Kind: files.KindImage,
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			fi, err := os.Stat(got.Path)
			must(t, err)
			if read(t, got.Path) != png || fi.Mode() != 0o400 || fi.Sys().(*syscall.Stat_t).Nlink != 1 || exists(out) {
				t.Errorf("kept as %v, %q", fi.Mode(), read(t, got.Path))
			}
			again, err := files.KeepArtifact(t.Context(), out, dir, "result.png")
			must(t, err)
			if d := cmp.Diff(want, again); d != "" {
				t.Errorf("after a crash: %s", d)
			}
			if left := hiddenNames(t, dir); len(left) > 0 {
				t.Error(left)
			}
			f, facts, err := files.OpenKept(got.Path)
			must(t, err)
			if facts.Size != got.Size {
				t.Error(facts)
			}
			must(t, f.Close())
		})
	}
}

func TestKeepArtifactRefuses(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	write(t, secret, "secret")
	for name, test := range map[string]struct {
		prep func(t *testing.T, dir string) (from, name string)
		want error
	}{
		"nothing": {func(_ *testing.T, dir string) (string, string) { return filepath.Join(dir, "work/no"), "a" }, fs.ErrNotExist},
		"empty": {func(t *testing.T, dir string) (string, string) {
			write(t, filepath.Join(dir, "work/x"), "")
			return filepath.Join(dir, "work/x"), "a"
		}, files.ErrEmpty},
		"symlink": {func(t *testing.T, dir string) (string, string) {
			must(t, os.Mkdir(filepath.Join(dir, "work"), 0o700))
			must(t, os.Symlink(secret, filepath.Join(dir, "work/x")))
			return filepath.Join(dir, "work/x"), "a"
		}, files.ErrNotRegular},
		"symlinked folder": {func(t *testing.T, dir string) (string, string) {
			must(t, os.Symlink(outside, filepath.Join(dir, "work")))
			return filepath.Join(dir, "work/secret"), "a"
		}, files.ErrNotFolder},
		"folder": {func(t *testing.T, dir string) (string, string) {
			must(t, os.MkdirAll(filepath.Join(dir, "work/x"), 0o700))
			return filepath.Join(dir, "work/x"), "a"
		}, files.ErrNotRegular},
		"pipe": {func(t *testing.T, dir string) (string, string) {
			must(t, os.Mkdir(filepath.Join(dir, "work"), 0o700))
			must(t, syscall.Mkfifo(filepath.Join(dir, "work/x"), 0o600))
			return filepath.Join(dir, "work/x"), "a"
		}, files.ErrNotRegular},
		"outside": {func(_ *testing.T, _ string) (string, string) { return secret, "a" }, files.ErrPath},
		"up": {func(_ *testing.T, dir string) (string, string) {
			return dir + "/../" + filepath.Base(outside), "a"
		}, files.ErrPath},
		"bad name": {func(t *testing.T, dir string) (string, string) {
			write(t, filepath.Join(dir, "work/x"), "x")
			return filepath.Join(dir, "work/x"), "../a"
		}, files.ErrPath},
		"long name": {func(t *testing.T, dir string) (string, string) {
			write(t, filepath.Join(dir, "work/x"), "x")
			return filepath.Join(dir, "work/x"), strings.Repeat("a", 256)
		}, files.ErrNameTooLong},
		"artifacts is a link": {func(t *testing.T, dir string) (string, string) {
			write(t, filepath.Join(dir, "work/x"), "x")
			must(t, os.Symlink(outside, filepath.Join(dir, "artifacts")))
			return filepath.Join(dir, "work/x"), "a"
		}, files.ErrNotFolder},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			from, as := test.prep(t, dir)
			if got, err := files.KeepArtifact(t.Context(), from, dir, as); !errors.Is(err, test.want) {
				t.Errorf("%+v, %v; want %v", got, err, test.want)
			}
			if got, err := os.ReadDir(outside); err != nil || len(got) != 1 || read(t, secret) != "secret" {
				t.Errorf("outside has %v (%v)", got, err)
			}
		})
	}
}
