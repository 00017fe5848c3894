package client

import (
	"context"
	"io"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// cursorHeader is the response header in which the daemon says from where a watch
// begins that asked for what comes from now on.
const cursorHeader = "macexec-cursor"

// Watch calls yield with events until ctx ends, yield returns an error (which Watch
// then returns), or the daemon gives up on the watch. A broken stream goes on from
// the last cursor by itself: nothing is left out, no entry comes twice, and events
// that are gone are the error CURSOR_EXPIRED. A watch of one job then begins with
// the job as it is again.
func (c *Client) Watch(ctx context.Context, req *macexecv1.WatchJobsRequest, yield func(*macexecv1.Event) error) error {
	req = proto.CloneOf(req)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.WatchJobsResponse], error) {
		stream, err := c.Jobs.WatchJobs(ctx, req)
		if err != nil || !req.GetFromNow() {
			return stream, err
		}
		head, err := stream.Header()
		if err != nil {
			return stream, nil //nolint:nilerr // Recv has the stream's own error
		}
		if values := head.Get(cursorHeader); len(values) == 1 {
			if cursor, err := strconv.ParseUint(values[0], 10, 64); err == nil {
				req.After, req.FromNow = cursor, false
			}
		}
		return stream, nil
	}
	take := func(resp *macexecv1.WatchJobsResponse) error {
		event := resp.GetEvent()
		if cursor := event.GetCursor(); cursor > 0 {
			req.After, req.FromNow = cursor, false
		}
		return yield(event)
	}
	// Without a cursor it would silently leave out what happens meanwhile.
	return follow(ctx, c, open, take, func() bool { return !req.GetFromNow() })
}

// WaitJob waits until nothing more will happen to the job by itself (completed,
// failed, cancelled or unknown) and returns it. It calls seen, unless that is nil,
// with every event on the way. When ctx ends first it returns the job as last seen,
// which is nil if it was never seen, and ctx's error.
func (c *Client) WaitJob(ctx context.Context, id string, seen func(*macexecv1.Event)) (*macexecv1.Job, error) {
	var last *macexecv1.Job
	err := c.Watch(ctx, &macexecv1.WatchJobsRequest{JobId: id, Progress: seen != nil}, func(e *macexecv1.Event) error {
		if seen != nil {
			seen(e)
		}
		if e.GetJob() != nil {
			last = e.GetJob()
		}
		if Settled(last.GetState()) {
			return errEnough
		}
		return nil
	})
	switch {
	case err == nil && !Settled(last.GetState()):
		return last, io.ErrUnexpectedEOF
	case err != nil && ctx.Err() != nil:
		return last, ctx.Err()
	default:
		return last, err
	}
}

// Settled reports whether nothing more will happen to a job in that state by
// itself.
func Settled(s macexecv1.JobState) bool {
	switch s {
	case macexecv1.JobState_JOB_STATE_COMPLETED, macexecv1.JobState_JOB_STATE_FAILED,
		macexecv1.JobState_JOB_STATE_CANCELLED, macexecv1.JobState_JOB_STATE_UNKNOWN:
		return true
	default:
		return false
	}
}

// ReadLogs calls yield with the pieces of a job's log until they are all sent (with
// follow: until the job is settled), ctx ends, or yield returns an error. A broken
// stream goes on where it was.
func (c *Client) ReadLogs(ctx context.Context, req *macexecv1.ReadJobLogsRequest, yield func(*macexecv1.LogChunk) error) error {
	req = proto.CloneOf(req)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.ReadJobLogsResponse], error) {
		return c.Jobs.ReadJobLogs(ctx, req)
	}
	return follow(ctx, c, open, func(resp *macexecv1.ReadJobLogsResponse) error {
		chunk := resp.GetChunk()
		req.Attempt, req.Cursor, req.TailBytes = chunk.GetAttempt(), chunk.GetCursor(), 0
		return yield(chunk)
	}, always)
}

// ReadJournal calls yield with journal entries until they are all sent, ctx ends,
// or yield returns an error. A broken stream goes on where it was.
func (c *Client) ReadJournal(ctx context.Context, req *macexecv1.ReadJournalRequest, yield func(*macexecv1.Entry) error) error {
	req = proto.CloneOf(req)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.ReadJournalResponse], error) {
		return c.Journal.ReadJournal(ctx, req)
	}
	return follow(ctx, c, open, func(resp *macexecv1.ReadJournalResponse) error {
		req.After = resp.GetEntry().GetSeq()
		if err := yield(resp.GetEntry()); err != nil || req.GetLimit() == 0 {
			return err
		}
		if req.Limit--; req.GetLimit() == 0 {
			return errEnough
		}
		return nil
	}, always)
}

// WhoAmI says who the daemon takes the caller for, and where it was reached.
func (c *Client) WhoAmI(ctx context.Context) (*macexecv1.Identity, error) {
	resp, err := c.Host.WhoAmI(ctx, &macexecv1.WhoAmIRequest{})
	if err != nil {
		return nil, err
	}
	resp.GetIdentity().Address = c.address
	return resp.GetIdentity(), nil
}
