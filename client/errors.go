package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// The codes of errors that the client itself makes, because the daemon could not.
const (
	// CodeNotReached: nothing was sent, so nothing happened.
	CodeNotReached = "DAEMON_NOT_REACHED"
	// CodeAnswerLost: the request was sent and may have been carried out; only a
	// repeat with the same key, or a look at what there is, can tell.
	CodeAnswerLost = "ANSWER_LOST"
)

// Error is the error of every method of this package that talks to the daemon:
// what the daemon answered, or why there is no answer.
type Error struct {
	// Detail is never nil.
	Detail *macexecv1.Error
	status *status.Status
}

func (e *Error) Error() string { return e.Detail.GetCode() + ": " + e.Detail.GetMessage() }

// GRPCStatus is the status that came over the wire, or was made in its place.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Unwrap gives the context's error if the caller's own deadline or cancellation
// ended the request, so that errors.Is finds it.
func (e *Error) Unwrap() error {
	switch e.status.Code() {
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Canceled:
		return context.Canceled
	default:
		return nil
	}
}

// Code is the error's code, in UPPER_SNAKE.
func (e *Error) Code() string { return e.Detail.GetCode() }

// Findings say what exactly is wrong with the arguments.
func (e *Error) Findings() []*macexecv1.Finding { return e.Detail.GetFindings() }

// Verdicts are the three answers about the arguments, or nil.
func (e *Error) Verdicts() *macexecv1.Verdicts { return e.Detail.GetVerdicts() }

// JobID is the job that the error is about, or empty.
func (e *Error) JobID() string { return e.Detail.GetJobId() }

// Oldest is the number of the oldest event that is still kept, with CURSOR_EXPIRED,
// and otherwise 0. A watch after the cursor Oldest()-1 begins with that event; what
// came before it is gone.
func (e *Error) Oldest() uint64 {
	oldest, err := strconv.ParseUint(e.Detail.GetMetadata()["oldest"], 10, 64)
	if err != nil {
		return 0
	}
	return oldest
}

// NotReached reports that nothing was sent, so nothing happened.
func (e *Error) NotReached() bool { return e.Code() == CodeNotReached }

// AnswerLost reports that the request was sent and its answer did not come.
func (e *Error) AnswerLost() bool { return e.Code() == CodeAnswerLost }

// sentMark is set once a message of the RPC has been given to the transport.
type sentMark struct {
	sent   atomic.Bool
	target string // gRPC's name of the daemon
}

type sentKey struct{}

// sentHandler sets the sentMark in a request's context.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		if mark, ok := ctx.Value(sentKey{}).(*sentMark); ok {
			mark.sent.Store(true)
		}
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}

func unaryErrors(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	mark := &sentMark{target: cc.Target()}
	err := invoke(context.WithValue(ctx, sentKey{}, mark), method, req, reply, cc, opts...)
	return typed(unsendable(err, mark, req), mark)
}

func streamErrors(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	mark := &sentMark{target: cc.Target()}
	s, err := stream(context.WithValue(ctx, sentKey{}, mark), desc, cc, method, opts...)
	if err != nil {
		return nil, typed(err, mark)
	}
	return &typedStream{ClientStream: s, mark: mark}, nil
}

type typedStream struct {
	grpc.ClientStream

	mark *sentMark
}

func (s *typedStream) RecvMsg(m any) error { return typed(s.ClientStream.RecvMsg(m), s.mark) }

// SendMsg passes io.EOF on: it says that RecvMsg has the real error.
func (s *typedStream) SendMsg(m any) error {
	return typed(unsendable(s.ClientStream.SendMsg(m), s.mark, m), s.mark)
}

// unsendable says of a request that no message can carry which text of it is not UTF-8;
// any other error it returns as it is.
func unsendable(err error, mark *sentMark, req any) error {
	m, ok := req.(proto.Message)
	if status.Code(err) != codes.Internal || mark.sent.Load() || !ok {
		return err
	}
	field := notUTF8(m.ProtoReflect())
	if field == "" {
		return err
	}
	e := made(status.New(codes.InvalidArgument, "not UTF-8"), macexecv1.ErrorClass_ERROR_CLASS_SCHEMA, "REQUEST_INVALID",
		macexecv1.UserAction_USER_ACTION_FIX_REQUEST, "the request was not sent: "+field+" is not UTF-8")
	e.Detail.Metadata = map[string]string{"field": field}
	return e
}

// notUTF8 names the first text of a message that is not UTF-8, "" if there is none.
func notUTF8(m protoreflect.Message) (path string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		look := func(v protoreflect.Value) {
			switch {
			case path != "":
			case f.Kind() == protoreflect.StringKind && !f.IsMap() && !utf8.ValidString(v.String()):
				path = string(f.Name())
			case f.Message() != nil && !f.IsMap():
				if inner := notUTF8(v.Message()); inner != "" {
					path = string(f.Name()) + "." + inner
				}
			}
		}
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				texts := k.String()
				if f.MapValue().Kind() == protoreflect.StringKind {
					texts += v.String()
				}
				if !utf8.ValidString(texts) {
					path = string(f.Name())
				}
				return path == ""
			})
		case f.IsList():
			for i := range v.List().Len() {
				look(v.List().Get(i))
			}
		default:
			look(v)
		}
		return path == ""
	})
	return path
}

// typed makes an *Error of what gRPC returns. A status with our detail is the
// daemon's answer. One without it comes from gRPC itself, here or over there, and
// then the question is whether the request had left.
func typed(err error, mark *sentMark) error {
	if _, own := errors.AsType[*Error](err); own || err == nil || errors.Is(err, io.EOF) {
		return err
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if detail, ok := d.(*macexecv1.Error); ok {
			return &Error{Detail: detail, status: st}
		}
	}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		if mark.sent.Load() {
			return answerLost(st)
		}
		e := notReached(st)
		e.Detail.Metadata = map[string]string{"address": strings.TrimPrefix(mark.target, asItIs)}
		return e
	case codes.ResourceExhausted:
		return made(st, macexecv1.ErrorClass_ERROR_CLASS_SCHEMA, "REQUEST_INVALID", macexecv1.UserAction_USER_ACTION_FIX_REQUEST,
			"a message is larger than gRPC takes: "+st.Message())
	case codes.Unimplemented:
		return made(st, macexecv1.ErrorClass_ERROR_CLASS_INTERNAL, "INTERNAL", macexecv1.UserAction_USER_ACTION_ASK_OPERATOR,
			"this daemon does not know the request; it may be older than this client")
	default:
		return made(st, macexecv1.ErrorClass_ERROR_CLASS_INTERNAL, "INTERNAL", macexecv1.UserAction_USER_ACTION_ASK_OPERATOR,
			fmt.Sprintf("gRPC says %s: %s", st.Code(), st.Message()))
	}
}

func notReached(st *status.Status) *Error {
	e := made(st, macexecv1.ErrorClass_ERROR_CLASS_UNAVAILABLE, CodeNotReached, macexecv1.UserAction_USER_ACTION_REPEAT_SAME_KEY,
		"the daemon was not reached, and nothing was sent: "+plain(st.Message()))
	e.Detail.Retryable = true
	return e
}

func answerLost(st *status.Status) *Error {
	e := made(st, macexecv1.ErrorClass_ERROR_CLASS_UNAVAILABLE, CodeAnswerLost, macexecv1.UserAction_USER_ACTION_REPEAT_SAME_KEY,
		"the request was sent, but its answer was lost; repeat it with the same key: "+plain(st.Message()))
	e.Detail.Retryable = true
	e.Detail.SideEffect = macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE
	return e
}

// plain leaves out what gRPC wraps around the words of the operating system.
func plain(message string) string {
	if _, words, ok := strings.Cut(message, "Error while dialing: "); ok {
		return strings.TrimSuffix(words, `"`)
	}
	return message
}

func made(st *status.Status, class macexecv1.ErrorClass, code string, action macexecv1.UserAction, message string) *Error {
	return &Error{status: st, Detail: &macexecv1.Error{
		Class: class, Code: code, Message: message, UserAction: action, SideEffect: macexecv1.SideEffect_SIDE_EFFECT_NONE,
	}}
}

// withIDs returns a copy of the error that carries the request's own ids, for
// errors that the daemon had no hand in.
func (e *Error) withIDs(key string, ids *macexecv1.CallContext) *Error {
	detail := proto.CloneOf(e.Detail)
	detail.Key, detail.ToolCallId, detail.RunId, detail.TraceId = key, ids.GetToolCallId(), ids.GetRunId(), ids.GetTraceId()
	return &Error{Detail: detail, status: e.status}
}
