package client

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exampleDigest is that of the folder of docs/manifests.md.
const exampleDigest = "58ad616fef01acb946c7198072ab4014a2c22ad02557b795feb561e436505b3a"

type tarEntry struct {
	name, content string
	mode          int64
	kind          byte
	link          string
}

func example() []tarEntry {
	return []tarEntry{
		{name: "bin/", kind: tar.TypeDir, mode: 0o755},
		{name: "bin/run", kind: tar.TypeReg, mode: 0o755, content: "#!/bin/sh\necho hello\n"},
		{name: "empty/", kind: tar.TypeDir, mode: 0o755},
		{name: "hello.txt", kind: tar.TypeReg, mode: 0o644, content: "hello\n"},
	}
}

func pack(t testing.TB, entries []tarEntry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		err := w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.content)), Linkname: e.link})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func section(b []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(dir, "left/from/before"), 0o700); err != nil {
		t.Fatal(err)
	}
	digest, err := unpack(t.Context(), section(pack(t, example())), dir)
	if err != nil || digest != exampleDigest {
		t.Errorf("digest %s, %v; want %s", digest, err, exampleDigest)
	}
	var got []string
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			fi, _ := d.Info()
			path += map[bool]string{true: "*"}[fi.Mode()&0o100 != 0]
		}
		got = append(got, path)
		return err
	})
	if want := ". bin bin/run* empty hello.txt"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("unpacked %v (%v), want %s", got, err, want)
	}
}

// What no host of ours would send is not unpacked, and nothing is written elsewhere.
func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	reg := func(name string) tarEntry { return tarEntry{name: name, kind: tar.TypeReg, mode: 0o644, content: "x"} }
	for name, entries := range map[string][]tarEntry{
		"absolute":            {reg("/etc/evil")},
		"up":                  {reg("../evil")},
		"up inside":           {reg("a/../../evil")},
		"dot":                 {reg("./a")},
		"itself":              {{name: "./", kind: tar.TypeDir}},
		"doubled slash":       {reg("a//b")},
		"control":             {reg("a\nb")},
		"no UTF-8":            {reg("a\xff")},
		"symbolic link":       {{name: "a", kind: tar.TypeSymlink, link: "/etc"}, reg("a/passwd")},
		"hard link":           {{name: "a", kind: tar.TypeLink, link: "/etc/passwd"}},
		"device":              {{name: "a", kind: tar.TypeChar}},
		"pipe":                {{name: "a", kind: tar.TypeFifo}},
		"twice":               {reg("a"), reg("a")},
		"out of order":        {reg("b"), reg("a")},
		"into no folder":      {reg("a/b")},
		"a file as a folder":  {reg("a"), reg("a/b")},
		"a folder as a file":  {{name: "a", kind: tar.TypeDir}, reg("a")},
		"a folder over again": {{name: "a/", kind: tar.TypeDir}, {name: "a/", kind: tar.TypeDir}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			if digest, err := unpack(t.Context(), section(pack(t, entries)), filepath.Join(parent, "folder")); err == nil {
				t.Errorf("unpacked, with the digest %s", digest)
			}
			if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
				t.Errorf("written elsewhere: %v (%v)", left, err)
			}
		})
	}
	whole := pack(t, example())
	if _, err := unpack(t.Context(), section(whole[:len(whole)-3*512]), filepath.Join(t.TempDir(), "folder")); err == nil {
		t.Error("a tar that was cut off was unpacked")
	}
}

// FuzzUnpack: whatever the bytes are, only the folder itself is written, and in it
// nothing but files and folders.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, example()))
	f.Add(pack(f, []tarEntry{{name: "a", kind: tar.TypeSymlink, link: "../../x"}, {name: "a/b", kind: tar.TypeReg}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		parent := t.TempDir()
		digest, err := unpack(t.Context(), section(raw), filepath.Join(parent, "folder"))
		if (err == nil) != (len(digest) == 64) {
			t.Errorf("digest %q, %v", digest, err)
		}
		walk := fs.WalkDir(os.DirFS(parent), ".", func(path string, d fs.DirEntry, err error) error {
			if path != "." && path != "folder" && !strings.HasPrefix(path, "folder/") || !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%s was made: %v", path, d.Type())
			}
			return err
		})
		if walk != nil {
			t.Error(walk)
		}
	})
}
