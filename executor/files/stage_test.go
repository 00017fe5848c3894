package files_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
)

func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestStage(t *testing.T) {
	t.Parallel()
	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("x", 3<<20)
	for name, content := range map[string]string{"big": png, "small": png[:20], "text": "words", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, dst := filepath.Join(t.TempDir(), "src"), t.TempDir()
			write(t, src, content)
			must(t, os.Chmod(src, 0o777))
			f := open(t, src)
			_, _ = f.Read(make([]byte, 3)) // the offset does not matter
			got, err := files.Stage(t.Context(), f, dst, "input.png")
			must(t, err)
			mediaType, kind := files.Sniff([]byte(content))
			want := files.Staged{
				Path: filepath.Join(dst, "input.png"), Size: int64(len(content)), SHA256: sha(content),
				MediaType: mediaType, Kind: kind, Cloned: got.Cloned,
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			// What happens to the source no longer matters.
			must(t, os.WriteFile(src, []byte("overwritten in place"), 0o644))
			if read(t, got.Path) != content {
				t.Error("the copy changed with its source")
			}
			fi, err := os.Stat(got.Path)
			must(t, err)
			if fi.Mode() != 0o400 || fi.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("mode %v", fi.Mode())
			}
		})
	}
}

func TestStageHardLinkedSourceIsCopied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	write(t, src, "original")
	must(t, os.Link(src, filepath.Join(dir, "other name")))
	got, err := files.Stage(t.Context(), open(t, src), dir, "in")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "other name"), []byte("changed!"), 0o644))
	if read(t, got.Path) != "original" {
		t.Error("the other name reaches the copy")
	}
	if fi, err := os.Stat(src); err != nil || fi.Mode() != 0o644 {
		t.Errorf("the source's mode: %v (%v)", fi.Mode(), err)
	}
}

func TestStageReplacesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	write(t, victim, "victim")
	write(t, filepath.Join(dir, "src"), "whole")
	for _, leave := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, []byte("half"), 0o400) },
		func(path string) error { return os.Symlink(victim, path) },
	} {
		dst := t.TempDir()
		must(t, leave(filepath.Join(dst, "in")))
		got, err := files.Stage(t.Context(), open(t, filepath.Join(dir, "src")), dst, "in")
		must(t, err)
		if read(t, got.Path) != "whole" || read(t, victim) != "victim" {
			t.Error("the old name was followed or kept")
		}
	}
}

// once is a context that calls back when it is first asked, in the middle of a copy.
type once struct {
	context.Context //nolint:containedctx // it is one itself

	do func()
}

func (o *once) Done() <-chan struct{} { return o.Context.Done() }
func (o *once) Err() error {
	if o.do != nil {
		do := o.do
		o.do = nil
		do()
	}
	return o.Context.Err()
}

func TestStageSourceChangesMeanwhile(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789abcdef", 1<<16)
	for name, test := range map[string]struct {
		change func(src string) error
		want   error
	}{
		"grows": {func(src string) error {
			f, err := os.OpenFile(src, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("more")
			return errors.Join(err, f.Close())
		}, files.ErrChanged},
		"shrinks": {func(src string) error { return os.Truncate(src, 5) }, files.ErrChanged},
		"written": {func(src string) error {
			f, err := os.OpenFile(src, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("X"), 7)
			return errors.Join(err, f.Close())
		}, files.ErrChanged},
		// The handle still has the file that was opened: that one is what is staged.
		"swapped": {func(src string) error {
			if err := os.WriteFile(src+".new", []byte("another file"), 0o644); err != nil {
				return err
			}
			return os.Rename(src+".new", src)
		}, nil},
		"removed": {os.Remove, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, dst := filepath.Join(t.TempDir(), "src"), t.TempDir()
			write(t, src, content)
			changed := false
			ctx := &once{t.Context(), func() {
				changed = true
				if err := test.change(src); err != nil {
					t.Error(err)
				}
			}}
			got, err := files.Stage(ctx, open(t, src), dst, "in")
			if !changed {
				t.Fatal("the source was not changed in time")
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("%v, want %v", err, test.want)
			}
			if err != nil {
				if exists(filepath.Join(dst, "in")) {
					t.Error("something is left")
				}
			} else if got.SHA256 != sha(content) || read(t, got.Path) != content {
				t.Error("not what was opened")
			}
		})
	}
}

func TestStageRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "src"), "x")
	src := open(t, filepath.Join(dir, "src"))
	for _, name := range []string{"", ".", "..", "a/b", "/a", "a\x00", ".macexec-x"} {
		if _, err := files.Stage(t.Context(), src, dir, name); !errors.Is(err, files.ErrPath) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := files.Stage(t.Context(), open(t, dir), dir, "in"); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("folder: %v", err)
	}
	if _, err := files.Stage(t.Context(), open(t, "/dev/zero"), dir, "in"); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("device: %v", err)
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	pipe, err := os.OpenFile(filepath.Join(dir, "pipe"), os.O_RDWR, 0)
	must(t, err)
	defer pipe.Close()
	if _, err := files.Stage(t.Context(), pipe, dir, "in"); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("pipe: %v", err)
	}
	must(t, os.Symlink(dir, filepath.Join(dir, "link")))
	if _, err := files.Stage(t.Context(), src, filepath.Join(dir, "link"), "in"); !errors.Is(err, files.ErrNotFolder) {
		t.Errorf("linked folder: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := files.Stage(ctx, src, dir, "in"); !errors.Is(err, context.Canceled) || exists(filepath.Join(dir, "in")) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("content", 1<<18)
	got, n, err := files.Digest(t.Context(), strings.NewReader(content))
	if err != nil || got != sha(content) || n != int64(len(content)) {
		t.Error(got, n, err)
	}
	broken := errors.New("broken")
	if _, _, err := files.Digest(t.Context(), &brokenReader{err: broken}); !errors.Is(err, broken) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, _, err := files.Digest(ctx, bytes.NewReader(nil)); !errors.Is(err, broken) {
		t.Error(err)
	}
}

type brokenReader struct{ err error }

func (r *brokenReader) Read([]byte) (int, error) { return 0, r.err }

func BenchmarkStage1GiB(b *testing.B) {
	dir := b.TempDir()
	src := filepath.Join(dir, "src")
	f, err := os.Create(src)
	must(b, err)
	block := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range 1 << 10 {
		_, err := f.Write(block)
		must(b, err)
	}
	must(b, f.Close())
	b.SetBytes(1 << 30)
	for b.Loop() {
		staged, err := files.Stage(b.Context(), open(b, src), dir, "in")
		must(b, err)
		if staged.Size != 1<<30 {
			b.Fatal(staged)
		}
	}
}
