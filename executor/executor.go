package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/keeper"
)

// The errors of this package that callers tell apart.
var (
	// ErrHeld: somebody, normally a living keeper, holds the attempt's lock.
	ErrHeld = errors.New("the attempt is held")
	// ErrSpent: the attempt has records, so it cannot be prepared again.
	ErrSpent = errors.New("the attempt was used before")
	// ErrEnded: the attempt has ended, so a request comes too late.
	ErrEnded = errors.New("the attempt has ended")
	// ErrName: a name that cannot be a folder below the root.
	ErrName = errors.New("not a usable name")
)

// NotStartedError says that the command certainly did not run, not even in part.
type NotStartedError struct{ Err error }

// Error implements error.
func (e *NotStartedError) Error() string { return "not started: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *NotStartedError) Unwrap() error { return e.Err }

// Dir is the folder of one attempt.
type Dir = keeper.Dir

// Proc is the identity of a process: pid and start time.
type Proc = keeper.Process

// Options are what an Executor needs to know.
type Options struct {
	// Root is the folder of all attempts, absolute.
	Root string
	// Keeper is the argument vector that plays the keeper, its program absolute.
	Keeper []string
	// Keepers is the folder of copies of keepers, in which that program lies under its
	// digest; empty: there is none.
	Keepers string
	// BootSession is the host's present boot session.
	BootSession string
	// Logger may be nil.
	Logger *slog.Logger
}

// Executor starts, watches and judges attempts below one root.
type Executor struct {
	root   string
	keeper []string
	copies string // the folder of keepers; empty: there is none
	boot   string
	log    *slog.Logger

	// locks keeps two judgements of this process from seeing each other's hold on
	// a lock as a keeper's.
	locks sync.Mutex
}

// New makes an executor; it creates the root.
func New(o Options) (*Executor, error) {
	switch {
	case !filepath.IsAbs(o.Root):
		return nil, fmt.Errorf("root %q is not absolute", o.Root)
	case len(o.Keeper) == 0 || !filepath.IsAbs(o.Keeper[0]):
		return nil, errors.New("the keeper's program is not an absolute path")
	case o.BootSession == "":
		return nil, errors.New("no boot session")
	}
	if err := os.MkdirAll(o.Root, 0o700); err != nil {
		return nil, err
	}
	if err := syncFolder(filepath.Dir(o.Root)); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Executor{root: filepath.Clean(o.Root), keeper: o.Keeper, copies: o.Keepers, boot: o.BootSession, log: o.Logger}, nil
}

// Root is the folder of all attempts.
func (x *Executor) Root() string { return x.root }

// JobDir is the folder of all attempts of a job.
func (x *Executor) JobDir(job string) string { return filepath.Join(x.root, job) }

// AttemptDir is the folder of the n-th attempt of a job.
func (x *Executor) AttemptDir(job string, n int) Dir {
	return Dir(filepath.Join(x.root, job, "a"+strconv.Itoa(n)))
}

// attemptDir is AttemptDir for names that come from outside.
func (x *Executor) attemptDir(job string, n int) (Dir, error) {
	if err := checkName(job); err != nil {
		return "", err
	}
	if n < 1 {
		return "", fmt.Errorf("attempt %d: %w", n, ErrName)
	}
	return x.AttemptDir(job, n), nil
}

func checkName(job string) error {
	if job == "" || strings.HasPrefix(job, ".") || strings.ContainsAny(job, "/\x00") || len(job) > 200 {
		return fmt.Errorf("job %q: %w", job, ErrName)
	}
	return nil
}

// takeLock takes the attempt's lock, or says ErrHeld. The file is made only if
// create is set; else a missing one is fs.ErrNotExist.
func takeLock(d Dir, create bool) (*os.File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	var f *os.File
	err := keeper.Restoring(d, func() (err error) {
		f, err = os.OpenFile(d.Lock(), flags, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

// freeLock gives a lock up at once. Closing alone would not do: a child that is
// being started at this moment holds a copy of the descriptor until its exec.
func freeLock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

// Remove deletes the folder of a job and everything in it. It refuses while one
// of its attempts is held.
func (x *Executor) Remove(job string) error {
	free, err := x.seize(job)
	if err != nil {
		return err
	}
	defer free()
	root, err := os.OpenRoot(x.root)
	if err != nil {
		return err
	}
	defer root.Close()
	return removeAll(root, job)
}

// seize takes the locks of all attempts of a job. It does not keep others from theirs
// until they are freed: to remove a large folder takes its time.
func (x *Executor) seize(job string) (free func(), err error) {
	if err := checkName(job); err != nil {
		return nil, err
	}
	x.locks.Lock()
	defer x.locks.Unlock()
	entries, err := os.ReadDir(x.JobDir(job))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var held []*os.File
	free = func() {
		for _, lock := range held {
			freeLock(lock)
		}
	}
	for _, e := range entries {
		lock, err := takeLock(Dir(filepath.Join(x.JobDir(job), e.Name())), false)
		switch {
		case err == nil:
			held = append(held, lock)
		case errors.Is(err, ErrHeld):
			free()
			return nil, fmt.Errorf("remove %s: %w", job, err)
		}
	}
	return free, nil
}
