package client

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// What no download wrote is not touched, whatever it is; a pipe is not waited for.
func TestPartInTheWay(t *testing.T) {
	t.Parallel()
	info := &macexecv1.FileInfo{Reference: "r", Sha256: "s", TransferSize: 3}
	for name, text := range map[string]string{
		"a note": "my own", "JSON": `{"a":1}`, "like a record": `{"reference":"r","sha256":"s","transfer_size":3,"mine":1}`,
		"a record, set apart": "{\"reference\":\"r\",\n \"sha256\":\"s\",\"transfer_size\":3}\n",
	} {
		path := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(path+recordSuffix, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openPart(path, info); err == nil || !strings.Contains(err.Error(), "in the way") {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path + recordSuffix); err != nil || string(got) != text {
			t.Errorf("%s became %q, %v", name, got, err)
		}
	}
	for name, plant := range map[string]func(string) error{
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link":   func(path string) error { return os.Symlink("elsewhere", path) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, suffix := range []string{recordSuffix, partSuffix} {
			path := filepath.Join(t.TempDir(), "out")
			if err := plant(path + suffix); err != nil {
				t.Fatal(err)
			}
			if _, err := openPart(path, info); err == nil || !strings.Contains(err.Error(), "in the way") {
				t.Errorf("%s as %s: %v", name, suffix, err)
			}
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("%s as %s: left %v, %v", name, suffix, left, err)
			}
		}
	}
}

// A name is taken only by what is whole, on every kind of file system.
func TestRenameExclusive(t *testing.T) {
	t.Parallel()
	for name, rename := range map[string]func(from, to string) error{"exclusive": renameExclusive, "reserved": renameReserved} {
		dir := t.TempDir()
		from, to, missing := filepath.Join(dir, "from"), filepath.Join(dir, "to"), filepath.Join(dir, "missing")
		if err := errors.Join(os.WriteFile(from, []byte("new"), 0o600), os.WriteFile(to, []byte("old"), 0o600), os.Mkdir(dir+"/folder", 0o700), os.Mkdir(dir+"/empty", 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := rename(from, to); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s over a file: %v", name, err)
		}
		if err := rename(dir+"/folder", dir+"/empty"); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s over an empty folder: %v", name, err)
		}
		if err := rename(missing, dir+"/nothing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of nothing: %v", name, err)
		}
		// The rename fails where a folder would go into itself, and leaves no name behind.
		if err := rename(dir+"/folder", dir+"/folder/in"); err == nil {
			t.Errorf("%s into itself", name)
		}
		if _, err := os.Lstat(dir + "/folder/in"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s left a name behind: %v", name, err)
		}
		if err := errors.Join(rename(from, dir+"/a"), rename(dir+"/folder", dir+"/b")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := os.ReadFile(to); err != nil || string(text) != "old" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// A folder on this machine has the digest that the host gave it, and no other.
func TestTreeDigest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "folder")
	// In the order of paths "a.txt" comes before "a/b", unlike in a walk.
	entries := append([]tarEntry{{name: "a/", kind: '5'}, {name: "a.txt", kind: '0', content: "x"}, {name: "a/b", kind: '0', content: "y"}}, example()...)
	want, err := unpack(t.Context(), section(pack(t, entries)), dir)
	if err != nil {
		t.Fatal(err)
	}
	info := &macexecv1.FileInfo{Folder: true, Sha256: want}
	if got, err := treeDigest(t.Context(), dir); err != nil || got != want || !holds(t.Context(), dir, info) {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "hello.txt"), []byte("other"), 0o600); err != nil || holds(t.Context(), dir, info) {
		t.Errorf("another folder is the same (%v)", err)
	}
}

// An end of the caller's is no fault of the tar, and a file may not be larger than the
// tar that brings it, as a sparse one says it is.
func TestUnpackBounds(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "folder")
	if _, err := unpack(gone, section(pack(t, example())), dir); !errors.Is(err, context.Canceled) || errors.Is(err, errWrongTar) {
		t.Errorf("%v", err)
	}
	if _, err := unpack(t.Context(), section(pack(t, []tarEntry{{name: "../x", kind: '0'}})), dir); !errors.Is(err, errWrongTar) {
		t.Errorf("%v", err)
	}
	sparse := pack(t, []tarEntry{{name: "a", kind: '0', content: ""}})
	header := sparse[:512]
	header[156] = 'S' // a GNU sparse file: one hole of 1 GiB
	copy(header[257:265], "ustar  \x00")
	copy(header[386:], "00000000000\x0000000000000\x00")
	copy(header[483:], "10000000000\x00")
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], octal(sum))
	if _, err := unpack(t.Context(), section(sparse), dir); !errors.Is(err, errWrongTar) {
		t.Errorf("a sparse file: %v", err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, "a")); err == nil && fi.Size() > 0 {
		t.Errorf("%d bytes were written", fi.Size())
	}
	if bytes.Equal(sparse[:512], make([]byte, 512)) {
		t.Error("no header")
	}
}

func octal(n int) string {
	text := ""
	for range 6 {
		text = string(rune('0'+n%8)) + text
		n /= 8
	}
	return text + "\x00 "
}
