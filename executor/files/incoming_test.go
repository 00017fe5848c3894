package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/files"
)

func uploadOf(content string) files.UploadID {
	return files.UploadID{Owner: "a/../b \x00\xff", SHA256: sha(content), Size: int64(len(content))}
}

func resume(t *testing.T, b *files.Blobs, id files.UploadID, offset int64) *files.BlobWriter {
	t.Helper()
	w, err := b.Resume(t.Context(), id, offset)
	must(t, err)
	t.Cleanup(w.Abort)
	return w
}

func send(t *testing.T, w *files.BlobWriter, content string) {
	t.Helper()
	if n, err := w.Write([]byte(content)); err != nil || n != len(content) {
		t.Fatalf("%d bytes were taken: %v", n, err)
	}
}

func finish(t *testing.T, w *files.BlobWriter, id files.UploadID) {
	t.Helper()
	blob, err := w.Seal(t.Context(), id.SHA256)
	must(t, err)
	must(t, w.Shelve(blob))
}

// incoming lists what is on its way in.
func incoming(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "incoming"))
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantOffset holds that an upload stands somewhere.
func wantOffset(t *testing.T, b *files.Blobs, id files.UploadID, want int64) {
	t.Helper()
	if got := b.Offset(id); got != want {
		t.Fatalf("the upload stands at %d, want %d", got, want)
	}
}

// What came in is gone on with: in the same process, in the next one, and when the
// crash came after the last byte was made durable.
func TestUploadGoesOn(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789abcdef", 1<<18) // some pieces to catch up with
	id := uploadOf(content)
	third := len(content) / 3
	dir := t.TempDir()
	b, err := files.OpenBlobs(dir)
	must(t, err)
	again := func() {
		t.Helper()
		b.Close()
		b, err = files.OpenBlobs(dir)
		must(t, err)
	}
	w := resume(t, b, id, 0)
	send(t, w, content[:third])
	w.Abort()
	wantOffset(t, b, id, int64(third))

	w = resume(t, b, id, int64(third))
	send(t, w, content[third:2*third])
	again() // and nobody has ended the stream
	wantOffset(t, b, id, int64(2*third))

	w = resume(t, b, id, int64(2*third))
	send(t, w, content[2*third:])
	_, err = w.Seal(t.Context(), id.SHA256)
	must(t, err)
	again()
	wantOffset(t, b, id, id.Size)
	for _, name := range incoming(t, dir) {
		if strings.ContainsAny(name, "/ ") || strings.Contains(name, "..") || strings.Contains(name, id.SHA256) {
			t.Errorf("a name made of a caller's text: %q", name)
		}
	}

	w = resume(t, b, id, id.Size)
	finish(t, w, id)
	f, facts, err := b.Open(id.SHA256)
	must(t, err)
	must(t, f.Close())
	if facts.Size != id.Size || facts.Mode.Perm() != 0o400 {
		t.Errorf("%+v", facts)
	}
	if left := incoming(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	wantOffset(t, b, id, 0)
	b.Close()
}

// A newer stream takes an upload over from one whose peer is gone, and the older one
// can do nothing to it any more. While the older one is finishing it is left to.
func TestUploadIsTakenOver(t *testing.T) {
	t.Parallel()
	const content = "the whole content"
	id := uploadOf(content)
	dir := t.TempDir()
	b := openBlobs(t, dir)
	old := resume(t, b, id, 0)
	send(t, old, content[:3])

	if _, err := b.Resume(t.Context(), id, 2); !isOffset(err, 3) {
		t.Errorf("a wrong offset: %v", err)
	}
	if _, err := old.Write([]byte("x")); !errors.Is(err, files.ErrTakenOver) {
		t.Errorf("a newer stream had a wrong offset, and the older one got %v", err)
	}
	stale := resume(t, b, id, 3)
	w := resume(t, b, id, 3)
	send(t, w, content[3:])
	if _, err := old.Seal(t.Context(), ""); !errors.Is(err, files.ErrTakenOver) {
		t.Errorf("the older stream sealed: %v", err)
	}
	old.Drop()
	wantOffset(t, b, id, id.Size)

	blob, err := w.Seal(t.Context(), id.SHA256)
	must(t, err)
	if _, err := stale.Seal(t.Context(), ""); !errors.Is(err, files.ErrTakenOver) {
		t.Errorf("another one sealed: %v", err)
	}
	if _, err := b.Resume(t.Context(), id, id.Size); !errors.Is(err, files.ErrFinishing) {
		t.Errorf("while it is finished: %v", err)
	}
	must(t, w.Shelve(blob))
	if err := w.Shelve(blob); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a second time: %v", err)
	}
	// Offset 0 begins anew.
	w = resume(t, b, id, 0)
	send(t, w, "wrong")
	w = resume(t, b, id, 0)
	send(t, w, content)
	finish(t, w, id)
	if left := incoming(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func isOffset(err error, stands int64) bool {
	e, ok := errors.AsType[*files.OffsetError](err)
	return ok && e.Stands == stands
}

// Whatever a stream asks for that is not so leaves nothing.
func TestUploadRefused(t *testing.T) {
	t.Parallel()
	const content = "content"
	id := uploadOf(content)
	dir := t.TempDir()
	b := openBlobs(t, dir)
	for _, offset := range []int64{-1, 1, id.Size, id.Size + 1, math.MinInt64, math.MaxInt64} {
		if _, err := b.Resume(t.Context(), id, offset); !isOffset(err, 0) {
			t.Errorf("offset %d of nothing: %v", offset, err)
		}
	}
	for _, bad := range []string{"", strings.ToUpper(id.SHA256), "../" + id.SHA256[3:]} {
		if _, err := b.Resume(t.Context(), files.UploadID{Owner: "a", SHA256: bad, Size: 1}, 0); !errors.Is(err, files.ErrPath) {
			t.Errorf("digest %q: %v", bad, err)
		}
	}
	for _, size := range []int64{math.MaxInt64, 1 << 60} {
		_, err := b.Resume(t.Context(), files.UploadID{Owner: "a", SHA256: id.SHA256, Size: size}, 0)
		room, ok := errors.AsType[*files.RoomError](err)
		if !ok || !errors.Is(err, syscall.ENOSPC) || room.Missing <= 0 || room.Missing >= size {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if _, err := b.Create(1<<60, true); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	w := resume(t, b, id, 0)
	if _, err := w.Write([]byte(content + "x")); !errors.Is(err, files.ErrTooLarge) {
		t.Error(err)
	}
	send(t, w, "CONTENT")
	if _, err := w.Seal(t.Context(), id.SHA256); !errors.Is(err, files.ErrDigest) {
		t.Error(err)
	}
	wantOffset(t, b, id, 0)
	w = resume(t, b, id, 0)
	send(t, w, "con")
	w.Drop()
	wantOffset(t, b, id, 0)
	// Another owner's upload of the same bytes is another upload.
	w = resume(t, b, id, 0)
	send(t, w, "con")
	other := id
	other.Owner = "b"
	wantOffset(t, b, other, 0)
	if _, err := b.Resume(t.Context(), other, 3); !isOffset(err, 0) {
		t.Error(err)
	}
	w.Drop()
	// A file of no bytes.
	none := uploadOf("")
	finish(t, resume(t, b, none, 0), none)
	if left := incoming(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// A stream that ends while it still catches up has lost nothing.
	w = resume(t, b, id, 0)
	send(t, w, "con")
	b.Close()
	b = openBlobs(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Resume(ctx, id, 3); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w = resume(t, b, id, 3)
	send(t, w, "tent")
	finish(t, w, id)
}

// Only what is an upload under its very own record survives a restart.
func TestSurvivors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := files.OpenBlobs(dir)
	must(t, err)
	id := uploadOf("content")
	send(t, resume(t, b, id, 0), "con")
	b.Close()
	in := filepath.Join(dir, "incoming")
	data := filepath.Join(in, incoming(t, dir)[0])
	record := data + ".json"
	text := read(t, record)
	write(t, filepath.Join(in, "upload-1"), "no record")
	write(t, filepath.Join(in, "upload-2.json"), text) // of another name
	write(t, filepath.Join(in, "upload-2"), "con")
	write(t, filepath.Join(in, "upload-3.json"), "{")
	write(t, filepath.Join(in, "upload-4"), "")
	must(t, os.Symlink(record, filepath.Join(in, "upload-4.json")))
	b, err = files.OpenBlobs(dir)
	must(t, err)
	if left := incoming(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
	wantOffset(t, b, id, 3)
	b.Close()

	must(t, os.Remove(data))
	for name, spoil := range map[string]func(){
		"too long": func() { write(t, data, "content and more") },
		"a link":   func() { must(t, os.Symlink("/etc/passwd", data)) },
		"a pipe":   func() { must(t, syscall.Mkfifo(data, 0o600)) },
		"no data":  func() {},
	} {
		write(t, record, text)
		spoil()
		b, err = files.OpenBlobs(dir)
		must(t, err)
		wantOffset(t, b, id, 0)
		if left := incoming(t, dir); len(left) > 0 {
			t.Errorf("%s: left: %q", name, left)
		}
		b.Close()
	}
}

func FuzzSurvivors(f *testing.F) {
	f.Add([]byte(`{"owner":"a","sha256":"` + sha("x") + `","size":1}`))
	f.Add([]byte(`{"size":-1}`))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, record []byte) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "incoming", "upload-x"), "x")
		write(t, filepath.Join(dir, "incoming", "upload-x.json"), string(record))
		b, err := files.OpenBlobs(dir)
		must(t, err)
		b.Close()
		if left := incoming(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

func TestUploadsExpire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBlobs(t, dir)
	idle, busy, fresh := uploadOf("idle"), uploadOf("busy"), uploadOf("fresh")
	for _, id := range []files.UploadID{idle, busy} {
		send(t, resume(t, b, id, 0), "i")
	}
	for _, name := range incoming(t, dir) {
		old := time.Now().Add(-48 * time.Hour)
		must(t, os.Chtimes(filepath.Join(dir, "incoming", name), old, old))
	}
	resume(t, b, idle, 1).Abort()
	w := resume(t, b, fresh, 0)
	send(t, w, "f")
	w.Abort()
	if n, err := b.Expire(time.Now().Add(-24 * time.Hour)); err != nil || n != 1 {
		t.Errorf("%d expired, %v", n, err)
	}
	wantOffset(t, b, idle, 0)
	wantOffset(t, b, busy, 1) // a stream is open of it
	wantOffset(t, b, fresh, 1)
	if n, err := b.Expire(time.Now().Add(time.Hour)); err != nil || n != 1 {
		t.Errorf("%d expired, %v", n, err)
	}
	if left := incoming(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
}

// Of one owner so many half uploads are kept; the oldest goes first, one that is coming
// in never, and nobody else's.
func TestHalfUploadsOfAnOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBlobs(t, dir)
	id := func(owner string, n int) files.UploadID {
		return files.UploadID{Owner: owner, SHA256: sha(fmt.Sprint(n)), Size: 10}
	}
	half := func(id files.UploadID) *files.BlobWriter {
		w := resume(t, b, id, 0)
		_, err := w.Write([]byte("half"))
		must(t, err)
		return w
	}
	half(id("b", 0)).Abort()
	open := half(id("a", 0))
	for n := 1; n <= files.MostHalfUploads; n++ {
		half(id("a", n)).Abort()
	}
	for n := range files.MostHalfUploads + 1 {
		wantOffset(t, b, id("a", n), 4)
	}
	// Times of their own, in the order in which they came.
	for _, name := range incoming(t, dir) {
		must(t, os.Chtimes(filepath.Join(dir, "incoming", name), timeOne(), timeOne()))
	}
	oldest := id("a", 7)
	w := resume(t, b, oldest, 4)
	w.Abort()
	path := filepath.Join(dir, "incoming", uploadName(t, dir, oldest))
	must(t, os.Chtimes(path, timeOne().Add(-time.Hour), timeOne().Add(-time.Hour)))
	half(id("a", 100)).Abort()
	wantOffset(t, b, oldest, 0)
	wantOffset(t, b, id("a", 100), 4)
	wantOffset(t, b, id("a", 0), 4)
	wantOffset(t, b, id("b", 0), 4)
	if left := len(incoming(t, dir)); left != 2*(files.MostHalfUploads+2) {
		t.Errorf("%d files are left", left)
	}
	_, err := open.Write([]byte("more"))
	must(t, err)
	open.Abort()
	wantOffset(t, b, id("a", 0), 8)
	if left := len(incoming(t, dir)); left != 2*(files.MostHalfUploads+1) {
		t.Errorf("%d files are left", left)
	}
}

// uploadName is what an upload is called in incoming, as its record says.
func uploadName(t *testing.T, dir string, id files.UploadID) string {
	t.Helper()
	for _, name := range incoming(t, dir) {
		if data, ok := strings.CutSuffix(name, ".json"); ok && strings.Contains(read(t, filepath.Join(dir, "incoming", name)), id.SHA256) {
			return data
		}
	}
	t.Fatalf("no record of %+v", id)
	return ""
}

// Room is taken at the start and given back with the upload.
func TestUploadReservesRoom(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	dir := t.TempDir()
	b := openBlobs(t, dir)
	id := files.UploadID{Owner: "a", SHA256: sha("x"), Size: size}
	w := resume(t, b, id, 0)
	send(t, w, "x")
	var st syscall.Stat_t
	for _, name := range incoming(t, dir) {
		if !strings.HasSuffix(name, ".json") {
			must(t, syscall.Stat(filepath.Join(dir, "incoming", name), &st))
		}
	}
	if st.Size != 1 {
		t.Errorf("the file says it has %d bytes", st.Size)
	}
	if st.Blocks*512 < size {
		t.Skipf("this file system reserves nothing: %d blocks", st.Blocks)
	}
	w.Drop()
	if left := incoming(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Many streams of one upload at once: whichever ends it, the bytes are right.
func TestUploadByMany(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789", 1000)
	id := uploadOf(content)
	dir := t.TempDir()
	b := openBlobs(t, dir)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				at := b.Offset(id)
				w, err := b.Resume(t.Context(), id, at)
				if err != nil {
					continue
				}
				for err == nil && at < id.Size {
					n := min(at+777, id.Size)
					_, err = w.Write([]byte(content[at:n]))
					at = n
				}
				if err == nil {
					var blob files.Blob
					if blob, err = w.Seal(t.Context(), id.SHA256); err == nil {
						err = w.Shelve(blob)
					}
				}
				if err != nil && !errors.Is(err, files.ErrTakenOver) {
					t.Error(err)
				}
				w.Abort()
			}
		})
	}
	all.Wait()
	w := resume(t, b, id, 0)
	send(t, w, content)
	finish(t, w, id)
	if got := read(t, filepath.Join(dir, id.SHA256[:2], id.SHA256)); got != content {
		t.Error("other bytes")
	}
	if left := incoming(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestShelf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBlobs(t, dir)
	id := uploadOf("content")
	w := resume(t, b, id, 0)
	send(t, w, "content")
	finish(t, w, id)
	first := id.SHA256[:2]
	write(t, filepath.Join(dir, first, "notes"), "not ours")
	var found []string
	for i := range 256 {
		list, err := b.Shelf(byte(i))
		must(t, err)
		found = append(found, list...)
	}
	if len(found) != 1 || found[0] != id.SHA256 {
		t.Errorf("%q", found)
	}
	for range 2 {
		must(t, b.Remove(id.SHA256))
	}
	if _, _, err := b.Open(id.SHA256); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := b.Remove("../" + first); !errors.Is(err, files.ErrPath) {
		t.Error(err)
	}
}
