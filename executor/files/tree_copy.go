package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// keepTree is the one folder under way in an artifacts folder.
const keepTree = Reserved + "keep.tree"

// KeptFolder is a folder that was taken out of the tool's reach.
type KeptFolder struct {
	Tree

	Path string // absolute
}

// KeepFolder is [KeepArtifact] for a folder that a tool made: each file is moved or
// copied as there, into folders that are made anew, so that nobody has any part of
// what is kept open for writing. What is not plain gives ErrTree, what goes beyond the
// rules ErrTooLarge, a folder without any file ErrEmpty; then nothing was moved. An
// empty file is taken.
//
// After a crash it goes on with what was not moved yet.
func KeepFolder(ctx context.Context, from, dir, name string, rules TreeRules) (KeptFolder, error) {
	k, err := openKeeping(from, dir, name)
	if err != nil {
		return KeptFolder{}, err
	}
	defer k.close()
	at, there, err := k.source()
	if err != nil {
		return KeptFolder{}, err
	}
	if there {
		defer at.Close()
	}
	_, isKept, err := k.to.lstat(name)
	switch {
	case err != nil:
		return KeptFolder{}, err
	case !isKept && !there:
		return KeptFolder{}, &NotFoundError{Path: from}
	case !isKept:
		if err := k.moveTree(ctx, at, rules); err != nil {
			return KeptFolder{}, err
		}
	}
	if there { // what is left has no file any more
		if err := at.removeTree(ctx, k.base); err != nil {
			return KeptFolder{}, explain(from, err)
		}
	}
	kept, err := k.to.sub(name)
	if err != nil {
		return KeptFolder{}, err
	}
	defer kept.Close()
	tree, err := readTree(ctx, kept, treeWalk{rules: rules, file: describeEntry})
	return KeptFolder{Tree: tree, Path: k.path()}, err
}

// moveTree moves the files of at/base into a hidden folder, looks at that as a whole,
// and gives it its name.
func (k *keeping) moveTree(ctx context.Context, at folder, rules TreeRules) error {
	src, err := at.sub(k.base)
	if err != nil {
		return err
	}
	defer src.Close()
	look := treeWalk{rules: rules, single: true, file: lookOnly}
	if tree, err := readTree(ctx, src, look); err != nil {
		return err
	} else if _, begun, err := k.to.lstat(keepTree); err != nil || tree.Files == 0 && !begun {
		return errors.Join(fmt.Errorf("%q: %w: it holds no file", k.base, ErrEmpty), err)
	}
	if err := k.to.mkdir(keepTree); err != nil {
		return explain(keepTree, err)
	}
	if err := k.to.sync(); err != nil {
		return explain(keepTree, err)
	}
	temp, err := k.to.sub(keepTree)
	if err != nil {
		return err
	}
	defer temp.Close()
	if _, err := walkTree(ctx, src, temp, treeWalk{rules: rules, file: keepEntry, left: syncTwin, safe: true}); err != nil {
		return err
	}
	if _, err := readTree(ctx, temp, look); err != nil {
		return err
	}
	if err := k.to.rename(keepTree, k.to, k.name); err != nil {
		return explain(k.name, err)
	}
	return explain(k.path(), k.to.sync())
}

func keepEntry(ctx context.Context, at, twin folder, name string, there Facts, _ *TreeEntry) error {
	f, err := at.openSame(name, there)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = keepOpen(ctx, f, there, sealed(there), at, name, twin, name)
	return err
}

// sealed is the mode of a file in a folder that nobody is to write to. Whether its
// owner may execute it stays.
func sealed(f Facts) fs.FileMode { return 0o400 | f.Mode&0o100 }

// StageFolder is [Stage] for an open folder.
func StageFolder(ctx context.Context, src *os.File, dir, name string, rules TreeRules) (_ Staged, err error) {
	if err := plainName(name); err != nil {
		return Staged{}, err
	}
	to, err := openFolder(dir)
	if err != nil {
		return Staged{}, err
	}
	defer to.Close()
	if err := to.removeTree(ctx, name); err != nil {
		return Staged{}, explain(name, err)
	}
	defer func() {
		if err != nil {
			_ = to.removeTree(context.WithoutCancel(ctx), name)
		}
	}()
	if err := to.mkdir(name); err != nil {
		return Staged{}, explain(name, err)
	}
	twin, err := to.sub(name)
	if err != nil {
		return Staged{}, err
	}
	defer twin.Close()
	tree, err := walkTree(ctx, folder{src}, twin, treeWalk{rules: rules, file: copyEntry})
	if err == nil && tree.Files == 0 {
		err = fmt.Errorf("%q: %w: it holds no file", name, ErrEmpty)
	}
	if err != nil {
		return Staged{}, err
	}
	return Staged{
		Path: filepath.Join(dir, name), Size: tree.Size, SHA256: tree.Digest(), Files: tree.Files,
		MediaType: MediaTypeFolder, Kind: KindFolder,
	}, nil
}

func copyEntry(ctx context.Context, at, twin folder, name string, there Facts, e *TreeEntry) error {
	f, err := at.openSame(name, there)
	if err != nil {
		return err
	}
	defer f.Close()
	copied, err := sealedCopy(ctx, f, there, twin, name)
	if err != nil {
		return err
	}
	e.SHA256, e.Size = copied.SHA256, copied.Size
	if !e.Executable {
		return nil
	}
	g, _, err := twin.openRegular(name)
	if err != nil {
		return err
	}
	return errors.Join(g.Chmod(sealed(there)), g.Close())
}

// graft makes a new folder to/name that holds the files of src: as second names of the
// same files where that can be, else as copies, and says whether there is a copy. It
// is durable but for its own name. What is left of an earlier try is removed.
func graft(ctx context.Context, src, to folder, name string) (copied bool, err error) {
	if err := to.removeTree(ctx, name); err != nil {
		return false, explain(name, err)
	}
	if err := to.mkdir(name); err != nil {
		return false, explain(name, err)
	}
	twin, err := to.sub(name)
	if err != nil {
		return false, err
	}
	defer twin.Close()
	link := func(ctx context.Context, at, twin folder, name string, there Facts, e *TreeEntry) error {
		if retry(func() error { return unix.Linkat(at.fd(), name, twin.fd(), name, 0) }) == nil {
			return nil
		}
		// Another file system, one without hard links, or a rule against them.
		copied = true
		if err := copyEntry(ctx, at, twin, name, there, e); err != nil {
			return err
		}
		f, _, err := twin.openRegular(name)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	}
	_, err = walkTree(ctx, src, twin, treeWalk{file: link, left: syncTwin})
	return copied, err
}

// dress is what a published folder looks like to others.
type dress struct {
	top      fs.FileMode // of the folder itself; those in it have 0755
	chown    bool
	uid, gid uint32
}

// put gives one file or folder its mode and owner, durably; false if it had them.
func (w dress) put(f *os.File, mode fs.FileMode) (bool, error) {
	there, err := FactsOf(f)
	owned := !w.chown || there.UID == w.uid && there.GID == w.gid
	if err != nil || owned && there.Mode.Perm() == mode {
		return false, err
	}
	if !owned {
		err = giveTo(f, w.uid, w.gid)
	}
	return true, errors.Join(err, f.Chmod(mode), folder{f}.sync())
}

// dressTree does so for the folder d and everything in it; false if there was nothing
// to do.
func (d folder) dressTree(ctx context.Context, w dress) (changed bool, err error) {
	put := func(f *os.File, mode fs.FileMode) error {
		did, err := w.put(f, mode)
		changed = changed || did
		return err
	}
	file := func(_ context.Context, at, _ folder, name string, there Facts, e *TreeEntry) error {
		f, err := at.openSame(name, there)
		if err != nil {
			return err
		}
		defer f.Close()
		if e.Executable {
			return put(f, 0o755)
		}
		return put(f, 0o644)
	}
	top, err := FactsOf(d.f)
	if err != nil {
		return false, err
	}
	left := func(at, _ folder) error {
		if there, err := FactsOf(at.f); err != nil || there.SameFile(top) {
			return err
		}
		return put(at.f, 0o755)
	}
	if _, err := walkTree(ctx, d, folder{}, treeWalk{file: file, left: left}); err != nil {
		return changed, err
	}
	return changed, put(d.f, w.top.Perm())
}
