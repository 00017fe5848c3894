package server

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/grpc"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

type journalService struct {
	macexecv1.UnsafeJournalServiceServer

	server *Server
}

func (s *journalService) ReadJournal(req *macexecv1.ReadJournalRequest, stream grpc.ServerStreamingServer[macexecv1.ReadJournalResponse]) error {
	if req.GetLimit() < 0 {
		return badField("limit", "is %d, and must not be negative", req.GetLimit())
	}
	ctx := stream.Context()
	last := req.GetAfter()
	err := s.server.engine.Journal(ctx, caller(ctx), req.GetAfter(), int(req.GetLimit()), req.GetFollow(), func(e jobs.Entry) error {
		last = e.Seq
		return stream.Send(&macexecv1.ReadJournalResponse{Entry: convertEntry(e)})
	})
	return resumable(ctx, err, strconv.FormatUint(last, 10))
}

func (s *journalService) VerifyJournal(ctx context.Context, _ *macexecv1.VerifyJournalRequest) (*macexecv1.VerifyJournalResponse, error) {
	good, err := s.server.engine.VerifyJournal(ctx, caller(ctx))
	report := &macexecv1.JournalReport{Ok: err == nil, Good: good}
	if e, ok := errors.AsType[*jobs.Error](err); ok && e.Code == jobs.CodeRecordDamaged {
		report.Message = shorten(e.Message, maxMessage)
	} else if err != nil {
		return nil, err
	}
	return &macexecv1.VerifyJournalResponse{Report: report}, nil
}
