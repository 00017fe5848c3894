package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"time"
)

// Tar reads a folder as a tar without ever having it whole: a header is made, and a
// file opened, when its bytes are asked for. The same content gives the same bytes:
// entries sorted by path, modes 0644, 0755 and for folders 0755, no owners, every time
// the beginning of 1970; USTAR, and PAX where a name or a size needs it.
//
// It is for one user at a time. A file that is not what it was when the Tar was made
// gives ErrChanged.
type Tar struct {
	over   func() error // why nobody wants it any more, or nil
	at     folder
	parts  []tarPart // one for each entry, and one for the end
	size   int64
	offset int64

	header []byte // of parts[loaded]
	file   *os.File
	loaded int // which part header and file are of; -1: none
}

// tarPart is where an entry begins in the tar, and how long its header is.
type tarPart struct {
	entry  TreeEntry
	begin  int64
	header int
}

const tarBlock = 512

// OpenTar reads the open folder as a tar; it takes f over, and closes it.
func OpenTar(ctx context.Context, f *os.File) (*Tar, error) {
	tree, err := MeasureFolder(ctx, f, TreeRules{})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t := &Tar{over: func() error { return context.Cause(ctx) }, at: folder{f}, loaded: -1}
	for _, e := range tree.Entries {
		header, err := tarHeader(e)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		t.parts = append(t.parts, tarPart{entry: e, begin: t.size, header: len(header)})
		t.size += int64(len(header)) + padded(e.Size)
	}
	t.parts = append(t.parts, tarPart{begin: t.size, header: 2 * tarBlock})
	t.size += 2 * tarBlock
	return t, nil
}

func tarHeader(e TreeEntry) ([]byte, error) {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Path, Size: e.Size, Mode: 0o644, ModTime: time.Unix(0, 0)}
	switch {
	case e.Folder:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.Path+"/", 0o755
	case e.Executable:
		h.Mode = 0o755
	}
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(h); err != nil {
		return nil, fmt.Errorf("%q cannot be in a tar: %w", e.Path, err)
	}
	return out.Bytes(), nil
}

// padded is a size in whole blocks.
func padded(size int64) int64 { return (size + tarBlock - 1) / tarBlock * tarBlock }

// Size is how many bytes the tar has.
func (t *Tar) Size() int64 { return t.size }

// Seek implements io.Seeker.
func (t *Tar) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += t.offset
	case io.SeekEnd:
		offset += t.size
	}
	if offset < 0 {
		return t.offset, errors.New("a tar has nothing before its beginning")
	}
	t.offset = offset
	return offset, nil
}

// Close lets the folder go.
func (t *Tar) Close() error {
	t.release()
	return t.at.f.Close()
}

func (t *Tar) release() {
	if t.file != nil {
		_ = t.file.Close()
	}
	t.file, t.header, t.loaded = nil, nil, -1
}

// Read implements io.Reader.
func (t *Tar) Read(p []byte) (int, error) {
	if err := t.over(); err != nil {
		return 0, err
	}
	if t.offset >= t.size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	i := sort.Search(len(t.parts), func(i int) bool { return t.parts[i].begin > t.offset }) - 1
	if err := t.load(i); err != nil {
		return 0, err
	}
	part := t.parts[i]
	in := t.offset - part.begin
	if in < int64(part.header) {
		return t.took(copy(p, t.header[in:])), nil
	}
	in -= int64(part.header)
	if in >= part.entry.Size { // between the file's end and the block's
		n := min(int64(len(p)), padded(part.entry.Size)-in)
		clear(p[:n])
		return t.took(int(n)), nil
	}
	n, err := t.file.ReadAt(p[:min(int64(len(p)), part.entry.Size-in)], in)
	if n == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("%q: %w: it has become shorter", part.entry.Path, ErrChanged)
		}
		return 0, err
	}
	return t.took(n), nil
}

func (t *Tar) took(n int) int {
	t.offset += int64(n)
	return n
}

// load gets header and file of a part ready.
func (t *Tar) load(i int) error {
	if i == t.loaded {
		return nil
	}
	t.release()
	part := t.parts[i]
	if i == len(t.parts)-1 {
		t.header, t.loaded = make([]byte, part.header), i
		return nil
	}
	header, err := tarHeader(part.entry)
	if err != nil {
		return err
	}
	if !part.entry.Folder {
		in, err := t.at.walk(path.Dir(part.entry.Path))
		if err != nil {
			return fmt.Errorf("%q: %w", part.entry.Path, err)
		}
		defer in.Close()
		f, got, err := in.openRegular(path.Base(part.entry.Path))
		if err != nil {
			return fmt.Errorf("%q: %w", part.entry.Path, err)
		}
		if got.Size != part.entry.Size || got.Mode&0o100 != 0 != part.entry.Executable {
			return errors.Join(fmt.Errorf("%q: %w", part.entry.Path, ErrChanged), f.Close())
		}
		t.file = f
	}
	t.header, t.loaded = header, i
	return nil
}
