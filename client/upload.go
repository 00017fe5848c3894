package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Upload stores a local file on the host, and returns how arguments name it; see
// UploadFrom.
func (c *Client) Upload(ctx context.Context, path string, options ...TransferOption) (*macexecv1.FileInfo, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return c.UploadFrom(ctx, file, options...)
}

// Reference is how arguments name a local file once it is uploaded. Nothing is sent.
func Reference(ctx context.Context, path string) (string, error) {
	file, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	digest, _, err := digestOf(ctx, file)
	return "sha256:" + digest, err
}

// openRegular opens a regular file, or a link to one. Nothing else has an end that can be
// gone back from, and a pipe would hold the opening until somebody writes.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "upload", Path: path, Err: errors.New("it is no regular file")}
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func digestOf(ctx context.Context, content io.ReaderAt) (digest string, size int64, err error) {
	sum := sha256.New()
	size, err = copyAt(ctx, sum, content, math.MaxInt64)
	return hex.EncodeToString(sum.Sum(nil)), size, err
}

// UploadFrom stores content on the host, and returns how arguments name it. It reads
// the content first for its digest. Nothing is sent if the host already has it from
// this principal; and what an earlier upload brought over, by whatever process, is
// not sent again. When the line breaks the upload goes on from where the host says it
// stands, until there has been nothing but failure for the client's patience, or ctx
// ends. A host that somebody drains refuses new uploads, and that is told at once.
func (c *Client) UploadFrom(ctx context.Context, content io.ReaderAt, options ...TransferOption) (*macexecv1.FileInfo, error) {
	digest, size, err := digestOf(ctx, content)
	if err != nil {
		return nil, err
	}
	u := &upload{c: c, transfer: transferOf(options), content: content, size: size, digest: digest}
	err = c.repeat(ctx, func() (bool, error) { return u.try(ctx) }, u.again)
	return u.stored, err
}

// copyAt copies the first limit bytes of content, or all if there are fewer, in
// pieces, so that ctx is heard in between.
func copyAt(ctx context.Context, w io.Writer, content io.ReaderAt, limit int64) (int64, error) {
	r := io.NewSectionReader(content, 0, limit)
	buf := make([]byte, chunkSize)
	for total := int64(0); ; {
		if err := context.Cause(ctx); err != nil {
			return total, err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// upload is a file on its way over.
type upload struct {
	transfer

	c       *Client
	content io.ReaderAt
	digest  string
	size    int64

	reached bool  // the host has answered once
	offset  int64 // where the upload stood last, by the host's word
	most    int64 // the most that ever was there
	trusted bool  // something has come in since bytes were counted before the host had named them
	anew    bool  // it has begun anew because what had come in was wrong
	stored  *macexecv1.FileInfo
}

// try asks where the upload stands and sends the rest. It achieved something if more
// had come in than ever before. What it sends itself is nothing yet, since it may have
// got no further than the way: only once in a row does it count before the host has
// named it, so that a long try that breaks begins the patience anew.
func (u *upload) try(ctx context.Context) (achieved bool, err error) {
	before := u.most
	if err := u.stat(ctx); err != nil || u.stored != nil {
		return false, err
	}
	u.trusted = u.trusted || u.most > before
	sent, err := u.send(ctx)
	if e, ok := errors.AsType[*Error](err); ok && e.Code() == codeUploadInProgress {
		u.letPass(ctx)
	}
	achieved = u.most > before
	if !achieved && sent > chunkSize && u.trusted {
		achieved, u.trusted = true, false
	}
	return achieved, err
}

func (u *upload) stat(ctx context.Context) error {
	resp, err := u.c.Files.StatUpload(ctx, &macexecv1.StatUploadRequest{Sha256: u.digest, Size: u.size})
	if err != nil {
		return err
	}
	u.reached = true
	u.offset, u.stored = resp.GetOffset(), resp.GetFile()
	u.most = max(u.most, u.offset)
	u.progress(u.offset, u.size)
	return nil
}

// again reports whether a failure can be mended by another try.
func (u *upload) again(e *Error) bool {
	switch {
	case e.NotReached():
		return u.reached
	case e.Code() == "HOST_DRAINING" && e.Detail.GetMetadata()["mode"] != "":
		return false // somebody drains the host, which lasts; a daemon that only stops names no mode
	case interrupted(e), e.Code() == codeUploadInProgress:
		return true
	case e.Detail.GetMetadata()["field"] == "start.offset":
		return true // it has moved since we asked
	case e.Code() == "DIGEST_MISMATCH" && u.offset > 0 && !u.anew:
		// What had come in before is not what was sent, as after a power cut. The host
		// has dropped it.
		u.anew, u.offset, u.most = true, 0, 0
		return true
	default:
		return false
	}
}

// codeUploadInProgress: another stream sends the same bytes.
const codeUploadInProgress = "UPLOAD_IN_PROGRESS"

// letPass waits while another stream of the same upload brings it on, and returns
// when the file is there or nothing has moved for a while.
func (u *upload) letPass(ctx context.Context) {
	const look, patience = 250 * time.Millisecond, 3 * time.Second
	for still := time.Duration(0); still < patience; still += look {
		select {
		case <-ctx.Done():
			return
		case <-time.After(look):
		}
		before := u.offset
		if err := u.stat(ctx); err != nil || u.stored != nil {
			return // the next try finds the same
		}
		if u.offset > before {
			still = 0
		}
	}
}

// send opens a stream and sends what is missing.
func (u *upload) send(ctx context.Context) (sent int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := u.c.Files.UploadFile(ctx)
	if err != nil {
		return 0, err
	}
	// A failed Send only says io.EOF; CloseAndRecv has the reason.
	err = stream.Send(&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: &macexecv1.UploadStart{
		Sha256: u.digest, Size: new(u.size), Offset: u.offset,
	}}})
	rest := io.NewSectionReader(u.content, u.offset, u.size-u.offset)
	for buf := make([]byte, chunkSize); err == nil && u.offset+sent < u.size; {
		n, readErr := io.ReadFull(rest, buf[:min(chunkSize, u.size-u.offset-sent)])
		if readErr != nil {
			return sent, fmt.Errorf("the file changed while it was uploaded: %w", readErr)
		}
		if err = stream.Send(&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Chunk{Chunk: buf[:n]}}); err == nil {
			sent += int64(n)
			u.progress(u.offset+sent, u.size)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err == nil {
		u.stored = resp.GetFile()
	}
	return sent, err
}
