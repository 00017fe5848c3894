package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Client is a connection to one daemon. The generated clients return *Error like
// everything else here, but do not repeat anything; the methods do. It is safe for
// concurrent use.
type Client struct {
	Tools   macexecv1.ToolServiceClient
	Jobs    macexecv1.JobServiceClient
	Files   macexecv1.FileServiceClient
	Journal macexecv1.JournalServiceClient
	Host    macexecv1.HostServiceClient
	Store   macexecv1.StoreServiceClient

	address  string
	patience time.Duration
	conn     *grpc.ClientConn
}

// An Option changes how a Client works.
type Option func(*Client)

// Patience sets how long a request that may be repeated goes on without any answer
// before it is given up; 30 seconds without this option. It is the only bound of
// the kind: the pauses between two tries grow from 50 milliseconds to one second,
// each cut by a random part of up to a half, so that many clients of a daemon that
// comes back do not all knock at once. The end of the context ends everything
// before that.
func Patience(d time.Duration) Option { return func(c *Client) { c.patience = d } }

// Dial makes a client for the daemon at an address. It does not connect yet, so a
// daemon that is not there shows in the first request. An address is one of
//
//	unix:/path/of/macexec.sock   on this machine; the path alone will do
//	ssh://user@host              on another: the system's ssh is started, with the
//	                             user's own configuration, once for each connection,
//	                             and macexec must be installed there
//
// Of ssh://, the user and a :port may be left out, and ?state=/folder or a
// /path/of/macexec.sock may follow.
func Dial(address string, options ...Option) (*Client, error) {
	way, err := wayTo(address)
	if err != nil {
		return nil, err
	}
	c := &Client{address: way.address, patience: 30 * time.Second}
	for _, o := range options {
		o(c)
	}
	c.conn, err = grpc.NewClient(way.target, append(way.options,
		// The socket's own permissions and the peer's credentials protect the
		// connection, and before them ssh.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithUnaryInterceptor(unaryErrors),
		grpc.WithStreamInterceptor(streamErrors),
	)...)
	if err != nil {
		return nil, fmt.Errorf("the address %q: %w", address, err)
	}
	c.Tools = macexecv1.NewToolServiceClient(c.conn)
	c.Jobs = macexecv1.NewJobServiceClient(c.conn)
	c.Files = macexecv1.NewFileServiceClient(c.conn)
	c.Journal = macexecv1.NewJournalServiceClient(c.conn)
	c.Host = macexecv1.NewHostServiceClient(c.conn)
	c.Store = macexecv1.NewStoreServiceClient(c.conn)
	return c, nil
}

// Address returns where the daemon is reached, as Dial understands it.
func (c *Client) Address() string { return c.address }

// Close ends the connection and everything that uses it.
func (c *Client) Close() error { return c.conn.Close() }

// NewKey makes an idempotency key that nobody else makes.
func NewKey() string { return "mx-" + strings.ToLower(rand.Text()) }

// repeat calls try until it gives no error, or one that another try cannot mend,
// or there has been nothing but failure for c.patience, which is counted from the
// first failure since something was achieved. try says whether it achieved something.
// wanted says which errors to try again.
func (c *Client) repeat(ctx context.Context, try func() (achieved bool, err error), wanted func(*Error) bool) error {
	const shortest, longest = 50 * time.Millisecond, time.Second
	var pause time.Duration
	var failing time.Time
	for {
		achieved, err := try()
		if err == nil {
			return nil
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || ctx.Err() != nil || !wanted(e) {
			return err
		}
		if achieved || failing.IsZero() {
			pause, failing = shortest, time.Now()
		}
		if time.Since(failing)+pause > c.patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause - mathrand.N(pause/2)): //nolint:gosec // nobody gains by guessing it
		}
		pause = min(2*pause, longest)
	}
}

// deliver makes a request that does no more when it is carried out twice, and makes
// it again until there is an answer: the daemon's own, or the knowledge that nothing
// was ever sent (NotReached), or that it was sent and nobody knows (AnswerLost).
func deliver[R any](ctx context.Context, c *Client, request func() (R, error)) (R, error) {
	var answer R
	sent := false
	err := c.repeat(ctx, func() (bool, error) {
		var err error
		answer, err = request()
		if e, ok := errors.AsType[*Error](err); ok && maybeDone(e) {
			sent = true
		}
		return false, err
	}, func(e *Error) bool { return maybeDone(e) || (sent && e.NotReached()) })
	if e, ok := errors.AsType[*Error](err); ok && sent && (e.NotReached() || maybeDone(e)) {
		return answer, answerLost(e.status)
	}
	return answer, err
}

// maybeDone reports that a request may have been carried out although it failed: its
// answer was lost, it was cut off, or the store could not say. A daemon that drains
// is not among them, since it still answers a key that it knows.
func maybeDone(e *Error) bool {
	switch e.Code() {
	case CodeAnswerLost, "STORE_FAILED", "COMMIT_UNKNOWN", "DEADLINE_EXCEEDED", "CALLER_GONE":
		return true
	default:
		return false
	}
}
