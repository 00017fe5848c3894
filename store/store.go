package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
)

// DefaultLockWait is how long Open waits for a store that another process holds.
const DefaultLockWait = 5 * time.Second

const (
	// mapSize is mapped at once, so that a growing store seldom has to wait until
	// all readers are done before it can be mapped anew. It takes addresses, not
	// memory.
	mapSize = 256 << 20
	// fillAppended is how full pages get in a bucket whose keys grow with time.
	fillAppended = 0.95
)

// Options say where a store is and what it uses.
type Options struct {
	Path     string           // of the file; its folder must exist
	LockWait time.Duration    // 0: DefaultLockWait; negative: do not wait
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: nothing is logged
	// Committed is told of each commit, how long it took and why it failed (CodeDiskFull:
	// for want of room). It must be quick, since the next commit waits for it. Nil: nobody
	// is told.
	Committed func(took time.Duration, err error)
	// FileSystem says what kind of file system a folder lies on, and whether it is this
	// host's own. Nil: the kernel is asked.
	FileSystem func(dir string) (name string, local bool, err error)
	// Jobs are the names of the folders of jobs beside the store, and Started says of one
	// whether its job was ever started. By them a store is recognized that has forgotten.
	Jobs    []string
	Started func(id string) bool
}

func (o Options) withDefaults() Options {
	if o.LockWait == 0 {
		o.LockWait = DefaultLockWait
	}
	if o.Now == nil {
		o.Now = fault.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Committed == nil {
		o.Committed = func(time.Duration, error) {}
	}
	return o
}

// Store is a jobs.Store in one file.
type Store struct {
	path   string
	file   *os.File // bbolt's own descriptor
	holder *os.File // says who has the lock; nil: it could not be written
	db     *bbolt.DB
	log    *slog.Logger
	now    func() time.Time
	hostID string
	cache  *cache
	told   func(took time.Duration, err error) // of each commit
	keys   keyCache
	free   freePlaces
	rooms  sync.Pool                        // of *pageRoom, for hidden
	broken atomic.Pointer[map[string]error] // what Open found damaged, by id; nil: it was not asked

	// gate keeps readers from beginning while a commit is on its way: bbolt writes
	// its meta page into the mapped file before it flushes it, so a read begun
	// between the two would show a write that a power cut can still undo. The
	// writer holds it around the commit and the publication of what it committed;
	// a reader holds the read side only while it begins.
	gate sync.RWMutex

	mu      sync.Mutex
	pending []*operation  // not yet taken by the writer
	closed  bool          // Close was called
	failure error         // why the store failed, once it has
	grown   chan struct{} // closed and replaced when head grows
	head    atomic.Uint64 // seq of the newest committed entry

	wake      chan struct{} // tells the writer that something is pending
	closing   chan struct{} // closed by Close
	failed    chan struct{} // closed when the store fails
	done      chan struct{} // closed when the writer has ended
	witnessed chan struct{} // closed when nobody writes its witness any more

	unwitnessed bool        // it is not in its place yet, so no witness tells of it
	witnessFile fs.FileInfo // as it was written last; of the goroutine that writes it

	// Of the writer only: what is committed.
	jobSeq   uint64
	chain    chainHead
	wedged   bool          // a panic inside a commit left bbolt's locks held
	lastSize int           // operations in the last commit
	lastTook time.Duration // and how long they took

	// committed, if set, runs inside the gate after each commit. Tests stop there.
	committed func()
	// noRows, if set, has every value in its set at once. Tests look at sets.
	noRows bool
}

var _ jobs.Store = (*Store)(nil)

// Open opens the store of a path and locks it, or makes it if there is no file. It
// never changes a file that it cannot understand: a damaged file, a file of
// something else and a store of a newer macexec are refused as they are. So is one
// that is not the store which its witness and the folders of jobs tell of, or an earlier
// state of that.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.checkFileSystem(); err != nil {
		return nil, err
	}
	if err := Missing(o.Path); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(o.Path); errors.Is(err, fs.ErrNotExist) {
		if err := create(o.Path, o.Now()); err != nil {
			return nil, jobs.Errorf(jobs.CodeStoreFailed, "the store %s cannot be made: %v", o.Path, err).With("path", o.Path)
		}
	}
	return openAs(ctx, o, inPlace)
}

// role is what a store is opened as.
type role int

const (
	inPlace role = iota // the store that the daemon used last
	adopted             // the store that an operator decided to use
	aside               // one that is not in its place yet
)

// openAs opens a file that is there.
func openAs(ctx context.Context, o Options, as role) (*Store, error) {
	o = o.withDefaults()
	file, err := openLocked(ctx, o.Path, os.O_RDWR, syscall.LOCK_EX, o.LockWait)
	if err != nil {
		return nil, err
	}
	if as != aside {
		sweepTemps(o.Path)
	}
	db, err := openBolt(file, false)
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: o.Path, file: file, db: db, log: o.Logger, now: o.Now, cache: newCache(), told: o.Committed,
		grown: make(chan struct{}), wake: make(chan struct{}, 1), closing: make(chan struct{}),
		failed: make(chan struct{}), done: make(chan struct{}), witnessed: make(chan struct{}),
		unwitnessed: as == aside,
	}
	if as == inPlace {
		var whole bool
		if whole, err = wholeHead(file); err == nil {
			err = recognize(o, db, whole)
		}
	}
	if err == nil {
		err = migrate(s.path, db, migrations(), s.now().UTC(), s.log)
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	if s.holder, err = writeHolder(s.path); err != nil {
		s.log.Warn("the store's holder file cannot be written", "path", s.path, "error", err)
	}
	go s.writer()
	if as == inPlace {
		go s.witnessing()
	} else {
		close(s.witnessed) // at the end is soon enough
	}
	return s, nil
}

// openBolt gives a locked file to bbolt, which closes it in the end. A file that
// bbolt would stumble over is refused first.
func openBolt(file *os.File, readOnly bool) (*bbolt.DB, error) {
	path := file.Name()
	refuse := func(why error) (*bbolt.DB, error) {
		_ = closeLocked(file)
		return nil, errDamaged(path, why)
	}
	info, err := file.Stat()
	if err != nil {
		return refuse(err)
	}
	if !info.Mode().IsRegular() {
		return refuse(errors.New("it is not a regular file"))
	}
	head, err := inspectFile(file, info.Size())
	if err != nil {
		return refuse(err)
	}
	if err := checkSkeleton(file, head.current); err != nil {
		return refuse(err)
	}
	var db *bbolt.DB
	err = guarded(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			ReadOnly:        readOnly,
			FreelistType:    bbolt.FreelistArrayType,
			Logger:          boltFaults(),
			InitialMmapSize: mapSize,
			NoStatistics:    true,
			OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return file, nil },
		})
		return err
	})
	if err != nil {
		return refuse(err)
	}
	return db, nil
}

// create makes a new store under another name and links it to its path when it is
// whole and on disk, so that an empty or half-made file at the path always means
// damage. Another process that was quicker wins.
func create(path string, now time.Time) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if err := temp.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(temp.Name(), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistArrayType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return writeFirstSchema(tx, now) })
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(dir)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// load reads what the writer continues from.
func (s *Store) load() error {
	err := guarded(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			for _, name := range buckets() {
				if tx.Bucket([]byte(name)) == nil {
					return fmt.Errorf("it has no bucket %s", name)
				}
			}
			meta := tx.Bucket([]byte(bucketMeta))
			if s.hostID = string(meta.Get([]byte(metaHostID))); !validHostID(s.hostID) {
				return fmt.Errorf("its host id %q is not possible", s.hostID)
			}
			s.jobSeq = decodeU64(meta.Get([]byte(metaJobSeq)))
			var ok bool
			if s.chain, ok = decodeChainHead(meta.Get([]byte(metaJournalHead))); !ok {
				return errors.New("it does not say where its journal ends")
			}
			last, _ := tx.Bucket([]byte(bucketJournal)).Cursor().Last()
			if decodeU64(last) != s.chain.seq {
				return fmt.Errorf("its journal ends at entry %d and not at %d", decodeU64(last), s.chain.seq)
			}
			return nil
		})
	})
	if err != nil {
		return errDamaged(s.path, err)
	}
	s.head.Store(s.chain.seq)
	return nil
}

// Close ends the store after what was already given to it is written.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	close(s.closing)
	s.mu.Unlock()
	<-s.done
	<-s.witnessed
	s.testifyLast()
	removeHolder(s.holder)
	if s.wedged {
		return closeLocked(s.file) // bbolt's own Close would wait for ever
	}
	if err := s.db.Close(); err != nil {
		return jobs.Errorf(jobs.CodeStoreFailed, "the store %s did not close cleanly: %v", s.path, err)
	}
	return nil
}

// HostID implements jobs.Store.
func (s *Store) HostID() string { return s.hostID }

// Failed implements jobs.Store.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Failure returns why the store failed; nil: it has not.
func (s *Store) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// usable returns why nothing can be asked of the store, or nil.
func (s *Store) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usableLocked()
}

func (s *Store) usableLocked() error {
	switch {
	case s.failure != nil:
		return errFailed(s.failure)
	case s.closed:
		return errClosed()
	}
	return nil
}

// fail marks the store as failed.
func (s *Store) fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return
	}
	s.failure = errors.New(why.Error()) // no error of bbolt's leaves
	s.log.Error("the store failed; the daemon must stop", "path", s.path, "error", why)
	close(s.failed)
}

// view runs fn in a read transaction that shows only what is on stable storage.
// fn is to be short: an open read keeps old pages from being used again.
func (s *Store) view(ctx context.Context, fn func(*bbolt.Tx) error) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	s.gate.RLock()
	tx, err := s.beginRead()
	s.gate.RUnlock()
	if err != nil {
		return err
	}
	return s.read(tx, fn)
}

// beginRead needs the gate's read side.
func (s *Store) beginRead() (*bbolt.Tx, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	tx, err := s.db.Begin(false)
	if err != nil {
		return nil, errClosed() // nothing else stops a read from beginning
	}
	return tx, nil
}

func (s *Store) read(tx *bbolt.Tx, fn func(*bbolt.Tx) error) error {
	defer func() { _ = tx.Rollback() }()
	return guarded(func() error { return fn(tx) })
}

// guarded runs fn and makes an error of a panic or of a fault on mapped memory,
// which is how bbolt meets a damaged page or a disk that cannot be read.
func guarded(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged("a page of the store", fmt.Sprint(p))
		}
	}()
	return fn()
}
