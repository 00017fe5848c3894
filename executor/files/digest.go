package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"os"
)

const copyBuffer = 1 << 20

// Digest reads r to its end and returns the hex SHA-256 and the number of bytes.
func Digest(ctx context.Context, r io.Reader) (string, int64, error) {
	sum := sha256.New()
	n, err := copyBytes(ctx, sum, r)
	if err != nil {
		return "", n, err
	}
	return hexSum(sum), n, nil
}

// digestFile digests an open file from its beginning, wherever its offset is.
func digestFile(ctx context.Context, f *os.File) (string, int64, error) {
	return Digest(ctx, io.NewSectionReader(f, 0, 1<<62))
}

func hexSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }

// copyBytes copies until the end, in pieces, so that ctx is heard in between.
func copyBytes(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, copyBuffer)
	var total int64
	for {
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
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
