package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// part is a download that is not whole yet: the bytes in path.part, and beside them a
// record of what they are a part of, which also locks the two for one process.
type part struct {
	partRecord

	path   string
	record *os.File
	f      *os.File // at its end
	mode   fs.FileMode
	again  bool // an earlier run began it
}

// partRecord is what path.part.json holds, as JSON.
type partRecord struct {
	Reference string `json:"reference"`
	SHA256    string `json:"sha256"`
	Transfer  int64  `json:"transfer_size"`
}

const (
	opDownload   = "download" // in errors about paths
	partSuffix   = ".part"
	recordSuffix = ".part.json"
)

// openPart opens the part of a download to path, with what an earlier run left of the
// very same download. A file of either name that no download left is not touched.
func openPart(path string, info *macexecv1.FileInfo) (_ *part, err error) {
	if path == "" {
		return nil, &fs.PathError{Op: opDownload, Path: path, Err: errors.New("the name is empty")}
	}
	p := &part{path: path, partRecord: partRecord{info.GetReference(), info.GetSha256(), info.GetTransferSize()}}
	var fresh bool
	if p.record, p.mode, fresh, err = lockRecord(path + recordSuffix); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	// A record is made empty and then written in one go, so an empty one may be ours: its
	// download ended in between. Nothing in it says that, and a part beside it is not.
	left, known, err := readRecord(p.record)
	if err != nil {
		return nil, err
	}
	if info, err := p.record.Stat(); err != nil || !known && info.Size() > 0 {
		return nil, errors.Join(inTheWay(path+recordSuffix), err)
	}
	there, err := os.Lstat(path + partSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !there.Mode().IsRegular(), !known && there.Size() > 0:
		if fresh || known {
			err = os.Remove(path + recordSuffix)
		}
		return nil, errors.Join(inTheWay(path+partSuffix), err)
	}
	if p.f, err = os.OpenFile(path+partSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600); err != nil {
		return nil, err
	}
	p.again = left == p.partRecord
	if !p.again || (there != nil && there.Size() > p.Transfer) {
		// The bytes first, so that they are never said to be a part of something else.
		if err := p.f.Truncate(0); err != nil {
			return nil, err
		}
		if err := p.describe(); err != nil {
			return nil, err
		}
	}
	_, err = p.f.Seek(0, io.SeekEnd)
	return p, err
}

func inTheWay(path string) error {
	return &fs.PathError{Op: opDownload, Path: path, Err: errors.New("it is in the way, and no download left it; move it away")}
}

// readRecord reads what a record says. Only what describe writes, letter by letter,
// is known as one.
func readRecord(f io.Reader) (left partRecord, known bool, err error) {
	text, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil || json.Unmarshal(text, &left) != nil || left.SHA256 == "" {
		return partRecord{}, false, err
	}
	again, err := left.text()
	if err != nil || !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), bytes.TrimSuffix(text, []byte("\n"))) {
		return partRecord{}, false, err
	}
	return left, true, nil
}

// text is what a record holds.
func (r partRecord) text() ([]byte, error) {
	text, err := json.Marshal(r)
	return append(text, '\n'), err
}

// lockRecord opens the record at a path and locks it. It tells the mode that a new file
// of the caller's gets, and whether it has just made the record.
func lockRecord(path string) (f *os.File, mode fs.FileMode, fresh bool, err error) {
	const open = os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK // a pipe or a link of the caller's is no record
	for {
		fresh = false
		f, err := os.OpenFile(path, open, 0)
		if errors.Is(err, fs.ErrNotExist) {
			fresh = true
			f, err = os.OpenFile(path, open|os.O_CREATE|os.O_EXCL, 0o666) //nolint:gosec // the umask decides, as for the file itself
		}
		switch {
		case fresh && errors.Is(err, fs.ErrExist):
			continue // another download has just made it
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
			return nil, 0, false, inTheWay(path)
		case err != nil:
			return nil, 0, false, err
		}
		mine, err := f.Stat()
		if err == nil && !mine.Mode().IsRegular() {
			err = inTheWay(path)
		}
		if err != nil {
			_ = f.Close()
			return nil, 0, false, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = errors.New("another download is writing there")
			}
			return nil, 0, false, &fs.PathError{Op: opDownload, Path: path, Err: err}
		}
		if there, err := os.Lstat(path); err == nil && os.SameFile(mine, there) {
			return f, mine.Mode().Perm(), fresh, nil
		}
		_ = f.Close() // another download ended and took its record away
	}
}

func (p *part) describe() error {
	text, err := p.text()
	if err != nil {
		return err
	}
	if err := p.record.Truncate(0); err != nil {
		return err
	}
	_, err = p.record.WriteAt(text, 0)
	return err
}

func (p *part) size() (int64, error) { return p.f.Seek(0, io.SeekEnd) }

// close lets the part go and keeps it for another run.
func (p *part) close() {
	if p.f != nil {
		_ = p.f.Close()
	}
	_ = p.record.Close() // and with it the lock
}

// place gives the whole file its name, durably. Nothing is replaced unless replace is
// set.
func (p *part) place(replace bool) error {
	if err := errors.Join(p.f.Chmod(p.mode), p.f.Sync()); err != nil {
		return err
	}
	from := p.path + partSuffix
	if replace {
		if err := mayReplace(p.path); err != nil {
			return err
		}
		if err := os.Rename(from, p.path); err != nil {
			return err
		}
	} else if err := renameExclusive(from, p.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	_ = dir.Sync() // some file systems have no such thing for folders
	_ = dir.Close()
	return p.remove()
}

// mayReplace refuses to put a file in the place of anything but a regular file: a pipe, a
// device or a link is there for somebody else, and a rename would take it away.
func mayReplace(path string) error {
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !there.Mode().IsRegular():
		err = &fs.PathError{Op: opDownload, Path: path, Err: errors.New("it is no regular file, and is not replaced")}
	}
	return err
}

// renameExclusive gives a file or a folder a name that nothing has.
func renameExclusive(from, to string) error {
	err := renameNew(from, to)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return &fs.PathError{Op: opDownload, Path: to, Err: fs.ErrExist}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EOPNOTSUPP):
		return renameReserved(from, to) // a file system without such a rename
	default:
		return &os.LinkError{Op: opDownload, Old: from, New: to, Err: err}
	}
}

// renameReserved takes the name first, with something empty of the same kind, which
// it takes away again if the rename fails.
func renameReserved(from, to string) error {
	at, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if at.IsDir() {
		err = os.Mkdir(to, 0o700)
	} else {
		var taken *os.File
		if taken, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = taken.Close()
		}
	}
	if err != nil {
		return err
	}
	// Not os.Rename, which refuses every folder that is there.
	if err := unix.Rename(from, to); err != nil {
		return errors.Join(&os.LinkError{Op: opDownload, Old: from, New: to, Err: err}, os.Remove(to))
	}
	return nil
}

// wasPlaced reports that an earlier run gave the whole file its name, and ended before
// it could tidy up.
func (p *part) wasPlaced(ctx context.Context) bool {
	if !p.again {
		return false
	}
	placed, err := os.Lstat(p.path)
	if err != nil {
		return false
	}
	if there, err := p.f.Stat(); err != nil || (there.Size() > 0 && !os.SameFile(placed, there)) {
		return false
	}
	digest, err := fileDigest(ctx, p.path, p.Transfer)
	return err == nil && digest == p.SHA256
}

// fileDigest is the digest of a regular file of that size.
func fileDigest(ctx context.Context, path string, size int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	at, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !at.Mode().IsRegular() || at.Size() != size {
		return "", errors.New("it is another file")
	}
	sum := sha256.New()
	_, err = copyAt(ctx, sum, f, size)
	return hex.EncodeToString(sum.Sum(nil)), err
}

// remove removes what stands beside the file.
func (p *part) remove() error {
	err := os.Remove(p.path + partSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(p.path+recordSuffix))
}

// removeEmpty removes a part that has no bytes: there is nothing to go on with.
func (p *part) removeEmpty() error {
	if n, err := p.size(); err != nil || n > 0 {
		return err
	}
	return p.remove()
}
