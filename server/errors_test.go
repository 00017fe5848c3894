package server_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// statuses is what each code must become, written down a second time by hand.
func statuses() map[jobs.Code]codes.Code {
	return map[jobs.Code]codes.Code{
		jobs.CodeArgumentsNotJSON:  codes.InvalidArgument,
		jobs.CodeArgumentsTooLarge: codes.InvalidArgument,
		jobs.CodeArgumentsSchema:   codes.InvalidArgument,
		jobs.CodeArgumentsBusiness: codes.FailedPrecondition,
		jobs.CodeRequestInvalid:    codes.InvalidArgument,
		jobs.CodeKeyRequired:       codes.InvalidArgument,
		jobs.CodeToolNotFound:      codes.NotFound,
		jobs.CodeToolUnavailable:   codes.FailedPrecondition,
		jobs.CodeJobNotFound:       codes.NotFound,
		jobs.CodeFileNotFound:      codes.NotFound,
		jobs.CodeProjectNotFound:   codes.NotFound,
		jobs.CodeProjectExists:     codes.AlreadyExists,
		jobs.CodeProjectInUse:      codes.Aborted,
		jobs.CodeArtifactChanged:   codes.FailedPrecondition,
		jobs.CodeArtifactGone:      codes.NotFound,
		jobs.CodeOtherHost:         codes.NotFound,
		jobs.CodeNotAuthenticated:  codes.Unauthenticated,
		jobs.CodeNotAuthorized:     codes.PermissionDenied,
		jobs.CodePolicyDenied:      codes.PermissionDenied,
		jobs.CodeKeyConflict:       codes.AlreadyExists,
		jobs.CodeKeyExpired:        codes.FailedPrecondition,
		jobs.CodeKeyFenced:         codes.FailedPrecondition,
		jobs.CodeRunClosed:         codes.FailedPrecondition,
		jobs.CodeLockHeld:          codes.Aborted,
		jobs.CodeSuperseded:        codes.FailedPrecondition,
		jobs.CodeUploadInProgress:  codes.Aborted,
		jobs.CodeStateConflict:     codes.FailedPrecondition,
		jobs.CodeStopTooLate:       codes.FailedPrecondition,
		jobs.CodeApprovalDecided:   codes.FailedPrecondition,
		jobs.CodeTooLate:           codes.FailedPrecondition,
		jobs.CodeDigestMismatch:    codes.Aborted,
		jobs.CodeFileTooLarge:      codes.ResourceExhausted,
		jobs.CodeCursorExpired:     codes.OutOfRange,
		jobs.CodeDiskFull:          codes.ResourceExhausted,
		jobs.CodeNotRemoved:        codes.Unavailable,
		jobs.CodeDraining:          codes.Unavailable,
		jobs.CodeStoreFailed:       codes.Unavailable,
		jobs.CodeStoreMissing:      codes.Unavailable,
		jobs.CodeStoreReplaced:     codes.Unavailable,
		jobs.CodeStoreOlder:        codes.Unavailable,
		jobs.CodeCommitUnknown:     codes.Unavailable,
		jobs.CodeNotReached:        codes.Unavailable,
		jobs.CodeCannotServe:       codes.Unavailable,
		jobs.CodeAnswerLost:        codes.Unavailable,
		jobs.CodeRecordDamaged:     codes.DataLoss,
		jobs.CodeDeadline:          codes.DeadlineExceeded,
		jobs.CodeCallerGone:        codes.Canceled,
		jobs.CodeToolFailed:        codes.FailedPrecondition,
		jobs.CodeInternal:          codes.Internal,
	}
}

// TestEveryCode: each code of the domain reaches the client as the right status,
// with our own shape and exactly one ErrorInfo.
func TestEveryCode(t *testing.T) {
	t.Parallel()
	want := statuses()
	c := start(t, &fakeEngine{job: func(id string) (*jobs.Job, error) {
		return nil, jobs.Errorf(jobs.Code(id), "message of %s", id).WithJob("J").With("part", "p")
	}})
	for code, info := range jobs.Codes() {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			_, err := c.Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{Id: string(code)})
			e := failure(t, err)
			expected, listed := want[code]
			if !listed {
				t.Fatalf("no status is written down for %s", code)
			}
			if got := status.Code(err); got != expected {
				t.Errorf("status %s, want %s", got, expected)
			}
			got := e.Detail
			if got.GetCode() != string(code) || document.Word(got.GetClass()) != string(info.Class) ||
				document.Word(got.GetUserAction()) != string(info.Action) || got.GetRetryable() != info.Retryable ||
				got.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE || got.GetJobId() != "J" {
				t.Errorf("the table says %+v, the client sees %v", info, got)
			}
			infos := 0
			for _, d := range e.GRPCStatus().Details() {
				if i, ok := d.(*errdetails.ErrorInfo); ok {
					infos++
					if i.GetReason() != string(code) || i.GetDomain() != "macexec.dev" {
						t.Errorf("ErrorInfo %v", i)
					}
				}
			}
			if infos != 1 {
				t.Errorf("%d ErrorInfo", infos)
			}
			if code != jobs.CodeInternal && (got.GetMessage() != "message of "+string(code) || got.GetMetadata()["part"] != "p") {
				t.Errorf("message %q, metadata %v", got.GetMessage(), got.GetMetadata())
			}
		})
	}
}

// TestFaultsAreHidden: what broke inside is for the log, not for the caller.
func TestFaultsAreHidden(t *testing.T) {
	t.Parallel()
	c := start(t, &fakeEngine{job: func(id string) (*jobs.Job, error) {
		switch id {
		case "plain":
			return nil, errors.New("secret cause")
		case "internal":
			return nil, jobs.Errorf(jobs.CodeInternal, "read: %w", errors.New("secret cause"))
		default:
			panic("secret cause")
		}
	}})
	for _, id := range []string{"plain", "internal", "panic"} {
		_, err := c.Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{Id: id})
		e := failure(t, err)
		if e.Code() != "INTERNAL" || status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", id, err)
		}
		if fault := e.Detail.GetMetadata()["fault_id"]; fault == "" || !strings.Contains(e.Detail.GetMessage(), fault) {
			t.Errorf("%s: no fault id in %v", id, e.Detail)
		}
		if strings.Contains(fmt.Sprint(e.GRPCStatus().Proto()), "secret") {
			t.Errorf("%s: the cause is shown: %v", id, e.GRPCStatus())
		}
	}
}

// TestVerdictsInErrors (G1, G14): a rejected call's error has the three verdicts,
// each finding once more in google.rpc's own shape, and the request's own ids.
func TestVerdictsInErrors(t *testing.T) {
	t.Parallel()
	verdicts := jobs.Verdicts{
		SyntaxValid: true, SyntaxChecked: true, SchemaChecked: true,
		Findings: []jobs.Finding{{Verdict: "schema", Pointer: "/width", Keyword: "exclusiveMinimum", Message: "is 0", Hint: "send 1"}},
	}
	c := start(t, &fakeEngine{submit: func(context.Context, engine.Request) (engine.Receipt, error) {
		err := jobs.Errorf(jobs.CodeArgumentsSchema, "the arguments do not fit")
		err.Verdicts = &verdicts
		return engine.Receipt{}, err
	}})
	_, err := c.Jobs.SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{
		IdempotencyKey: "k", Tool: "t", Context: &macexecv1.CallContext{ToolCallId: "tc", RunId: "r", TraceId: "tr"},
	})
	e := failure(t, err)
	want := &macexecv1.Error{
		Class: macexecv1.ErrorClass_ERROR_CLASS_SCHEMA, Code: "ARGUMENTS_SCHEMA_VIOLATION", Message: "the arguments do not fit",
		UserAction: macexecv1.UserAction_USER_ACTION_FIX_ARGUMENTS, SideEffect: macexecv1.SideEffect_SIDE_EFFECT_NONE,
		Findings: []*macexecv1.Finding{{
			Verdict: macexecv1.Verdict_VERDICT_SCHEMA, Pointer: "/width", Keyword: "exclusiveMinimum", Message: "is 0", Hint: "send 1",
		}},
		Verdicts: &macexecv1.Verdicts{SyntaxValid: true, SyntaxChecked: true, SchemaChecked: true},
		Key:      "k", ToolCallId: "tc", RunId: "r", TraceId: "tr",
	}
	if diff := cmp.Diff(want, e.Detail, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for _, d := range e.GRPCStatus().Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			v := br.GetFieldViolations()[0]
			if v.GetField() != "/width" || v.GetReason() != "EXCLUSIVE_MINIMUM" {
				t.Errorf("violation %v", v)
			}
			return
		}
	}
	t.Error("no BadRequest")
}

// TestLargeErrors (B67): an error however large reaches a client that takes 8 KiB
// of headers, and says what it leaves out.
func TestLargeErrors(t *testing.T) {
	t.Parallel()
	c := start(t, &fakeEngine{submit: func(context.Context, engine.Request) (engine.Receipt, error) {
		err := jobs.Errorf(jobs.CodeArgumentsSchema, "%s", strings.Repeat("é", 5<<20)).With("big", strings.Repeat("b", 5<<20))
		err.Verdicts = &jobs.Verdicts{SyntaxValid: true, SyntaxChecked: true, SchemaChecked: true}
		for i := range 500 {
			err.Findings = append(err.Findings, jobs.Finding{Verdict: "schema", Pointer: fmt.Sprintf("/items/%d", i), Keyword: "type", Message: "is no number"})
		}
		return engine.Receipt{}, err
	}})
	_, err := c.Jobs.SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: strings.Repeat("k", 10<<10)})
	e := failure(t, err)
	if e.Code() != "ARGUMENTS_SCHEMA_VIOLATION" || e.Verdicts() == nil {
		t.Fatalf("%v", e.Detail)
	}
	if size := proto.Size(e.GRPCStatus().Proto()); size > 4<<10 {
		t.Errorf("the status has %d bytes", size)
	}
}

// TestManyFindings: those that have room come first and the rest is counted.
func TestManyFindings(t *testing.T) {
	t.Parallel()
	c := start(t, &fakeEngine{submit: func(context.Context, engine.Request) (engine.Receipt, error) {
		err := jobs.Errorf(jobs.CodeArgumentsSchema, "many")
		for i := range 500 {
			err.Findings = append(err.Findings, jobs.Finding{Verdict: "schema", Pointer: fmt.Sprintf("/items/%d", i), Keyword: "type", Message: "is no number"})
		}
		return engine.Receipt{}, err
	}})
	_, err := c.Jobs.SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
	e := failure(t, err)
	shown := len(e.Findings())
	if shown == 0 || e.Findings()[0].GetPointer() != "/items/0" {
		t.Fatalf("%d findings: %v", shown, e.Findings())
	}
	if omitted := e.Detail.GetMetadata()["findings_omitted"]; omitted != strconv.Itoa(500-shown) {
		t.Errorf("%d findings are shown and %s said to be omitted", shown, omitted)
	}
}
