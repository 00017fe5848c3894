package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// BackupStore writes a whole copy of the daemon's store to w. What was written counts
// only when there is no error. It is not repeated: another try would be another copy.
func (c *Client) BackupStore(ctx context.Context, w io.Writer) (*macexecv1.StoreCopy, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Store.BackupStore(ctx, &macexecv1.BackupStoreRequest{})
	if err != nil {
		return nil, err
	}
	var what *macexecv1.StoreCopy
	var size int64
	sum := sha256.New()
	for {
		next, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if next.GetCopy() != nil {
			what = next.GetCopy()
		}
		sum.Write(next.GetChunk())
		n, err := w.Write(next.GetChunk())
		if size += int64(n); err != nil {
			return nil, err
		}
	}
	if digest := hex.EncodeToString(sum.Sum(nil)); size != what.GetSize() || digest != what.GetSha256() {
		return nil, fmt.Errorf("the copy arrived with %d bytes and the digest %s, and it has %d and %s", size, digest, what.GetSize(), what.GetSha256())
	}
	return what, nil
}
