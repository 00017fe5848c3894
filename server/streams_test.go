package server_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/server"
)

// raw is a connection as any gRPC client has it, with default settings.
func raw(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestDeadlineCancelsNothing (B05, G3): the engine is told that a caller went away, and
// what it decides all the same is found by a repeat. That it decides is its own promise.
func TestDeadlineCancelsNothing(t *testing.T) {
	t.Parallel()
	entered, finished := make(chan struct{}), make(chan struct{})
	first := true
	c := start(t, &fakeEngine{submit: func(ctx context.Context, _ engine.Request) (engine.Receipt, error) {
		if first {
			first = false
			close(entered)
			<-ctx.Done()
			close(finished)
		}
		return engine.Receipt{Job: &jobs.Job{ID: "J"}}, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := c.Submit(ctx, &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
		answered <- err
	}()
	<-entered
	cancel()
	if e := failure(t, <-answered); !e.AnswerLost() || e.Detail.GetKey() != "k" || !errors.Is(e, context.Canceled) {
		t.Errorf("the caller that left got %v", e.Detail)
	}
	<-finished
	job, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
	if err != nil || job.GetId() != "J" {
		t.Errorf("the repeat got %v, %v", job, err)
	}
}

// TestBrokenUTF8 (B60): bytes that are no text, wherever they come from, break no
// stream and no answer, and a log's own bytes arrive as they are.
func TestBrokenUTF8(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	log := [][]byte{{0xff, 0xfe}, []byte("caf\xc3"), []byte("\xa9\x00\x1b[1m"), noise}
	bad := &jobs.Job{
		ID: "J", State: jobs.StateFailed, Message: "caf\xe9 is missing", Cause: "\xff", LogTail: []string{"\xfe"},
		Inputs:   []jobs.InputFile{{Path: "a\xffb"}},
		Approval: &jobs.Approval{Binding: jobs.Binding{Programs: map[string]string{"/bin/\xff": "d"}}},
		Attempts: []jobs.Attempt{{Intent: &jobs.Intent{Argv: []string{"x", "a\xff"}}}},
	}
	c := start(t, &fakeEngine{
		job: func(id string) (*jobs.Job, error) {
			if id == "J" {
				return bad, nil
			}
			return nil, jobs.Errorf(jobs.CodeFileNotFound, "no file a\xffb").With("path", "a\xffb")
		},
		watch: func(_ context.Context, _ engine.WatchRequest, yield func(engine.WatchEvent) error) error {
			for i := range 3 {
				entry := jobs.Entry{Seq: uint64(i + 1), Kind: jobs.EntryChanged, Message: "\xff"}
				if err := yield(engine.WatchEvent{Cursor: entry.Seq, Entry: &entry, Job: bad}); err != nil {
					return err
				}
			}
			return nil
		},
		logs: func(_ context.Context, _ engine.LogRequest, yield func(engine.LogChunk) error) error {
			for i, data := range log {
				if err := yield(engine.LogChunk{Attempt: 1, Stream: "stdout", Data: data, Cursor: int64(i + 1)}); err != nil {
					return err
				}
			}
			return nil
		},
	})
	resp, err := c.Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{Id: "J"})
	if err != nil {
		t.Fatal(err)
	}
	j := resp.GetJob()
	if j.GetMessage() != "caf\uFFFD is missing" || j.GetInputs()[0].GetPath() != "a\uFFFDb" ||
		j.GetApproval().GetBinding().GetPrograms()["/bin/\uFFFD"] != "d" || j.GetAttempts()[0].GetIntent().GetArgv()[1] != "a\uFFFD" {
		t.Errorf("%v", j)
	}
	if bad.Message != "caf\xe9 is missing" || bad.Attempts[0].Intent.Argv[1] != "a\xff" {
		t.Error("the engine's own record was changed")
	}
	_, err = c.Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{Id: "other"})
	if e := failure(t, err); e.Code() != "FILE_NOT_FOUND" || e.Detail.GetMessage() != "no file a\uFFFDb" {
		t.Errorf("%v", e.Detail)
	}
	events := 0
	if err := c.Watch(t.Context(), &macexecv1.WatchJobsRequest{}, func(*macexecv1.Event) error { events++; return nil }); err != nil || events != 3 {
		t.Errorf("%d events, %v", events, err)
	}
	var got []byte
	err = c.ReadLogs(t.Context(), &macexecv1.ReadJobLogsRequest{}, func(l *macexecv1.LogChunk) error {
		got = append(got, l.GetData()...)
		return nil
	})
	if err != nil || !bytes.Equal(got, bytes.Join(log, nil)) {
		t.Errorf("%d bytes of log, %v", len(got), err)
	}
}

// TestOversize (B67): what is too large gets its own answer, and the connection goes
// on.
func TestOversize(t *testing.T) {
	t.Parallel()
	path := socket(t)
	huge := &jobs.Job{ID: "huge", State: jobs.StateCompleted, Result: []byte(`"` + strings.Repeat("r", 10<<20) + `"`)}
	var many []*jobs.Job
	for i := range 1000 {
		many = append(many, &jobs.Job{ID: fmt.Sprintf("%04d", 1000-i), Call: jobs.Call{Arguments: []byte(`"` + strings.Repeat("a", 10<<10) + `"`)}})
	}
	serve(t, path, server.Options{Engine: &fakeEngine{
		submit: func(_ context.Context, r engine.Request) (engine.Receipt, error) {
			return engine.Receipt{}, jobs.Errorf(jobs.CodeArgumentsTooLarge, "%d bytes", len(r.Arguments))
		},
		job: func(string) (*jobs.Job, error) { return huge, nil },
		list: func(q jobs.Query) (jobs.Page, error) {
			from := slices.IndexFunc(many, func(j *jobs.Job) bool { return q.After == "" || j.ID < q.After })
			if from < 0 {
				return jobs.Page{}, nil
			}
			to := min(from+q.Limit, len(many))
			page := jobs.Page{Jobs: many[from:to]}
			if to < len(many) {
				page.Next = many[to-1].ID
			}
			return page, nil
		},
	}})
	stock := macexecv1.NewJobServiceClient(raw(t, path))
	c := dial(t, path)
	for _, size := range []int{3_900_000, 4_300_000, 20_000_000} {
		req := &macexecv1.SubmitJobRequest{IdempotencyKey: "k", Arguments: make([]byte, size)}
		_, err := stock.SubmitJob(t.Context(), req)
		want := codes.InvalidArgument
		if size > 4<<20 {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want {
			t.Errorf("%d bytes: %v, want %s", size, err, want)
		}
		_, err = c.Submit(t.Context(), req)
		if e := failure(t, err); e.Code() != "ARGUMENTS_TOO_LARGE" || e.Detail.GetKey() != "k" {
			t.Errorf("%d bytes: our client says %v", size, e)
		}
	}
	resp, err := stock.GetJob(t.Context(), &macexecv1.GetJobRequest{})
	if err != nil || !slices.Equal(resp.GetJob().GetOmitted(), []string{"result"}) || resp.GetJob().GetState() != macexecv1.JobState_JOB_STATE_COMPLETED {
		t.Errorf("a job with a huge result: omitted %v, %v", resp.GetJob().GetOmitted(), err)
	}
	var result, whole bytes.Buffer
	info, err := c.Fetch(t.Context(), "job:huge/@result", &result)
	if err != nil || !bytes.Equal(result.Bytes(), huge.Result) || info.GetSize() != int64(len(huge.Result)) {
		t.Errorf("the result as a file: %v, %v", info, err)
	}
	var read struct {
		ID, State string
		Result    string
		Omitted   []string
	}
	if _, err := c.Fetch(t.Context(), "job:huge/@job", &whole); err != nil {
		t.Error(err)
	}
	if err := json.Unmarshal(whole.Bytes(), &read); err != nil || read.ID != "huge" || read.State != "completed" || len(read.Result) != 10<<20 || len(read.Omitted) != 0 {
		t.Errorf("the whole job as a file: %d bytes, %v", whole.Len(), err)
	}
	var ids []string
	for token := ""; ; {
		page, err := stock.ListJobs(t.Context(), &macexecv1.ListJobsRequest{PageSize: 2000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.GetJobs() {
			ids = append(ids, j.GetId())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for i, j := range many {
		if i >= len(ids) || ids[i] != j.ID {
			t.Fatalf("the pages have %d jobs of %d, or another order", len(ids), len(many))
		}
	}
}

// TestToolPages: pages lose nothing and end.
func TestToolPages(t *testing.T) {
	t.Parallel()
	var tools []engine.ToolInfo
	for i := range 7 {
		tools = append(tools, engine.ToolInfo{Name: fmt.Sprintf("t%d", i), InputSchema: bytes.Repeat([]byte(" "), 1<<20)})
	}
	c := start(t, &fakeEngine{tools: tools})
	var names []string
	problems := 0
	for token := ""; ; {
		page, err := c.Tools.ListTools(t.Context(), &macexecv1.ListToolsRequest{PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		problems += len(page.GetProblems())
		for _, tool := range page.GetTools() {
			names = append(names, tool.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if strings.Join(names, " ") != "t0 t1 t2 t3 t4 t5 t6" || problems != 1 {
		t.Errorf("%v, %d problems", names, problems)
	}
}

// TestDrain: streams end at once with the cursor to go on from, an upload that idles
// and a wait do not hold up the stop, and a request that is being answered is answered.
func TestDrain(t *testing.T) {
	t.Parallel()
	path := socket(t)
	entered, release, uploading, waiting := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := &fakeEngine{
		watch: func(ctx context.Context, _ engine.WatchRequest, yield func(engine.WatchEvent) error) error {
			if err := yield(engine.WatchEvent{Cursor: 42, Entry: &jobs.Entry{Seq: 42}}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
		submit: func(context.Context, engine.Request) (engine.Receipt, error) {
			close(entered)
			<-release
			return engine.Receipt{Job: &jobs.Job{ID: "J"}}, nil
		},
		upload: func(engine.UploadRequest) (server.Upload, error) {
			close(uploading)
			return &memoryUpload{}, nil
		},
		wait: func(ctx context.Context, id string, wait time.Duration) (*jobs.Job, error) {
			if id != "J" || wait != 90*time.Second {
				return nil, fmt.Errorf("it waits for %s, %v", id, wait)
			}
			close(waiting)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
	stop := serve(t, path, server.Options{Engine: f})
	conn := raw(t, path)
	stock := macexecv1.NewJobServiceClient(conn)

	watch, err := stock.WatchJobs(t.Context(), &macexecv1.WatchJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	upload, err := macexecv1.NewFileServiceClient(conn).UploadFile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := upload.Send(&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: &macexecv1.UploadStart{}}}); err != nil {
		t.Fatal(err)
	}
	<-uploading
	health, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := health.Recv(); err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health %v, %v", resp, err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := stock.SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k"})
		answered <- err
	}()
	<-entered
	waited := make(chan error, 1)
	go func() {
		_, err := stock.WaitJob(t.Context(), &macexecv1.WaitJobRequest{Id: "J", WaitSeconds: 90})
		waited <- err
	}()
	<-waiting

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	_, err = watch.Recv()
	st := status.Convert(err)
	if st.Code() != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	cursor := ""
	for _, d := range st.Details() {
		if e, ok := d.(*macexecv1.Error); ok {
			cursor = e.GetMetadata()["cursor"]
		}
	}
	if cursor != "42" {
		t.Errorf("the watch ended with the cursor %q", cursor)
	}
	// Its sender is idle: one that closed the upload now could see it committed.
	if err := upload.RecvMsg(&macexecv1.UploadFileResponse{}); status.Code(err) != codes.Unavailable {
		t.Errorf("the upload ended with %v", err)
	}
	if err := <-waited; status.Code(err) != codes.Unavailable {
		t.Errorf("the wait ended with %v", err)
	}
	for {
		resp, err := health.Recv()
		if err != nil {
			break
		}
		if resp.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health says %s while draining", resp.GetStatus())
		}
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the request that was being answered got %v", err)
	}
	<-stopped
}

// TestStopCutsShort: a handler that does not end does not hold up Stop for ever.
func TestStopCutsShort(t *testing.T) {
	t.Parallel()
	path := socket(t)
	lis, err := server.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	s := server.New(server.Options{Engine: &fakeEngine{submit: func(context.Context, engine.Request) (engine.Receipt, error) {
		close(entered)
		<-release
		return engine.Receipt{}, errors.New("late")
	}}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	answered := make(chan error, 1)
	go func() {
		_, err := macexecv1.NewJobServiceClient(raw(t, path)).SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{})
		answered <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop: %v", err)
	}
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("the request got %v", err)
	}
	close(release)
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestResume (G7, G12): a watch goes on from its cursor with the daemon's successor.
func TestResume(t *testing.T) {
	t.Parallel()
	path := socket(t)
	from := make(chan uint64, 2)
	daemon := func(upto uint64) server.Options {
		return server.Options{Engine: &fakeEngine{watch: func(ctx context.Context, r engine.WatchRequest, yield func(engine.WatchEvent) error) error {
			from <- r.After
			for seq := r.After + 1; seq <= upto; seq++ {
				if err := yield(engine.WatchEvent{Cursor: seq, Entry: &jobs.Entry{Seq: seq}}); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return ctx.Err()
		}}}
	}
	stop := serve(t, path, daemon(3))
	c := dial(t, path, client.Patience(20*time.Second))
	var got []uint64
	enough := errors.New("enough")
	err := c.Watch(t.Context(), &macexecv1.WatchJobsRequest{}, func(e *macexecv1.Event) error {
		switch got = append(got, e.GetCursor()); e.GetCursor() {
		case 3:
			go func() {
				stop()
				serve(t, path, daemon(5))
			}()
		case 5:
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("%v, %v", got, err)
	}
	if a, b := <-from, <-from; a != 0 || b != 3 {
		t.Errorf("the watches began after %d and %d", a, b)
	}
}

// TestWatchFromNow (G12): the header says from where the watch begins, before
// anything happens.
func TestWatchFromNow(t *testing.T) {
	t.Parallel()
	path := socket(t)
	serve(t, path, server.Options{Engine: &fakeEngine{watch: func(ctx context.Context, r engine.WatchRequest, yield func(engine.WatchEvent) error) error {
		if !r.FromNow {
			return errors.New("it was not asked for what comes from now on")
		}
		if err := yield(engine.WatchEvent{Cursor: 17}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := macexecv1.NewJobServiceClient(raw(t, path)).WatchJobs(ctx, &macexecv1.WatchJobsRequest{FromNow: true})
	if err != nil {
		t.Fatal(err)
	}
	head, err := stream.Header()
	if got := head.Get("macexec-cursor"); err != nil || !slices.Equal(got, []string{"17"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestReflection: grpcurl and others find the API, and version 1 only.
func TestReflection(t *testing.T) {
	t.Parallel()
	path := socket(t)
	serve(t, path, server.Options{Engine: &fakeEngine{}})
	stream, err := reflectionpb.NewServerReflectionClient(raw(t, path)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	want := []string{
		"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "macexec.v1.FileService", "macexec.v1.HostService",
		"macexec.v1.JobService", "macexec.v1.JournalService", "macexec.v1.StoreService", "macexec.v1.ToolService",
	}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}
