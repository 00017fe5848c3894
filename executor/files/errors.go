package files

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"syscall"
)

// What can go wrong, by kind. Every error of this package that a caller could act
// on matches one of these, fs.ErrNotExist, or a context error.
var (
	// ErrPath: the path is not one that a call may name: empty, absolute, with "..",
	// a NUL byte, or a name that macexec keeps for itself.
	ErrPath = errors.New("not an acceptable path")
	// ErrNameTooLong: a name in the path is longer than a file system allows.
	ErrNameTooLong = errors.New("the name is too long")
	// ErrOutside: a symbolic link in the path leads out of the project.
	ErrOutside = errors.New("the path leads out of the project")
	// ErrNotRegular: it is a folder, pipe, device, socket or symbolic link.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTree: a folder holds something that macexec does not take: a link, a device, a
	// pipe, a file that has other names too, or a name that not every system could keep.
	ErrTree = errors.New("not a plain folder")
	// ErrNotFolder: a folder was needed.
	ErrNotFolder = errors.New("not a folder")
	// ErrEmpty: a file that must have content has none.
	ErrEmpty = errors.New("the file is empty")
	// ErrChanged: the file changed while it was being read, or is not the one that
	// was agreed on.
	ErrChanged = errors.New("the file has changed")
	// ErrDigest: the bytes do not have the digest that was promised.
	ErrDigest = errors.New("the digest does not match")
	// ErrTooLarge: there are more bytes than the limit allows.
	ErrTooLarge = errors.New("too large")
	// ErrTakenOver: a newer stream goes on with the upload.
	ErrTakenOver = errors.New("a newer stream goes on with this upload")
	// ErrFinishing: the upload is whole, and is being put in its place.
	ErrFinishing = errors.New("this upload is just being finished")
	// ErrTaken: something is at the destination already.
	ErrTaken = errors.New("the destination is taken")
	// ErrCrossDevice: the trash and the destination are on different file systems,
	// so the old file cannot be moved there in one step.
	ErrCrossDevice = errors.New("the destination is on another file system than the project's trash")
	// ErrUnsupported: the file system cannot do the atomic rename that is needed.
	ErrUnsupported = errors.New("the file system cannot do this atomically")
	// ErrDenied: the system does not let macexec do it.
	ErrDenied = errors.New("permission denied")
	// ErrPrivacy: macOS says "operation not permitted", which in a folder of one's own
	// means that it guards the place (Desktop, Documents, removable volumes, …) and
	// macexec has no grant, or that the file is locked. It matches ErrDenied too.
	ErrPrivacy = fmt.Errorf("macOS does not permit it: grant macexec Full Disk Access, or unlock the file: %w", ErrDenied)
)

// NotFoundError says that nothing is at a path; it matches fs.ErrNotExist.
type NotFoundError struct {
	Path string
	// Twin is a path that exists and differs only in letter case or in Unicode
	// normalisation; empty if there is none. It is told, never used.
	Twin string
	// Normalisation says that the twin differs in normalisation (NFC, NFD), not only
	// in case. Such names look the same on a screen.
	Normalisation bool
}

func (e *NotFoundError) Error() string {
	switch {
	case e.Twin == "":
		return fmt.Sprintf("%q does not exist", e.Path)
	case e.Normalisation:
		return fmt.Sprintf("%q does not exist; %+q does, whose name looks the same but has another Unicode normalisation", e.Path, e.Twin)
	default:
		return fmt.Sprintf("%q does not exist; %q does, whose name differs in letter case", e.Path, e.Twin)
	}
}

// Is makes the error match fs.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == fs.ErrNotExist }

// OffsetError says that an upload does not stand where a stream would go on.
type OffsetError struct {
	Offset, Stands int64
}

func (e *OffsetError) Error() string {
	return fmt.Sprintf("the upload stands at byte %d, not at %d", e.Stands, e.Offset)
}

// RoomError says that a file system has no room for a file; it matches
// syscall.ENOSPC.
type RoomError struct {
	Missing int64 // bytes
}

func (e *RoomError) Error() string {
	return fmt.Sprintf("%d bytes are missing: %s", e.Missing, syscall.ENOSPC)
}

// Is makes the error match syscall.ENOSPC.
func (e *RoomError) Is(target error) bool { return target == syscall.ENOSPC }

// explain puts one of the package's words on what the system said about path.
func explain(path string, err error) error {
	if err == nil {
		return nil
	}
	kind := error(nil)
	switch {
	case errors.Is(err, syscall.EPERM) && runtime.GOOS == "darwin":
		kind = ErrPrivacy
	case errors.Is(err, fs.ErrPermission):
		kind = ErrDenied
	case errors.Is(err, syscall.ENAMETOOLONG):
		kind = ErrNameTooLong
	case errors.Is(err, syscall.ELOOP):
		kind = ErrPath
	case errors.Is(err, syscall.ENOTDIR):
		kind = ErrNotFolder
	case errors.Is(err, syscall.EROFS):
		kind = ErrDenied
	}
	if kind == nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	return fmt.Errorf("%q: %w: %w", path, kind, err)
}
