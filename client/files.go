package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/google/renameio/v2"
	"google.golang.org/grpc"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// chunkSize is how much of a file goes in one message.
const chunkSize = 256 << 10

// Upload stores a local file on the host, and returns how arguments name it. It
// reads the file first for its digest, and sends nothing if the host already has
// that content from this principal. A broken upload is begun again.
func (c *Client) Upload(ctx context.Context, path string) (*macexecv1.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return nil, err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	known, err := c.Stat(ctx, "sha256:"+digest)
	if err == nil {
		return known, nil
	}
	if e, ok := errors.AsType[*Error](err); !ok || e.Code() != "FILE_NOT_FOUND" {
		return nil, err
	}
	var stored *macexecv1.FileInfo
	err = c.repeat(ctx, func() (bool, error) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return false, err
		}
		var err error
		stored, err = c.upload(ctx, &macexecv1.UploadStart{Sha256: digest, Size: new(size)}, file)
		return false, err
	}, interrupted)
	return stored, err
}

func (c *Client) upload(ctx context.Context, start *macexecv1.UploadStart, content io.Reader) (*macexecv1.FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Files.UploadFile(ctx)
	if err != nil {
		return nil, err
	}
	// A failed Send only says io.EOF; CloseAndRecv has the reason.
	err = stream.Send(&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: start}})
	for buf := make([]byte, chunkSize); err == nil; {
		n, readErr := io.ReadFull(content, buf)
		if n > 0 {
			err = stream.Send(&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Chunk{Chunk: buf[:n]}})
		}
		if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
			break
		}
		if readErr != nil {
			return nil, readErr
		}
	}
	resp, err := stream.CloseAndRecv()
	if err != nil {
		return nil, err
	}
	return resp.GetFile(), nil
}

// Stat describes a file of the host.
func (c *Client) Stat(ctx context.Context, reference string) (*macexecv1.FileInfo, error) {
	resp, err := c.Files.StatFile(ctx, &macexecv1.StatFileRequest{Reference: reference})
	if err != nil {
		return nil, err
	}
	return resp.GetFile(), nil
}

// Download copies a file of the host to path. A file that is there is replaced, in
// one step, once everything has arrived and its digest is right; until then path
// stays as it is. A broken download goes on where it was.
func (c *Client) Download(ctx context.Context, reference, path string) (*macexecv1.FileInfo, error) {
	temp, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return nil, err
	}
	defer temp.Cleanup() //nolint:errcheck // nothing to do after the rename, nothing to save before it
	info, err := c.Fetch(ctx, reference, temp)
	if err != nil {
		return nil, err
	}
	return info, temp.CloseAtomicallyReplace()
}

// Fetch writes the content of a file of the host to w. It returns an error after
// the last byte if the digest is not the announced one, so what was written counts
// only when there is none.
func (c *Client) Fetch(ctx context.Context, reference string, w io.Writer) (*macexecv1.FileInfo, error) {
	got := receiver{sum: sha256.New(), w: w}
	req := &macexecv1.DownloadFileRequest{Reference: reference}
	err := follow(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.DownloadFileResponse], error) {
		return c.Files.DownloadFile(ctx, req)
	}, func(resp *macexecv1.DownloadFileResponse) error {
		err := got.take(resp)
		req.Offset = got.size
		return err
	}, always)
	if err != nil {
		return nil, err
	}
	return got.info, got.verify()
}

// receiver puts the pieces of a download together.
type receiver struct {
	info *macexecv1.FileInfo
	sum  hash.Hash
	size int64
	w    io.Writer
}

func (r *receiver) take(resp *macexecv1.DownloadFileResponse) error {
	if info := resp.GetFile(); info != nil {
		if r.info != nil && r.info.GetSha256() != info.GetSha256() {
			return fmt.Errorf("%s changed while it was downloaded", info.GetReference())
		}
		r.info = info
	}
	if len(resp.GetChunk()) == 0 {
		return nil
	}
	if resp.GetOffset() != r.size {
		return fmt.Errorf("the daemon sent bytes from %d on, and those from %d on were asked for", resp.GetOffset(), r.size)
	}
	n, err := io.MultiWriter(r.sum, r.w).Write(resp.GetChunk())
	r.size += int64(n)
	return err
}

func (r *receiver) verify() error {
	switch digest := hex.EncodeToString(r.sum.Sum(nil)); {
	case r.info == nil:
		return errors.New("the daemon did not describe the file")
	case r.size != r.info.GetSize():
		return fmt.Errorf("%d bytes of %s arrived, and it has %d", r.size, r.info.GetReference(), r.info.GetSize())
	case digest != r.info.GetSha256():
		return fmt.Errorf("%s arrived with the digest %s, and it has %s", r.info.GetReference(), digest, r.info.GetSha256())
	default:
		return nil
	}
}
