package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func waited(state macexecv1.JobState) (*macexecv1.WaitJobResponse, error) {
	return &macexecv1.WaitJobResponse{Job: &macexecv1.Job{Id: "J", State: state}}, nil
}

// TestWait: it looks first, then asks for long waits, and goes on over cuts and drains
// until the job is settled.
func TestWait(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	var asked []float64
	d.wait = func(n int, req *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
		asked = append(asked, req.GetWaitSeconds())
		switch n {
		case 1:
			return waited(macexecv1.JobState_JOB_STATE_QUEUED)
		case 2:
			d.cut()
			return nil, errors.New("nobody hears this")
		case 3:
			return nil, answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
		case 4:
			return waited(macexecv1.JobState_JOB_STATE_RUNNING)
		default:
			return waited(macexecv1.JobState_JOB_STATE_COMPLETED)
		}
	}
	job, err := start(t, d, long).Wait(t.Context(), "J")
	if err != nil || job.GetState() != macexecv1.JobState_JOB_STATE_COMPLETED {
		t.Errorf("%v, %v", job, err)
	}
	if len(asked) != 5 || asked[0] != 0 || slices.Min(asked[1:]) < 10 || slices.Max(asked) > 300 {
		t.Errorf("asked to wait %v", asked)
	}
}

// TestWaitEnds: by the context with the job as last seen, by patience with why, and
// by what the daemon says.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	d := &daemon{wait: func(n int, _ *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
		if n > 1 {
			<-release
		}
		return waited(macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL)
	}}
	c := start(t, d, time.Hour)
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	job, err := c.Wait(ctx, "J")
	if !errors.Is(err, context.DeadlineExceeded) || job.GetState() != macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		t.Errorf("%v, %v", job, err)
	}

	_, err = dial(t, socket(t), short).Wait(t.Context(), "J")
	if e := failure(t, err); !e.NotReached() {
		t.Errorf("nobody there: %v", e)
	}

	gone := &daemon{wait: func(int, *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
		return nil, answer(t, codes.NotFound, &macexecv1.Error{Code: "JOB_NOT_FOUND"})
	}}
	_, err = start(t, gone, time.Hour).Wait(t.Context(), "J")
	if e := failure(t, err); e.Code() != "JOB_NOT_FOUND" || gone.calls != 1 {
		t.Errorf("%v after %d requests", e, gone.calls)
	}
}

// TestFence: a lost answer is asked for again.
func TestFence(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	d.fence = func(n int, req *macexecv1.FenceKeyRequest) (*macexecv1.FenceKeyResponse, error) {
		if n == 1 {
			d.cut()
			return nil, errors.New("nobody hears this")
		}
		return &macexecv1.FenceKeyResponse{Record: &macexecv1.KeyRecord{
			Key: req.GetKey(), Kind: macexecv1.KeyKind_KEY_KIND_FENCE,
		}}, nil
	}
	record, planted, err := start(t, d, long).Fence(t.Context(), "k", "moved elsewhere")
	if err != nil || planted || record.GetKey() != "k" || record.GetKind() != macexecv1.KeyKind_KEY_KIND_FENCE {
		t.Errorf("%v, planted %v, %v", record, planted, err)
	}
	_, _, err = dial(t, socket(t), time.Hour).Fence(t.Context(), "k", "")
	if e := failure(t, err); !e.NotReached() {
		t.Errorf("nobody there: %v", e)
	}
}

// TestWatchTellsOneSnapshot (G12): a stream that was opened again begins with the job
// as it is again, which is no news.
func TestWatchTellsOneSnapshot(t *testing.T) {
	t.Parallel()
	d := &daemon{watch: func(n int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		snapshot := &macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: 5, Snapshot: true, Job: &macexecv1.Job{Id: "J"}}}
		if err := s.Send(snapshot); err != nil || n == 3 {
			return err
		}
		return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
	}}
	seen := 0
	err := start(t, d, long).Watch(t.Context(), &macexecv1.WatchJobsRequest{JobId: "J"}, func(*macexecv1.Event) error { seen++; return nil })
	if err != nil || seen != 1 || d.calls != 3 {
		t.Errorf("%v, %d events of %d streams", err, seen, d.calls)
	}
}

// TestCursorExpired (G12): the caller is told which event is the oldest.
func TestCursorExpired(t *testing.T) {
	t.Parallel()
	d := &daemon{watch: func(int, *macexecv1.WatchJobsRequest, grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		return answer(t, codes.OutOfRange, &macexecv1.Error{Code: "CURSOR_EXPIRED", Metadata: map[string]string{"oldest": "41"}})
	}}
	err := start(t, d, time.Hour).Watch(t.Context(), &macexecv1.WatchJobsRequest{After: 3}, func(*macexecv1.Event) error { return nil })
	if e := failure(t, err); e.Code() != "CURSOR_EXPIRED" || e.Oldest() != 41 || d.calls != 1 {
		t.Errorf("%v, oldest %d, %d requests", e, e.Oldest(), d.calls)
	}
}

// TestWatchSnapshot (G12): the jobs as they are, of every page, then what happens from
// before they were read, without what they tell already.
func TestWatchSnapshot(t *testing.T) {
	t.Parallel()
	job := func(id string, revision uint64) *macexecv1.Job { return &macexecv1.Job{Id: id, Revision: revision} }
	entry := func(cursor uint64, kind, id string, revision uint64) *macexecv1.WatchJobsResponse {
		return &macexecv1.WatchJobsResponse{Event: &macexecv1.Event{
			Cursor: cursor, Entry: &macexecv1.Entry{Seq: cursor, Kind: kind, JobId: id, Revision: revision},
		}}
	}
	d := &daemon{}
	var after []uint64
	var wanted []*macexecv1.ListJobsRequest
	d.list = func(_ int, req *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
		wanted = append(wanted, req)
		if req.GetPageToken() == "" {
			return &macexecv1.ListJobsResponse{Jobs: []*macexecv1.Job{job("B", 3)}, NextPageToken: "p"}, nil
		}
		return &macexecv1.ListJobsResponse{Jobs: []*macexecv1.Job{job("A", 1)}}, nil
	}
	d.watch = func(_ int, req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		if req.GetFromNow() {
			if err := s.SendHeader(metadata.Pairs("macexec-cursor", "70")); err != nil {
				return err
			}
			<-s.Context().Done()
			return s.Context().Err()
		}
		after = append(after, req.GetAfter())
		if len(after) == 1 {
			// B was changed while the list was read, and somebody asked for A again.
			return errors.Join(s.Send(entry(71, "job.changed", "B", 3)), s.Send(entry(72, "job.replayed", "A", 1)),
				s.Send(entry(73, "job.changed", "B", 4)), status.Error(codes.Unavailable, "gone"))
		}
		return s.Send(entry(74, "job.submitted", "C", 1))
	}
	var got []string
	err := start(t, d, long).WatchSnapshot(t.Context(), &macexecv1.WatchJobsRequest{RunId: "r", After: 3, JobId: "B"}, func(e *macexecv1.Event) error {
		if e.GetSnapshot() {
			got = append(got, fmt.Sprintf("is %s, %d", e.GetJob().GetId(), e.GetCursor()))
		} else {
			got = append(got, e.GetEntry().GetKind()+" "+e.GetEntry().GetJobId())
		}
		return nil
	})
	want := []string{"is A, 0", "is B, 70", "job.replayed A", "job.changed B", "job.submitted C"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if len(after) != 2 || after[0] != 70 || after[1] < 70 {
		t.Errorf("watched after %v", after)
	}
	// A snapshot of no jobs has a cursor, too.
	d.list = func(int, *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
		return &macexecv1.ListJobsResponse{}, nil
	}
	enough := errors.New("enough")
	err = start(t, d, long).WatchSnapshot(t.Context(), &macexecv1.WatchJobsRequest{}, func(e *macexecv1.Event) error {
		if !e.GetSnapshot() || e.GetJob() != nil || e.GetCursor() != 70 {
			t.Errorf("the snapshot of no jobs is %v", e)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	pages := []*macexecv1.ListJobsRequest{{RunId: "r"}, {RunId: "r", PageToken: "p"}}
	if diff := cmp.Diff(pages, wanted, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
