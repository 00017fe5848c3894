package server

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

type jobService struct {
	macexecv1.UnsafeJobServiceServer

	server *Server
}

func (s *jobService) SubmitJob(ctx context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
	call, err := requestOf(req, req.GetIdempotencyKey())
	if err != nil {
		return nil, err
	}
	call.Context = withCarriedTrace(ctx, call.Context)
	receipt, err := s.server.engine.Submit(ctx, caller(ctx), call)
	if err != nil {
		return nil, err
	}
	return &macexecv1.SubmitJobResponse{
		Job: convertJob(receipt.Job), Replayed: receipt.Replayed,
		Context: convertContext(receipt.Context), Warnings: receipt.Warnings,
	}, nil
}

func (s *jobService) GetJob(ctx context.Context, req *macexecv1.GetJobRequest) (*macexecv1.GetJobResponse, error) {
	job, err := s.server.engine.Job(ctx, caller(ctx), req.GetId())
	if err != nil {
		return nil, err
	}
	return &macexecv1.GetJobResponse{Job: convertJob(job)}, nil
}

// WaitJob ends when the daemon does, as streams do: an open request must not hold up
// its stop.
func (s *jobService) WaitJob(ctx context.Context, req *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
	wait, err := durationOf("wait_seconds", req.GetWaitSeconds())
	if err != nil {
		return nil, err
	}
	var job *jobs.Job
	err = s.server.untilDrained(ctx, func(ctx context.Context) (err error) {
		job, err = s.server.engine.WaitJob(ctx, caller(ctx), req.GetId(), wait)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &macexecv1.WaitJobResponse{Job: convertJob(job)}, nil
}

func (s *jobService) LookupKey(ctx context.Context, req *macexecv1.LookupKeyRequest) (*macexecv1.LookupKeyResponse, error) {
	record, job, err := s.server.engine.LookupKey(ctx, caller(ctx), req.GetKey())
	if err != nil {
		return nil, err
	}
	return &macexecv1.LookupKeyResponse{Record: convertKey(record, job)}, nil
}

func (s *jobService) FenceKey(ctx context.Context, req *macexecv1.FenceKeyRequest) (*macexecv1.FenceKeyResponse, error) {
	record, planted, job, err := s.server.engine.FenceKey(ctx, caller(ctx), req.GetKey(), req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.FenceKeyResponse{Record: convertKey(record, job), Planted: planted}, nil
}

func (s *jobService) ListJobs(ctx context.Context, req *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
	size, after, err := readPage(req)
	if err != nil {
		return nil, err
	}
	q, err := queryOf(req)
	if err != nil {
		return nil, err
	}
	if q.Since, err = timeOf("since", req.GetSince()); err != nil {
		return nil, err
	}
	if q.Until, err = timeOf("until", req.GetUntil()); err != nil {
		return nil, err
	}
	q.After, q.Limit = after, size
	page, err := s.server.engine.Jobs(ctx, caller(ctx), q)
	if err != nil {
		return nil, err
	}
	resp := &macexecv1.ListJobsResponse{NextPageToken: pageToken(page.Next)}
	if len(page.Damaged) > 0 {
		resp.Damaged = make(map[string]string, len(page.Damaged))
		for id, err := range page.Damaged {
			resp.Damaged[id] = shorten(damage(err), maxMessage)
		}
	}
	total := 0
	for i, j := range page.Jobs {
		job := convertJob(j)
		if total += proto.Size(job); i > 0 && total > maxAnswer {
			resp.NextPageToken = pageToken(page.Jobs[i-1].ID)
			break
		}
		resp.Jobs = append(resp.Jobs, job)
	}
	return resp, nil
}

// damage says what is wrong with a record, without what only the log may hold.
func damage(err error) string {
	if e, ok := errors.AsType[*jobs.Error](err); ok && e.Code != jobs.CodeInternal {
		return e.Message
	}
	return "the record cannot be read"
}

// cursorHeader says from where a watch begins that asked for what comes from now
// on, so that it can go on without a gap even before its first event.
const cursorHeader = "macexec-cursor"

func (s *jobService) WatchJobs(req *macexecv1.WatchJobsRequest, stream grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
	filter, err := queryOf(req)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	last := req.GetAfter()
	err = s.server.engine.Watch(ctx, caller(ctx), engine.WatchRequest{
		After: req.GetAfter(), FromNow: req.GetFromNow(), JobID: req.GetJobId(), Filter: filter, Progress: req.GetProgress(),
	}, func(e engine.WatchEvent) error {
		if e.Cursor > 0 {
			last = e.Cursor
		}
		if !e.Snapshot && e.Entry == nil && e.Progress == nil {
			return stream.SendHeader(metadata.Pairs(cursorHeader, strconv.FormatUint(e.Cursor, 10)))
		}
		return stream.Send(&macexecv1.WatchJobsResponse{Event: convertEvent(e)})
	})
	return resumable(ctx, err, strconv.FormatUint(last, 10))
}

func (s *jobService) ReadJobLogs(req *macexecv1.ReadJobLogsRequest, stream grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse]) error {
	if req.GetCursor() < 0 || req.GetTailBytes() < 0 || req.GetAttempt() < 0 {
		return badField("cursor, tail_bytes and attempt", "must not be negative")
	}
	if req.GetCursor() > maxLogCursor {
		return badField("cursor", "is beyond every log; use one that a chunk carried")
	}
	if req.GetCursor() > 0 && req.GetTailBytes() > 0 {
		return badField("tail_bytes", "is not for a request that has a cursor")
	}
	ctx := stream.Context()
	last := req.GetCursor()
	err := s.server.engine.Logs(ctx, caller(ctx), engine.LogRequest{
		JobID: req.GetJobId(), Attempt: int(req.GetAttempt()), Cursor: req.GetCursor(),
		Follow: req.GetFollow(), TailBytes: req.GetTailBytes(),
	}, func(c engine.LogChunk) error {
		last = c.Cursor
		return sendLog(stream, req.GetJobId(), c)
	})
	return resumable(ctx, err, strconv.FormatInt(last, 10))
}

// maxLogCursor is far behind the end of every log, which is bounded.
const maxLogCursor = 1 << 50

// sendLog sends a chunk, which is far smaller than a message may be.
func sendLog(stream grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse], jobID string, c engine.LogChunk) error {
	return stream.Send(&macexecv1.ReadJobLogsResponse{Chunk: &macexecv1.LogChunk{
		JobId: jobID, Attempt: int32of(c.Attempt), Stream: enum[macexecv1.LogStream](c.Stream), At: timestamp(c.At),
		Data: c.Data, Cursor: c.Cursor, GapBytes: c.Gap,
	}})
}

// resumable adds the cursor of the last message to the error of a stream that ends
// because the daemon stops.
func resumable(ctx context.Context, err error, cursor string) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*jobs.Error](context.Cause(ctx))
	if !ok {
		e, ok = errors.AsType[*jobs.Error](err)
	}
	if !ok || e.Code != jobs.CodeDraining {
		return err
	}
	// The engine's own error is shared by everybody: change a copy.
	own := *e
	own.Metadata = maps.Clone(e.Metadata)
	return own.With("cursor", cursor)
}

func (s *jobService) CancelJob(ctx context.Context, req *macexecv1.CancelJobRequest) (*macexecv1.CancelJobResponse, error) {
	job, err := s.server.engine.Cancel(ctx, caller(ctx), req.GetId(), req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.CancelJobResponse{Job: convertJob(job)}, nil
}

func (s *jobService) CancelRun(ctx context.Context, req *macexecv1.CancelRunRequest) (*macexecv1.CancelRunResponse, error) {
	done, err := s.server.engine.CancelRun(ctx, caller(ctx), req.GetRunId(), req.GetReason())
	if err != nil {
		return nil, err
	}
	return convertCancellation(done), nil
}

func (s *jobService) ApproveJob(ctx context.Context, req *macexecv1.ApproveJobRequest) (*macexecv1.ApproveJobResponse, error) {
	job, err := s.server.engine.Approve(ctx, caller(ctx), req.GetId(), req.GetBindingDigest(), req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.ApproveJobResponse{Job: convertJob(job)}, nil
}

func (s *jobService) DenyJob(ctx context.Context, req *macexecv1.DenyJobRequest) (*macexecv1.DenyJobResponse, error) {
	job, err := s.server.engine.Deny(ctx, caller(ctx), req.GetId(), req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.DenyJobResponse{Job: convertJob(job)}, nil
}

func (s *jobService) ResolveJob(ctx context.Context, req *macexecv1.ResolveJobRequest) (*macexecv1.ResolveJobResponse, error) {
	to, err := word[jobs.State]("state", req.GetState())
	if err != nil {
		return nil, err
	}
	job, err := s.server.engine.Resolve(ctx, caller(ctx), req.GetId(), to, req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.ResolveJobResponse{Job: convertJob(job)}, nil
}

func (s *jobService) ProbeJob(ctx context.Context, req *macexecv1.ProbeJobRequest) (*macexecv1.ProbeJobResponse, error) {
	probed, err := s.server.engine.ProbeJob(ctx, caller(ctx), req.GetId())
	if err != nil {
		return nil, err
	}
	return &macexecv1.ProbeJobResponse{
		Job: convertJob(probed.Job), Answer: enum[macexecv1.ProbeAnswer](probed.Answer), Detail: probed.Detail,
	}, nil
}

func (s *jobService) SumUsage(ctx context.Context, req *macexecv1.SumUsageRequest) (*macexecv1.SumUsageResponse, error) {
	size, after, err := readPage(req)
	if err != nil {
		return nil, err
	}
	by, err := word[jobs.UsageBy]("by", req.GetBy())
	if err != nil {
		return nil, err
	}
	since, err := timeOf("since", req.GetSince())
	if err != nil {
		return nil, err
	}
	by = cmp.Or(by, jobs.UsageByRun)
	for ; ; size /= 2 { // names are a caller's text, so a page may become too large
		page, err := s.server.engine.SumUsage(ctx, caller(ctx), jobs.UsageQuery{By: by, Since: since, After: after, Limit: size})
		if err != nil {
			return nil, err
		}
		resp := &macexecv1.SumUsageResponse{
			Rows:          each(page.Rows, func(r jobs.UsageRow) *macexecv1.UsageRow { return convertUsageRow(by, r) }),
			NextPageToken: pageToken(page.Next),
		}
		if size == 1 || proto.Size(resp) <= maxAnswer {
			return resp, nil
		}
	}
}
