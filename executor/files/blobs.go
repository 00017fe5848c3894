package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Blobs keeps uploaded files by their digest, as <aa>/<sha256>, read-only. What is
// being uploaded lies in "incoming" until it is whole.
type Blobs struct {
	path     string
	dir      folder
	incoming folder
}

const incomingFolder = "incoming"

// Blob is a kept upload.
type Blob struct {
	SHA256    string
	Size      int64
	MediaType string
	Kind      Kind
	Path      string // absolute
}

// OpenBlobs opens the area at an absolute path, makes it if it is not there, and
// removes uploads that a crash left unfinished. Only one process may have it open.
func OpenBlobs(dir string) (*Blobs, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: %q is not absolute", ErrPath, dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, explain(dir, err)
	}
	top, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	b := &Blobs{path: dir, dir: top}
	if err = top.mkdir(incomingFolder); err == nil {
		b.incoming, err = top.sub(incomingFolder)
	}
	if err != nil {
		top.Close()
		return nil, explain(dir, err)
	}
	names, err := b.incoming.f.Readdirnames(-1)
	for _, name := range names {
		err = errors.Join(err, b.incoming.unlink(name))
	}
	if err != nil {
		b.Close()
		return nil, explain(incomingFolder, err)
	}
	return b, nil
}

// Close lets the area go. Uploads that were not committed are lost.
func (b *Blobs) Close() {
	b.incoming.Close()
	b.dir.Close()
}

// Create begins an upload of at most limit bytes. The upload ends with Commit or
// Abort; writes fail once ctx is done.
func (b *Blobs) Create(ctx context.Context, limit int64) (*BlobWriter, error) {
	for n := 0; ; n++ {
		name := fmt.Sprintf("%supload-%d.tmp", Reserved, n)
		f, err := b.incoming.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, explain(filepath.Join(b.path, incomingFolder), err)
		}
		return &BlobWriter{ctx: ctx, b: b, f: f, name: name, sum: sha256.New(), left: limit}, nil
	}
}

// Open opens a blob for reading. It checks that there is a regular file, not that
// its bytes are still the right ones: whoever reads them all has the digest.
func (b *Blobs) Open(sha string) (*os.File, Facts, error) {
	if err := checkSHA256(sha); err != nil {
		return nil, Facts{}, err
	}
	shelf, err := b.dir.sub(sha[:2])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Facts{}, &NotFoundError{Path: "sha256:" + sha}
	}
	if err != nil {
		return nil, Facts{}, err
	}
	defer shelf.Close()
	f, got, err := shelf.openRegular(sha)
	if errors.Is(err, fs.ErrNotExist) {
		err = &NotFoundError{Path: "sha256:" + sha}
	}
	return f, got, err
}

func checkSHA256(sha string) error {
	if len(sha) != sha256.Size*2 || strings.Trim(sha, "0123456789abcdef") != "" {
		return fmt.Errorf("%w: %q is no SHA-256 in lower-case hex", ErrPath, sha)
	}
	return nil
}

// BlobWriter is an upload. It is for one goroutine.
type BlobWriter struct {
	ctx  context.Context //nolint:containedctx // an io.Writer has nowhere else to take it from
	b    *Blobs
	f    *os.File // nil once it has ended
	name string
	sum  hash.Hash
	size int64
	left int64
}

// Write takes the next bytes. Beyond the limit it takes none and gives ErrTooLarge.
func (w *BlobWriter) Write(p []byte) (int, error) {
	if w.f == nil {
		return 0, fs.ErrClosed
	}
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	if int64(len(p)) > w.left {
		return 0, fmt.Errorf("upload: %w", ErrTooLarge)
	}
	n, err := w.f.Write(p)
	w.sum.Write(p[:n])
	w.size += int64(n)
	w.left -= int64(n)
	if err != nil {
		err = explain("upload", err)
	}
	return n, err
}

// Commit makes the upload durable under its digest. If want is not empty and the
// digest is another one, the upload is dropped and the error is ErrDigest. Bytes
// that are there already are kept once.
func (w *BlobWriter) Commit(ctx context.Context, want string) (Blob, error) {
	if w.f == nil {
		return Blob{}, fs.ErrClosed
	}
	defer w.Abort()
	if err := context.Cause(ctx); err != nil {
		return Blob{}, err
	}
	sha := hexSum(w.sum)
	if want != "" && want != sha {
		return Blob{}, fmt.Errorf("upload has %s, not %s: %w", sha, want, ErrDigest)
	}
	blob := Blob{SHA256: sha, Size: w.size, Path: filepath.Join(w.b.path, path.Join(sha[:2], sha))}
	var err error
	if blob.MediaType, blob.Kind, err = SniffFile(w.f); err != nil {
		return Blob{}, err
	}
	if err := w.f.Chmod(0o400); err != nil {
		return Blob{}, explain("upload", err)
	}
	if err := w.f.Sync(); err != nil {
		return Blob{}, explain("upload", err)
	}
	if err := w.b.dir.mkdir(sha[:2]); err != nil {
		return Blob{}, explain(sha[:2], err)
	}
	shelf, err := w.b.dir.sub(sha[:2])
	if err != nil {
		return Blob{}, err
	}
	defer shelf.Close()
	// Over one that is there: these bytes were just checked, the old ones were not.
	if err := w.b.incoming.rename(w.name, shelf, sha); err != nil {
		return Blob{}, explain(blob.Path, err)
	}
	w.name = "" // free for another upload from now on
	return blob, explain(blob.Path, errors.Join(shelf.sync(), w.b.dir.sync()))
}

// Abort drops the upload. After Commit it does nothing.
func (w *BlobWriter) Abort() {
	if w.f == nil {
		return
	}
	_ = w.f.Close()
	w.f = nil
	if w.name != "" {
		_ = w.b.incoming.unlink(w.name)
	}
}

var _ io.Writer = (*BlobWriter)(nil)
