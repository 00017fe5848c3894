package engine

import (
	"context"
	"errors"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// Upload is a file on its way in. Nothing of it is kept unless Commit succeeds.
type Upload struct {
	e   *Engine
	c   Caller
	req UploadRequest
	w   *files.BlobWriter
}

// Upload begins to take a file in.
func (e *Engine) Upload(ctx context.Context, c Caller, req UploadRequest) (*Upload, error) {
	if req.Size > e.limits().UploadBytes {
		return nil, jobs.Errorf(jobs.CodeFileTooLarge, "the file has %d bytes; this host takes %d", req.Size, e.limits().UploadBytes)
	}
	w, err := e.blobs.Create(ctx, e.limits().UploadBytes)
	if err != nil {
		return nil, uploadFault("begun", err)
	}
	return &Upload{e: e, c: c, req: req, w: w}, nil
}

// Write takes the next bytes.
func (u *Upload) Write(p []byte) (int, error) {
	n, err := u.w.Write(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, files.ErrTooLarge):
		return n, jobs.Errorf(jobs.CodeFileTooLarge, "the file has more than the %d bytes that this host takes", u.e.limits().UploadBytes)
	default:
		return n, uploadFault("written", err)
	}
}

// Commit checks the bytes against what was announced, makes them durable, and
// records them for the caller.
func (u *Upload) Commit(ctx context.Context) (jobs.Blob, error) {
	kept, err := u.w.Commit(ctx, u.req.SHA256)
	if errors.Is(err, files.ErrDigest) {
		return jobs.Blob{}, jobs.Errorf(jobs.CodeDigestMismatch, "the bytes received do not have the digest %s that was announced", u.req.SHA256)
	}
	if err != nil {
		return jobs.Blob{}, uploadFault("stored", err)
	}
	blob := jobs.Blob{SHA256: kept.SHA256, Size: kept.Size, MediaType: kept.MediaType, Principals: []string{u.c.Principal}, StoredAt: u.e.now()}
	return blob, u.e.store.PutBlob(context.WithoutCancel(ctx), blob)
}

// uploadFault tells a full disk from a caller that went away and from other faults.
func uploadFault(what string, err error) error {
	switch {
	case startReason(err) == jobs.EndDiskFull:
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for the upload: %w", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return jobs.Errorf(jobs.CodeCallerGone, "the upload was cut short: %w", err)
	default:
		return jobs.Errorf(jobs.CodeInternal, "the upload cannot be %s: %w", what, err)
	}
}

// Abort gives the upload up; after Commit it does nothing.
func (u *Upload) Abort() { u.w.Abort() }
