package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"

	"github.com/macexec/macexec/jobs"
)

// The guard is what every request passes through: it proves and checks who asks,
// catches panics, ends streams when the server drains, and has errors made into
// statuses.

// errDraining ends streams and waits, so that their callers go on with the next daemon.
func errDraining() *jobs.Error {
	return jobs.Errorf(jobs.CodeDraining, "the daemon is stopping; connect again and go on from your cursor")
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, end := s.begin(ctx, info.FullMethod, req)
	var resp any
	err := s.admit(ctx, info.FullMethod, func(ctx context.Context) (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	if err != nil {
		resp, err = nil, s.statusOf(ctx, err, info.FullMethod, idsOf(req))
	}
	end(err)
	return resp, err
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	var ids requestIDs
	observed, end := s.begin(ss.Context(), info.FullMethod, nil)
	err := s.admit(observed, info.FullMethod, func(ctx context.Context) error {
		return s.untilDrained(ctx, func(ctx context.Context) error {
			return handler(srv, &guardedStream{ServerStream: ss, ctx: ctx, ids: &ids, clientStreams: info.IsClientStream})
		})
	})
	if err != nil {
		err = s.statusOf(ss.Context(), err, info.FullMethod, ids)
	}
	end(err)
	return err
}

// untilDrained calls handle, which may take long, with a context that also ends when
// the server drains. Whatever handle makes of that, the drain is then the reason.
func (s *Server) untilDrained(ctx context.Context, handle func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.draining, func() { cancel(errDraining()) })() //nolint:contextcheck // the server's life, not the request's
	err := handle(ctx)
	if err != nil && s.draining.Err() != nil && jobs.CodeOf(err) != jobs.CodeDraining {
		if cause, ok := errors.AsType[*jobs.Error](context.Cause(ctx)); ok {
			return cause
		}
	}
	return err
}

// admit calls handle for a peer that is known and may use the method, and makes an
// error of a panic.
func (s *Server) admit(ctx context.Context, method string, handle func(context.Context) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.LogAttrs(ctx, slog.LevelError, "a request panicked",
				slog.String("method", method), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	p, err := s.identify(ctx)
	if err != nil {
		return err
	}
	if err := s.authorize(p, method); err != nil {
		return err
	}
	return handle(withPrincipal(ctx, p))
}

// guardedStream is the stream that a handler sees.
type guardedStream struct {
	grpc.ServerStream

	ctx           context.Context //nolint:containedctx // a gRPC stream carries its context
	ids           *requestIDs
	clientStreams bool
}

func (g *guardedStream) Context() context.Context { return g.ctx }

func (g *guardedStream) RecvMsg(m any) error {
	if !g.clientStreams {
		err := g.ServerStream.RecvMsg(m)
		*g.ids = idsOf(m)
		return err
	}
	// gRPC's own RecvMsg knows nothing of our context, and an idle sender would hold
	// up the drain. What is left behind ends with the stream, and nobody else has m.
	received := make(chan error, 1)
	go func() { received <- g.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}
