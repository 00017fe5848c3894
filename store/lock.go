package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/macexec/macexec/jobs"
)

// lockPoll is the time between two tries to get the lock; flock has no wait with a
// time limit.
const lockPoll = 20 * time.Millisecond

// holderSuffix names the file beside a store in which the process that has the
// lock says who it is. It is a remark for people: the lock itself is the truth.
const holderSuffix = ".holder"

// openLocked opens an existing file and locks it, waiting at most wait. It never
// creates a file. Whoever closes the file gives the lock back.
func openLocked(ctx context.Context, path string, flag, how int, wait time.Duration) (*os.File, error) {
	deadline := time.Now().Add(wait)
	for {
		f, err := os.OpenFile(path, flag&^os.O_CREATE, 0)
		if err != nil {
			return nil, jobs.Errorf(jobs.CodeStoreFailed, "the store cannot be opened: %w", err).With("path", path)
		}
		if err := lockFile(ctx, f, path, how, deadline); err != nil {
			_ = f.Close()
			return nil, err
		}
		// Another file may have been put there while this one waited.
		if mine, err := f.Stat(); err == nil {
			if now, err := os.Stat(path); err == nil && os.SameFile(mine, now) {
				return f, nil
			}
		}
		_ = f.Close()
	}
}

// closeLocked gives the lock back and closes the file. Closing alone would not do
// it after a panic of bbolt, since the mapping that is left keeps the file open.
func closeLocked(f *os.File) error {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	return f.Close()
}

func lockFile(ctx context.Context, f *os.File, path string, how int, deadline time.Time) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return jobs.Errorf(jobs.CodeStoreFailed, "the store %s cannot be locked: %w", path, err).With("path", path)
		case !time.Now().Before(deadline):
			return heldError(f, path)
		}
		select {
		case <-ctx.Done():
			return contextError(ctx)
		case <-time.After(min(lockPoll, time.Until(deadline))):
		}
	}
}

// heldError says who holds a store, as far as that can be found.
func heldError(f *os.File, path string) error {
	pid, command := lockHolder(f)
	if pid == 0 {
		pid, command = readHolder(path)
	}
	err := jobs.Errorf(jobs.CodeStoreFailed, "the store %s is in use by %s; stop that process or ask the daemon instead", path, describeHolder(pid, command))
	if pid != 0 {
		err = err.With("pid", strconv.Itoa(pid)).With("command", command)
	}
	return err.With("path", path)
}

// Holder says which process has a store, if one has; its pid is 0 if nobody can tell.
func Holder(path string) (pid int, command string, held bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", false
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, "", false // closing it gives the lock back
	}
	if pid, command = lockHolder(f); pid == 0 {
		pid, command = readHolder(path)
	}
	return pid, command, true
}

func describeHolder(pid int, command string) string {
	switch {
	case pid == 0:
		return "another process, which is unknown"
	case command == "":
		return fmt.Sprintf("process %d", pid)
	default:
		return fmt.Sprintf("process %d (%s)", pid, command)
	}
}

// writeHolder says who has the lock of a store. Its file is locked as long as that holds,
// since the number of a process that was killed may be another one's by now.
func writeHolder(path string) (holder *os.File, err error) {
	holder, err = os.OpenFile(path+holderSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	command := strings.ReplaceAll(strings.Join(os.Args, " "), "\n", " ")
	err = errors.Join(syscall.Flock(int(holder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), holder.Truncate(0))
	if err == nil {
		_, err = fmt.Fprintf(holder, "%d\n%s\n", os.Getpid(), command)
	}
	if err != nil {
		_ = holder.Close()
		return nil, err
	}
	return holder, nil
}

// removeHolder takes back what writeHolder said; nil is nothing.
func removeHolder(holder *os.File) {
	if holder != nil {
		_ = os.Remove(holder.Name())
		_ = closeLocked(holder)
	}
}

// readHolder returns what the lock's holder said about itself, or 0 if it said
// nothing or lives no more.
func readHolder(path string) (pid int, command string) {
	f, err := os.Open(path + holderSuffix)
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, ""
	}
	raw, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return 0, ""
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	if pid, err = strconv.Atoi(first); err != nil || pid <= 0 {
		return 0, ""
	}
	return pid, strings.TrimSpace(rest)
}
