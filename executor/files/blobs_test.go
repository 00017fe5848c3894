package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/files"
)

func openBlobs(t *testing.T, dir string) *files.Blobs {
	t.Helper()
	b, err := files.OpenBlobs(dir)
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state/blobs")
	b := openBlobs(t, dir)
	for range 2 { // the same bytes twice are kept once
		w, err := b.Create(int64(len(png)), false)
		must(t, err)
		for i := range png {
			if _, err := w.Write([]byte{png[i]}); err != nil {
				t.Fatal(err)
			}
		}
		got, err := w.Seal(t.Context(), sha(png))
		must(t, err)
		must(t, w.Shelve(got))
		want := files.Blob{
			SHA256: sha(png), Size: int64(len(png)), MediaType: "image/png", Kind: files.KindImage,
			Path: filepath.Join(dir, sha(png)[:2], sha(png)),
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		w.Abort()
		if _, err := w.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
		if _, err := w.Seal(t.Context(), ""); !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
		if fi, err := os.Stat(got.Path); err != nil || fi.Mode() != 0o400 {
			t.Error(fi.Mode(), err)
		}
		f, facts, err := b.Open(sha(png))
		must(t, err)
		content, err := io.ReadAll(f)
		if err != nil || string(content) != png || facts.Size != got.Size {
			t.Error(facts, err)
		}
		must(t, f.Close())
	}
	for sum, want := range map[string]error{
		sha("no"): fs.ErrNotExist, "": files.ErrPath, "../../etc/passwd": files.ErrPath,
		strings.ToUpper(sha(png)): files.ErrPath, sha(png) + "0": files.ErrPath, "../" + sha(png)[3:]: files.ErrPath,
	} {
		if _, _, err := b.Open(sum); !errors.Is(err, want) {
			t.Errorf("%q: %v", sum, err)
		}
	}
	if left := hiddenNames(t, dir); len(left) > 0 {
		t.Error(left)
	}
}

func TestBlobRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBlobs(t, dir)
	w, err := b.Create(10, false)
	must(t, err)
	if n, err := w.Write([]byte("12345678901")); n != 0 || !errors.Is(err, files.ErrTooLarge) {
		t.Error(n, err)
	}
	if _, err := w.Write([]byte("1234567890")); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte("1")); !errors.Is(err, files.ErrTooLarge) {
		t.Error(err)
	}
	if _, err := w.Seal(t.Context(), sha("another")); !errors.Is(err, files.ErrDigest) {
		t.Error(err)
	}
	w, err = b.Create(10, false)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Seal(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Abort()
	w.Abort()
	if left, err := filepath.Glob(filepath.Join(dir, "*/*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := files.OpenBlobs("relative"); !errors.Is(err, files.ErrPath) {
		t.Error(err)
	}
}

func TestBlobsAfterACrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := files.OpenBlobs(dir)
	must(t, err)
	w, err := b.Create(100, false)
	must(t, err)
	_, err = w.Write([]byte("half"))
	must(t, err)
	defer w.Abort()
	if len(hiddenNames(t, dir)) != 1 {
		t.Fatal("there is no unfinished upload")
	}
	again := openBlobs(t, dir)
	if left := hiddenNames(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, _, err := again.Open(sha("half")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// A damaged blob is healed by the next upload of the same bytes.
	put := func() {
		w, err := again.Create(100, false)
		must(t, err)
		_, err = w.Write([]byte("whole"))
		must(t, err)
		blob, err := w.Seal(t.Context(), "")
		must(t, err)
		must(t, w.Shelve(blob))
	}
	put()
	path := filepath.Join(dir, sha("whole")[:2], sha("whole"))
	must(t, os.Remove(path))
	write(t, path, "damaged")
	put()
	if read(t, path) != "whole" {
		t.Error("not healed")
	}
	b.Close()
}

func TestBlobsInParallel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBlobs(t, dir)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			content := fmt.Sprintf("blob %d", i%8)
			w, err := b.Create(100, false)
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Abort()
			if _, err := w.Write([]byte(content)); err != nil {
				t.Error(err)
			}
			if i%5 == 0 {
				return
			}
			if blob, err := w.Seal(t.Context(), sha(content)); err != nil {
				t.Error(err)
			} else if err := w.Shelve(blob); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 8 {
		f, _, err := b.Open(sha(fmt.Sprintf("blob %d", i)))
		must(t, err)
		must(t, f.Close())
	}
	if left := hiddenNames(t, dir); len(left) > 0 {
		t.Error(left)
	}
}
