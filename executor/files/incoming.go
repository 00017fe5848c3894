package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// UploadID names an upload that can be taken up again. Two owners never share one,
// even of the same bytes.
type UploadID struct {
	Owner  string // any text
	SHA256 string
	Size   int64
}

// uploadRecord is an UploadID as JSON, which has no place for every text.
type uploadRecord struct {
	Owner  []byte `json:"owner"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// name is what the upload is called in incoming. No text of a caller is in it; the
// lengths keep one field from running into the next.
func (id UploadID) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "macexec upload 1\n%d %s\n%d %s\n%d\n", len(id.Owner), id.Owner, len(id.SHA256), id.SHA256, id.Size))
	return "upload-" + hex.EncodeToString(sum[:])
}

// recordSuffix is what the name of an upload's record ends with. The record holds
// the UploadID: what the name is made of, and so a proof of whose it is.
const recordSuffix = ".json"

// partial is an upload on its way. Its file is never longer than limit.
type partial struct {
	name  string // in incoming
	limit int64
	kept  bool   // it stays when its stream ends, under its record
	owner string // of one that is kept

	mu        sync.Mutex
	holder    *BlobWriter // the newest stream, the only one that may write; nil: none is open
	finishing bool        // the holder is at its end, and nobody may take it over any more
	gone      bool        // dropped or shelved
	size      int64       // bytes in the file
	sum       hash.Hash   // of the first summed bytes; after a restart it has to catch up
	summed    int64
}

// survivors are the uploads in incoming that can be taken up again. All else is
// removed.
func (b *Blobs) survivors() (map[string]*partial, error) {
	names, err := b.incoming.f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := map[string]*partial{}
	for _, record := range names {
		name, ok := strings.CutSuffix(record, recordSuffix)
		if !ok {
			continue
		}
		id, ok := b.readRecord(record)
		if !ok || id.name() != name {
			continue
		}
		facts, ok, err := b.incoming.lstat(name)
		if err != nil {
			return nil, err
		}
		if ok && facts.Regular() && facts.Size <= id.Size {
			if f, err := b.incoming.open(name, unix.O_WRONLY, 0); err == nil {
				b.unreserve(name, f)
				_ = f.Close()
			}
			found[name] = &partial{name: name, limit: id.Size, kept: true, owner: id.Owner, size: facts.Size, sum: sha256.New()}
		}
	}
	for _, name := range names {
		if found[strings.TrimSuffix(name, recordSuffix)] == nil {
			err = errors.Join(err, b.incoming.unlink(name))
		}
	}
	return found, err
}

// unreserve gives back what an upload has reserved beyond what came in, and leaves it
// as old as it is. Where that fails the room is free when the upload is gone.
func (b *Blobs) unreserve(name string, f *os.File) {
	there, err := FactsOf(f)
	if err != nil || giveBackRoom(f, there.Size) != nil {
		return
	}
	last := unix.NsecToTimespec(there.ModTime.UnixNano())
	_ = unix.UtimesNanoAt(b.incoming.fd(), name, []unix.Timespec{last, last}, unix.AT_SYMLINK_NOFOLLOW)
}

func (b *Blobs) readRecord(name string) (UploadID, bool) {
	f, _, err := b.incoming.openRegular(name)
	if err != nil {
		return UploadID{}, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<16))
	var r uploadRecord
	ok := err == nil && json.Unmarshal(text, &r) == nil && checkSHA256(r.SHA256) == nil && r.Size >= 0
	return UploadID{string(r.Owner), r.SHA256, r.Size}, ok
}

// Create begins an upload of at most limit bytes that leaves nothing if it is not
// committed. With reserve, room for all of them is taken at once; without, there is a
// *RoomError on the way when the disk becomes full. It ends with Shelve or Abort.
func (b *Blobs) Create(limit int64, reserve bool) (*BlobWriter, error) {
	for n := 0; ; n++ {
		name := fmt.Sprintf("%supload-%d.tmp", Reserved, n)
		f, err := b.incoming.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, explain(filepath.Join(b.path, incomingFolder), err)
		}
		p := &partial{name: name, limit: limit, sum: sha256.New()}
		w := &BlobWriter{b: b, f: f, p: p, unreserved: !reserve}
		p.holder = w
		if reserve {
			if err := reserveRoom(f, limit); err != nil {
				w.Abort()
				return nil, explain("upload", err)
			}
		}
		return w, nil
	}
}

// Resume begins an upload, or goes on with one after its first offset bytes; offset
// 0 begins anew. Any other offset must be the one that Offset tells, or the error is
// an *OffsetError. Room for all of the upload is reserved while the stream is open, or
// the error is a *RoomError. What has come in is kept when the stream ends, and when
// the process does, until Expire; of one owner at most [MostHalfUploads].
//
// The newest stream is the one that counts: from now on an older one that is still
// open, because its peer is gone and nobody has noticed, gets ErrTakenOver. Only
// while that one is being finished the error is ErrFinishing.
func (b *Blobs) Resume(ctx context.Context, id UploadID, offset int64) (*BlobWriter, error) {
	if err := checkSHA256(id.SHA256); err != nil {
		return nil, err
	}
	if offset < 0 || offset > id.Size {
		return nil, &OffsetError{Offset: offset, Stands: b.Offset(id)}
	}
	w := &BlobWriter{b: b}
	for {
		p := b.partialOf(id)
		retry, err := b.take(w, p, id, offset)
		if retry {
			continue // it ended while we came
		}
		if err == nil {
			err = w.catchUp(ctx)
		}
		if err != nil {
			w.Abort()
			return nil, err
		}
		return w, nil
	}
}

func (b *Blobs) partialOf(id UploadID) *partial {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := id.name()
	p := b.partials[name]
	if p == nil {
		p = &partial{name: name, limit: id.Size, kept: true, owner: id.Owner, sum: sha256.New()}
		b.partials[name] = p
	}
	return p
}

// take makes w the holder of p, which is open for it at the offset then. It says
// whether p ended before it could be taken.
func (b *Blobs) take(w *BlobWriter, p *partial, id UploadID, offset int64) (ended bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return true, nil
	case p.finishing:
		return false, ErrFinishing
	}
	// Before the offset is looked at: if it is wrong because an older stream was still
	// moving, that one moves no more, and the next try has the right one.
	p.holder = w
	w.p = p
	if offset != 0 && offset != p.size {
		return false, &OffsetError{Offset: offset, Stands: p.size}
	}
	if w.f, err = b.openPartial(p.name, id); err != nil {
		return false, err
	}
	if offset == 0 && p.size > 0 {
		if err := w.f.Truncate(0); err != nil {
			return false, explain("upload", err)
		}
		p.size, p.summed = 0, 0
		p.sum.Reset()
	}
	if err := reserveRoom(w.f, id.Size); err != nil {
		return false, explain("upload", err)
	}
	return false, nil
}

// openPartial opens the file of an upload, and makes it under its record if it is
// not there.
func (b *Blobs) openPartial(name string, id UploadID) (*os.File, error) {
	text, err := json.Marshal(uploadRecord{[]byte(id.Owner), id.SHA256, id.Size})
	if err != nil {
		return nil, err
	}
	_, ok, err := b.incoming.lstat(name)
	if err != nil {
		return nil, err
	}
	if ok {
		// It may have been sealed already, before a crash.
		err = retry(func() error { return unix.Fchmodat(b.incoming.fd(), name, 0o600, 0) })
	} else {
		var f *os.File
		if f, err = b.incoming.open(name+recordSuffix, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600); err == nil {
			_, err = f.Write(text)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, explain("upload", err)
	}
	f, err := b.incoming.open(name, unix.O_RDWR|unix.O_CREAT, 0o600)
	return f, explain("upload", err)
}

// Offset says how many bytes of an upload have come in.
func (b *Blobs) Offset(id UploadID) int64 {
	b.mu.Lock()
	p := b.partials[id.name()]
	b.mu.Unlock()
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// Expire drops the uploads that no stream is open of and that got their last byte
// before a time. It returns how many there were.
func (b *Blobs) Expire(before time.Time) (n int, failed error) {
	for _, p := range b.known(func(*partial) bool { return true }) {
		p.mu.Lock()
		if last, idle, err := b.idleSince(p); err != nil {
			failed = errors.Join(failed, err)
		} else if idle && last.Before(before) {
			n++
			failed = errors.Join(failed, b.drop(p))
		}
		p.mu.Unlock()
	}
	return n, failed
}

// MostHalfUploads is how many uploads that no stream is open of are kept for an owner.
// When there are more, those go first that got their last byte first.
const MostHalfUploads = 64

// trim drops what an owner has beyond MostHalfUploads.
func (b *Blobs) trim(owner string) {
	all := b.known(func(p *partial) bool { return p.owner == owner })
	if len(all) <= MostHalfUploads {
		return
	}
	type half struct {
		p    *partial
		last time.Time
	}
	var halves []half
	for _, p := range all {
		p.mu.Lock()
		if last, idle, err := b.idleSince(p); err == nil && idle {
			halves = append(halves, half{p, last})
		}
		p.mu.Unlock()
	}
	slices.SortFunc(halves, func(a, b half) int { return a.last.Compare(b.last) })
	for _, h := range halves[:max(len(halves)-MostHalfUploads, 0)] {
		h.p.mu.Lock()
		if h.p.holder == nil && !h.p.gone {
			_ = b.drop(h.p) // what cannot be removed now expires
		}
		h.p.mu.Unlock()
	}
}

func (b *Blobs) known(which func(*partial) bool) (list []*partial) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.partials {
		if which(p) {
			list = append(list, p)
		}
	}
	return list
}

// idleSince says whether no stream is open of an upload, and then when it got its last
// byte: the zero time if its file is gone. p is locked.
func (b *Blobs) idleSince(p *partial) (time.Time, bool, error) {
	if p.holder != nil || p.gone {
		return time.Time{}, false, nil
	}
	facts, ok, err := b.incoming.lstat(p.name)
	if err != nil || !ok {
		return time.Time{}, err == nil, err
	}
	return facts.ModTime, true, nil
}

// drop removes an upload; its room is free again once nobody has it open. p is
// locked.
func (b *Blobs) drop(p *partial) error {
	p.gone, p.holder = true, nil
	err := b.incoming.unlink(p.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(explain("upload", err), b.forget(p))
}

// forget removes what is known of an upload whose file is gone. p is locked.
func (b *Blobs) forget(p *partial) error {
	p.gone = true
	if !p.kept {
		return nil
	}
	err := b.incoming.unlink(p.name + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	b.mu.Lock()
	delete(b.partials, p.name)
	b.mu.Unlock()
	return explain("upload", err)
}

// BlobWriter is a stream of an upload. It is for one goroutine.
type BlobWriter struct {
	b *Blobs
	f *os.File // nil once it has ended
	p *partial

	unreserved bool // each write has to find room
}

// may says whether the stream may touch its upload, which is locked.
func (w *BlobWriter) may() error {
	switch {
	case w.f == nil:
		return fs.ErrClosed
	case w.p.holder != w:
		return ErrTakenOver
	default:
		return nil
	}
}

// catchUp digests what came in before a restart, in pieces, so that a newer stream
// need not wait for it.
func (w *BlobWriter) catchUp(ctx context.Context) error {
	p := w.p
	if w.Size() == 0 {
		return nil
	}
	buf := make([]byte, copyBuffer)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p.mu.Lock()
		err := w.may()
		n := int(min(int64(len(buf)), p.size-p.summed))
		if err == nil && n > 0 {
			if n, err = w.f.ReadAt(buf[:n], p.summed); n > 0 {
				p.sum.Write(buf[:n])
				p.summed += int64(n)
				err = nil
			}
		}
		p.mu.Unlock()
		if err != nil || n == 0 {
			return explain("upload", err)
		}
	}
}

// Write takes the next bytes. Beyond the limit it takes none and gives ErrTooLarge.
func (w *BlobWriter) Write(b []byte) (int, error) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := w.may(); err != nil {
		return 0, err
	}
	if int64(len(b)) > p.limit-p.size {
		return 0, fmt.Errorf("upload: %w", ErrTooLarge)
	}
	if w.unreserved {
		if err := roomFor(w.f, int64(len(b))); err != nil {
			return 0, explain("upload", err)
		}
	}
	n, err := w.f.WriteAt(b, p.size)
	p.sum.Write(b[:n])
	p.size += int64(n)
	p.summed = p.size
	return n, explain("upload", err)
}

// Size is how many bytes the upload has.
func (w *BlobWriter) Size() int64 {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.size
}

// Seal puts the upload on stable storage and says what it is. If want is not empty
// and the digest is another one, the upload is dropped and the error is ErrDigest.
// Nothing has its digest as a name yet: that is Shelve's.
func (w *BlobWriter) Seal(ctx context.Context, want string) (Blob, error) {
	p := w.p
	p.mu.Lock()
	err := w.may()
	if err == nil {
		err = context.Cause(ctx)
	}
	sha := hexSum(p.sum)
	if err == nil && want != "" && want != sha {
		err = errors.Join(fmt.Errorf("upload has %s, not %s: %w", sha, want, ErrDigest), w.b.drop(p))
	}
	p.finishing = p.finishing || err == nil // of another stream, if this one was taken over
	size := p.size
	p.mu.Unlock()
	if err != nil {
		w.Abort()
		return Blob{}, err
	}
	blob := Blob{SHA256: sha, Size: size, Path: filepath.Join(w.b.path, path.Join(sha[:2], sha))}
	if blob.MediaType, blob.Kind, err = SniffFile(w.f); err == nil {
		err = errors.Join(w.f.Chmod(0o400), w.f.Sync())
	}
	if err != nil {
		w.Abort()
		return Blob{}, explain("upload", err)
	}
	return blob, nil
}

// Shelve makes a sealed upload the blob of its digest, durably. Bytes that are there
// already are kept once.
func (w *BlobWriter) Shelve(blob Blob) error {
	defer w.Abort()
	p, sha := w.p, blob.SHA256
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.f == nil || !p.finishing {
		return fs.ErrClosed
	}
	if err := w.b.dir.mkdir(sha[:2]); err != nil {
		return explain(sha[:2], err)
	}
	shelf, err := w.b.dir.sub(sha[:2])
	if err != nil {
		return err
	}
	defer shelf.Close()
	// Over one that is there: these bytes were just checked, the old ones were not.
	if err := w.b.incoming.rename(p.name, shelf, sha); err != nil {
		return explain(blob.Path, err)
	}
	_ = w.b.forget(p) // a record without a file is removed at the next start
	return explain(blob.Path, errors.Join(shelf.sync(), w.b.dir.sync()))
}

// Drop ends the stream, and nothing of the upload is kept. After Shelve it does
// nothing.
func (w *BlobWriter) Drop() {
	if p := w.p; p != nil {
		p.mu.Lock()
		if p.holder == w && !p.gone {
			_ = w.b.drop(p) // what cannot be removed now expires
		}
		p.mu.Unlock()
	}
	w.Abort()
}

// Abort ends the stream. What came in is kept if the upload can be taken up again, but
// no room for the rest; where nothing came in, nothing is kept.
// After Shelve it does nothing.
func (w *BlobWriter) Abort() {
	halted := w.p != nil && w.letGo()
	if w.f != nil {
		_ = w.f.Close()
		w.f = nil
	}
	if halted {
		w.b.trim(w.p.owner)
	}
}

// letGo makes the stream that had the upload the one that has it no more. It says
// whether half an upload stays.
func (w *BlobWriter) letGo() bool {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != w {
		return false
	}
	p.holder, p.finishing = nil, false
	switch {
	case p.gone:
	case !p.kept || p.size == 0:
		_ = w.b.drop(p) // the next start removes what cannot be removed now
	default:
		if w.f != nil {
			w.b.unreserve(p.name, w.f)
		}
		return true
	}
	return false
}

var _ io.Writer = (*BlobWriter)(nil)
