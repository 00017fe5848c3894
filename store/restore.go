package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/macexec/macexec/jobs"
)

// Restore puts a copy in the place of the store at a path, which no process may have
// open, and adopts it (see Adopt). First it is copied and read whole: one in which
// something is wrong is refused. The store that was there stays beside it, under the
// name kept; empty: there was none. At any moment there is a whole store at the path,
// the old one or the new one.
func Restore(ctx context.Context, from string, o AdoptOptions) (a Adoption, kept string, err error) {
	if err := (Options{Path: o.Path}).checkFileSystem(); err != nil {
		return a, "", err
	}
	present, err := holdPresent(ctx, o.Path)
	if err != nil {
		return a, "", err
	}
	if present != nil {
		defer func() { _ = closeLocked(present) }()
	}
	known, unreadable := readWitness(o.Path) // which nobody writes any more
	sweepTemps(o.Path)
	temp, err := bringIn(ctx, from, o.Path)
	if err != nil {
		return a, "", err
	}
	defer os.Remove(temp) // it has its name by then, or is of no use
	a, err = adoptAside(ctx, temp, from, o, known, present)
	if err != nil {
		return a, "", err
	}
	if kept, err = putInPlace(temp, o.Path, present != nil); err != nil {
		return a, kept, err
	}
	// The new store names the witness that it was adopted in the face of, so a crash
	// before the next one is written leaves nothing to decide again. It cannot name one
	// that nobody can read.
	if unreadable != nil {
		if err := os.Remove(witnessPath(o.Path)); err != nil {
			return a, kept, cannotRestore(o.Path, err)
		}
	}
	return a, kept, nil
}

// putInPlace gives a whole store its name, in one step. One that is there is kept beside
// it; where there was none, one that was made meanwhile is in use and is not replaced.
func putInPlace(temp, path string, present bool) (kept string, err error) {
	if present {
		if kept, err = keepAside(path); err == nil {
			err = os.Rename(temp, path)
		}
	} else {
		err = os.Link(temp, path)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return "", jobs.Errorf(jobs.CodeStoreFailed, "a store was made at %s meanwhile, and is not replaced; stop what uses it, then restore again", path).With("path", path)
	case err == nil:
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return kept, cannotRestore(path, err)
	}
	return kept, nil
}

func cannotRestore(path string, err error) error {
	if isNoSpace(err) {
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for the restored store %s", path).With("path", path)
	}
	return jobs.Errorf(jobs.CodeStoreFailed, "the store %s cannot be put in its place: %w", path, err).With("path", path)
}

// holdPresent locks the store that is there, whatever is in it, so that no daemon starts
// on it or has it. Nil: there is none.
func holdPresent(ctx context.Context, path string) (*os.File, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if pid, command := readHolder(path); pid != 0 {
			return nil, jobs.Errorf(jobs.CodeStoreFailed, "the store %s is gone, but %s may still use it; stop that first", path, describeHolder(pid, command)).
				With("pid", strconv.Itoa(pid)).With("command", command).With("path", path)
		}
		return nil, nil //nolint:nilnil // no file is a file here
	}
	return openLocked(ctx, path, os.O_RDWR, syscall.LOCK_EX, checkLockWait)
}

// The names of files that whoever has the lock of a store makes beside it, and removes or
// renames.
const (
	restoreTemp = "restore"
	compactTemp = "compact"
	upgradeTemp = "upgrade"
	copyTemp    = "copy"
	witnessTemp = "witness"
)

func tempPattern(path, use string) string {
	return "." + filepath.Base(path) + "." + use + "-*"
}

// sweepTemps removes what was left by a process that was killed. The caller has the lock.
func sweepTemps(path string) {
	for _, use := range []string{restoreTemp, compactTemp, upgradeTemp, copyTemp, witnessTemp} {
		pattern := tempPattern(path, use)
		for _, name := range []string{pattern, tempPattern(pattern, upgradeTemp)} { // a copy is upgraded before it is restored
			left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), name))
			for _, name := range left {
				_ = os.Remove(name)
			}
		}
	}
}

// bringIn copies a file beside the store and reads it whole.
func bringIn(ctx context.Context, from, path string) (temp string, err error) {
	in, err := os.Open(from)
	if err != nil {
		return "", jobs.Errorf(jobs.CodeFileNotFound, "the copy cannot be read: %v", err)
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", jobs.Errorf(jobs.CodeRequestInvalid, "%s is not a regular file", from)
	} else if err := roomFor(path, info.Size()); err != nil {
		return "", err
	}
	out, err := os.CreateTemp(filepath.Dir(path), tempPattern(path, restoreTemp))
	if err != nil {
		return "", cannotRestore(path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	_, err = io.Copy(whileWanted{ctx, out}, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return "", copyError(ctx, path, err)
	}
	if err := restorable(out.Name(), from); err != nil {
		return "", err
	}
	return out.Name(), nil
}

// restorable refuses a copy, which was made of the file from, in which something is wrong.
func restorable(copied, from string) error {
	problems, err := Check(copied)
	if err != nil || len(problems) == 0 {
		return err
	}
	return jobs.Errorf(jobs.CodeStoreFailed, "%s is damaged and is not restored: %s%s; take an older copy, or put it in the place of the store yourself and adopt it",
		from, problems[0], more(len(problems)-1)).With("path", from)
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more problems; macexec store check lists them)", n)
}

// adoptAside upgrades a copy, if need be, and adopts it before it is in its place, with
// what the store that it replaces knows; nil: there is none.
func adoptAside(ctx context.Context, temp, from string, o AdoptOptions, known *witness, replaced *os.File) (a Adoption, err error) {
	s, err := openAs(ctx, Options{Path: temp}, aside)
	if err != nil {
		return a, err
	}
	var overtaken []string
	var unread string
	if replaced != nil {
		overtaken, unread, err = s.overtake(ctx, replaced)
	}
	if err == nil {
		a, err = s.adoption(ctx, o, known)
		a.Overtaken, a.Unread = overtaken, unread
	}
	if err := errors.Join(err, s.Close()); err != nil {
		return a, err
	}
	left, _ := filepath.Glob(temp + ".v*.bak") // the copy itself is what it was made of
	for _, name := range left {
		_ = os.Remove(name)
	}
	if len(left) > 0 { // it was upgraded
		return a, restorable(temp, from)
	}
	return a, nil
}

// keepAside gives the store that is there a second name, which it keeps once another
// one has its place.
func keepAside(path string) (kept string, err error) {
	kept = path + ".before-restore-" + time.Now().UTC().Format("20060102T150405.000Z")
	if err := os.Link(path, kept); err != nil {
		return "", err
	}
	return kept, syncFolder(filepath.Dir(path))
}
