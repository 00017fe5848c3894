package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon is a server whose answers are written by a test, and whose connections can
// be cut in the middle of a request.
type daemon struct {
	macexecv1.UnimplementedJobServiceServer
	macexecv1.UnimplementedFileServiceServer
	macexecv1.UnimplementedJournalServiceServer

	wait     func(n int, req *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error)
	fence    func(n int, req *macexecv1.FenceKeyRequest) (*macexecv1.FenceKeyResponse, error)
	list     func(n int, req *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error)
	submit   func(n int, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error)
	watch    func(n int, req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error
	logs     func(n int, req *macexecv1.ReadJobLogsRequest, s grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse]) error
	journal  func(n int, req *macexecv1.ReadJournalRequest, s grpc.ServerStreamingServer[macexecv1.ReadJournalResponse]) error
	download func(n int, req *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error

	info   *macexecv1.FileInfo // of StatFile
	upload func(n int, s grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error
	stat   func() (*macexecv1.StatUploadResponse, error)

	mu    sync.Mutex
	conns []net.Conn
	calls int
}

func (d *daemon) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	return d.calls
}

func (d *daemon) SubmitJob(_ context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
	return d.submit(d.count(), req)
}

func (d *daemon) WaitJob(_ context.Context, req *macexecv1.WaitJobRequest) (*macexecv1.WaitJobResponse, error) {
	return d.wait(d.count(), req)
}

func (d *daemon) FenceKey(_ context.Context, req *macexecv1.FenceKeyRequest) (*macexecv1.FenceKeyResponse, error) {
	return d.fence(d.count(), req)
}

func (d *daemon) ListJobs(_ context.Context, req *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
	return d.list(d.count(), req)
}

func (d *daemon) WatchJobs(req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
	return d.watch(d.count(), req, s)
}

func (d *daemon) ReadJobLogs(req *macexecv1.ReadJobLogsRequest, s grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse]) error {
	return d.logs(d.count(), req, s)
}

func (d *daemon) ReadJournal(req *macexecv1.ReadJournalRequest, s grpc.ServerStreamingServer[macexecv1.ReadJournalResponse]) error {
	return d.journal(d.count(), req, s)
}

func (d *daemon) DownloadFile(req *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
	return d.download(d.count(), req, s)
}

func (d *daemon) UploadFile(s grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
	return d.upload(d.count(), s)
}

func (d *daemon) StatUpload(context.Context, *macexecv1.StatUploadRequest) (*macexecv1.StatUploadResponse, error) {
	return d.stat()
}

func (d *daemon) StatFile(context.Context, *macexecv1.StatFileRequest) (*macexecv1.StatFileResponse, error) {
	return &macexecv1.StatFileResponse{File: d.info}, nil
}

// cut breaks every connection at once, as a daemon's death does.
func (d *daemon) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
}

// recorder keeps the connections of a listener for cut.
type recorder struct {
	net.Listener

	d *daemon
}

func (r recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err == nil {
		r.d.mu.Lock()
		r.d.conns = append(r.d.conns, c)
		r.d.mu.Unlock()
	}
	return c, err
}

func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // t.TempDir is too long for a socket on macOS
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func start(t *testing.T, d *daemon, patience time.Duration) *client.Client {
	t.Helper()
	path := socket(t)
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	macexecv1.RegisterJobServiceServer(s, d)
	macexecv1.RegisterFileServiceServer(s, d)
	macexecv1.RegisterJournalServiceServer(s, d)
	served := make(chan error, 1)
	go func() { served <- s.Serve(recorder{lis, d}) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return dial(t, path, patience)
}

func dial(t *testing.T, path string, patience time.Duration) *client.Client {
	t.Helper()
	c, err := client.Dial("unix:"+path, client.Patience(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const long, short = 20 * time.Second, 200 * time.Millisecond

func failure(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("not a client error: %v", err)
	}
	return e
}

// answer is a status as the daemon makes it.
func answer(t *testing.T, code codes.Code, e *macexecv1.Error) error {
	t.Helper()
	st, err := status.New(code, e.GetMessage()).WithDetails(e)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func ids() *macexecv1.CallContext {
	return &macexecv1.CallContext{ToolCallId: "tc", RunId: "r", TraceId: "tr"}
}

// TestNotReached: where nobody answers nothing was sent, and that is known at once.
func TestNotReached(t *testing.T) {
	t.Parallel()
	c := dial(t, socket(t), time.Hour)
	_, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k", Context: ids()})
	e := failure(t, err)
	if !e.NotReached() || e.AnswerLost() {
		t.Fatalf("%v", e)
	}
	if message := e.Detail.GetMessage(); !strings.HasSuffix(message, "no such file or directory") || strings.Contains(message, "desc =") {
		t.Errorf("%s", message)
	}
	if d := e.Detail; d.GetKey() != "k" || d.GetToolCallId() != "tc" || d.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE || !d.GetRetryable() {
		t.Errorf("%v", d)
	}
}

// TestAnswerLost (G2): a request whose answer never comes was perhaps carried out;
// every repeat is the very same request.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	var seen []*macexecv1.SubmitJobRequest
	d.submit = func(_ int, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
		d.mu.Lock()
		seen = append(seen, req)
		d.mu.Unlock()
		d.cut()
		return nil, errors.New("nobody hears this")
	}
	c := start(t, d, short)
	_, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{Tool: "t", Context: ids()})
	e := failure(t, err)
	if !e.AnswerLost() || e.NotReached() || e.Detail.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE {
		t.Fatalf("%v", e)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(seen) < 2 || seen[0].GetIdempotencyKey() == "" || seen[0].GetIdempotencyKey() != e.Detail.GetKey() {
		t.Fatalf("%d requests, key %q", len(seen), e.Detail.GetKey())
	}
	for _, req := range seen[1:] {
		if diff := cmp.Diff(seen[0], req, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
}

// TestRepeatFindsTheJob (B05): the answer to the second try is the answer.
func TestRepeatFindsTheJob(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	d.submit = func(n int, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
		switch n {
		case 1:
			d.cut()
			return nil, errors.New("nobody hears this")
		case 2:
			return nil, answer(t, codes.Unavailable, &macexecv1.Error{Code: "COMMIT_UNKNOWN"})
		default:
			return &macexecv1.SubmitJobResponse{
				Job: &macexecv1.Job{Id: "J", Warnings: []string{"w1"}}, Replayed: true, Context: req.GetContext(), Warnings: []string{"w2"},
			}, nil
		}
	}
	job, err := start(t, d, long).Submit(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k", Context: ids()})
	want := &macexecv1.Job{Id: "J", Replayed: true, RequestContext: ids(), Warnings: []string{"w1", "w2"}}
	if diff := cmp.Diff(want, job, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestAnswersAreFinal: what the daemon answers is not asked again, a drain among it.
func TestAnswersAreFinal(t *testing.T) {
	t.Parallel()
	for code, grpcCode := range map[string]codes.Code{
		"HOST_DRAINING": codes.Unavailable, "IDEMPOTENCY_KEY_CONFLICT": codes.AlreadyExists, "INTERNAL": codes.Internal,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			d := &daemon{}
			d.submit = func(int, *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
				return nil, answer(t, grpcCode, &macexecv1.Error{
					Code: code, JobId: "J", Verdicts: &macexecv1.Verdicts{SyntaxValid: true}, Findings: []*macexecv1.Finding{{Keyword: "f"}},
				})
			}
			_, err := start(t, d, time.Hour).Submit(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
			e := failure(t, err)
			if e.Code() != code || e.JobID() != "J" || !e.Verdicts().GetSyntaxValid() || len(e.Findings()) != 1 || status.Code(err) != grpcCode {
				t.Errorf("%v", e.Detail)
			}
			if d.calls != 1 {
				t.Errorf("it was asked %d times", d.calls)
			}
		})
	}
}

// TestDeadlineAfterSend: a deadline that passes once the request has left says so.
func TestDeadlineAfterSend(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	d := &daemon{submit: func(int, *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
		<-release
		return &macexecv1.SubmitJobResponse{}, nil
	}}
	c := start(t, d, time.Hour)
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.Submit(ctx, &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
	if e := failure(t, err); !e.AnswerLost() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", e)
	}
	_, err = c.Submit(ctx, &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
	if e := failure(t, err); !e.NotReached() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline that has passed before: %v", e)
	}
}

func event(cursor uint64, state macexecv1.JobState) *macexecv1.WatchJobsResponse {
	return &macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: cursor, Job: &macexecv1.Job{Id: "J", State: state}}}
}

// TestWatchGoesOn (G12): after a cut and after a drain the watch goes on from the
// last cursor it has seen.
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	var after []uint64
	sent := make(chan struct{})
	d.watch = func(n int, req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		after = append(after, req.GetAfter())
		if err := s.Send(event(uint64(n*10), 0)); err != nil {
			return err
		}
		switch n {
		case 1:
			<-sent
			d.cut()
			return nil
		case 2:
			return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
		default:
			return nil
		}
	}
	var got []uint64
	err := start(t, d, long).Watch(t.Context(), &macexecv1.WatchJobsRequest{After: 7}, func(e *macexecv1.Event) error {
		if got = append(got, e.GetCursor()); len(got) == 1 {
			close(sent)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, []uint64{10, 20, 30}) || !slices.Equal(after, []uint64{7, 10, 20}) {
		t.Errorf("%v, got %v, asked after %v", err, got, after)
	}
}

// TestWatchFromNow (G12): without a cursor there is no going on, since that would
// leave a gap that nobody hears of; with the cursor of the header there is.
func TestWatchFromNow(t *testing.T) {
	t.Parallel()
	for _, header := range []bool{false, true} {
		d := &daemon{}
		var requests []*macexecv1.WatchJobsRequest
		d.watch = func(n int, req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
			requests = append(requests, req)
			if n > 1 {
				return s.Send(event(100, 0))
			}
			head := metadata.MD{}
			if header {
				head.Set("macexec-cursor", "99")
			}
			if err := s.SendHeader(head); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "gone")
		}
		err := start(t, d, long).Watch(t.Context(), &macexecv1.WatchJobsRequest{FromNow: true}, func(*macexecv1.Event) error { return nil })
		if header {
			if err != nil || len(requests) != 2 || requests[1].GetAfter() != 99 || requests[1].GetFromNow() {
				t.Errorf("%v, %v", err, requests)
			}
		} else if e := failure(t, err); !e.AnswerLost() || len(requests) != 1 {
			t.Errorf("%v, %v", e, requests)
		}
	}
}

// TestYieldErrorsComeBack: they end the stream and are not taken for its own.
func TestYieldErrorsComeBack(t *testing.T) {
	t.Parallel()
	d := &daemon{watch: func(_ int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		if err := s.Send(event(1, 0)); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}
	mine := errors.New("mine")
	err := start(t, d, time.Hour).Watch(t.Context(), &macexecv1.WatchJobsRequest{}, func(*macexecv1.Event) error { return mine })
	if !errors.Is(err, mine) || d.calls != 1 {
		t.Errorf("%v after %d tries", err, d.calls)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	d.watch = func(n int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		if n == 1 {
			return errors.Join(s.Send(event(1, macexecv1.JobState_JOB_STATE_RUNNING)), status.Error(codes.Unavailable, "gone"))
		}
		if err := s.Send(event(2, macexecv1.JobState_JOB_STATE_UNKNOWN)); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	events := 0
	job, err := start(t, d, long).Follow(t.Context(), "J", func(*macexecv1.Event) { events++ })
	if err != nil || job.GetState() != macexecv1.JobState_JOB_STATE_UNKNOWN || events < 1 {
		t.Errorf("%v, %v, %d events", job, err, events)
	}
}

// TestFollowEnds: the wait ends with its context, and the job is as last seen.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d := &daemon{watch: func(_ int, _ *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
		if err := s.Send(event(1, macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL)); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}
	job, err := start(t, d, time.Hour).Follow(ctx, "J", func(*macexecv1.Event) { cancel() })
	if !errors.Is(err, context.Canceled) || job.GetState() != macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		t.Errorf("%v, %v", job, err)
	}
}

// TestLogsGoOn: attempt and cursor are kept, and the tail is asked for only once.
func TestLogsGoOn(t *testing.T) {
	t.Parallel()
	var asked []*macexecv1.ReadJobLogsRequest
	d := &daemon{logs: func(n int, req *macexecv1.ReadJobLogsRequest, s grpc.ServerStreamingServer[macexecv1.ReadJobLogsResponse]) error {
		asked = append(asked, req)
		chunk := &macexecv1.LogChunk{Attempt: 2, Cursor: int64(n * 100), Data: []byte{byte('0' + n)}}
		if err := s.Send(&macexecv1.ReadJobLogsResponse{Chunk: chunk}); err != nil || n > 1 {
			return err
		}
		return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
	}}
	var got []byte
	err := start(t, d, long).ReadLogs(t.Context(), &macexecv1.ReadJobLogsRequest{JobId: "J", TailBytes: 5, Follow: true}, func(l *macexecv1.LogChunk) error {
		got = append(got, l.GetData()...)
		return nil
	})
	want := []*macexecv1.ReadJobLogsRequest{
		{JobId: "J", TailBytes: 5, Follow: true}, {JobId: "J", Attempt: 2, Cursor: 100, Follow: true},
	}
	if diff := cmp.Diff(want, asked, protocmp.Transform()); diff != "" || err != nil || string(got) != "12" {
		t.Errorf("%v, %q\n%s", err, got, diff)
	}
}

// TestJournalGoesOn: the limit counts over all tries.
func TestJournalGoesOn(t *testing.T) {
	t.Parallel()
	d := &daemon{journal: func(n int, req *macexecv1.ReadJournalRequest, s grpc.ServerStreamingServer[macexecv1.ReadJournalResponse]) error {
		for i := range req.GetLimit() {
			if err := s.Send(&macexecv1.ReadJournalResponse{Entry: &macexecv1.Entry{Seq: req.GetAfter() + uint64(i) + 1}}); err != nil {
				return err
			}
			if n == 1 && i == 1 {
				return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
			}
		}
		return nil
	}}
	var got []uint64
	err := start(t, d, long).ReadJournal(t.Context(), &macexecv1.ReadJournalRequest{After: 3, Limit: 4}, func(e *macexecv1.Entry) error {
		got = append(got, e.GetSeq())
		return nil
	})
	if err != nil || !slices.Equal(got, []uint64{4, 5, 6, 7}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestDownloadGoesOn: a broken download goes on where it was, the digest is compared,
// and what is wrong never takes the place of what was there.
func TestDownloadGoesOn(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789"), 1000)
	sum := sha256.Sum256(content)
	for name, corrupt := range map[string]bool{"whole": false, "corrupt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := &macexecv1.FileInfo{Reference: "r", Sha256: hex.EncodeToString(sum[:]), Size: int64(len(content)), TransferSize: int64(len(content))}
			d := &daemon{info: info, download: func(n int, req *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
				part := bytes.Clone(content[req.GetOffset():])
				if n == 1 {
					part = part[:4000]
				} else if corrupt {
					part[0] ^= 1
				}
				if err := s.Send(&macexecv1.DownloadFileResponse{File: info, Offset: req.GetOffset(), Chunk: part}); err != nil || n > 1 {
					return err
				}
				return status.Error(codes.Unavailable, "gone")
			}}
			path := filepath.Join(t.TempDir(), "out")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := start(t, d, long).Download(t.Context(), "r", path, client.Replace())
			got, readErr := os.ReadFile(path)
			if readErr != nil {
				t.Fatal(readErr)
			}
			want := content
			if corrupt {
				want = []byte("old")
			}
			if (err != nil) != corrupt || !bytes.Equal(got, want) {
				t.Errorf("%v; %d bytes are there", err, len(got))
			}
			if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
				t.Errorf("%d files are left in the folder", len(left))
			}
		})
	}
}

func TestDialRefuses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost", "host:80"} {
		if c, err := client.Dial(address); err == nil {
			_ = c.Close()
			t.Errorf("%q was taken", address)
		}
	}
}
