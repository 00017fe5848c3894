package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

// Verb is what a step does to a project.
type Verb string

// The verbs.
const (
	Create  Verb = "create"  // the artifact appears at a path where nothing is
	Replace Verb = "replace" // the artifact takes the place of a file, which goes to the trash
	Remove  Verb = "remove"  // a file goes to the trash
)

// Step is one change to a project, with all that is needed to finish it after a
// crash. Its names come from [TempPath] and [TrashPath]; Device and Inode are what
// [Place] answered and must be stored before [Carry] is called.
type Step struct {
	Verb  Verb
	Root  *Root
	Path  string // the destination, inside the project
	Temp  string // create, replace: hidden name in the destination's folder
	Trash string // replace, remove: where the old file goes, inside the project

	Folder    bool   // what moves is a folder, and so is what it replaces; digests are those of folders
	OldSHA256 string // replace, remove: the only content that may be moved away
	SHA256    string // create, replace: the artifact's digest

	// Device and Inode are of the file or folder that moves: the artifact under its
	// hidden name, for remove what is to be removed.
	Device, Inode uint64

	// Source is the absolute path of the kept artifact. It stays there until the step
	// is done, so that a step that fails costs nothing.
	Source string
	// Job and At are written beside what goes to the trash: for a person who looks there,
	// and for whoever removes it when it has been there for long.
	Job string
	At  time.Time
}

// TempPath is the hidden name for step n of a job, beside dest.
func TempPath(job string, n int, dest string) string {
	return path.Join(path.Dir(dest), fmt.Sprintf("%s%s-%d.tmp", Reserved, job, n))
}

// TrashFolder is the folder, in a project's root, that old files go to.
const TrashFolder = Reserved + "trash"

// TrashPath is where step n of a job puts the old file of dest. The file keeps its
// own name there, in a folder of its own; beside that folder lies a .json that says
// where the file was.
func TrashPath(job string, n int, dest string) string {
	return path.Join(TrashFolder, fmt.Sprintf("%s-%d", job, n), path.Base(dest))
}

// Place gets a step ready without a change that anyone could see. For create and
// replace it brings the artifact to its hidden name on the destination's file
// system: as a second name of the same file where that can be, else as a copy
// whose digest is verified; and makes that durable. A folder is made anew there, its
// files brought in the same way. For remove it only looks. It
// returns the device and inode that belong in the step.
//
// What cannot work is said here, before anything is stored: a destination that is
// taken, missing, not a regular file or not what was agreed on; a folder that is
// missing or closed; a trash on another file system. Place may be repeated as long
// as the plan is not stored; afterwards only Carry and Undo may be called, since a
// copy that is made again has another inode.
func Place(ctx context.Context, step Step) (device, inode uint64, err error) {
	c, err := open(step)
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	there, ok, err := c.dir.lstat(c.dest)
	switch {
	case err != nil:
		return 0, 0, err
	case step.Verb == Create && ok:
		return 0, 0, fmt.Errorf("%q: %w", step.Path, ErrTaken)
	case step.Verb != Create && !ok:
		return 0, 0, step.Root.notFound(c.path)
	case step.Verb != Create && !c.fits(there):
		return 0, 0, fmt.Errorf("%q: %w", step.Path, c.wrongKind())
	}
	if step.Verb != Create {
		if err := c.trashReachable(); err != nil {
			return 0, 0, err
		}
		if err := c.expectOld(ctx, c.dir, c.dest); err != nil {
			return 0, 0, err
		}
	}
	if step.Verb == Remove {
		return there.Device, there.Inode, nil
	}
	for range maxMoves {
		placed, done, err := c.placeOnce(ctx)
		if err != nil {
			return 0, 0, err
		}
		if done {
			return placed.Device, placed.Inode, nil
		}
	}
	return 0, 0, fmt.Errorf("%q does not hold still", step.Temp)
}

// placeOnce does the next thing that is missing for the hidden name to be the
// whole artifact, durably; true when nothing is.
func (c *carrier) placeOnce(ctx context.Context) (Facts, bool, error) {
	temp, isTemp, err := c.dir.lstat(c.temp)
	if err != nil {
		return Facts{}, false, err
	}
	src, isSource, err := c.source()
	if err != nil {
		return Facts{}, false, err
	}
	switch {
	case isTemp && isSource && temp.SameFile(src):
		return temp, true, c.dir.sync()
	case isTemp && isSource:
		// A copy that a crash cut short, or one whose step was not stored: its name
		// says that it is ours.
		return Facts{}, false, explain(c.temp, c.drop(ctx, c.dir, c.temp))
	case isTemp:
		ok, err := c.hasDigest(ctx, c.dir, c.temp, c.step.SHA256)
		if err == nil && !ok {
			err = fmt.Errorf("the artifact is gone and %q: %w", c.step.Temp, ErrDigest)
		}
		return temp, ok, err
	case !isSource:
		return Facts{}, false, &NotFoundError{Path: c.step.Source}
	case c.step.Folder:
		placed, err := c.graftSource(ctx)
		return placed, err == nil, err
	}
	if err = fault.Err("publish.place"); err == nil {
		err = retry(func() error {
			return unix.Linkat(unix.AT_FDCWD, c.step.Source, c.dir.fd(), c.temp, 0)
		})
	}
	if err == nil {
		fault.Point("publish.placed")
		return Facts{}, false, nil
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return Facts{}, false, explain(c.step.Temp, err)
	}
	// Another file system, one without hard links, or a rule against them.
	placed, err := c.copySource(ctx, src)
	return placed, err == nil, err
}

// source says what the kept artifact is.
func (c *carrier) source() (Facts, bool, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Lstat(c.step.Source, &st) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Facts{}, false, nil
	case err != nil:
		return Facts{}, false, explain(c.step.Source, err)
	}
	got := facts(&st)
	if !c.fits(got) {
		return Facts{}, false, fmt.Errorf("%q: %w", c.step.Source, c.wrongKind())
	}
	return got, true, nil
}

// graftSource makes the hidden folder.
func (c *carrier) graftSource(ctx context.Context) (Facts, error) {
	src, err := openFolder(c.step.Source)
	if err != nil {
		return Facts{}, err
	}
	defer src.Close()
	copied, err := graft(ctx, src, c.dir, c.temp)
	if err == nil && copied {
		var ok bool
		if ok, err = c.hasDigest(ctx, c.dir, c.temp, c.step.SHA256); err == nil && !ok {
			err = fmt.Errorf("%q: %w", c.step.Source, ErrDigest)
		}
	}
	if err != nil {
		_ = c.dir.removeTree(context.WithoutCancel(ctx), c.temp)
		return Facts{}, err
	}
	placed, ok, err := c.dir.lstat(c.temp)
	if err == nil && !ok {
		err = fmt.Errorf("%q: %w", c.step.Temp, ErrChanged)
	}
	return placed, errors.Join(err, explain(c.step.Temp, c.dir.sync()))
}

func (c *carrier) copySource(ctx context.Context, want Facts) (_ Facts, err error) {
	from, err := openFolder(filepath.Dir(c.step.Source))
	if err != nil {
		return Facts{}, err
	}
	defer from.Close()
	src, got, err := from.openRegular(filepath.Base(c.step.Source))
	if err != nil {
		return Facts{}, err
	}
	defer src.Close()
	if !got.SameFile(want) {
		return Facts{}, fmt.Errorf("%q: %w", c.step.Source, ErrChanged)
	}
	defer func() {
		if err != nil {
			_ = c.dir.unlink(c.temp)
		}
	}()
	copied, err := sealedCopy(ctx, src, got, c.dir, c.temp)
	if err == nil && copied.SHA256 != c.step.SHA256 {
		err = fmt.Errorf("%q: %w", c.step.Source, ErrDigest)
	}
	if err != nil {
		return Facts{}, err
	}
	f, placed, err := c.dir.openRegular(c.temp)
	if err != nil {
		return Facts{}, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return Facts{}, explain(c.step.Temp, err)
	}
	return placed, explain(c.step.Temp, c.dir.sync())
}

// Undo takes back what [Place] did for a step that has not been carried out: the
// hidden name goes, the artifact stays kept. It may be repeated, and may be called
// with no device and inode when the plan was never stored. A step that has changed
// the destination is not undone: that is an error, and nothing happens.
func Undo(ctx context.Context, step Step) error {
	c, err := open(step)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the folder is gone, and the hidden name with it
	}
	if err != nil {
		return err
	}
	defer c.close()
	if step.Verb != Remove {
		if err := c.takeBack(ctx); err != nil {
			return err
		}
	}
	return c.dropTrash()
}

func (c *carrier) takeBack(ctx context.Context) error {
	temp, ok, err := c.dir.lstat(c.temp)
	if err != nil {
		return err
	}
	planned := c.step.Device != 0 || c.step.Inode != 0
	if !ok {
		dest, _, err := c.dir.lstat(c.dest)
		if err == nil && planned && dest.Inode == c.step.Inode {
			err = fmt.Errorf("%q: the step was carried out", c.step.Path)
		}
		return err
	}
	if planned {
		ours, err := c.isOurs(ctx, c.dir, c.temp, temp)
		if err != nil {
			return err
		}
		if !ours {
			return fmt.Errorf("%q: %w; the step may be half done", c.step.Temp, ErrChanged)
		}
	}
	if _, kept, err := c.source(); err != nil {
		return err
	} else if !kept {
		if err := c.giveBack(ctx); err != nil {
			return err
		}
	}
	if err := c.drop(ctx, c.dir, c.temp); err != nil {
		return explain(c.step.Temp, err)
	}
	return explain(c.step.Path, c.dir.sync())
}

// drop removes a name of the artifact.
func (c *carrier) drop(ctx context.Context, dir folder, name string) error {
	if c.step.Folder {
		return dir.removeTree(ctx, name)
	}
	return dir.unlink(name)
}

// giveBack keeps the artifact again when only its hidden name is left.
func (c *carrier) giveBack(ctx context.Context) error {
	to, err := openFolder(filepath.Dir(c.step.Source))
	if err != nil {
		return err
	}
	defer to.Close()
	name := filepath.Base(c.step.Source)
	if c.step.Folder {
		return c.giveFolderBack(ctx, to, name)
	}
	err = retry(func() error { return unix.Linkat(c.dir.fd(), c.temp, to.fd(), name, 0) })
	if err != nil {
		f, got, err := c.dir.openRegular(c.temp)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := sealedCopy(ctx, f, got, to, name); err != nil {
			_ = to.unlink(name)
			return err
		}
	}
	return explain(c.step.Source, to.sync())
}

func (c *carrier) giveFolderBack(ctx context.Context, to folder, name string) error {
	src, err := c.dir.sub(c.temp)
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := graft(ctx, src, to, keepTree); err != nil {
		return err
	}
	if err := to.rename(keepTree, to, name); err != nil {
		return explain(c.step.Source, err)
	}
	return explain(c.step.Source, to.sync())
}

// carrier is a step with its folders open.
type carrier struct {
	step  Step
	path  string // step.Path, cleaned
	dir   folder // the destination's folder
	dest  string // names in dir
	temp  string
	root  folder
	trash string // the name of the step's folder inside the trash
	old   string // the name of the old file in it

	verified bool  // the hidden name has the artifact's digest
	dressed  bool  // mode and owner were set, whatever the file system made of it
	failed   error // what the last change gave, believed if it was not made
}

// errStep says that the step itself is wrong, so that it can never have begun.
var errStep = errors.New("not a step that can be carried out")

// open checks a step's names and opens its folders.
func open(step Step) (*carrier, error) {
	p, err := Clean(step.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errStep, err)
	}
	c := &carrier{step: step, path: p}
	switch step.Verb {
	case Create, Replace, Remove:
	default:
		return nil, fmt.Errorf("%w: no such verb: %q", errStep, step.Verb)
	}
	if step.Verb != Remove {
		c.temp = path.Base(step.Temp)
		if path.Dir(step.Temp) != path.Dir(p) || !reserved(c.temp) || len(c.temp) > maxName {
			return nil, fmt.Errorf("%w: %w: %q is no hidden name beside %q", errStep, ErrPath, step.Temp, step.Path)
		}
		if !filepath.IsAbs(step.Source) {
			return nil, fmt.Errorf("%w: %w: the kept artifact's path %q is not absolute", errStep, ErrPath, step.Source)
		}
	}
	if step.Verb != Create {
		c.old, c.trash = path.Base(step.Trash), path.Base(path.Dir(step.Trash))
		if path.Join(TrashFolder, c.trash, c.old) != step.Trash || c.old != path.Base(p) || plainName(c.trash+infoSuffix) != nil {
			return nil, fmt.Errorf("%w: %w: %q is no place in the trash for %q", errStep, ErrPath, step.Trash, step.Path)
		}
	}
	if c.dir, c.dest, err = step.Root.parent(p); err != nil {
		return nil, err
	}
	if c.root, err = step.Root.folderAt("."); err != nil {
		c.dir.Close()
		return nil, err
	}
	return c, nil
}

func (c *carrier) close() {
	c.dir.Close()
	c.root.Close()
}

// fits says whether a name has what the step is about: a file, or a folder.
func (c *carrier) fits(there Facts) bool {
	if c.step.Folder {
		return there.Mode.IsDir()
	}
	return there.Regular()
}

func (c *carrier) wrongKind() error {
	if c.step.Folder {
		return ErrNotFolder
	}
	return ErrNotRegular
}

// isOurs says whether the file under name is the one that the step moves. Device
// numbers may be dealt out anew at a reboot; then the inode and the digest decide.
func (c *carrier) isOurs(ctx context.Context, dir folder, name string, there Facts) (bool, error) {
	switch {
	case !c.fits(there) || there.Inode != c.step.Inode:
		return false, nil
	case there.Device == c.step.Device:
		return true, nil
	}
	return c.hasDigest(ctx, dir, name, c.step.SHA256)
}

func (c *carrier) hasDigest(ctx context.Context, dir folder, name, want string) (bool, error) {
	if err := fault.Err("publish.read"); err != nil {
		return false, err
	}
	var got string
	var err error
	if c.step.Folder {
		got, err = digestTree(ctx, dir, name)
	} else {
		got, _, err = digestName(ctx, dir, name)
	}
	for _, other := range []error{ErrNotRegular, ErrNotFolder, ErrTree, ErrTooLarge} {
		if errors.Is(err, other) {
			return false, nil
		}
	}
	return err == nil && got == want, err
}

// expectOld gives ErrChanged unless name has the content that may be moved away.
func (c *carrier) expectOld(ctx context.Context, dir folder, name string) error {
	ok, err := c.hasDigest(ctx, dir, name, c.step.OldSHA256)
	if err == nil && !ok {
		err = fmt.Errorf("%q: %w since it was agreed on", c.step.Path, ErrChanged)
	}
	return err
}

// dress gives the artifact the mode and, where macexec may, the owner that the
// published file shall have: those of the file it replaces; for a new file 0644 and
// the owner of the folder. False if there was nothing to do. It is done once only,
// since some file systems forget it.
func (c *carrier) dress(ctx context.Context, there Facts, mode fs.FileMode, uid, gid uint32) (bool, error) {
	chown := os.Geteuid() == 0 && (there.UID != uid || there.GID != gid)
	if c.step.Folder {
		return c.dressFolder(ctx, there, mode, uid, gid)
	}
	if c.dressed || there.Mode.Perm() == mode.Perm() && !chown {
		return false, nil
	}
	c.dressed = true
	f, got, err := c.dir.openRegular(c.temp)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if !got.SameFile(there) {
		return false, fmt.Errorf("%q: %w", c.step.Temp, ErrChanged)
	}
	if chown {
		if err := giveTo(f, uid, gid); err != nil {
			return false, explain(c.step.Temp, err)
		}
	}
	if err := f.Chmod(mode.Perm()); err != nil {
		return false, explain(c.step.Temp, err)
	}
	return true, explain(c.step.Temp, f.Sync())
}

// giveTo gives a file to an owner where the system allows that.
func giveTo(f *os.File, uid, gid uint32) error {
	if err := f.Chown(int(uid), int(gid)); err != nil && !errors.Is(err, fs.ErrPermission) && !unsupported(err) {
		return err
	}
	return nil
}

// dressFolder is dress for a folder: everything in it gets mode and owner.
func (c *carrier) dressFolder(ctx context.Context, there Facts, mode fs.FileMode, uid, gid uint32) (bool, error) {
	if c.dressed {
		return false, nil
	}
	c.dressed = true
	d, err := c.dir.sub(c.temp)
	if err != nil {
		return false, err
	}
	defer d.Close()
	if got, err := FactsOf(d.f); err != nil || !got.SameFile(there) {
		return false, errors.Join(fmt.Errorf("%q: %w", c.step.Temp, ErrChanged), err)
	}
	changed, err := d.dressTree(ctx, dress{top: mode, chown: os.Geteuid() == 0, uid: uid, gid: gid})
	return changed, explain(c.step.Temp, err)
}
