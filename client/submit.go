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
	var resp *macexecv1.SubmitJobResponse
	sent := false
	err := c.repeat(ctx, func() (bool, error) {
		var err error
		resp, err = c.Jobs.SubmitJob(ctx, req)
		if e, ok := errors.AsType[*Error](err); ok && maybeAccepted(e) {
			sent = true
		}
		return false, err
	}, func(e *Error) bool { return maybeAccepted(e) || (sent && e.NotReached()) })
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return nil, err
		}
		if sent && (e.NotReached() || maybeAccepted(e)) {
			e = answerLost(e.status)
		}
		if e.NotReached() || e.AnswerLost() {
			e = e.withIDs(req.GetIdempotencyKey(), req.GetContext())
		}
		return nil, e
	}
	job := resp.GetJob()
	job.Replayed, job.RequestContext = resp.GetReplayed(), resp.GetContext()
	job.Warnings = append(job.Warnings, resp.GetWarnings()...)
	return job, nil
}

// maybeAccepted reports that a try may have left a job behind although it failed:
// its answer was lost, it was cut off, or the store could not say. A daemon that
// drains is not among them, since it still answers a key that it knows.
func maybeAccepted(e *Error) bool {
	switch e.Code() {
	case CodeAnswerLost, "STORE_FAILED", "COMMIT_UNKNOWN", "DEADLINE_EXCEEDED", "CALLER_GONE":
		return true
	default:
		return false
	}
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
