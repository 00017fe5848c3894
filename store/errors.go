package store

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/macexec/macexec/jobs"
)

func errClosed() error {
	return jobs.Errorf(jobs.CodeStoreFailed, "the store is closed")
}

func errFailed(why error) error {
	return jobs.Errorf(jobs.CodeStoreFailed, "the store failed before and takes nothing more: %w", why)
}

// errDamaged refuses a file that is damaged, or that is no store. Moving it away helps
// nobody: its witness says that there was one.
func errDamaged(path string, why error) error {
	return jobs.Errorf(jobs.CodeStoreFailed,
		"the store %s is damaged or is no store, and is left as it is: %v; macexec store check lists what is wrong. Restore a copy: macexec store restore FILE", path, why).With("path", path)
}

func jobNotFound(id string) error {
	return jobs.Errorf(jobs.CodeJobNotFound, "there is no job %s", id).WithJob(id)
}

// contextError is the answer to a caller that stopped waiting before its
// operation was taken up: nothing was done.
func contextError(ctx context.Context) error {
	code := jobs.CodeCallerGone
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = jobs.CodeDeadline
	}
	return jobs.Errorf(code, "nothing was done: %w", ctx.Err())
}

// isNoSpace reports whether an error means that the disk is full. bbolt keeps only
// the text of some errors.
func isNoSpace(err error) bool {
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, full) || strings.HasSuffix(err.Error(), full.Error()) {
			return true
		}
	}
	return false
}
