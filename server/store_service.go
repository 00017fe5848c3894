package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

type storeService struct {
	macexecv1.UnsafeStoreServiceServer

	server *Server
}

func (s *storeService) BackupStore(_ *macexecv1.BackupStoreRequest, stream grpc.ServerStreamingServer[macexecv1.BackupStoreResponse]) error {
	ctx := stream.Context()
	made, err := s.server.engine.BackupStore(ctx, caller(ctx))
	if err != nil {
		return err
	}
	defer made.Close()
	what := &macexecv1.StoreCopy{HostId: made.HostID, JournalHead: made.Head, Size: made.Size}
	if err := stream.Send(&macexecv1.BackupStoreResponse{Copy: what}); err != nil {
		return err
	}
	sum := sha256.New()
	for buf := make([]byte, largestChunk); ; {
		n, err := io.ReadFull(made, buf)
		sum.Write(buf[:n])
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return jobs.Errorf(jobs.CodeInternal, "the copy of the store cannot be read: %w", err)
		}
		next := &macexecv1.BackupStoreResponse{Chunk: buf[:n]}
		if last {
			what.Sha256 = hex.EncodeToString(sum.Sum(nil))
			next.Copy = what
		}
		switch err := stream.Send(next); {
		case err != nil || last:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

func (s *storeService) ConfirmRestore(ctx context.Context, req *macexecv1.ConfirmRestoreRequest) (*macexecv1.ConfirmRestoreResponse, error) {
	r, err := s.server.engine.ConfirmRestore(ctx, caller(ctx), req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.ConfirmRestoreResponse{Restore: convertRestore(r)}, nil
}

func convertRestore(r *jobs.Restore) *macexecv1.StoreRestore {
	if r == nil {
		return nil
	}
	return &macexecv1.StoreRestore{
		At: timestamp(r.At), By: r.By, Reason: r.Reason, JournalHead: r.Head, KnownHostId: r.Known.HostID, KnownHead: r.Known.Head,
	}
}

func (s *storeService) DescribeStore(ctx context.Context, _ *macexecv1.DescribeStoreRequest) (*macexecv1.DescribeStoreResponse, error) {
	use, err := s.server.engine.DescribeStore(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &macexecv1.DescribeStoreResponse{Use: convertUse(use)}, nil
}

func (s *storeService) PruneStore(ctx context.Context, req *macexecv1.PruneStoreRequest) (*macexecv1.PruneStoreResponse, error) {
	age := req.GetOlderThan().AsDuration()
	if age < 0 {
		return nil, jobs.Errorf(jobs.CodeRequestInvalid, "an age is not negative").With("field", "older_than")
	}
	pruned, err := s.server.engine.Prune(ctx, caller(ctx), age, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &macexecv1.PruneStoreResponse{Pruned: convertPruned(pruned), DryRun: req.GetDryRun(), Held: pruned.Held}, nil
}
