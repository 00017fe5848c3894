package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// answers is a daemon that answers a submission as its key says: with an error of
// that code, or with a job in that state. It stands for what a real daemon only
// answers after days, or after an accident.
type answers struct {
	macexecv1.UnimplementedJobServiceServer

	// lose breaks every connection, so that no answer gets through.
	lose func()
}

// jobOf is a job in the state that its key says.
func jobOf(key string) *macexecv1.Job {
	job := &macexecv1.Job{Id: key, Key: key}
	job.Call = &macexecv1.Call{Context: &macexecv1.CallContext{RunId: "r", Traceparent: "old", Tracestate: "old"}}
	key, _, _ = strings.Cut(key, "+")
	if key == string(jobs.EndDenied) {
		job.EndReason = macexecv1.EndReason_END_REASON_DENIED
		key = string(jobs.StateCancelled)
	}
	job.State, _ = document.Enum[macexecv1.JobState](key)
	return job
}

func (answers) GetJob(_ context.Context, req *macexecv1.GetJobRequest) (*macexecv1.GetJobResponse, error) {
	return &macexecv1.GetJobResponse{Job: jobOf(req.GetId())}, nil
}

func (answers) ListJobs(_ context.Context, req *macexecv1.ListJobsRequest) (*macexecv1.ListJobsResponse, error) {
	resp := &macexecv1.ListJobsResponse{}
	for _, key := range []string{string(jobs.StateAwaitingApproval), string(jobs.StateFailed)} {
		job := jobOf(key)
		job.Id = "listed-" + key
		if len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), job.GetState()) {
			resp.Jobs = append(resp.Jobs, job)
		}
	}
	return resp, nil
}

// WatchJobs tells that nothing happens.
func (answers) WatchJobs(req *macexecv1.WatchJobsRequest, s grpc.ServerStreamingServer[macexecv1.WatchJobsResponse]) error {
	if req.GetAfter() == expired {
		st, err := status.New(codes.OutOfRange, "gone").WithDetails(&macexecv1.Error{
			Class: macexecv1.ErrorClass_ERROR_CLASS_RESOURCE, Code: string(jobs.CodeCursorExpired), Metadata: map[string]string{"oldest": "41"},
		})
		if err != nil {
			return err
		}
		return st.Err()
	}
	if err := s.Send(&macexecv1.WatchJobsResponse{Event: &macexecv1.Event{Cursor: 1, Snapshot: true, Job: jobOf(req.GetJobId())}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// The jobs of these keys have an artifact that comes whole, never, or never to its end.
const (
	arriving = "completed+arriving"
	broken   = "completed+broken"
	endless  = "completed+endless"
)

// artifacts is what the jobs made.
type artifacts struct {
	macexecv1.UnimplementedFileServiceServer

	lose    func()
	halfway func() // an endless download has begun
}

const madeText = "made"

func (artifacts) StatFile(_ context.Context, req *macexecv1.StatFileRequest) (*macexecv1.StatFileResponse, error) {
	sum := sha256.Sum256([]byte(madeText))
	return &macexecv1.StatFileResponse{File: &macexecv1.FileInfo{
		Reference: req.GetReference(), Name: "made.txt", Size: int64(len(madeText)), TransferSize: int64(len(madeText)), Sha256: hex.EncodeToString(sum[:]),
	}}, nil
}

func (a artifacts) DownloadFile(req *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
	about, err := a.StatFile(s.Context(), &macexecv1.StatFileRequest{Reference: req.GetReference()})
	if err != nil {
		return err
	}
	whole := &macexecv1.DownloadFileResponse{File: about.GetFile(), Offset: req.GetOffset(), Chunk: []byte(madeText)[req.GetOffset():]}
	switch {
	case strings.Contains(req.GetReference(), "+broken"):
		a.lose()
		return status.Error(codes.Unavailable, "nobody hears this")
	case strings.Contains(req.GetReference(), endless):
		whole.Chunk = whole.GetChunk()[:1]
		if err := s.Send(whole); err != nil {
			return err
		}
		a.halfway()
		<-s.Context().Done()
		return s.Context().Err()
	default:
		return s.Send(whole)
	}
}

// expired is a cursor whose events are gone.
const expired = 7

// hosting is a host that is drained and has jobs; asked again it has the mode and the
// jobs that the reason of the drain says.
type hosting struct {
	macexecv1.UnimplementedHostServiceServer

	mu    sync.Mutex
	then  string
	asks  int
	asked func(then string)
}

func (*hosting) WhoAmI(context.Context, *macexecv1.WhoAmIRequest) (*macexecv1.WhoAmIResponse, error) {
	return &macexecv1.WhoAmIResponse{Identity: &macexecv1.Identity{Principal: "owner"}}, nil
}

func (h *hosting) SetHostMode(_ context.Context, req *macexecv1.SetHostModeRequest) (*macexecv1.SetHostModeResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.then = req.GetReason()
	return &macexecv1.SetHostModeResponse{Host: &macexecv1.HostInfo{Mode: req.GetMode(), Running: 1, Queued: 2}}, nil
}

func (h *hosting) GetHost(context.Context, *macexecv1.GetHostRequest) (*macexecv1.GetHostResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked != nil {
		h.asked(h.then)
	}
	if h.asks++; h.then == "gone" || h.then == "back" && h.asks == 1 {
		return nil, status.Error(codes.Unavailable, "starting again")
	}
	host := &macexecv1.HostInfo{Mode: macexecv1.HostMode_HOST_MODE_DRAINING}
	switch h.then {
	case "resumed":
		host.Mode, host.ModeBy = macexecv1.HostMode_HOST_MODE_OPEN, hostile
	case "busy":
		host.Running = 1
	}
	return &macexecv1.GetHostResponse{Host: host}, nil
}

// losing is the key of a call whose answer never comes, unlooked that of one which cannot
// be looked up either, and silent that of a call that is never decided. The keys that
// stand for something have a job J, or had one, or are fenced.
const (
	losing   = "losing"
	unlooked = "unlooked"
	silent   = "silent"
	taken    = "taken"
	pruned   = "pruned"
	fenced   = "fenced"
)

func (a answers) LookupKey(_ context.Context, req *macexecv1.LookupKeyRequest) (*macexecv1.LookupKeyResponse, error) {
	record := &macexecv1.KeyRecord{Key: req.GetKey(), JobId: "J"}
	switch req.GetKey() {
	case unlooked:
		a.lose()
		return nil, status.Error(codes.Unavailable, "nobody hears this")
	case taken:
		record.Kind, record.Job = macexecv1.KeyKind_KEY_KIND_JOB, jobOf("completed")
	case pruned:
		record.Kind = macexecv1.KeyKind_KEY_KIND_TOMBSTONE
	case fenced:
		record.Kind, record.JobId = macexecv1.KeyKind_KEY_KIND_FENCE, ""
	default:
		st, err := status.New(codes.NotFound, "free").WithDetails(&macexecv1.Error{
			Class: macexecv1.ErrorClass_ERROR_CLASS_RESOURCE, Code: string(jobs.CodeJobNotFound),
		})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &macexecv1.LookupKeyResponse{Record: record}, nil
}

const hostile = "title\x1b]0;owned\x07 and \u202egpj.exe\nError: forged"

func (a answers) SubmitJob(ctx context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.SubmitJobResponse, error) {
	key := req.GetIdempotencyKey()
	if ids := req.GetContext(); ids.GetTraceparent() != "" || ids.GetTracestate() != "" {
		return nil, status.Error(codes.Internal, "the trace of another call")
	}
	if key == losing {
		a.lose()
		return nil, status.Error(codes.Unavailable, "nobody hears this")
	}
	if key == silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if info, ok := jobs.Codes()[jobs.Code(key)]; ok {
		class, _ := document.Enum[macexecv1.ErrorClass](string(info.Class))
		action, _ := document.Enum[macexecv1.UserAction](string(info.Action))
		st, err := status.New(codes.FailedPrecondition, key).WithDetails(&macexecv1.Error{
			Class: class, Code: key, Message: hostile, UserAction: action, Key: key, JobId: "J",
			Findings: []*macexecv1.Finding{{Pointer: "/" + hostile, Message: hostile, Hint: hostile}},
			Metadata: map[string]string{"name": hostile},
			Decision: &macexecv1.Decision{Effect: macexecv1.DecisionEffect_DECISION_EFFECT_DENY, Rules: []string{hostile}, Reason: hostile},
		})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	job := jobOf(key)
	job.Message, job.Cause, job.LogTail, job.Warnings = hostile, hostile, []string{hostile}, []string{hostile}
	job.Result = []byte(`{"text": "` + "\u202e" + `"}`)
	job.Artifacts = []*macexecv1.Artifact{{Name: hostile, MediaType: hostile, Path: hostile, Project: hostile}}
	return &macexecv1.SubmitJobResponse{Replayed: true, Job: job}, nil
}

// breaking is a listener whose connections can be broken.
type breaking struct {
	net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func (b *breaking) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err == nil {
		b.mu.Lock()
		b.conns = append(b.conns, c)
		b.mu.Unlock()
	}
	return c, err
}

func (b *breaking) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
}

func answeringDaemon(t *testing.T) (address string) {
	t.Helper()
	return answeringHost(t, &hosting{})
}

func answeringHost(t *testing.T, host *hosting) (address string) {
	t.Helper()
	return answeringFiles(t, host, func() {})
}

func answeringFiles(t *testing.T, host *hosting, halfway func()) (address string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	conns := &breaking{Listener: listener}
	macexecv1.RegisterJobServiceServer(server, answers{lose: conns.breakAll})
	macexecv1.RegisterHostServiceServer(server, host)
	macexecv1.RegisterFileServiceServer(server, artifacts{lose: conns.breakAll, halfway: halfway})
	done := make(chan error, 1)
	go func() { done <- server.Serve(conns) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("the daemon: %v", err)
		}
	})
	return "unix:" + listener.Addr().String()
}

func TestCallExitsAsItIsAnswered(t *testing.T) {
	t.Parallel()
	address := answeringDaemon(t)
	for key, want := range map[string]exitCode{
		string(jobs.CodeKeyExpired):      exitExpired,
		string(jobs.CodeKeyFenced):       exitRefused,
		string(jobs.CodePolicyDenied):    exitDenied,
		string(jobs.CodeNotAuthorized):   exitDenied,
		string(jobs.CodeDraining):        exitRefused,
		string(jobs.CodeDiskFull):        exitRefused,
		string(jobs.CodeKeyConflict):     exitKeyConflict,
		string(jobs.CodeToolUnavailable): exitRejected,
		string(jobs.CodeRecordDamaged):   exitFault,
		string(jobs.StateUnknown):        exitUnknown,
		string(jobs.StateFailed):         exitFailed,
		string(jobs.StateCancelled):      exitCancelled,
		string(jobs.StateCompleted):      exitOK,
	} {
		for _, format := range []string{formatTable, formatWide, formatJSON} {
			code, stdout, stderr := execute(t, nil, "--address", address, "call", "x", "--key", key, "-o", format)
			if code != want {
				t.Errorf("%s, -o %s: exit %d, want %d\n%s%s", key, format, code, want, stdout, stderr)
			}
			if format == formatJSON && strings.Count(stdout, "\n") != 1 {
				t.Errorf("%s: stdout is not one document:\n%s", key, stdout)
			}
			// What came from elsewhere paints nothing and forges no line.
			seen := stderr
			if format != formatJSON {
				seen += stdout
			}
			if strings.ContainsAny(seen, "\x1b\x07\u202e") || strings.Contains(seen, "\nError: forged") {
				t.Errorf("%s, -o %s shows control characters:\n%q", key, format, seen)
			}
		}
	}
}

// A watch whose events are gone says how to go on.
func TestWatchSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	code, stdout, errs := execute(t, nil, "--address", answeringDaemon(t), "jobs", "watch", "--after", strconv.Itoa(expired), "-o", "json")
	if code != exitRefused || !strings.Contains(errs, "macexec jobs watch --snapshot") || !strings.Contains(errs, "--after 40 ") ||
		!strings.Contains(stdout, `"oldest":"41"`) {
		t.Errorf("exit %d\n%s%s", code, stdout, errs)
	}
}

// A drain that is waited for ends when nothing runs, and otherwise says why it ends.
func TestDrainIsWaitedFor(t *testing.T) {
	t.Parallel()
	for then, want := range map[string]struct {
		code exitCode
		says string
	}{
		"done":    {exitOK, ""},
		"resumed": {exitRefused, "the host is open again"},
		"busy":    {exitNotSettled, "macexec host resume ends it"},
		"gone":    {exitNotSettled, "The drain is kept"},
		"back":    {exitOK, ""},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		t.Cleanup(interrupt)
		host := &hosting{asked: func(then string) {
			if then == "busy" {
				interrupt()
			}
		}}
		var out, errs bytes.Buffer
		code := run(ctx, []string{"--address", answeringHost(t, host), "host", "drain", "--wait", "--reason", then}, stdio{
			In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: environment(nil), Width: func() int { return 80 }, Patience: time.Second,
		})
		if code != want.code || !strings.Contains(errs.String(), want.says) || strings.ContainsAny(errs.String(), "\x1b\x07") {
			t.Errorf("%s: exit %d, want %d\n%s%s", then, code, want.code, out.String(), errs.String())
		}
	}
}
