package client

import (
	"context"
	"io"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// longestAsk is how long one request waits before it is made again. It is well
// under the most that the daemon takes, so that a wait that nobody hears of any more
// does not last.
const longestAsk = time.Minute

// Wait asks until nothing more will happen to the job by itself (completed, failed,
// cancelled or unknown) and returns it. It outlives restarts of the daemon, as far as
// patience goes. When ctx ends first it returns the job as last seen, which is nil if
// it was never seen, and ctx's error.
func (c *Client) Wait(ctx context.Context, id string) (*macexecv1.Job, error) {
	// The first request only looks, so that also a short wait has seen the job.
	req := &macexecv1.WaitJobRequest{Id: id}
	var last *macexecv1.Job
	err := c.repeat(ctx, func() (bool, error) {
		for achieved := false; ; achieved = true {
			begun := time.Now()
			resp, err := c.Jobs.WaitJob(ctx, req)
			if err != nil {
				return achieved || c.stood(begun), err
			}
			if last = resp.GetJob(); Settled(last.GetState()) {
				return true, nil
			}
			req.WaitSeconds = longestAsk.Seconds()
		}
	}, interrupted)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return last, err
}

// Follow is Wait for those who want to see how the job gets on: it watches the job,
// and calls seen with every event and all progress on the way. When ctx ends first it
// returns the job as last seen, which is nil if it was never seen, and ctx's error.
func (c *Client) Follow(ctx context.Context, id string, seen func(*macexecv1.Event)) (*macexecv1.Job, error) {
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

// ListJobs calls yield with all the jobs that the request selects, newest first, page
// after page, until yield returns an error. It returns what is wrong with the records
// of jobs that are damaged, by the job's id.
func (c *Client) ListJobs(ctx context.Context, req *macexecv1.ListJobsRequest, yield func(*macexecv1.Job) error) (damaged map[string]string, err error) {
	req, damaged = proto.CloneOf(req), map[string]string{}
	for {
		resp, err := deliver(ctx, c, func() (*macexecv1.ListJobsResponse, error) { return c.Jobs.ListJobs(ctx, req) })
		if err != nil {
			return damaged, err
		}
		maps.Copy(damaged, resp.GetDamaged())
		for _, job := range resp.GetJobs() {
			if err := yield(job); err != nil {
				return damaged, err
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return damaged, nil
		}
	}
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
