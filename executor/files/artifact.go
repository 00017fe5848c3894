package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
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
// One call at a time for a dir. It may be repeated after a crash: if the file is gone and the kept one is there,
// that is the answer. So each attempt needs a dir of its own, or what an earlier one
// kept would be taken for this one's.
func KeepArtifact(ctx context.Context, from, dir, name string) (Kept, error) {
	if err := plainName(name); err != nil {
		return Kept{}, err
	}
	rel, err := filepath.Rel(dir, from)
	if err != nil || !filepath.IsLocal(rel) || rel == "." || !filepath.IsAbs(dir) {
		return Kept{}, fmt.Errorf("%w: %q is not below %q", ErrPath, from, dir)
	}
	top, err := openFolder(dir)
	if err != nil {
		return Kept{}, err
	}
	defer top.Close()
	if err := top.mkdir(ArtifactsFolder); err != nil {
		return Kept{}, explain(ArtifactsFolder, err)
	}
	to, err := top.sub(ArtifactsFolder)
	if err != nil {
		return Kept{}, err
	}
	defer to.Close()
	kept := Kept{Name: name, Path: filepath.Join(dir, ArtifactsFolder, name)}

	base := path.Base(rel)
	at, err := top.walk(path.Dir(rel))
	if err == nil {
		defer at.Close()
		_, ok, lerr := at.lstat(base)
		if err = lerr; err == nil && !ok {
			err = fs.ErrNotExist
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, ok, lerr := to.lstat(name); lerr != nil || !ok {
			return Kept{}, errors.Join(&NotFoundError{Path: from}, lerr)
		}
	case err != nil:
		return Kept{}, fmt.Errorf("%q: %w", from, err)
	default:
		copied, err := keep(ctx, at, base, to, name)
		if err != nil {
			return Kept{}, err
		}
		if copied.SHA256 != "" {
			kept.SHA256, kept.Size = copied.SHA256, copied.Size
			kept.MediaType, kept.Kind = copied.MediaType, copied.Kind
		}
	}
	if err := errors.Join(to.sync(), top.sync()); err != nil {
		return Kept{}, explain(kept.Path, err)
	}
	if kept.SHA256 != "" {
		return kept, nil
	}
	if err := kept.describe(ctx, to); err != nil {
		return Kept{}, err
	}
	return kept, nil
}

// keep moves or copies at/base to to/name; the answer is empty if it was moved.
func keep(ctx context.Context, at folder, base string, to folder, name string) (Staged, error) {
	f, before, err := at.openRegular(base)
	if err != nil {
		return Staged{}, err
	}
	defer f.Close()
	if before.Size == 0 {
		return Staged{}, fmt.Errorf("%q: %w", base, ErrEmpty)
	}
	if before.Links > 1 || hasWriter(f) {
		return keepCopy(ctx, f, before, at, base, to, name)
	}
	if err := f.Chmod(0o400); err != nil {
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
func keepCopy(ctx context.Context, f *os.File, before Facts, at folder, base string, to folder, name string) (_ Staged, err error) {
	temp := keepTemp
	if err := to.unlink(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Staged{}, explain(temp, err)
	}
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
	if err := g.Sync(); err != nil {
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
	if k.SHA256, k.Size, err = digestFile(ctx, f); err != nil {
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
