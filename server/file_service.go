package server

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// chunkSize is how much of a file goes in one message. A message that is cut in two is
// lost, so it is no larger than it must be to be fast.
const chunkSize = 64 << 10

// largestChunk is the most that an upload may send in one message.
const largestChunk = 1 << 20

type fileService struct {
	macexecv1.UnsafeFileServiceServer

	server *Server
}

func (s *fileService) UploadFile(stream grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return badField("start", "must be the first message of an upload")
	}
	announced := engine.UploadRequest{SHA256: start.GetSha256(), Size: -1, Offset: start.GetOffset()}
	if start.Size != nil {
		announced.Size = start.GetSize()
		if announced.Size < 0 {
			return badField("start.size", "is %d, and must not be negative", announced.Size)
		}
	}
	if announced.SHA256 != "" && !hexDigest(announced.SHA256) {
		return badField("start.sha256", "is not a SHA-256 in 64 lower-case hexadecimal digits")
	}
	if announced.Offset < 0 {
		return badField("start.offset", "is %d, and must not be negative", announced.Offset)
	}
	upload, err := s.server.engine.Upload(ctx, caller(ctx), announced)
	if err != nil {
		return err
	}
	defer upload.Abort()
	if err := receive(stream, upload); err != nil {
		return err
	}
	blob, err := upload.Commit(ctx)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&macexecv1.UploadFileResponse{File: &macexecv1.FileInfo{
		Reference: "sha256:" + blob.SHA256, Sha256: blob.SHA256, Size: blob.Size, MediaType: blob.MediaType, TransferSize: blob.Size,
	}})
}

// readAhead is how many messages of an upload may have come in and not be written
// yet.
const readAhead = 8

// receive writes the chunks of an upload. It takes them off the stream before they can
// be written, because gRPC forgets what it holds when a line breaks, and all of that
// would have to be sent again.
func receive(stream grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse], w io.Writer) error {
	var ended error // read once messages is closed
	messages := make(chan *macexecv1.UploadFileRequest, readAhead)
	ctx, cancel := context.WithCancel(context.WithoutCancel(stream.Context()))
	defer cancel()
	go func() { // ends with the stream, or when nothing is taken any more
		defer close(messages)
		for {
			req, err := stream.Recv()
			if err != nil {
				ended = err
				return
			}
			select {
			case messages <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for req := range messages {
		chunk, ok := req.GetPart().(*macexecv1.UploadFileRequest_Chunk)
		if !ok {
			return badField("start", "may only be the first message of an upload")
		}
		if len(chunk.Chunk) > largestChunk {
			return badField("chunk", "has %d bytes, and %d are the most", len(chunk.Chunk), largestChunk)
		}
		if _, err := w.Write(chunk.Chunk); err != nil {
			return err
		}
	}
	if errors.Is(ended, io.EOF) {
		return nil
	}
	return ended
}

func (s *fileService) StatUpload(ctx context.Context, req *macexecv1.StatUploadRequest) (*macexecv1.StatUploadResponse, error) {
	if !hexDigest(req.GetSha256()) {
		return nil, badField("sha256", "is not a SHA-256 in 64 lower-case hexadecimal digits")
	}
	if req.GetSize() < 0 {
		return nil, badField("size", "is %d, and must not be negative", req.GetSize())
	}
	status, err := s.server.engine.StatUpload(ctx, caller(ctx), req.GetSha256(), req.GetSize())
	if err != nil {
		return nil, err
	}
	resp := &macexecv1.StatUploadResponse{Offset: status.Offset}
	if status.File != nil {
		resp.File = convertFile(*status.File)
	}
	return resp, nil
}

func hexDigest(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 64 && s == strings.ToLower(s)
}

func (s *fileService) DownloadFile(req *macexecv1.DownloadFileRequest, stream grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
	ctx := stream.Context()
	file, info, err := s.open(ctx, req.GetReference())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	offset := req.GetOffset()
	if offset < 0 || offset > info.Transfer {
		return badField("offset", "is %d, and the download has %d bytes", offset, info.Transfer)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return jobs.Errorf(jobs.CodeInternal, "seek in %s: %w", info.Reference, err)
	}
	if err := stream.Send(&macexecv1.DownloadFileResponse{File: convertFile(info), Offset: offset}); err != nil {
		return err
	}
	for buf := make([]byte, chunkSize); ; {
		n, err := file.Read(buf)
		if n > 0 {
			if err := stream.Send(&macexecv1.DownloadFileResponse{Offset: offset, Chunk: buf[:n]}); err != nil {
				return err
			}
			offset += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return jobs.Errorf(jobs.CodeInternal, "read %s: %w", info.Reference, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

func (s *fileService) StatFile(ctx context.Context, req *macexecv1.StatFileRequest) (*macexecv1.StatFileResponse, error) {
	info, err := s.stat(ctx, req.GetReference())
	if err != nil {
		return nil, err
	}
	return &macexecv1.StatFileResponse{File: convertFile(info)}, nil
}
