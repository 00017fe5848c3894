package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// largestMessage is what a gRPC server takes by default.
const largestMessage = 4 << 20

// Submit makes a call and returns its job, with replayed, request_context and this
// submission's warnings set in it.
//
// A request without a key is given one first, so that it can be repeated. When an
// answer is lost the very same request is sent again under its key until the daemon
// answers, patience or ctx ends. The error then says which it is: NotReached,
// nothing was ever sent; AnswerLost, it was sent and the outcome is only to be had
// by the same key; anything else is the daemon's own answer, and there is no job.
func (c *Client) Submit(ctx context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.Job, error) {
	req = proto.CloneOf(req)
	if req.GetIdempotencyKey() == "" {
		req.IdempotencyKey = NewKey()
	}
	if size := proto.Size(req); size > largestMessage {
		return nil, tooLarge(size).withIDs(req.GetIdempotencyKey(), req.GetContext())
	}
	resp, err := deliver(ctx, c, func() (*macexecv1.SubmitJobResponse, error) { return c.Jobs.SubmitJob(ctx, req) })
	if e, ok := errors.AsType[*Error](err); ok && (e.NotReached() || e.AnswerLost()) {
		return nil, e.withIDs(req.GetIdempotencyKey(), req.GetContext())
	}
	if err != nil {
		return nil, err
	}
	job := resp.GetJob()
	job.Replayed, job.RequestContext = resp.GetReplayed(), resp.GetContext()
	job.Warnings = append(job.Warnings, resp.GetWarnings()...)
	return job, nil
}

// LookupKey returns what a key stands for, or nil if nothing ever started under it, and
// changes nothing. It is repeated until there is an answer.
func (c *Client) LookupKey(ctx context.Context, key string) (*macexecv1.KeyRecord, error) {
	req := &macexecv1.LookupKeyRequest{Key: key}
	resp, err := deliver(ctx, c, func() (*macexecv1.LookupKeyResponse, error) { return c.Jobs.LookupKey(ctx, req) })
	if e, ok := errors.AsType[*Error](err); ok && e.Code() == "JOB_NOT_FOUND" {
		return nil, nil //nolint:nilnil // the key is free
	}
	return resp.GetRecord(), err
}

// Fence makes sure that nothing ever starts under a key that is still free, and
// returns what the key stands for now: a fence, or the job that it already has.
// planted says that it was free until now; it is false when an earlier try had
// planted the fence and its answer was lost.
func (c *Client) Fence(ctx context.Context, key, reason string) (record *macexecv1.KeyRecord, planted bool, err error) {
	req := &macexecv1.FenceKeyRequest{Key: key, Reason: reason}
	resp, err := deliver(ctx, c, func() (*macexecv1.FenceKeyResponse, error) { return c.Jobs.FenceKey(ctx, req) })
	return resp.GetRecord(), resp.GetPlanted(), err
}

// CancelRun closes a run for every later submission, and asks for a stop of all the
// jobs that it has. When an answer was lost it is asked again, and the jobs that
// ended at the first try are then in no list.
func (c *Client) CancelRun(ctx context.Context, runID, reason string) (*macexecv1.CancelRunResponse, error) {
	req := &macexecv1.CancelRunRequest{RunId: runID, Reason: reason}
	return deliver(ctx, c, func() (*macexecv1.CancelRunResponse, error) { return c.Jobs.CancelRun(ctx, req) })
}

// tooLarge gives the verdict that the daemon would give if gRPC let such a message
// through.
func tooLarge(size int) *Error {
	e := made(status.New(codes.InvalidArgument, "too large"), macexecv1.ErrorClass_ERROR_CLASS_SYNTAX, "ARGUMENTS_TOO_LARGE",
		macexecv1.UserAction_USER_ACTION_FIX_ARGUMENTS,
		fmt.Sprintf("the request has %d bytes, and %d are the most; upload large content as a file", size, largestMessage))
	e.Detail.Verdicts = &macexecv1.Verdicts{SyntaxChecked: true}
	e.Detail.Findings = []*macexecv1.Finding{{
		Verdict: macexecv1.Verdict_VERDICT_SYNTAX, Keyword: "size", Message: "the arguments are too large",
		Hint: "upload large content as a file and name it in the arguments",
	}}
	return e
}
