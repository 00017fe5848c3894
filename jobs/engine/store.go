package engine

import (
	"context"
	"os"
	"strings"

	"github.com/macexec/macexec/jobs"
)

// BackupStore makes a copy of the store. Who takes one is written down first, so that
// the copy tells it as well.
func (e *Engine) BackupStore(ctx context.Context, c Caller) (jobs.StoreCopy, error) {
	if err := e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Principal: c.Principal, Message: "a copy of the store is taken"}); err != nil {
		return jobs.StoreCopy{}, err
	}
	return e.store.Copy(ctx)
}

// takeUpRestore holds what has outside effects back while the store may have forgotten
// something: what waits, and what comes.
func (e *Engine) takeUpRestore(ctx context.Context) error {
	r, err := e.store.Restored(ctx)
	switch {
	case jobs.CodeOf(err) == jobs.CodeRecordDamaged:
		e.log.Error("whether the store was restored cannot be read; calls with outside effects wait for an operator's word", "error", err)
	case err != nil:
		return err
	case r == nil:
		return nil
	default:
		e.log.Warn("the store was restored and may have forgotten what was done; calls with outside effects wait for an operator's word", "reason", r.Reason, "at", r.At)
	}
	e.sched.holdBack()
	return nil
}

// forgetful says why the store may have forgotten something, or nil.
func (e *Engine) forgetful(ctx context.Context) *jobs.Restore {
	r, err := e.store.Restored(ctx)
	if err != nil {
		return &jobs.Restore{Reason: "why the store was restored cannot be read"}
	}
	return r
}

// ConfirmRestore takes an operator's word that what a restored store has forgotten is
// dealt with, and returns what was confirmed; nil: there was nothing.
func (e *Engine) ConfirmRestore(ctx context.Context, c Caller, reason string) (*jobs.Restore, error) {
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	if strings.TrimSpace(reason) == "" {
		return nil, jobs.Errorf(jobs.CodeRequestInvalid, "say in the reason how what was forgotten was dealt with; the journal keeps it").With("field", "reason")
	}
	r, err := e.store.ConfirmRestore(context.WithoutCancel(ctx), c.Principal, reason)
	if err != nil {
		return nil, err
	}
	e.sched.trust()
	e.dispatch()
	return r, nil
}

// StoreUse is what the records and the files of jobs take.
type StoreUse struct {
	jobs.StoreDescription

	JobFolders, JobBytes int64 // with logs, and artifacts that were not published
	Blobs, BlobBytes     int64 // uploads
	Trash                []TrashUse
	Head                 uint64
}

// DescribeStore measures what the state folder holds. It reads the whole store and lists
// every folder of a job.
func (e *Engine) DescribeStore(ctx context.Context, _ Caller) (use StoreUse, err error) {
	if use.StoreDescription, err = e.store.Describe(ctx); err != nil {
		return use, err
	}
	use.Head = e.store.Head()
	folders, err := os.ReadDir(e.exec.Root())
	if err != nil {
		return use, jobs.Errorf(jobs.CodeInternal, "list the folders of jobs: %w", err)
	}
	for _, folder := range folders {
		if ctx.Err() != nil {
			return use, callerGone(ctx.Err())
		}
		use.JobFolders++
		use.JobBytes += folderBytes(e.exec.JobDir(folder.Name()))
	}
	for first := range 256 {
		digests, err := e.blobs.Shelf(byte(first))
		if err != nil {
			return use, err
		}
		for _, digest := range digests {
			if blob, err := e.store.GetBlob(ctx, digest); err == nil {
				use.Blobs++
				use.BlobBytes += blob.Size
			}
		}
	}
	use.Trash, err = e.trashUse(ctx)
	return use, err
}
