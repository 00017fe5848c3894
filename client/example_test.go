package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// address is where a daemon listens, for the examples: one that loses its first
// answer to a submission, so that it can be seen that this does not matter.
func address() (at string, stop func()) {
	dir, err := os.MkdirTemp("/tmp", "mx")
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "macexec.sock"))
	if err != nil {
		panic(err)
	}
	d := &daemon{}
	job := func(state macexecv1.JobState) *macexecv1.Job {
		return &macexecv1.Job{Id: "01m8p2c5jq-tm6kqwyo", State: state, Result: []byte(`{"codec":"pcm_s16le"}`)}
	}
	d.submit = func(n int, _ *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
		if n == 1 {
			d.cut()
			return nil, status.Error(codes.Unavailable, "nobody hears this")
		}
		return &macexecv1.SubmitJobResponse{Job: job(macexecv1.JobState_JOB_STATE_QUEUED), Replayed: true}, nil
	}
	d.wait = func(int, *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
		return &macexecv1.WaitJobResponse{Job: job(macexecv1.JobState_JOB_STATE_COMPLETED)}, nil
	}
	d.fence = func(_ int, req *macexecv1.FenceKeyRequest) (*macexecv1.FenceKeyResponse, error) {
		return &macexecv1.FenceKeyResponse{Planted: true, Record: &macexecv1.KeyRecord{
			Key: req.GetKey(), Kind: macexecv1.KeyKind_KEY_KIND_FENCE,
		}}, nil
	}
	d.list = func(int, *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
		return &macexecv1.ListJobsResponse{Jobs: []*macexecv1.Job{job(macexecv1.JobState_JOB_STATE_RUNNING)}}, nil
	}
	d.watch = func(_ int, req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		switch {
		case req.GetFromNow():
			return s.SendHeader(metadata.Pairs("macexec-cursor", "90"))
		case req.GetAfter() < 80:
			st, err := status.New(codes.OutOfRange, "gone").WithDetails(&macexecv1.Error{
				Code: "CURSOR_EXPIRED", Metadata: map[string]string{"oldest": "80"},
			})
			return errors.Join(err, st.Err())
		default:
			return s.Send(event(req.GetAfter()+1, macexecv1.JobState_JOB_STATE_COMPLETED))
		}
	}
	server := grpc.NewServer()
	macexecv1.RegisterJobServiceServer(server, d)
	served := make(chan error, 1)
	go func() { served <- server.Serve(recorder{listener, d}) }()
	return "unix:" + listener.Addr().String(), func() {
		server.Stop()
		if err := errors.Join(<-served, os.RemoveAll(dir)); err != nil {
			panic(err)
		}
	}
}

// A call, and the wait for what becomes of it. The answer to the submission is lost
// here, and Submit has asked for it again under the same key.
func Example() {
	at, stop := address()
	defer stop()
	c, err := client.Dial(at)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	ctx := context.Background()
	job, err := c.Submit(ctx, &macexecv1.SubmitJobRequest{
		IdempotencyKey: "run-7/step-3", // yours, stored before the call is made
		Tool:           "inspect_audio",
		Arguments:      []byte(`{"input": "speech.wav"}`),
	})
	if err != nil {
		panic(err)
	}
	job, err = c.Wait(ctx, job.GetId())
	if err != nil {
		panic(err)
	}
	fmt.Println(job.GetState(), string(job.GetResult()))
	// Output: JOB_STATE_COMPLETED {"codec":"pcm_s16le"}
}

// What an error of Submit says about the call.
func ExampleClient_Submit() {
	// Nobody listens here.
	c, err := client.Dial("unix:/tmp/no-such-folder/macexec.sock", client.Patience(5*time.Second))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	_, err = c.Submit(context.Background(), &macexecv1.SubmitJobRequest{IdempotencyKey: "run-7/step-3", Tool: "inspect_audio"})
	refused, ok := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		fmt.Println("accepted: there is a job")
	case !ok:
		fmt.Println("a fault of this program:", err)
	case refused.NotReached():
		fmt.Println("not accepted: nothing was ever sent")
	case refused.AnswerLost():
		fmt.Println("perhaps accepted: repeat it with the key", refused.Detail.GetKey())
	default:
		fmt.Println("refused:", refused.Code())
	}
	// Output: not accepted: nothing was ever sent
}

// Before work moves to another host: nothing will ever start under the key here.
func ExampleClient_Fence() {
	at, stop := address()
	defer stop()
	c, err := client.Dial(at)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	record, _, err := c.Fence(context.Background(), "run-7/step-4", "moved to another host")
	if err != nil {
		panic(err)
	}
	if record.GetKind() == macexecv1.KeyKind_KEY_KIND_FENCE {
		fmt.Println("the work may move")
	} else {
		fmt.Println("it has started here, as job", record.GetJobId())
	}
	// Output: the work may move
}

// A watch that goes on from a stored cursor, and begins anew when the events behind
// that are gone.
func ExampleClient_WatchSnapshot() {
	at, stop := address()
	defer stop()
	c, err := client.Dial(at)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	tell := func(e *macexecv1.Event) error {
		fmt.Println(e.GetJob().GetState(), "at cursor", e.GetCursor())
		return nil
	}
	ctx := context.Background()
	err = c.Watch(ctx, &macexecv1.WatchJobsRequest{After: 12}, tell)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code() == "CURSOR_EXPIRED" {
		fmt.Println("the oldest event is", e.Oldest())
		err = c.WatchSnapshot(ctx, &macexecv1.WatchJobsRequest{}, tell)
	}
	if err != nil {
		panic(err)
	}
	// Output:
	// the oldest event is 80
	// JOB_STATE_RUNNING at cursor 90
	// JOB_STATE_COMPLETED at cursor 91
}
