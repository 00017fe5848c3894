package engine

import (
	"context"
	"errors"
	"strconv"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// Upload is a file on its way in.
type Upload struct {
	e   *Engine
	c   Caller
	req UploadRequest
	w   *files.BlobWriter
}

// Upload begins to take a file in, and has room for all of it if its size was
// announced. With digest and size what comes in is kept for the caller's principal
// when the stream ends early, over a restart too, and another one goes on at the
// offset that StatUpload says; otherwise nothing is kept unless Commit succeeds.
//
// Of two streams of the same upload the newer one counts, because the older one is
// mostly a connection whose death nobody has noticed: what it writes from then on is
// CodeUploadInProgress. The newer one gets that itself only while the older one is
// being committed.
func (e *Engine) Upload(ctx context.Context, c Caller, req UploadRequest) (*Upload, error) {
	if err := refusedBy(e.currentMode()); err != nil {
		return nil, err // no new call could use it
	}
	most := e.limits().UploadBytes
	if req.Size > most {
		return nil, jobs.Errorf(jobs.CodeFileTooLarge, "the file has %d bytes; this host takes %d", req.Size, most)
	}
	u := &Upload{e: e, c: c, req: req}
	var err error
	switch {
	case req.SHA256 != "" && req.Size >= 0:
		u.w, err = e.blobs.Resume(ctx, uploadID(c, req.SHA256, req.Size), req.Offset)
	case req.Offset != 0:
		return nil, jobs.Errorf(jobs.CodeRequestInvalid, "start.offset is %d, but only an upload that names its digest and size can be gone on with", req.Offset).With("field", offsetField)
	case req.Size >= 0:
		u.w, err = e.blobs.Create(req.Size, true)
	default:
		u.w, err = e.blobs.Create(most, false)
	}
	if err != nil {
		return nil, uploadFault("begun", err)
	}
	return u, nil
}

// offsetField is what errors call an offset that is not where the upload stands.
const offsetField = "start.offset"

func uploadID(c Caller, digest string, size int64) files.UploadID {
	return files.UploadID{Owner: c.Principal, SHA256: digest, Size: size}
}

// StatUpload says how much of an upload of the caller's principal has come in, or
// that the file is there. A file that is there is as good as stored anew: it stays
// long enough for a call that names it.
func (e *Engine) StatUpload(ctx context.Context, c Caller, digest string, size int64) (UploadStatus, error) {
	e.shelves.RLock()
	defer e.shelves.RUnlock()
	info, err := e.StatFile(ctx, c, blobPrefix+digest)
	switch {
	case jobs.CodeOf(err) == jobs.CodeFileNotFound:
		return UploadStatus{Offset: e.blobs.Offset(uploadID(c, digest, size))}, nil
	case err != nil:
		return UploadStatus{}, err
	case info.Size != size:
		return UploadStatus{}, jobs.Errorf(jobs.CodeRequestInvalid, "size is %d, but the file of that digest has %d bytes", size, info.Size).With("field", "size")
	}
	// GetBlob again: what is found here cannot be collected while shelves is held.
	blob, err := e.store.GetBlob(ctx, digest)
	if err == nil && e.deadlines.most().Sub(blob.LastUse()) > e.limits().BlobUnused/2 {
		blob.Principals, blob.StoredAt = []string{c.Principal}, e.deadlines.most()
		err = e.store.PutBlob(context.WithoutCancel(ctx), blob)
	}
	return UploadStatus{File: &info, Offset: size}, err
}

// Write takes the next bytes.
func (u *Upload) Write(p []byte) (int, error) {
	n, err := u.w.Write(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, files.ErrTooLarge) && u.req.Size >= 0:
		u.w.Drop()
		return n, jobs.Errorf(jobs.CodeDigestMismatch, "the file was announced with %d bytes, and more came", u.req.Size)
	case errors.Is(err, files.ErrTooLarge):
		return n, jobs.Errorf(jobs.CodeFileTooLarge, "the file has more than the %d bytes that this host takes", u.e.limits().UploadBytes)
	default:
		return n, uploadFault("written", err)
	}
}

// Commit checks the bytes against what was announced, makes them durable, and
// records them for the caller. Bytes that do not have the announced digest are
// dropped.
func (u *Upload) Commit(ctx context.Context) (jobs.Blob, error) {
	if size := u.w.Size(); u.req.Size >= 0 && size != u.req.Size {
		return jobs.Blob{}, jobs.Errorf(jobs.CodeDigestMismatch, "the file was announced with %d bytes, and only %d came", u.req.Size, size)
	}
	kept, err := u.w.Seal(ctx, u.req.SHA256)
	if errors.Is(err, files.ErrDigest) {
		return jobs.Blob{}, jobs.Errorf(jobs.CodeDigestMismatch, "the bytes received do not have the digest %s that was announced", u.req.SHA256)
	}
	if err != nil {
		return jobs.Blob{}, uploadFault("stored", err)
	}
	blob := jobs.Blob{SHA256: kept.SHA256, Size: kept.Size, MediaType: kept.MediaType, Principals: []string{u.c.Principal}, StoredAt: u.e.deadlines.most()}
	u.e.shelves.RLock()
	defer u.e.shelves.RUnlock()
	// The record first: after a crash in between the bytes are still where the upload
	// is gone on with, and until then a record without a file is a file not found.
	if err := u.e.store.PutBlob(context.WithoutCancel(ctx), blob); err != nil {
		return jobs.Blob{}, err
	}
	if err := u.w.Shelve(kept); err != nil {
		return jobs.Blob{}, uploadFault("stored", err)
	}
	return blob, nil
}

// Abort ends the upload, and keeps what came in if it can be gone on with. After
// Commit it does nothing.
func (u *Upload) Abort() { u.w.Abort() }

// uploadFault tells what a caller can do about from faults of this host.
func uploadFault(what string, err error) error {
	if offset, ok := errors.AsType[*files.OffsetError](err); ok {
		return jobs.Errorf(jobs.CodeRequestInvalid, "%s is %d, but the upload stands at %d", offsetField, offset.Offset, offset.Stands).
			With("field", offsetField).With("offset", strconv.FormatInt(offset.Stands, 10))
	}
	if room, ok := errors.AsType[*files.RoomError](err); ok {
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for the upload: %d bytes are missing", room.Missing).
			With("missing_bytes", strconv.FormatInt(room.Missing, 10))
	}
	switch {
	case startReason(err) == jobs.EndDiskFull:
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for the upload: %w", err)
	case errors.Is(err, files.ErrTakenOver), errors.Is(err, files.ErrFinishing):
		return jobs.Errorf(jobs.CodeUploadInProgress, "%s; ask how far it is before going on with it", plainMessage(err))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return jobs.Errorf(jobs.CodeCallerGone, "the upload was cut short: %w", err)
	default:
		return jobs.Errorf(jobs.CodeInternal, "the upload cannot be %s: %w", what, err)
	}
}
