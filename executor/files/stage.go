package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

// Staged is a copy that a tool will read.
type Staged struct {
	Path      string
	Size      int64
	SHA256    string
	MediaType string
	Kind      Kind
	Files     int  // of a folder: how many it has
	Cloned    bool // it shares blocks with the original, and will not when either is written
}

// Stage takes the open file src into dir under a plain name, as a copy that nobody
// else can change: a clone where the file system can, else bytes, and never a link.
// It is read-only. The digest is of the copy itself. A source that grows, shrinks
// or is written meanwhile gives ErrChanged and leaves nothing.
//
// The copy needs to outlive a crash no more than the attempt it is for, so it is
// not forced to stable storage; a copy that an earlier try left under the name is
// replaced.
func Stage(ctx context.Context, src *os.File, dir, name string) (_ Staged, err error) {
	if err := plainName(name); err != nil {
		return Staged{}, err
	}
	before, err := FactsOf(src)
	if err == nil && !before.Regular() {
		err = ErrNotRegular
	}
	if err != nil {
		return Staged{}, explain(src.Name(), err)
	}
	to, err := openFolder(dir)
	if err != nil {
		return Staged{}, err
	}
	defer to.Close()
	if err := to.unlink(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Staged{}, explain(name, err)
	}
	defer func() {
		if err != nil {
			_ = to.unlink(name)
		}
	}()
	staged, err := sealedCopy(ctx, src, before, to, name)
	if err != nil {
		return Staged{}, err
	}
	staged.Path = filepath.Join(dir, name)
	return staged, nil
}

// sealedCopy makes name, which must be free, a read-only copy of src, which looked
// like before when it was opened. On an error it may leave the name.
func sealedCopy(ctx context.Context, src *os.File, before Facts, to folder, name string) (Staged, error) {
	cloned, err := cloneIfCan(src, to, name)
	if err != nil {
		return Staged{}, explain(name, err)
	}
	staged := Staged{Cloned: cloned}
	if cloned {
		staged.SHA256, staged.Size, err = digestName(ctx, to, name)
	} else {
		staged.SHA256, staged.Size, err = copyTo(ctx, src, before.Size, to, name)
	}
	if err != nil {
		return Staged{}, explain(name, err)
	}
	fault.Point("copy.made")
	after, err := FactsOf(src)
	if err != nil {
		return Staged{}, explain(src.Name(), err)
	}
	if !before.Unchanged(after) || staged.Size != before.Size {
		return Staged{}, fmt.Errorf("%q: %w while it was copied", src.Name(), ErrChanged)
	}
	f, _, err := to.openRegular(name)
	if err != nil {
		return Staged{}, err
	}
	defer f.Close()
	if err = fault.Err("copy.seal"); err == nil {
		err = f.Chmod(0o400) // a clone has the mode of its source
	}
	if err != nil {
		return Staged{}, explain(name, err)
	}
	fault.Point("copy.sealed")
	staged.MediaType, staged.Kind, err = SniffFile(f)
	return staged, err
}

// cloneIfCan is [clone]. A test may say that the file system cannot.
func cloneIfCan(src *os.File, to folder, name string) (bool, error) {
	if err := fault.Err("copy.begin"); err != nil {
		return false, err
	}
	if fault.Err("copy.clone") != nil {
		return false, nil //nolint:nilerr // it is copied then
	}
	return clone(src, to, name)
}

// copyTo copies at most one byte more than size: enough to see that there are more.
func copyTo(ctx context.Context, src *os.File, size int64, to folder, name string) (string, int64, error) {
	dst, err := to.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o400)
	if err != nil {
		return "", 0, err
	}
	defer dst.Close()
	sum := sha256.New()
	var from io.Reader = io.NewSectionReader(src, 0, size+1)
	into := io.MultiWriter(dst, sum)
	if fault.On {
		through := &pieces{r: from, w: into}
		from, into = through, through
	}
	n, err := copyBytes(ctx, into, from)
	if err == nil {
		err = fault.Err("copy.close")
	}
	if err != nil {
		return "", n, err
	}
	return hexSum(sum), n, dst.Close()
}

// pieces are what goes through a copy, with a fault point before the first is read,
// before it is written, and before the second is: then one is on the disk.
type pieces struct {
	r       io.Reader
	w       io.Writer
	written bool
}

func (p *pieces) Read(b []byte) (int, error) {
	if err := fault.Err("copy.read"); err != nil {
		return 0, err
	}
	return p.r.Read(b)
}

func (p *pieces) Write(b []byte) (int, error) {
	point := "copy.write"
	if p.written {
		point = "copy.more"
	}
	p.written = true
	if err := fault.Err(point); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

func digestName(ctx context.Context, dir folder, name string) (string, int64, error) {
	f, _, err := dir.openRegular(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	return digestFile(ctx, f)
}
