package client

import (
	"context"
	"errors"
	"io"
	"slices"
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
// the last cursor by itself: nothing is left out, and nothing comes twice. Events
// that are gone are the error CURSOR_EXPIRED, whose Oldest says what is still there;
// WatchSnapshot begins anew without a gap.
func (c *Client) Watch(ctx context.Context, req *macexecv1.WatchJobsRequest, yield func(*macexecv1.Event) error) error {
	req = proto.CloneOf(req)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.WatchJobsResponse], error) {
		stream, err := c.Jobs.WatchJobs(ctx, req)
		if err != nil || !req.GetFromNow() {
			return stream, err
		}
		if cursor, ok := beginning(stream); ok {
			req.After, req.FromNow = cursor, false
		}
		return stream, nil
	}
	snapshot := false
	take := func(resp *macexecv1.WatchJobsResponse) error {
		event := resp.GetEvent()
		if event.GetSnapshot() {
			// A stream that was opened again begins with the job as it is again. What
			// happened to it in between comes behind that, one by one, in any case.
			if snapshot {
				return nil
			}
			snapshot = true
		}
		if cursor := event.GetCursor(); cursor > 0 {
			req.After, req.FromNow = cursor, false
		}
		return yield(event)
	}
	return follow(ctx, c, stream[macexecv1.WatchJobsResponse, uint64]{
		open: open, take: take, at: req.GetAfter, idle: true,
		// Without a cursor it would silently leave out what happens meanwhile.
		resumable: func() bool { return !req.GetFromNow() },
	})
}

// beginning is the cursor that the daemon names in the header of a watch of what
// comes from now on.
func beginning(stream grpc.ServerStreamingClient[macexecv1.WatchJobsResponse]) (cursor uint64, ok bool) {
	head, err := stream.Header()
	if values := head.Get(cursorHeader); err == nil && len(values) == 1 {
		cursor, err = strconv.ParseUint(values[0], 10, 64)
		return cursor, err == nil
	}
	return 0, false // and if the stream broke, Recv has its error
}

// now is the cursor after which everything is still to come.
func (c *Client) now(ctx context.Context) (cursor uint64, err error) {
	err = c.repeat(ctx, func() (bool, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Jobs.WatchJobs(ctx, &macexecv1.WatchJobsRequest{FromNow: true})
		if err != nil {
			return false, err
		}
		var ok bool
		if cursor, ok = beginning(stream); !ok {
			if _, err = stream.Recv(); err == nil || errors.Is(err, io.EOF) {
				err = errors.New("the daemon does not say where a watch from now on begins; it may be older than this client")
			}
		}
		return false, err
	}, interrupted)
	return cursor, err
}

// WatchSnapshot is Watch from a snapshot on: yield is first called with every job
// that the request selects as it is now, oldest first, in events with snapshot set;
// then with what happens from there on. The last of the snapshot has the cursor to go
// on from, and those before it have none, since the snapshot is not whole with them; if
// no job is selected, an event with snapshot and the cursor alone is the snapshot. It is
// how to begin without a cursor, and how to go on after CURSOR_EXPIRED: of what happened
// meanwhile the jobs tell the result. The request's after and from_now have no meaning here,
// nor has its job_id, since a watch of one job begins with a snapshot anyway.
//
// What happens while the snapshot is read may be in it and come as an event, too.
// An event whose entry is no newer than the job of the snapshot is left out, so
// nothing comes twice. Only a later watch from the cursor of the snapshot tells it.
func (c *Client) WatchSnapshot(ctx context.Context, req *macexecv1.WatchJobsRequest, yield func(*macexecv1.Event) error) error {
	req = proto.CloneOf(req)
	var err error
	if req.After, err = c.now(ctx); err != nil {
		return err
	}
	req.FromNow, req.JobId = false, ""
	var jobs []*macexecv1.Job
	_, err = c.ListJobs(ctx, Selection(req), func(job *macexecv1.Job) error {
		jobs = append(jobs, job)
		return nil
	})
	if err != nil {
		return err
	}
	revisions := make(map[string]uint64, len(jobs))
	for i, job := range slices.Backward(jobs) {
		revisions[job.GetId()] = job.GetRevision()
		event := &macexecv1.Event{Snapshot: true, Job: job}
		if i == 0 {
			event.Cursor = req.GetAfter()
		}
		if err := yield(event); err != nil {
			return err
		}
	}
	if len(jobs) == 0 {
		if err := yield(&macexecv1.Event{Snapshot: true, Cursor: req.GetAfter()}); err != nil {
			return err
		}
	}
	return c.Watch(ctx, req, func(e *macexecv1.Event) error {
		entry := e.GetEntry()
		if changes := entry.GetKind() == "job.submitted" || entry.GetKind() == "job.changed"; changes && entry.GetRevision() <= revisions[entry.GetJobId()] {
			return nil
		}
		return yield(e)
	})
}

// Selection lists the jobs that a watch selects.
func Selection(w *macexecv1.WatchJobsRequest) *macexecv1.ListJobsRequest {
	return &macexecv1.ListJobsRequest{
		RunId: w.GetRunId(), Tool: w.GetTool(), Principal: w.GetPrincipal(), Key: w.GetKey(),
		ToolCallId: w.GetToolCallId(), ParentRunId: w.GetParentRunId(), ThreadId: w.GetThreadId(),
		ContextId: w.GetContextId(), ParentCallId: w.GetParentCallId(), Labels: w.GetLabels(), States: w.GetStates(),
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
	type place struct {
		attempt int32
		cursor  int64
	}
	return follow(ctx, c, stream[macexecv1.ReadJobLogsResponse, place]{
		open: open, idle: req.GetFollow(),
		at: func() place { return place{req.GetAttempt(), req.GetCursor()} },
		take: func(resp *macexecv1.ReadJobLogsResponse) error {
			chunk := resp.GetChunk()
			req.Attempt, req.Cursor, req.TailBytes = chunk.GetAttempt(), chunk.GetCursor(), 0
			return yield(chunk)
		},
	})
}

// ReadJournal calls yield with journal entries until they are all sent, ctx ends,
// or yield returns an error. A broken stream goes on where it was.
func (c *Client) ReadJournal(ctx context.Context, req *macexecv1.ReadJournalRequest, yield func(*macexecv1.Entry) error) error {
	req = proto.CloneOf(req)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[macexecv1.ReadJournalResponse], error) {
		return c.Journal.ReadJournal(ctx, req)
	}
	take := func(resp *macexecv1.ReadJournalResponse) error {
		req.After = resp.GetEntry().GetSeq()
		if err := yield(resp.GetEntry()); err != nil || req.GetLimit() == 0 {
			return err
		}
		if req.Limit--; req.GetLimit() == 0 {
			return errEnough
		}
		return nil
	}
	return follow(ctx, c, stream[macexecv1.ReadJournalResponse, uint64]{open: open, take: take, at: req.GetAfter, idle: req.GetFollow()})
}
