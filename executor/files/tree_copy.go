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
	temp, err := k.to.sub(keepTree)
	if err != nil {
		return err
	}
	defer temp.Close()
	if _, err := walkTree(ctx, src, temp, treeWalk{rules: rules, durable: true, file: keepEntry}); err != nil {
		return err
	}
	if _, err := readTree(ctx, temp, look); err != nil {
		return err
	}
	if err := k.to.rename(keepTree, k.to, k.name); err != nil {
		return explain(k.name, err)
	}
	return k.sync()
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
// same files where that can be, else as copies, durably. What is left of an earlier
// try is removed.
func graft(ctx context.Context, src, to folder, name string) error {
	if err := to.removeTree(ctx, name); err != nil {
		return explain(name, err)
	}
	if err := to.mkdir(name); err != nil {
		return explain(name, err)
	}
	twin, err := to.sub(name)
	if err != nil {
		return err
	}
	defer twin.Close()
	_, err = walkTree(ctx, src, twin, treeWalk{durable: true, file: linkEntry})
	return err
}

func linkEntry(ctx context.Context, at, twin folder, name string, there Facts, e *TreeEntry) error {
	err := retry(func() error { return unix.Linkat(at.fd(), name, twin.fd(), name, 0) })
	if err == nil {
		return nil
	}
	// Another file system, one without hard links, or a rule against them.
	if err := copyEntry(ctx, at, twin, name, there, e); err != nil {
		return err
	}
	f, _, err := twin.openRegular(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
