package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Blobs keeps uploaded files by their digest, as <aa>/<sha256>, read-only. What is
// being uploaded lies in "incoming" until it is whole; see [Blobs.Create] and
// [Blobs.Resume].
type Blobs struct {
	path     string
	dir      folder
	incoming folder

	mu       sync.Mutex
	partials map[string]*partial // uploads that can be taken up again, by their name in incoming
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

// OpenBlobs opens the area at an absolute path and makes it if it is not there.
// Uploads that can be taken up again are looked at and kept; whatever else a crash
// left unfinished is removed. Only one process may have it open.
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
	if b.partials, err = b.survivors(); err != nil {
		b.Close()
		return nil, explain(incomingFolder, err)
	}
	return b, nil
}

// Close lets the area go. Uploads that were not committed are lost, but for those
// that can be taken up again.
func (b *Blobs) Close() {
	b.incoming.Close()
	b.dir.Close()
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

// Remove removes a blob; one that is not there is no error. Who has it open reads on.
func (b *Blobs) Remove(sha string) error {
	if err := checkSHA256(sha); err != nil {
		return err
	}
	shelf, err := b.dir.sub(sha[:2])
	if err == nil {
		defer shelf.Close()
		err = shelf.unlink(sha)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return explain("sha256:"+sha, err)
}

// Shelf lists the digests of the blobs whose first byte is the given one.
func (b *Blobs) Shelf(first byte) ([]string, error) {
	name := fmt.Sprintf("%02x", first)
	shelf, err := b.dir.sub(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer shelf.Close()
	names, err := shelf.f.Readdirnames(-1)
	if err != nil {
		return nil, explain(name, err)
	}
	list := names[:0]
	for _, n := range names {
		if checkSHA256(n) == nil && n[:2] == name {
			list = append(list, n)
		}
	}
	return list, nil
}
