package client

import (
	"context"
	"errors"
	"io"
	"time"

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

// stream is one that goes on where it was when it was interrupted. open and take share
// the request, in which take keeps the cursor.
type stream[R any, P comparable] struct {
	open func(context.Context) (grpc.ServerStreamingClient[R], error)
	take func(*R) error
	// at is where the stream is. Only what moves it is progress: the first message of
	// a stream that was opened again says nothing new.
	at func() P
	// idle: having nothing to say is in order, as for a watch.
	idle bool
	// resumable, if it is not nil, says whether opening it again leaves nothing out.
	resumable func() bool
}

// follow opens a stream and gives its messages to take, and opens it again when it was
// interrupted. It ends without error at the end of the stream or when take returns
// errEnough, and otherwise with the error of take or of the stream.
func follow[R any, P comparable](ctx context.Context, c *Client, s stream[R, P]) error {
	var stopped error
	err := c.repeat(ctx, func() (bool, error) {
		// Leaving early must not leave the stream open.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		before, begun := s.at(), time.Now()
		messages, err := s.open(ctx)
		for err == nil {
			var message *R
			if message, err = messages.Recv(); err == nil {
				stopped = s.take(message)
			}
			if stopped != nil || errors.Is(err, io.EOF) {
				return true, nil
			}
		}
		return s.at() != before || s.idle && c.stood(begun), err
	}, func(e *Error) bool {
		return interrupted(e) && (e.NotReached() || s.resumable == nil || s.resumable())
	})
	if stopped != nil && !errors.Is(stopped, errEnough) {
		return stopped
	}
	return err
}

// stood reports that a request which may wait for nothing has waited so long, before it
// broke, that there is nothing wrong with it: it does not use up the patience.
func (c *Client) stood(begun time.Time) bool {
	return time.Since(begun) >= min(c.patience, 5*time.Second)
}
