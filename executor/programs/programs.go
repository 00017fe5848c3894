package programs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrName says that the name is neither a plain name nor a clean absolute path.
var ErrName = errors.New("not a program's name")

// ErrReplaced says that the program's file is not the one any more that was resolved.
var ErrReplaced = errors.New("the program was replaced")

// NotFoundError says that no folder has an executable of the name. It matches
// fs.ErrNotExist.
type NotFoundError struct {
	Name     string
	Searched []string
	// Skipped tells of files that have the name but cannot be used, and why.
	Skipped []string
}

func (e *NotFoundError) Error() string {
	msg := fmt.Sprintf("program %q not found in %s", e.Name, strings.Join(e.Searched, ", "))
	if len(e.Skipped) > 0 {
		msg += " (" + strings.Join(e.Skipped, "; ") + ")"
	}
	return msg
}

// Is makes the error match fs.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == fs.ErrNotExist }

// Program is one executable.
type Program struct {
	Identity

	Name string // as it was asked for
	// Path is the real absolute path, symbolic links resolved: the file that the
	// digest is of.
	Path string
	// Found is the absolute path that led there. Some programs go by the name they are
	// called by (convert, a link to magick), which Path has lost.
	Found  string
	SHA256 string
}

// Identity is what makes a file this file with this content. The change time cannot
// be set by anyone.
type Identity struct {
	Device, Inode uint64
	Size          int64
	ModTime       time.Time
	ChangeTime    time.Time
}

// DefaultPath is where programs are looked for when nothing is configured.
func DefaultPath() []string {
	return []string{"/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"}
}

// Resolver finds programs. It is for many goroutines.
type Resolver struct {
	mu       sync.Mutex
	dirs     []string // replaced as a whole, never changed
	digests  map[Identity]string
	places   map[string]Program // by Found
	versions map[question]string
	features map[question][]string
}

// New makes a resolver for a list of absolute folders; none means [DefaultPath].
// Folders need not exist yet.
func New(dirs []string) (*Resolver, error) {
	r := &Resolver{
		digests:  map[Identity]string{},
		places:   map[string]Program{},
		versions: map[question]string{},
		features: map[question][]string{},
	}
	if err := r.SetDirs(dirs); err != nil {
		return nil, err
	}
	return r, nil
}

// CheckDirs says why SetDirs would refuse.
func CheckDirs(dirs []string) error {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || strings.IndexByte(dir, 0) >= 0 {
			return fmt.Errorf("the program path has %q, which is not an absolute folder", dir)
		}
	}
	return nil
}

// SetDirs changes where the resolver looks from now on, as New does. After an error
// nothing has changed.
func (r *Resolver) SetDirs(dirs []string) error {
	if err := CheckDirs(dirs); err != nil {
		return err
	}
	if len(dirs) == 0 {
		dirs = DefaultPath()
	}
	var clean []string
	for _, dir := range dirs {
		clean = append(clean, filepath.Clean(dir))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirs = clean
	return nil
}

// Dirs is where the resolver looks.
func (r *Resolver) Dirs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dirs)
}

// Resolve finds a program by its plain name, or by an absolute path. As in a shell,
// a file that cannot be run does not hide one in a later folder.
func (r *Resolver) Resolve(name string) (Program, error) {
	candidates := []string{name}
	searched := []string{filepath.Dir(name)}
	switch {
	case name == "" || name == "." || name == ".." || strings.IndexByte(name, 0) >= 0:
		return Program{}, fmt.Errorf("%w: %q", ErrName, name)
	case !strings.Contains(name, "/"):
		searched, candidates = r.Dirs(), nil
		for _, dir := range searched {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	case !filepath.IsAbs(name) || filepath.Clean(name) != name:
		return Program{}, fmt.Errorf("%w: %q", ErrName, name)
	}
	errs := make([]error, len(candidates))
	for i, found := range candidates {
		p, err := r.look(found)
		if err == nil {
			p.Name = name
			return p, nil
		}
		errs[i] = err
	}
	missing := &NotFoundError{Name: name, Searched: searched}
	for i, found := range candidates {
		if err := errs[i]; !errors.Is(err, fs.ErrNotExist) || exists(found) {
			missing.Skipped = append(missing.Skipped, fmt.Sprintf("%s: %s", found, reason(err)))
		}
	}
	return Program{}, missing
}

// exists is true for a symbolic link that leads nowhere.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func reason(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "a link to nothing"
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err.Error()
	}
	return err.Error()
}

// look says what is at a path, if it can be run.
func (r *Resolver) look(found string) (Program, error) {
	id, err := identify(found)
	if err != nil {
		return Program{}, err
	}
	r.mu.Lock()
	known, ok := r.places[found]
	r.mu.Unlock()
	if ok && known.Identity == id {
		return known, nil // the change time tells of a new mode, too
	}
	path, err := filepath.EvalSymlinks(found)
	if err != nil {
		return Program{}, err
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return Program{}, errors.New("not executable")
	}
	p := Program{Path: path, Found: found, Identity: id}
	if p.SHA256, err = r.digest(p); err != nil {
		return Program{}, err
	}
	r.mu.Lock()
	r.places[found] = p
	r.mu.Unlock()
	return p, nil
}

// identify says which regular file is at a path.
func identify(path string) (Identity, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Identity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Identity{}, errors.New("not a regular file")
	}
	return Identity{
		Device: uint64(st.Dev), Inode: st.Ino, Size: st.Size,
		ModTime: time.Unix(st.Mtim.Unix()).UTC(), ChangeTime: time.Unix(st.Ctim.Unix()).UTC(),
	}, nil
}

// digest reads the file unless its identity is known. It must be the same file
// before and after.
func (r *Resolver) digest(p Program) (string, error) {
	r.mu.Lock()
	known, ok := r.digests[p.Identity]
	r.mu.Unlock()
	if ok {
		return known, nil
	}
	f, err := os.Open(p.Path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	if err := p.Same(); err != nil {
		return "", err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	r.mu.Lock()
	r.digests[p.Identity] = digest
	r.mu.Unlock()
	return digest, nil
}

// Same gives ErrReplaced if either of the program's paths leads to another file by
// now, or to other content.
func (p Program) Same() error {
	path, err := filepath.EvalSymlinks(p.Found)
	if err != nil || path != p.Path {
		return fmt.Errorf("%s: %w", p.Found, ErrReplaced)
	}
	id, err := identify(p.Path)
	if err != nil || id != p.Identity {
		return fmt.Errorf("%s: %w", p.Path, ErrReplaced)
	}
	return nil
}
