package client

import (
	"context"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// chunkSize is how much of a file goes in one message. A message that is cut in two is
// lost, so it is no larger than it must be to be fast.
const chunkSize = 64 << 10

// A TransferOption changes how a file is moved.
type TransferOption func(*transfer)

type transfer struct {
	progress func(done, total int64)
	replace  bool
	keep     bool
}

func transferOf(options []TransferOption) transfer {
	t := transfer{progress: func(int64, int64) {}}
	for _, o := range options {
		o(&t)
	}
	return t
}

// OnProgress has f called now and then with how many of the bytes have gone over.
// The number begins with what had gone over before, and may step back when bytes were
// lost on the way.
func OnProgress(f func(done, total int64)) TransferOption {
	return func(t *transfer) { t.progress = f }
}

// Replace lets a download take the place of a file that is there.
func Replace() TransferOption { return func(t *transfer) { t.replace = true } }

// KeepSame makes a download content with what is at its path already, if that is the
// very same.
func KeepSame() TransferOption { return func(t *transfer) { t.keep = true } }

// Stat describes a file of the host.
func (c *Client) Stat(ctx context.Context, reference string) (*macexecv1.FileInfo, error) {
	resp, err := c.Files.StatFile(ctx, &macexecv1.StatFileRequest{Reference: reference})
	if err != nil {
		return nil, err
	}
	return resp.GetFile(), nil
}
