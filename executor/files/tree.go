package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// TreeEntry is a file or a folder inside a folder.
type TreeEntry struct {
	Path       string // inside the folder, with slashes
	Folder     bool
	Executable bool // the owner may execute the file; nothing else of a mode counts
	Size       int64
	SHA256     string
	MediaType  string // of a kept file
}

// Tree is what a folder holds.
type Tree struct {
	Entries []TreeEntry // sorted by path, as bytes; so a folder comes before what is in it
	Files   int
	Size    int64 // of all files together
}

// MediaTypeFolder is what stands for a media type where a folder does.
const MediaTypeFolder = "inode/directory"

// treeVersion is the first line of what [Tree.Digest] digests.
const treeVersion = "macexec-tree-v1"

// Digest is the hex SHA-256 of the folder's list: a line that says its version, then a
// line for each file and folder: mode (0644, 0755 or dir), size, hex SHA-256 and path,
// with one space between them; a folder has the size 0 and "-" for a digest. The path
// comes last and holds no line break, so a list has one reading. docs/manifests.md
// shows how a shell makes it.
func (t Tree) Digest() string {
	sum := sha256.New()
	_, _ = io.WriteString(sum, treeVersion+"\n") // a hash takes everything
	var line []byte
	for _, e := range t.Entries {
		line = append(line[:0], e.mode()...)
		line = append(line, ' ')
		line = strconv.AppendInt(line, e.Size, 10)
		line = append(line, ' ')
		if e.Folder {
			line = append(line, '-')
		} else {
			line = append(line, e.SHA256...)
		}
		line = append(line, ' ')
		line = append(line, e.Path...)
		_, _ = sum.Write(append(line, '\n'))
	}
	return hexSum(sum)
}

func (e TreeEntry) mode() string {
	switch {
	case e.Folder:
		return "dir"
	case e.Executable:
		return "0755"
	default:
		return "0644"
	}
}

// TreeRules bound a folder. Zero fields mean the most that macexec takes.
type TreeRules struct {
	Files int            // so many files, and as many folders
	Bytes int64          // of all files together
	Depth int            // names in a path
	Names *regexp.Regexp // the name of every file; nil: any
}

// The most that macexec takes of a folder, whatever a manifest says.
const (
	MaxTreeFiles = 100_000
	MaxTreeDepth = 64
)

func (r TreeRules) bounded() TreeRules {
	if r.Files <= 0 || r.Files > MaxTreeFiles {
		r.Files = MaxTreeFiles
	}
	if r.Depth <= 0 || r.Depth > MaxTreeDepth {
		r.Depth = MaxTreeDepth
	}
	if r.Bytes <= 0 {
		r.Bytes = math.MaxInt64
	}
	return r
}

// DigestFolder says what the open folder holds, with the digest of each file. A folder
// that changes meanwhile gives ErrChanged.
func DigestFolder(ctx context.Context, f *os.File, rules TreeRules) (Tree, error) {
	return readTree(ctx, folder{f}, treeWalk{rules: rules, file: digestEntry})
}

// MeasureFolder says what the open folder holds without reading its files.
func MeasureFolder(ctx context.Context, f *os.File, rules TreeRules) (Tree, error) {
	return readTree(ctx, folder{f}, treeWalk{rules: rules, file: lookOnly})
}

func lookOnly(context.Context, folder, folder, string, Facts, *TreeEntry) error { return nil }

// OpenKeptFolder opens a kept folder.
func OpenKeptFolder(p string) (*os.File, error) {
	d, err := openFolder(p)
	return d.f, err
}

// treeWalk goes through a folder and, where there is one, through a twin that it makes
// on the way. Every name is opened in the folder that was opened before it, and no
// link is followed, so nothing that is moved or exchanged meanwhile leads it out.
type treeWalk struct {
	rules  TreeRules
	single bool // a file must have one name only
	// file is called with each file, what it is, and the entry to be completed.
	file func(ctx context.Context, at, twin folder, name string, there Facts, e *TreeEntry) error
	// left is called with each folder when everything in it has been visited; nil: the
	// folder must hold still meanwhile.
	left func(at, twin folder) error
	// safe brings the name of each twin to the disk before anything is in it: what is
	// moved into a folder that a power cut takes is lost.
	safe bool

	device  uint64
	folders int
	tree    Tree
}

func readTree(ctx context.Context, at folder, w treeWalk) (Tree, error) {
	return walkTree(ctx, at, folder{}, w)
}

// walkTree goes through at.
func walkTree(ctx context.Context, at, twin folder, w treeWalk) (Tree, error) {
	w.rules = w.rules.bounded()
	top, err := at.sub(".") // with a place of its own in the list of names
	if err != nil {
		return Tree{}, err
	}
	defer top.Close()
	got, err := FactsOf(top.f)
	if err != nil {
		return Tree{}, err
	}
	w.device = got.Device
	if err := w.walk(ctx, top, twin, "", 1); err != nil {
		return Tree{}, err
	}
	slices.SortFunc(w.tree.Entries, func(a, b TreeEntry) int { return strings.Compare(a.Path, b.Path) })
	return w.tree, nil
}

func (w *treeWalk) walk(ctx context.Context, at, twin folder, rel string, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	before, err := FactsOf(at.f)
	if err == nil && before.Device != w.device {
		err = fmt.Errorf("%q: %w: another file system begins there", rel, ErrTree)
	}
	if err != nil {
		return err
	}
	names, err := w.names(at, rel)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.visit(ctx, at, twin, rel, name, depth); err != nil {
			return err
		}
	}
	if w.left != nil {
		return explain(orTop(rel), w.left(at, twin))
	}
	after, err := FactsOf(at.f)
	if err == nil && !before.ModTime.Equal(after.ModTime) {
		err = fmt.Errorf("%q: %w while it was read", orTop(rel), ErrChanged)
	}
	return err
}

func syncTwin(_, twin folder) error { return twin.sync() }

func (w *treeWalk) visit(ctx context.Context, at, twin folder, rel, name string, depth int) error {
	e := TreeEntry{Path: path.Join(rel, name)}
	there, ok, err := at.lstat(name)
	if err == nil && !ok {
		err = fmt.Errorf("%q: %w while it was read", e.Path, ErrChanged)
	}
	if err != nil {
		return err
	}
	switch {
	case depth > w.rules.Depth:
		return fmt.Errorf("%q: %w: it lies deeper than %s", e.Path, ErrTooLarge, counted(w.rules.Depth, "level"))
	case len(e.Path) > maxPath:
		return fmt.Errorf("%q: %w", e.Path, ErrNameTooLong)
	case there.Mode.IsDir():
		return w.enter(ctx, at, twin, name, e, depth)
	case !there.Regular():
		return fmt.Errorf("%q: %w: it is %s; only files and folders are taken", e.Path, ErrTree, whatIs(there.Mode))
	case w.single && there.Links > 1:
		return fmt.Errorf("%q: %w: the file has another name too (a hard link)", e.Path, ErrTree)
	case w.rules.Names != nil && !w.rules.Names.MatchString(name):
		return fmt.Errorf("%q: %w: the name does not match %s", e.Path, ErrTree, w.rules.Names)
	}
	w.tree.Files++
	w.tree.Size += there.Size
	switch {
	case w.tree.Files > w.rules.Files:
		return fmt.Errorf("%w: more than %s", ErrTooLarge, counted(w.rules.Files, "file"))
	case w.tree.Size > w.rules.Bytes:
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, w.rules.Bytes)
	}
	e.Size, e.Executable = there.Size, there.Mode&0o100 != 0
	if err := w.file(ctx, at, twin, name, there, &e); err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	w.tree.Entries = append(w.tree.Entries, e)
	return nil
}

// enter goes into a folder, and makes its twin first.
func (w *treeWalk) enter(ctx context.Context, at, twin folder, name string, e TreeEntry, depth int) error {
	if w.folders++; w.folders > w.rules.Files {
		return fmt.Errorf("%w: more than %s", ErrTooLarge, counted(w.rules.Files, "folder"))
	}
	next, err := at.sub(name)
	if err != nil {
		return err
	}
	defer next.Close()
	var into folder
	if twin.f != nil {
		err := twin.mkdir(name)
		if err == nil && w.safe {
			err = twin.sync()
		}
		if err != nil {
			return explain(e.Path, err)
		}
		if into, err = twin.sub(name); err != nil {
			return err
		}
		defer into.Close()
	}
	e.Folder = true
	w.tree.Entries = append(w.tree.Entries, e)
	return w.walk(ctx, next, into, e.Path, depth+1)
}

// names lists a folder, sorted, and refuses names that not every system could keep
// apart or a line of a list could not hold.
func (w *treeWalk) names(at folder, rel string) ([]string, error) {
	var all []string
	for {
		some, err := at.f.Readdirnames(1024)
		all = append(all, some...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, explain(orTop(rel), err)
		}
		if len(all) > 2*w.rules.Files+1 {
			return nil, fmt.Errorf("%w: more than %s", ErrTooLarge, counted(w.rules.Files, "file"))
		}
	}
	slices.Sort(all)
	folded := make(map[string]string, len(all))
	for _, name := range all {
		if why := oddName(name); why != "" {
			return nil, fmt.Errorf("%q: %w: %s", path.Join(rel, name), ErrTree, why)
		}
		if twin, ok := folded[fold(name)]; ok {
			return nil, fmt.Errorf("%q and %q: %w: the names differ only in letter case or Unicode normalisation", path.Join(rel, twin), name, ErrTree)
		}
		folded[fold(name)] = name
	}
	return all, nil
}

// oddName says what is wrong with a name in a folder, or "".
func oddName(name string) string {
	switch {
	case !utf8.ValidString(name):
		return "the name is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }):
		return "the name has a control character"
	case reserved(name):
		return fmt.Sprintf("names that begin with %q belong to macexec", Reserved)
	default:
		return ""
	}
}

func whatIs(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	default:
		return "no file"
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orTop(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}

// digestEntry completes an entry by reading the file, which must hold still.
func digestEntry(ctx context.Context, at, _ folder, name string, there Facts, e *TreeEntry) error {
	f, err := at.openSame(name, there)
	if err != nil {
		return err
	}
	defer f.Close()
	return readEntry(ctx, f, there, e)
}

// digestTree is the digest of the folder that has the name.
func digestTree(ctx context.Context, dir folder, name string) (string, error) {
	d, err := dir.sub(name)
	if err != nil {
		return "", err
	}
	defer d.Close()
	tree, err := readTree(ctx, d, treeWalk{file: digestEntry})
	return tree.Digest(), err
}

// describeEntry says of a kept file what its bytes are too.
func describeEntry(ctx context.Context, at, _ folder, name string, there Facts, e *TreeEntry) error {
	f, err := at.openSame(name, there)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := readEntry(ctx, f, there, e); err != nil {
		return err
	}
	e.MediaType, _, err = SniffFile(f)
	return err
}

func readEntry(ctx context.Context, f *os.File, there Facts, e *TreeEntry) (err error) {
	if e.SHA256, e.Size, err = digestFile(ctx, f); err != nil {
		return err
	}
	after, err := FactsOf(f)
	if err == nil && (!there.Unchanged(after) || e.Size != there.Size) {
		err = fmt.Errorf("%w while it was read", ErrChanged)
	}
	return err
}

// openSame opens a file that was looked at.
func (d folder) openSame(name string, there Facts) (*os.File, error) {
	f, got, err := d.openRegular(name)
	if err != nil {
		return nil, err
	}
	if !got.SameFile(there) {
		_ = f.Close()
		return nil, fmt.Errorf("%w while it was read", ErrChanged)
	}
	return f, nil
}

// removeTree removes what has the name, a folder with all that is in it. It follows no
// link, enters no other file system, and no folder that lies deeper than one can that
// macexec takes: what it meets there was put there by somebody else, and is ErrTree or
// ErrTooLarge. That nothing is there is no error.
func (d folder) removeTree(ctx context.Context, name string) error {
	at, err := FactsOf(d.f)
	if err != nil {
		return err
	}
	return d.removeOn(ctx, name, at.Device, 0)
}

func (d folder) removeOn(ctx context.Context, name string, device uint64, depth int) error {
	there, ok, err := d.lstat(name)
	if err != nil || !ok {
		return err
	}
	if !there.Mode.IsDir() {
		return explain(name, gone(d.unlink(name)))
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	in, err := d.sub(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	switch there, err := FactsOf(in.f); {
	case err != nil:
		return err
	case there.Device != device:
		return fmt.Errorf("%q: %w: another file system begins there", name, ErrTree)
	case depth > MaxTreeDepth:
		return fmt.Errorf("%q: %w: it lies deeper than %s", name, ErrTooLarge, counted(MaxTreeDepth, "level"))
	}
	if err := in.empty(ctx, device, depth); err != nil {
		return err
	}
	return explain(name, gone(d.rmdir(name)))
}

// empty removes all that is in the folder. Some file systems leave names out of a list
// that is read while it shrinks, so it is read until there is none.
func (d folder) empty(ctx context.Context, device uint64, depth int) error {
	opened := false
	for {
		some, err := d.f.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return explain(d.f.Name(), err)
		}
		for _, name := range some {
			err := d.removeOn(ctx, name, device, depth+1)
			if errors.Is(err, unix.EACCES) && !opened {
				opened = true // perhaps the folder is read-only, and one's own
				if d.f.Chmod(0o700) == nil {
					err = d.removeOn(ctx, name, device, depth+1)
				}
			}
			if err != nil {
				return err
			}
		}
		if _, err := d.f.Seek(0, io.SeekStart); err != nil {
			return explain(d.f.Name(), err)
		}
	}
}

// gone takes it for done that there is nothing to remove.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
