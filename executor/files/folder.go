package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Facts are what the system says about one file.
type Facts struct {
	Size          int64
	Mode          fs.FileMode
	Device, Inode uint64
	Links         uint64
	UID, GID      uint32
	ModTime       time.Time
	ChangeTime    time.Time // of the inode; nobody can set it
}

// Regular says whether it is a regular file.
func (f Facts) Regular() bool { return f.Mode.IsRegular() }

// SameFile says whether both are one file, whatever its names are.
func (f Facts) SameFile(g Facts) bool { return f.Device == g.Device && f.Inode == g.Inode }

// Unchanged says whether g, taken later, shows the same file with the same content.
func (f Facts) Unchanged(g Facts) bool {
	return f.SameFile(g) && f.Size == g.Size && f.ModTime.Equal(g.ModTime)
}

// FactsOf says what the open file f is.
func FactsOf(f *os.File) (Facts, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(int(f.Fd()), &st) })
	runtime.KeepAlive(f)
	if err != nil {
		return Facts{}, fmt.Errorf("stat: %w", err)
	}
	return facts(&st), nil
}

func facts(st *unix.Stat_t) Facts {
	mode := fs.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	default:
		mode |= fs.ModeIrregular
	}
	return Facts{
		Size: st.Size, Mode: mode, Device: uint64(st.Dev), Inode: st.Ino, Links: uint64(st.Nlink),
		UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()), ChangeTime: time.Unix(st.Ctim.Unix()),
	}
}

// retry repeats a call that a signal cut short.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// folder is an open folder. What it does to a name it does to that name in that
// very folder, wherever the folder has been moved, and never through a symbolic
// link.
type folder struct{ f *os.File }

func openFolder(path string) (folder, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return folder{}, explain(path, noFolder(err))
	}
	return folder{os.NewFile(uintptr(fd), path)}, nil
}

func (d folder) Close() { _ = d.f.Close() }

func (d folder) fd() int { return int(d.f.Fd()) }

func (d folder) open(name string, flags int, perm uint32) (*os.File, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular opens a regular file for reading; a name that is anything else is
// not even opened.
func (d folder) openRegular(name string) (*os.File, Facts, error) {
	there, ok, err := d.lstat(name)
	if err == nil && !ok {
		err = fs.ErrNotExist
	}
	if err == nil && !there.Regular() {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, Facts{}, explain(name, err)
	}
	f, err := d.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, Facts{}, explain(name, err)
	}
	got, err := FactsOf(f)
	if err == nil && !got.Regular() {
		err = ErrNotRegular
	}
	if err != nil {
		_ = f.Close()
		return nil, Facts{}, explain(name, err)
	}
	return f, got, nil
}

// walk opens the folder at rel below d, one name at a time, through no symbolic
// link; "." is d itself.
func (d folder) walk(rel string) (folder, error) {
	at, err := d.sub(".")
	if err != nil || rel == "." {
		return at, err
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := at.sub(name)
		at.Close()
		if err != nil {
			return folder{}, err
		}
		at = next
	}
	return at, nil
}

func (d folder) sub(name string) (folder, error) {
	f, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return folder{}, explain(name, noFolder(err))
	}
	return folder{f}, nil
}

// noFolder is for the systems that call a symbolic link in a folder's place a loop.
func noFolder(err error) error {
	if errors.Is(err, unix.ELOOP) {
		return unix.ENOTDIR
	}
	return err
}

// lstat says what the name is; false if nothing has that name.
func (d folder) lstat(name string) (Facts, bool, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Facts{}, false, nil
	case err != nil:
		return Facts{}, false, explain(name, err)
	}
	return facts(&st), true, nil
}

func (d folder) unlink(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd(), name, 0) })
}

func (d folder) rmdir(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd(), name, unix.AT_REMOVEDIR) })
}

// mkdir makes a folder that only its owner may enter, if it is not there.
func (d folder) mkdir(name string) error {
	err := retry(func() error { return unix.Mkdirat(d.fd(), name, 0o700) })
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// rename replaces whatever has the new name.
func (d folder) rename(name string, to folder, newName string) error {
	return retry(func() error { return unix.Renameat(d.fd(), name, to.fd(), newName) })
}

// move gives a file a new name and never replaces anything: if the new name is
// taken the error matches fs.ErrExist and nothing has changed. Where the kernel
// has no such rename it links and unlinks; a crash in between leaves two names of
// one file.
func (d folder) move(name string, to folder, newName string) error {
	err := retry(func() error { return renameExclusive(d.fd(), name, to.fd(), newName) })
	if !unsupported(err) {
		return err
	}
	err = retry(func() error { return unix.Linkat(d.fd(), name, to.fd(), newName, 0) })
	switch {
	case unsupported(err) || errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return err
	}
	return d.unlink(name)
}

// swap exchanges two names of this folder in one step.
func (d folder) swap(a, b string) error {
	err := retry(func() error { return renameSwap(d.fd(), a, b) })
	if unsupported(err) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// sync puts the folder's names on stable storage. Some file systems have no such
// thing for folders and say so; that is all they can promise.
func (d folder) sync() error {
	err := d.f.Sync()
	if unsupported(err) {
		return nil
	}
	return err
}

// unsupported says that the file system does not know the call.
func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

// FreeBytes says how much an ordinary user can still write at path.
func FreeBytes(path string) (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &st) }); err != nil {
		return 0, explain(path, err)
	}
	return free(&st), nil
}

func free(st *unix.Statfs_t) int64 {
	return int64(st.Bavail) * int64(st.Bsize) // no disk has 2^63 bytes
}

// freeFloor is what uploads leave free on a disk: jobs, the store and everybody else
// need room too.
func freeFloor(st *unix.Statfs_t) int64 {
	return min(1<<30, int64(st.Blocks)*int64(st.Bsize)/20)
}

// roomFor holds that the file system of f can take need bytes and still has its floor
// free, or gives a *RoomError.
func roomFor(f *os.File, need int64) error {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(f.Fd()), &st) }); err != nil {
		return err
	}
	if there := free(&st) - freeFloor(&st); need > there {
		return &RoomError{Missing: need - there}
	}
	return nil
}

// reserveRoom takes the room for size bytes of f at once, so that writing them cannot
// fail for want of it, or gives a *RoomError. What f holds and its length stay as
// they are. Where the file system cannot reserve, there is room now, but no promise.
func reserveRoom(f *os.File, size int64) error {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return err
	}
	need := size - st.Blocks*512
	if need <= 0 {
		return nil
	}
	if err := roomFor(f, need); err != nil {
		return err
	}
	err := retry(func() error { return preallocate(f, size, need) })
	switch {
	case err == nil, unsupported(err):
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		err = &RoomError{Missing: need} // others took it, or it is more than a quota allows
	}
	return errors.Join(err, giveBackRoom(f, st.Size))
}

// giveBackRoom gives back what is reserved of f beyond its size.
func giveBackRoom(f *os.File, size int64) error {
	return retry(func() error { return unix.Ftruncate(int(f.Fd()), size) })
}
