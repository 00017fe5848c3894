package client_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// TestPatienceEnds: a daemon that answers again and again, and brings nothing on, is
// given up as one that does not answer, and is not asked all the time meanwhile.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	const patience = time.Second
	draining := answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	bringsNothing := func() *daemon {
		return &daemon{
			stat: func() (*macexecv1.StatUploadResponse, error) { return &macexecv1.StatUploadResponse{}, nil },
			upload: func(_ int, s grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
				for range 4 { // what is read and not kept
					if _, err := s.Recv(); err != nil {
						return err
					}
				}
				return draining
			},
			info: &macexecv1.FileInfo{Reference: "r", TransferSize: 10},
			download: func(_ int, _ *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
				_ = s.Send(&macexecv1.DownloadFileResponse{File: &macexecv1.FileInfo{Reference: "r", TransferSize: 10}})
				return draining
			},
			watch: func(_ int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
				_ = s.Send(&macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: 5, Snapshot: true, Job: &macexecv1.Job{Id: "J"}}})
				return draining
			},
			logs: func(_ int, _ *macexecv1.ReadJobLogsRequest, s grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse]) error {
				_ = s.Send(&macexecv1.ReadJobLogsResponse{Chunk: &macexecv1.LogChunk{Attempt: 1, Cursor: 3}})
				return draining
			},
		}
	}
	for name, request := range map[string]func(ctx context.Context, c *client.Client) error{
		"upload": func(ctx context.Context, c *client.Client) error {
			_, err := c.UploadFrom(ctx, bytes.NewReader(content))
			return err
		},
		"download": func(ctx context.Context, c *client.Client) error {
			_, err := c.DownloadRaw(ctx, "r", 0, io.Discard)
			return err
		},
		"watch": func(ctx context.Context, c *client.Client) error {
			return c.Watch(ctx, &macexecv1.WatchJobsRequest{JobId: "J"}, func(*macexecv1.Event) error { return nil })
		},
		"logs": func(ctx context.Context, c *client.Client) error {
			return c.ReadLogs(ctx, &macexecv1.ReadJobLogsRequest{JobId: "J", Follow: true}, func(*macexecv1.LogChunk) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
			d := bringsNothing()
			err := request(ctx, start(t, d, patience))
			if ctx.Err() != nil {
				t.Fatal("it has no end")
			}
			if e := failure(t, err); e.Code() != "HOST_DRAINING" {
				t.Errorf("%v", e)
			}
			// Pauses that double from 50 ms on, each cut by a half at most, twice over.
			if tries := d.calls; tries < 2 || tries > 16 {
				t.Errorf("%d tries in %s", tries, patience)
			}
		})
	}
}

// TestIdleWatchStands: a watch that has nothing to tell is no failure, however often the
// line breaks under it.
func TestIdleWatchStands(t *testing.T) {
	t.Parallel()
	d := &daemon{watch: func(n int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		if err := s.Send(&macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: 5, Snapshot: true, Job: &macexecv1.Job{Id: "J"}}}); err != nil || n == 5 {
			return err
		}
		select {
		case <-s.Context().Done():
		case <-time.After(2 * short):
		}
		return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
	}}
	err := start(t, d, short).Watch(t.Context(), &macexecv1.WatchJobsRequest{JobId: "J"}, func(*macexecv1.Event) error { return nil })
	if err != nil || d.calls != 5 {
		t.Errorf("%v after %d streams", err, d.calls)
	}
}

// TestWatchNeedsACursor: a snapshot has no beginning that is not named.
func TestWatchNeedsACursor(t *testing.T) {
	t.Parallel()
	d := &daemon{watch: func(_ int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		return s.Send(&macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: 5}})
	}, list: func(int, *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
		return &macexecv1.ListJobsResponse{}, nil
	}}
	err := start(t, d, long).WatchSnapshot(t.Context(), &macexecv1.WatchJobsRequest{}, func(*macexecv1.Event) error { return nil })
	if err == nil {
		t.Error("a watch from the oldest event on, and no error")
	}
}

// A host that somebody drains is no daemon that will soon be back: that it takes no
// upload is told at once, however much patience there is.
func TestDrainedHostRefusesUploadAtOnce(t *testing.T) {
	t.Parallel()
	d := &daemon{
		stat: func() (*macexecv1.StatUploadResponse, error) { return &macexecv1.StatUploadResponse{}, nil },
		upload: func(int, grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
			return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING", Metadata: map[string]string{"mode": "draining"}})
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	_, err := start(t, d, time.Hour).UploadFrom(ctx, bytes.NewReader([]byte("content")))
	if e := failure(t, err); e.Code() != "HOST_DRAINING" || ctx.Err() != nil {
		t.Errorf("%v", e)
	}
}
