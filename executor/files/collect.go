package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

// Trash is an open trash of a project. Only what macexec has moved there is shown, and can
// be removed: a file or a plain folder under the name that it had, alone in a folder of its
// own, beside which a note of macexec lies. Whatever else is in the trash is somebody's
// own, and stays: notes that cannot be read, links, devices, pipes, folders with such
// things in them or on another file system, files that were added.
//
// The note goes last. It alone says that what lies there is macexec's: a crash leaves a
// note, with the rest of a folder or without anything, and whoever removes the same again
// finishes that. A folder without a note would stay for ever.
type Trash struct {
	top    folder // the project
	bin    folder
	device uint64
	inode  uint64
}

// Trashed is a step's place in the trash.
type Trashed struct {
	Name string // of its folder
	Path string // where the file was, inside the project
	Job  string
	At   time.Time // when its place was made, right before it moved
}

// maxNote bounds a note: it holds one path.
const maxNote = 64 << 10

// OpenTrash opens the trash of the project, or returns nil if there is none that macexec
// could have made: it is a folder, no link, on the file system of the project.
func (r *Root) OpenTrash() (*Trash, error) {
	top, err := r.folderAt(".")
	if err != nil {
		return nil, err
	}
	bin, err := top.sub(TrashFolder)
	if err != nil {
		top.Close()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotFolder) {
			return nil, nil //nolint:nilnil // there is none
		}
		return nil, err
	}
	t := &Trash{top: top, bin: bin}
	in, err := FactsOf(top.f)
	if err == nil {
		var got Facts
		if got, err = FactsOf(bin.f); err == nil && got.Device == in.Device {
			t.device, t.inode = got.Device, got.Inode
			return t, nil
		}
	}
	t.Close()
	return nil, explain(TrashFolder, err)
}

// Close lets the trash go.
func (t *Trash) Close() {
	t.bin.Close()
	t.top.Close()
}

// Same says whether both are one folder.
func (t *Trash) Same(u *Trash) bool { return t.device == u.device && t.inode == u.inode }

// List returns what has a note, in no order.
func (t *Trash) List(ctx context.Context) (list []Trashed, err error) {
	if _, err := t.bin.f.Seek(0, io.SeekStart); err != nil {
		return nil, explain(TrashFolder, err)
	}
	for {
		names, err := t.bin.f.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, explain(TrashFolder, err)
		}
		for _, name := range names {
			base, ok := strings.CutSuffix(name, infoSuffix)
			if !ok {
				continue
			}
			if one, ok, err := t.note(base); err != nil {
				return nil, err
			} else if ok {
				list = append(list, one)
			}
		}
	}
}

// note reads a note; false if it is none of macexec's.
func (t *Trash) note(name string) (Trashed, bool, error) {
	f, got, err := t.bin.openRegular(name + infoSuffix)
	if err != nil {
		return Trashed{}, false, unlessFailed(err)
	}
	defer f.Close()
	if got.Device != t.device || got.Size > maxNote {
		return Trashed{}, false, nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err != nil {
		return Trashed{}, false, explain(name+infoSuffix, err)
	}
	one, ok := parseNote(name, text)
	return one, ok, nil
}

// parseNote tells what a note says that has the name of a step's folder.
func parseNote(name string, text []byte) (Trashed, bool) {
	var info trashInfo
	if json.Unmarshal(text, &info) != nil {
		return Trashed{}, false
	}
	step, ok := strings.CutPrefix(name, info.Job+"-")
	p, err := Clean(info.Path)
	switch {
	case !ok, info.Job == "", step == "", strings.Trim(step, "0123456789") != "", plainName(name) != nil:
		return Trashed{}, false
	case err != nil, p != info.Path, info.Verb != Replace && info.Verb != Remove, info.At.IsZero():
		return Trashed{}, false
	}
	return Trashed{Name: name, Path: p, Job: info.Job, At: info.At.UTC()}, true
}

// unlessFailed drops the errors that only say that something else than macexec's is there,
// or nothing any more.
func unlessFailed(err error) error {
	for _, other := range []error{fs.ErrNotExist, ErrNotRegular, ErrNotFolder, ErrTree, ErrTooLarge, ErrNameTooLong, ErrChanged, ErrPath} {
		if errors.Is(err, other) {
			return nil
		}
	}
	return err
}

// Measure says how many bytes lie in a place; false if nothing does that macexec has
// moved there.
func (t *Trash) Measure(ctx context.Context, one Trashed) (size int64, there bool, err error) {
	in, err := t.enter(one)
	if err != nil {
		return 0, false, unlessFailed(err)
	}
	defer in.Close()
	size, err = t.measure(ctx, in, path.Base(one.Path))
	return size, err == nil, unlessFailed(err)
}

func (t *Trash) enter(one Trashed) (folder, error) {
	in, err := t.bin.sub(one.Name)
	if err != nil {
		return folder{}, err
	}
	got, err := FactsOf(in.f)
	if err == nil && got.Device != t.device {
		err = fmt.Errorf("%q: %w: another file system begins there", one.Name, ErrTree)
	}
	if err != nil {
		in.Close()
		return folder{}, err
	}
	return in, nil
}

// measure says how large a file or a plain folder is. A folder that macexec has moved was
// plain then.
func (t *Trash) measure(ctx context.Context, in folder, name string) (int64, error) {
	got, ok, err := in.lstat(name)
	switch {
	case err != nil:
		return 0, err
	case !ok:
		return 0, fs.ErrNotExist
	case got.Device != t.device:
		return 0, fmt.Errorf("%q: %w: it is on another file system", name, ErrTree)
	case got.Regular():
		return got.Size, nil
	case !got.Mode.IsDir():
		return 0, fmt.Errorf("%q: %w", name, ErrNotRegular)
	}
	d, err := in.sub(name)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	tree, err := readTree(ctx, d, treeWalk{file: lookOnly})
	return tree.Size, err
}

// Remove removes what lies in a place, the place and its note, and returns how many bytes
// that were; false if nothing was there that macexec has moved there. What is no part of
// it stays, and with it the place and the note. An error says that something stays that
// should not.
func (t *Trash) Remove(ctx context.Context, one Trashed) (size int64, removed bool, err error) {
	if now, ok, err := t.note(one.Name); err != nil || !ok || now != one {
		return 0, false, err // it is another one's by now
	}
	in, err := t.enter(one)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, t.dropNote(one.Name) // a crash came in between
	}
	if err != nil {
		return 0, false, unlessFailed(err)
	}
	defer in.Close()
	name := path.Base(one.Path)
	size, err = t.measure(ctx, in, name)
	switch {
	case err == nil:
		fault.Point("trash.begun")
		if err := in.removeTree(ctx, name); err != nil {
			return 0, false, unlessFailed(err)
		}
		removed = true
		fault.Point("trash.removed")
	case !errors.Is(err, fs.ErrNotExist):
		return 0, false, unlessFailed(err)
	}
	switch err := t.bin.rmdir(one.Name); {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, fs.ErrExist):
		return size, removed, nil // somebody has put something beside it
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return size, removed, explain(one.Name, err)
	}
	fault.Point("trash.left")
	return size, removed, t.dropNote(one.Name)
}

// dropNote removes a note once it is on the disk that its folder is gone.
func (t *Trash) dropNote(name string) error {
	if err := t.bin.sync(); err != nil {
		return explain(name, err)
	}
	return explain(name+infoSuffix, gone(t.bin.unlink(name+infoSuffix)))
}

// Drop removes the trash itself if nothing is in it.
func (t *Trash) Drop() error {
	err := t.top.rmdir(TrashFolder)
	for _, other := range []error{unix.ENOTEMPTY, unix.ENOTDIR, fs.ErrExist, fs.ErrNotExist} {
		if errors.Is(err, other) {
			return nil
		}
	}
	return explain(TrashFolder, err)
}
