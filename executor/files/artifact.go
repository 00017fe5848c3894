package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/macexec/macexec/internal/fault"
)

// ArtifactsFolder is where, inside the folder it is given, [KeepArtifact] keeps.
const ArtifactsFolder = "artifacts"

// keepTemp is the one copy under way in an artifacts folder.
const keepTemp = Reserved + "keep.tmp"

// Kept is an artifact that was taken out of the tool's reach.
type Kept struct {
	Name      string
	Path      string // absolute
	Size      int64
	SHA256    string
	MediaType string
	Kind      Kind
}

// KeepArtifact takes the file at from, which a tool wrote, to
// dir/artifacts/<name>, durably and read-only, and says what it is. The file must
// lie below dir, and no symbolic link may be on the way: a tool could point one at
// somebody else's file. It must be regular and not empty.
//
// The file is moved if no one else can write to it any more; if it has other names,
// or somebody may still have it open for writing, a copy is kept instead and the
// original is removed. A file that changes meanwhile gives ErrChanged. Call it when
// the tool is gone.
//
// One call at a time for a dir. It may be repeated after a crash: if the file is gone
// and the kept one is there, that is the answer. So each attempt needs a dir of its
// own, or what an earlier one kept would be taken for this one's.
func KeepArtifact(ctx context.Context, from, dir, name string) (Kept, error) {
	k, err := openKeeping(from, dir, name)
	if err != nil {
		return Kept{}, err
	}
	defer k.close()
	kept := Kept{Name: name, Path: k.path()}
	at, there, err := k.source()
	switch {
	case err != nil:
		return Kept{}, err
	case !there:
		if _, ok, err := k.to.lstat(name); err != nil || !ok {
			return Kept{}, errors.Join(&NotFoundError{Path: from}, err)
		}
	default:
		defer at.Close()
		copied, err := keep(ctx, at, k.base, k.to, name)
		if err != nil {
			return Kept{}, err
		}
		if copied.SHA256 != "" {
			kept.SHA256, kept.Size = copied.SHA256, copied.Size
			kept.MediaType, kept.Kind = copied.MediaType, copied.Kind
		}
	}
	if err := k.to.sync(); err != nil {
		return Kept{}, explain(k.path(), err)
	}
	if kept.SHA256 != "" {
		return kept, nil
	}
	if err := kept.describe(ctx, k.to); err != nil {
		return Kept{}, err
	}
	return kept, nil
}

// keeping is the way of one artifact out of a tool's reach, with its folders open.
type keeping struct {
	from, rel string // where the tool wrote it: as named, and below top
	base      string // its name there
	top, to   folder // the attempt's folder, and the one for artifacts in it
	name      string // its name in to
}

func openKeeping(from, dir, name string) (*keeping, error) {
	if err := plainName(name); err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(dir, from)
	if err != nil || !filepath.IsLocal(rel) || rel == "." || !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: %q is not below %q", ErrPath, from, dir)
	}
	k := &keeping{from: from, rel: rel, base: path.Base(rel), name: name}
	if k.top, err = openFolder(dir); err != nil {
		return nil, err
	}
	if err = k.top.mkdir(ArtifactsFolder); err == nil {
		// Before anything moves there: it would be lost with a folder that a power cut takes.
		err = k.top.sync()
	}
	if err == nil {
		k.to, err = k.top.sub(ArtifactsFolder)
	}
	if err != nil {
		k.top.Close()
		return nil, explain(ArtifactsFolder, err)
	}
	return k, nil
}

func (k *keeping) close() {
	k.to.Close()
	k.top.Close()
}

// path is where it is kept.
func (k *keeping) path() string { return filepath.Join(k.top.f.Name(), ArtifactsFolder, k.name) }

// source opens the folder in which the tool left something under the name; false if
// it left nothing.
func (k *keeping) source() (folder, bool, error) {
	at, err := k.top.walk(path.Dir(k.rel))
	if errors.Is(err, fs.ErrNotExist) {
		return folder{}, false, nil
	}
	if err != nil {
		return folder{}, false, fmt.Errorf("%q: %w", k.from, err)
	}
	_, ok, err := at.lstat(k.base)
	if err != nil || !ok {
		at.Close()
	}
	return at, ok, err
}

// keep moves or copies a file with content from at/base to to/name; the answer is
// empty if it was moved.
func keep(ctx context.Context, at folder, base string, to folder, name string) (Staged, error) {
	f, before, err := at.openRegular(base)
	if err != nil {
		return Staged{}, err
	}
	defer f.Close()
	if before.Size == 0 {
		return Staged{}, fmt.Errorf("%q: %w", base, ErrEmpty)
	}
	return keepOpen(ctx, f, before, 0o400, at, base, to, name)
}

// keepOpen is keep for a file that is open and was looked at, with the mode that it is
// kept with.
func keepOpen(ctx context.Context, f *os.File, before Facts, mode fs.FileMode, at folder, base string, to folder, name string) (Staged, error) {
	// A crash may have left half a copy there, even of a file that is moved this time.
	if err := to.unlink(keepTemp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Staged{}, explain(keepTemp, err)
	}
	if before.Links > 1 || hasWriter(f) {
		return keepCopy(ctx, f, before, mode, at, base, to, name)
	}
	if err := f.Chmod(mode); err != nil {
		return Staged{}, explain(base, err)
	}
	if err := f.Sync(); err != nil {
		return Staged{}, explain(base, err)
	}
	there, ok, err := at.lstat(base)
	if err == nil && (!ok || !there.Unchanged(before)) {
		err = fmt.Errorf("%w while it was kept", ErrChanged)
	}
	if err == nil {
		err = at.rename(base, to, name)
	}
	return Staged{}, explain(base, err)
}

// keepCopy keeps a copy under the name in one step, then removes the original name.
func keepCopy(ctx context.Context, f *os.File, before Facts, mode fs.FileMode, at folder, base string, to folder, name string) (_ Staged, err error) {
	temp := keepTemp
	defer func() {
		if err != nil {
			_ = to.unlink(temp)
		}
	}()
	copied, err := sealedCopy(ctx, f, before, to, temp)
	if err != nil {
		return Staged{}, err
	}
	g, _, err := to.openRegular(temp)
	if err != nil {
		return Staged{}, err
	}
	defer g.Close()
	if err := errors.Join(g.Chmod(mode), g.Sync()); err != nil {
		return Staged{}, explain(temp, err)
	}
	if err := to.rename(temp, to, name); err != nil {
		return Staged{}, explain(name, err)
	}
	if err := to.sync(); err != nil {
		return Staged{}, explain(name, err)
	}
	return copied, explain(base, at.unlink(base))
}

// describe fills in what the kept file is, and checks that it held still.
func (k *Kept) describe(ctx context.Context, in folder) error {
	f, before, err := in.openRegular(k.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = fault.Err("keep.read"); err == nil {
		k.SHA256, k.Size, err = digestFile(ctx, f)
	}
	if err != nil {
		return explain(k.Path, err)
	}
	after, err := FactsOf(f)
	if err == nil && (!before.Unchanged(after) || k.Size != before.Size) {
		err = fmt.Errorf("%w while it was kept", ErrChanged)
	}
	if err == nil && k.Size == 0 {
		err = ErrEmpty
	}
	if err != nil {
		return explain(k.Path, err)
	}
	k.MediaType, k.Kind, err = SniffFile(f)
	return err
}

// OpenKept opens a kept artifact for reading.
func OpenKept(p string) (*os.File, Facts, error) {
	dir, err := openFolder(filepath.Dir(p))
	if err != nil {
		return nil, Facts{}, err
	}
	defer dir.Close()
	return dir.openRegular(filepath.Base(p))
}
