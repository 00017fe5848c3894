package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
)

// errEnough ends a stream from inside take without being an error.
var errEnough = errors.New("enough")

// interrupted reports that a stream broke although nothing is wrong with it, so
// that it can go on from its cursor.
func interrupted(e *Error) bool {
	switch e.Code() {
	case CodeNotReached, CodeAnswerLost, "HOST_DRAINING", "STORE_FAILED", "COMMIT_UNKNOWN":
		return true
	default:
		return false
	}
}

// follow opens a stream and gives its messages to take, and opens it again when it
// was interrupted, unless resumable says that this would leave something out. open
// and take share the request, in which take keeps the cursor. It ends without error
// at the end of the stream or when take returns errEnough, and otherwise with the
// error of take or of the stream.
func follow[R any](ctx context.Context, c *Client, open func(context.Context) (grpc.ServerStreamingClient[R], error),
	take func(*R) error, resumable func() bool,
) error {
	var stopped error
	err := c.repeat(ctx, func() (bool, error) {
		// Leaving early must not leave the stream open.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx)
		if err != nil {
			return false, err
		}
		for achieved := false; ; achieved = true {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return true, nil
			}
			if err != nil {
				return achieved, err
			}
			if stopped = take(message); stopped != nil {
				return true, nil
			}
		}
	}, func(e *Error) bool { return interrupted(e) && (e.NotReached() || resumable()) })
	if stopped != nil && !errors.Is(stopped, errEnough) {
		return stopped
	}
	return err
}

func always() bool { return true }
