package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"google.golang.org/grpc"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Download copies a file of the host to path, where nothing may be, unless Replace is
// given; and then nothing but a regular file. Until everything has arrived and its digest is right path stays as it is;
// then the file appears there in one step. What has arrived lies beside it meanwhile,
// in path.part, and path.part.json says what it is a part of: a broken download goes
// on where it was, also in another process. Nothing else is left behind, and neither
// of the two once the file is there.
func (c *Client) Download(ctx context.Context, reference, path string, options ...TransferOption) (*macexecv1.FileInfo, error) {
	t := transferOf(options)
	info, err := c.Stat(ctx, reference)
	if err != nil {
		return nil, err
	}
	if info.GetFolder() {
		return nil, fmt.Errorf("%s is a folder, not a file", reference)
	}
	if t.replace {
		if err := mayReplace(path); err != nil {
			return nil, err
		}
	}
	p, err := openPart(path, info)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if _, err := os.Lstat(path); err == nil && !t.replace {
		if p.wasPlaced(ctx) || t.keep && holds(ctx, path, info) {
			return info, p.remove()
		}
		return nil, errors.Join(&fs.PathError{Op: opDownload, Path: path, Err: fs.ErrExist}, p.removeEmpty())
	}
	if err := c.fill(ctx, p, t); err != nil {
		return nil, errors.Join(err, p.removeEmpty())
	}
	return info, p.place(t.replace)
}

// fill brings over what a part lacks, and proves the whole. A part that an earlier
// run left and that turns out to be wrong is brought over anew, once.
func (c *Client) fill(ctx context.Context, p *part, t transfer) error {
	for {
		had, err := p.size()
		if err != nil {
			return err
		}
		sum := sha256.New()
		if _, err := copyAt(ctx, sum, p.f, had); err != nil {
			return err
		}
		if _, err := c.downloadRaw(ctx, p.Reference, had, io.MultiWriter(p.f, sum), t); err != nil {
			return err
		}
		if digest := hex.EncodeToString(sum.Sum(nil)); digest != p.SHA256 {
			if err := p.f.Truncate(0); err != nil {
				return err
			}
			if had == 0 {
				return fmt.Errorf("%s arrived with the digest %s, and it has %s", p.Reference, digest, p.SHA256)
			}
			continue
		}
		return nil
	}
}

// Fetch writes the content of a file of the host to w. It returns an error after
// the last byte if the digest is not the announced one, so what was written counts
// only when there is none. Of a folder it writes the tar, whose digest nobody knows.
func (c *Client) Fetch(ctx context.Context, reference string, w io.Writer) (*macexecv1.FileInfo, error) {
	sum := sha256.New()
	info, err := c.DownloadRaw(ctx, reference, 0, io.MultiWriter(w, sum))
	if digest := hex.EncodeToString(sum.Sum(nil)); err == nil && !info.GetFolder() && digest != info.GetSha256() {
		err = fmt.Errorf("%s arrived with the digest %s, and it has %s", reference, digest, info.GetSha256())
	}
	return info, err
}

// DownloadRaw writes what a download sends after its first offset bytes to w: a file
// as it is, a folder as a tar. A broken download goes on where it was. There are as
// many bytes as announced if there is no error; their digest is the caller's to
// compare.
func (c *Client) DownloadRaw(ctx context.Context, reference string, offset int64, w io.Writer, options ...TransferOption) (*macexecv1.FileInfo, error) {
	return c.downloadRaw(ctx, reference, offset, w, transferOf(options))
}

func (c *Client) downloadRaw(ctx context.Context, reference string, offset int64, w io.Writer, t transfer) (*macexecv1.FileInfo, error) {
	got := receiver{at: offset, w: w, transfer: t}
	req := &macexecv1.DownloadFileRequest{Reference: reference, Offset: offset}
	err := follow(ctx, c, stream[macexecv1.DownloadFileResponse, int64]{
		open: func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.DownloadFileResponse], error) {
			return c.Files.DownloadFile(ctx, req)
		},
		take: func(resp *macexecv1.DownloadFileResponse) error {
			err := got.take(resp)
			req.Offset = got.at
			return err
		},
		at: req.GetOffset,
	})
	switch {
	case err != nil:
		return nil, err
	case got.info == nil:
		return nil, errors.New("the daemon did not describe the file")
	case got.at != got.info.GetTransferSize():
		return nil, fmt.Errorf("%d bytes of %s arrived, and there are %d", got.at, reference, got.info.GetTransferSize())
	default:
		return got.info, nil
	}
}

// receiver puts the pieces of a download together.
type receiver struct {
	transfer

	info *macexecv1.FileInfo
	at   int64
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
	if resp.GetOffset() != r.at {
		return fmt.Errorf("the daemon sent bytes from %d on, and those from %d on were asked for", resp.GetOffset(), r.at)
	}
	n, err := r.w.Write(resp.GetChunk())
	r.at += int64(n)
	r.progress(r.at, r.info.GetTransferSize())
	return err
}
