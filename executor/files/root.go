package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/text/unicode/norm"
)

// Root is an open project. Paths given to its methods go through [Clean]; symbolic
// links are followed only as long as they stay inside.
type Root struct {
	r    *os.Root
	path string
}

// OpenRoot opens the project at an absolute path.
func OpenRoot(dir string) (*Root, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: a project needs an absolute path, not %q", ErrPath, dir)
	}
	if fi, err := os.Stat(dir); err != nil {
		return nil, explain(dir, err)
	} else if !fi.IsDir() {
		return nil, fmt.Errorf("%q: %w", dir, ErrNotFolder)
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, explain(dir, err)
	}
	return &Root{r: r, path: filepath.Clean(dir)}, nil
}

// Close lets the project go.
func (r *Root) Close() error { return r.r.Close() }

// Path is where the project was opened.
func (r *Root) Path() string { return r.path }

// Open opens a regular file for reading. Anything else is refused without being
// opened, so a pipe cannot block and a device cannot act.
//
// On macOS the system may hold an open of a guarded place until a person answers a
// dialog; no context can cut that short.
func (r *Root) Open(p string) (*os.File, Facts, error) {
	p, err := Clean(p)
	if err != nil {
		return nil, Facts{}, err
	}
	there, err := r.r.Stat(p)
	if err == nil && !there.Mode().IsRegular() {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, Facts{}, r.explain(p, err)
	}
	// Between the two the name may have become a pipe; O_NONBLOCK opens that too
	// without waiting.
	f, err := r.r.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, Facts{}, r.explain(p, err)
	}
	got, err := FactsOf(f)
	if err == nil && !got.Regular() {
		err = ErrNotRegular
	}
	if err != nil {
		_ = f.Close()
		return nil, Facts{}, r.explain(p, err)
	}
	return f, got, nil
}

// OpenFolder opens a folder for reading.
func (r *Root) OpenFolder(p string) (*os.File, Facts, error) {
	p, err := Clean(p)
	if err != nil {
		return nil, Facts{}, err
	}
	d, err := r.folderAt(p)
	if err != nil {
		return nil, Facts{}, err
	}
	got, err := FactsOf(d.f)
	if err != nil {
		d.Close()
		return nil, Facts{}, r.explain(p, err)
	}
	return d.f, got, nil
}

// Stat says what is at a path, links followed inside the project.
func (r *Root) Stat(p string) (Facts, error) {
	p, err := Clean(p)
	if err != nil {
		return Facts{}, err
	}
	dir, base, err := r.parent(p)
	if err != nil {
		return Facts{}, err
	}
	defer dir.Close()
	got, ok, err := dir.lstat(base)
	if err != nil {
		return Facts{}, err
	}
	if !ok {
		return Facts{}, r.notFound(p)
	}
	if got.Mode&fs.ModeSymlink == 0 {
		return got, nil
	}
	f, got, err := r.Open(p)
	if err != nil {
		return Facts{}, err
	}
	return got, f.Close()
}

// Holds reports whether anything is at one of macexec's own paths in the project.
func (r *Root) Holds(p string) (bool, error) {
	_, err := r.r.Lstat(filepath.FromSlash(p))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, explain(p, err)
}

// LockKeys returns names for what is, or could come to be, at a path, so that two
// spellings of one file (case, normalisation, a symbolic or a hard link) share at
// least one of them on every file system. They are good for locks that live no
// longer than the boot session; two different files share one only if their names
// differ in nothing but case or normalisation.
func (r *Root) LockKeys(p string) ([]string, error) {
	p, err := Clean(p)
	if err != nil {
		return nil, err
	}
	var keys []string
	if got, err := r.Stat(p); err == nil {
		keys = append(keys, thingKey(got))
	} else if got, ok := r.folderFacts(p); ok {
		keys = append(keys, thingKey(got)) // by a symbolic link
	}
	rest := path.Base(p)
	for at := path.Dir(p); ; at = path.Dir(at) {
		dir, err := r.folderAt(at)
		if err == nil {
			got, err := FactsOf(dir.f)
			dir.Close()
			if err != nil {
				return nil, explain(at, err)
			}
			return append(keys, fmt.Sprintf("name:%x:%x:%s", got.Device, got.Inode, fold(rest))), nil
		}
		if at == "." || !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		rest = path.Join(path.Base(at), rest)
	}
}

// FolderLockKeys returns a key for each folder that a path lies in and that is there;
// it is one of those that [Root.LockKeys] has for the folder itself. The project's own
// folder and those above it count too, since another project may hold them.
func (r *Root) FolderLockKeys(p string) []string {
	p, err := Clean(p)
	if err != nil {
		return nil
	}
	var keys []string
	for at := path.Dir(p); at != "."; at = path.Dir(at) {
		if got, ok := r.folderFacts(at); ok {
			keys = append(keys, thingKey(got))
		}
	}
	for at := r.path; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if err := retry(func() error { return unix.Stat(at, &st) }); err == nil {
			keys = append(keys, thingKey(facts(&st)))
		}
		if at == filepath.Dir(at) {
			return keys
		}
	}
}

func (r *Root) folderFacts(p string) (Facts, bool) {
	dir, err := r.folderAt(p)
	if err != nil {
		return Facts{}, false
	}
	defer dir.Close()
	got, err := FactsOf(dir.f)
	return got, err == nil
}

// thingKey is the lock key of what is there, under whatever name.
func thingKey(f Facts) string { return fmt.Sprintf("file:%x:%x", f.Device, f.Inode) }

// parent opens the folder that holds the last name of a cleaned path.
func (r *Root) parent(p string) (folder, string, error) {
	dir, err := r.folderAt(path.Dir(p))
	if err != nil {
		if _, ok := errors.AsType[*NotFoundError](err); ok {
			return folder{}, "", r.notFound(p)
		}
		return folder{}, "", err
	}
	return dir, path.Base(p), nil
}

func (r *Root) folderAt(p string) (folder, error) {
	f, err := r.r.OpenFile(p, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return folder{}, r.explain(p, err)
	}
	return folder{f}, nil
}

// explain adds to [explain] what only a project can know.
func (r *Root) explain(p string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return r.notFound(p)
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		if _, errno := errors.AsType[syscall.Errno](at.Err); !errno {
			return fmt.Errorf("%q: %w", p, ErrOutside)
		}
		err = at.Err
	}
	return explain(p, err)
}

// maxTwinNames bounds how much of a folder is read to make an error friendlier.
const maxTwinNames = 10_000

// notFound looks for a name that a person would take for the missing one.
func (r *Root) notFound(p string) error {
	missing := &NotFoundError{Path: p}
	at := "."
	names := strings.Split(p, "/")
	for i, name := range names {
		next := path.Join(at, name)
		if _, err := r.r.Lstat(next); err == nil {
			at = next
			continue
		}
		twin, ok := r.twin(at, name)
		if !ok {
			return missing
		}
		found := path.Join(append([]string{at, twin}, names[i+1:]...)...)
		if _, err := r.r.Lstat(found); err != nil {
			return missing
		}
		missing.Twin = found
		missing.Normalisation = norm.NFC.String(twin) == norm.NFC.String(name)
		return missing
	}
	return missing
}

func (r *Root) twin(at, name string) (string, bool) {
	dir, err := r.folderAt(at)
	if err != nil {
		return "", false
	}
	defer dir.Close()
	names, err := dir.f.Readdirnames(maxTwinNames)
	if err != nil {
		return "", false
	}
	want, best := fold(name), ""
	for _, have := range names {
		if fold(have) != want || have == name {
			continue
		}
		// The nearest twin is the one that differs in normalisation alone.
		if best == "" || norm.NFC.String(have) == norm.NFC.String(name) {
			best = have
		}
	}
	return best, best != ""
}
