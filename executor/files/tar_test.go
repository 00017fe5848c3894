package files_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/macexec/macexec/executor/files"
)

func openTar(t testing.TB, dir string) *files.Tar {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	got, err := files.OpenTar(t.Context(), f)
	must(t, err)
	t.Cleanup(func() { _ = got.Close() })
	return got
}

// The tar of the same content has the same bytes for ever, from any offset on.
func TestTarIsAlwaysTheSame(t *testing.T) {
	t.Parallel()
	dir, digest := workedExample(t)
	whole, err := io.ReadAll(openTar(t, dir))
	must(t, err)
	if got, want := sha(string(whole)), "56bdae9bb217d9b7a5069028d75ad3bf8c66f8f8709fd3eefc10aae1d0b244a3"; got != want {
		t.Errorf("the tar of the worked example has the digest %s, want %s", got, want)
	}
	must(t, os.Chtimes(filepath.Join(dir, "hello.txt"), timeOne(), timeOne()))
	must(t, os.Chmod(filepath.Join(dir, "hello.txt"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "bin/run"), 0o700))
	long := strings.Repeat("é/", 60)
	write(t, filepath.Join(dir, long, strings.Repeat("x", 200)), strings.Repeat("long", 300))
	got := openTar(t, dir)
	must(t, iotest.TestReader(got, mustRead(t, openTar(t, dir))))
	more := mustRead(t, openTar(t, dir))
	if int64(len(more)) != got.Size() || bytes.Contains(more[:1024], []byte("@LongLink")) {
		t.Errorf("%d bytes, announced were %d", len(more), got.Size())
	}
	for offset := int64(0); offset <= got.Size(); offset += 509 {
		_, err := got.Seek(offset, io.SeekStart)
		must(t, err)
		if rest := mustRead(t, got); !bytes.Equal(rest, more[offset:]) {
			t.Fatalf("from %d on other bytes come", offset)
		}
	}
	// Others read it too.
	out := t.TempDir()
	cmd := exec.Command("tar", "-xf", "-", "-C", out)
	cmd.Stdin = bytes.NewReader(more)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if again := digestFolder(t, out).Digest(); again != digestFolder(t, dir).Digest() || again == digest {
		t.Errorf("unpacked it has the digest %s", again)
	}
	r := tar.NewReader(bytes.NewReader(whole))
	for _, want := range []string{"bin/", "bin/run", "empty/", "hello.txt"} {
		h, err := r.Next()
		must(t, err)
		if h.Name != want || h.Uid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 || h.Format != tar.FormatUSTAR {
			t.Errorf("%+v, want %s", h, want)
		}
	}
}

func mustRead(t testing.TB, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

func TestTarOfAChangedFolder(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir string){
		"shorter": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "hello.txt"), "h") },
		"mode":    func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "hello.txt"), 0o755)) },
		"link": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "hello.txt")))
			must(t, os.Symlink("/etc/hostname", filepath.Join(dir, "hello.txt")))
		},
		"gone": func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "bin"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := workedExample(t)
			got := openTar(t, dir)
			change(t, dir)
			if b, err := io.ReadAll(got); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%d bytes were read", len(b))
			}
		})
	}
}
