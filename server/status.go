package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// errorDomain is the domain of every ErrorInfo.
const errorDomain = "macexec.dev"

// maxStatus bounds a status in bytes, since it travels in a header (in base64) and
// many clients take only 8 KiB of headers. maxMessage bounds its message, which
// travels once more, with up to three bytes for each.
const (
	maxStatus  = 4 << 10
	maxMessage = 512
)

// grpcCode is the one table from our errors to gRPC's codes.
func grpcCode(code jobs.Code, class jobs.Class) codes.Code {
	switch code {
	case jobs.CodeNotAuthenticated:
		return codes.Unauthenticated
	case jobs.CodeKeyConflict, jobs.CodeProjectExists:
		return codes.AlreadyExists
	case jobs.CodeProjectInUse, jobs.CodeDigestMismatch, jobs.CodeLockHeld, jobs.CodeUploadInProgress:
		return codes.Aborted // the very same request may succeed later
	case jobs.CodeCursorExpired:
		return codes.OutOfRange
	case jobs.CodeCallerGone:
		return codes.Canceled
	case jobs.CodeTooLate:
		return codes.FailedPrecondition // the call's own condition, not this request's deadline
	case jobs.CodeRecordDamaged:
		return codes.DataLoss
	default: // as its class
	}
	switch class {
	case jobs.ClassSyntax, jobs.ClassSchema:
		return codes.InvalidArgument
	case jobs.ClassBusiness, jobs.ClassConflict, jobs.ClassTool:
		return codes.FailedPrecondition
	case jobs.ClassAuthorization, jobs.ClassPolicy:
		return codes.PermissionDenied
	case jobs.ClassResource:
		return codes.NotFound
	case jobs.ClassQuota:
		return codes.ResourceExhausted
	case jobs.ClassUnavailable:
		return codes.Unavailable
	case jobs.ClassTimeout:
		return codes.DeadlineExceeded
	default:
		return codes.Internal
	}
}

// requestIDs are the ids of a request that its errors repeat (G14).
type requestIDs struct {
	key string
	ids *macexecv1.CallContext
}

func idsOf(req any) requestIDs {
	var r requestIDs
	switch m := req.(type) {
	case interface{ GetIdempotencyKey() string }:
		r.key = m.GetIdempotencyKey()
	case *macexecv1.LookupKeyRequest:
		r.key = m.GetKey()
	case *macexecv1.FenceKeyRequest:
		r.key = m.GetKey()
	}
	if m, ok := req.(interface {
		GetContext() *macexecv1.CallContext
	}); ok {
		r.ids = m.GetContext()
	}
	return r
}

// statusOf makes the status of an error. An error that is neither ours, nor the
// context's, nor gRPC's own is a fault: it is logged under an id, and the caller
// hears the id and not the cause.
func (s *Server) statusOf(ctx context.Context, err error, method string, ids requestIDs) error {
	e, ok := errors.AsType[*jobs.Error](err)
	switch {
	case ok:
	case errors.Is(err, context.DeadlineExceeded):
		e = jobs.Errorf(jobs.CodeDeadline, "the request's deadline passed; what it began goes on, so repeat it with the same key")
	case errors.Is(err, context.Canceled):
		e = jobs.Errorf(jobs.CodeCallerGone, "the caller went away; what the request began goes on")
	default:
		if st, ok := status.FromError(err); ok {
			return st.Err() // of gRPC itself: a broken stream, an unknown health service
		}
		e = jobs.Errorf(jobs.CodeInternal, "%w", err)
	}
	if e.Code == jobs.CodeInternal {
		id := strings.ToLower(rand.Text()[:12])
		s.log.LogAttrs(ctx, slog.LevelError, "a request met a fault",
			slog.String("fault_id", id), slog.String("method", method), slog.String("job_id", e.JobID), slog.Any("error", err))
		hidden := jobs.Errorf(jobs.CodeInternal, "a fault in macexec itself; the daemon's log tells more under %s", id).With("fault_id", id)
		hidden.JobID, hidden.SideEffect = e.JobID, e.SideEffect
		e = hidden
	}
	return newStatus(e, ids).Err()
}

// newStatus makes the status of an error, small enough for a header.
func newStatus(e *jobs.Error, ids requestIDs) *status.Status {
	detail := convertError(e)
	detail.Key, detail.ToolCallId = ids.key, ids.ids.GetToolCallId()
	detail.RunId, detail.TraceId = ids.ids.GetRunId(), ids.ids.GetTraceId()
	repair(detail.ProtoReflect())
	return fit(detail, grpcCode(e.Code, e.Info().Class))
}

// maxFindings is how many findings a status is tried with.
const maxFindings = 32

// fit builds the status and makes it smaller until it fits: first it leaves out
// findings from the end, then what is long besides.
func fit(detail *macexecv1.Error, code codes.Code) *status.Status {
	detail.Message = shorten(detail.GetMessage(), maxMessage)
	for k, v := range detail.GetMetadata() {
		detail.Metadata[k] = shorten(v, maxMessage)
	}
	all := detail.GetFindings()
	for n := min(len(all), maxFindings); n >= 0; n-- {
		detail.Findings = all[:n]
		if omitted := len(all) - n; omitted > 0 {
			if detail.Metadata == nil {
				detail.Metadata = map[string]string{}
			}
			detail.Metadata["findings_omitted"] = strconv.Itoa(omitted)
		}
		if st := withDetails(detail, code); proto.Size(st.Proto()) <= maxStatus {
			return st
		}
	}
	detail.Decision = nil
	for _, id := range []*string{&detail.Key, &detail.ToolCallId, &detail.RunId, &detail.TraceId, &detail.JobId} {
		*id = shorten(*id, 128)
	}
	for k := range detail.GetMetadata() {
		if k != "findings_omitted" {
			delete(detail.GetMetadata(), k)
		}
	}
	return withDetails(detail, code)
}

// shorten cuts a string to at most n bytes, between characters, and shows the cut.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// withDetails attaches our own shape and what google.rpc has for it: at most one
// detail of each type, and always an ErrorInfo (AIP-193).
func withDetails(e *macexecv1.Error, code codes.Code) *status.Status {
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(e), protoadapt.MessageV1Of(&errdetails.ErrorInfo{
		Reason: e.GetCode(), Domain: errorDomain, Metadata: e.GetMetadata(),
	})}
	switch e.GetClass() {
	case macexecv1.ErrorClass_ERROR_CLASS_SYNTAX, macexecv1.ErrorClass_ERROR_CLASS_SCHEMA:
		details = append(details, badRequest(e))
	case macexecv1.ErrorClass_ERROR_CLASS_BUSINESS, macexecv1.ErrorClass_ERROR_CLASS_CONFLICT:
		if code == codes.FailedPrecondition {
			details = append(details, preconditionFailure(e))
		}
	case macexecv1.ErrorClass_ERROR_CLASS_QUOTA:
		details = append(details, protoadapt.MessageV1Of(&errdetails.QuotaFailure{
			Violations: []*errdetails.QuotaFailure_Violation{{Subject: "host", Description: e.GetMessage()}},
		}))
	default: // google.rpc has nothing of its own for the others
	}
	if pause := retryAfter(e); pause > 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(pause)}))
	}
	st := status.New(code, e.GetMessage())
	full, err := st.WithDetails(details...)
	if err != nil {
		return st // cannot happen: every string was made valid
	}
	return full
}

func badRequest(e *macexecv1.Error) protoadapt.MessageV1 {
	var br errdetails.BadRequest
	for _, f := range e.GetFindings() {
		br.FieldViolations = append(br.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: f.GetPointer(), Description: f.GetMessage(), Reason: reason(f.GetKeyword()),
		})
	}
	if len(br.GetFieldViolations()) == 0 {
		br.FieldViolations = []*errdetails.BadRequest_FieldViolation{{
			Field: e.GetMetadata()["field"], Description: e.GetMessage(), Reason: e.GetCode(),
		}}
	}
	return protoadapt.MessageV1Of(&br)
}

func preconditionFailure(e *macexecv1.Error) protoadapt.MessageV1 {
	var pf errdetails.PreconditionFailure
	for _, f := range e.GetFindings() {
		pf.Violations = append(pf.Violations, &errdetails.PreconditionFailure_Violation{
			Type: reason(f.GetKeyword()), Subject: f.GetPointer(), Description: f.GetMessage(),
		})
	}
	if len(pf.GetViolations()) == 0 {
		pf.Violations = []*errdetails.PreconditionFailure_Violation{{
			Type: e.GetCode(), Subject: e.GetJobId(), Description: e.GetMessage(),
		}}
	}
	return protoadapt.MessageV1Of(&pf)
}

// reason writes a keyword in the form that google.rpc asks of reasons: UPPER_SNAKE.
func reason(keyword string) string {
	var b strings.Builder
	for i, r := range keyword {
		switch {
		case r >= 'A' && r <= 'Z' && i > 0:
			b.WriteByte('_')
			b.WriteRune(r)
		case r >= 'a' && r <= 'z':
			b.WriteRune(r - 'a' + 'A')
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}

// retryAfter is how long to wait before the same request may succeed; 0: waiting
// does not help.
func retryAfter(e *macexecv1.Error) time.Duration {
	if !e.GetRetryable() {
		return 0
	}
	switch e.GetClass() {
	case macexecv1.ErrorClass_ERROR_CLASS_UNAVAILABLE, macexecv1.ErrorClass_ERROR_CLASS_CONFLICT:
		return 2 * time.Second
	case macexecv1.ErrorClass_ERROR_CLASS_QUOTA:
		return 30 * time.Second
	default:
		return 0
	}
}

// convertError makes our one shape of an error.
func convertError(e *jobs.Error) *macexecv1.Error {
	info := e.Info()
	out := &macexecv1.Error{
		Class:      enum[macexecv1.ErrorClass](info.Class),
		Code:       string(e.Code),
		Message:    e.Message,
		Retryable:  info.Retryable,
		UserAction: enum[macexecv1.UserAction](info.Action),
		SideEffect: macexecv1.SideEffect_SIDE_EFFECT_NONE,
		Findings:   convertFindings(e.Findings),
		JobId:      e.JobID,
		Metadata:   maps.Clone(e.Metadata),
	}
	if e.SideEffect != "" {
		out.SideEffect = enum[macexecv1.SideEffect](e.SideEffect)
	}
	if e.Verdicts != nil {
		out.Verdicts = convertVerdicts(*e.Verdicts)
		if len(out.GetFindings()) == 0 {
			out.Findings = slices.Clone(out.GetVerdicts().GetFindings())
		}
		out.Verdicts.Findings = nil
	}
	if e.Decision != nil {
		out.Decision = convertDecision(*e.Decision)
	}
	return out
}
