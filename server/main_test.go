package server_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine answers with what a test sets. What is not set must not be called; the
// guard would make INTERNAL of the panic.
type fakeEngine struct {
	server.Engine

	tools     []engine.ToolInfo
	check     func(engine.Request) (engine.Check, error)
	submit    func(context.Context, engine.Request) (engine.Receipt, error)
	job       func(id string) (*jobs.Job, error)
	wait      func(ctx context.Context, id string, wait time.Duration) (*jobs.Job, error)
	lookup    func(key string) (jobs.KeyRecord, *jobs.Job, error)
	fence     func(key, reason string) (jobs.KeyRecord, bool, *jobs.Job, error)
	list      func(jobs.Query) (jobs.Page, error)
	watch     func(context.Context, engine.WatchRequest, func(engine.WatchEvent) error) error
	logs      func(context.Context, engine.LogRequest, func(engine.LogChunk) error) error
	cancel    func(id, reason string) (*jobs.Job, error)
	cancelRun func(runID, reason string) (engine.RunCancellation, error)
	usage     func(jobs.UsageQuery) (jobs.UsagePage, error)
	upload    func(engine.UploadRequest) (server.Upload, error)
	open      func(ref string) (engine.File, engine.FileInfo, error)
	projects  []jobs.Project
	host      engine.HostInfo
	setMode   func(mode jobs.Mode, reason string) (engine.HostInfo, error)
	listen    func(jobs.Mode) // to the mode, which is open at first
	verify    func() (uint64, error)
	journal   func(after uint64, limit int, follow bool, yield func(jobs.Entry) error) error
	confirm   func(reason string) (*jobs.Restore, error)
	backup    func() (jobs.StoreCopy, error)
	use       engine.StoreUse
	prune     func(olderThan time.Duration, dry bool) (engine.Pruned, error)
	principal chan string // gets the caller of Job, if it is not nil
}

func (f *fakeEngine) Tools(context.Context, engine.Caller) ([]engine.ToolInfo, []engine.ToolProblem, error) {
	return f.tools, []engine.ToolProblem{{File: "bad.yaml", Message: "no tool"}}, nil
}

func (f *fakeEngine) Check(_ context.Context, _ engine.Caller, r engine.Request) (engine.Check, error) {
	return f.check(r)
}

func (f *fakeEngine) BackupStore(context.Context, engine.Caller) (jobs.StoreCopy, error) {
	return f.backup()
}

func (f *fakeEngine) ConfirmRestore(_ context.Context, _ engine.Caller, reason string) (*jobs.Restore, error) {
	return f.confirm(reason)
}

func (f *fakeEngine) DescribeStore(context.Context, engine.Caller) (engine.StoreUse, error) {
	return f.use, nil
}

func (f *fakeEngine) Prune(_ context.Context, _ engine.Caller, olderThan time.Duration, dry bool) (engine.Pruned, error) {
	return f.prune(olderThan, dry)
}

func (f *fakeEngine) Submit(ctx context.Context, _ engine.Caller, r engine.Request) (engine.Receipt, error) {
	return f.submit(ctx, r)
}

func (f *fakeEngine) Job(_ context.Context, c engine.Caller, id string) (*jobs.Job, error) {
	if f.principal != nil {
		f.principal <- c.Principal
	}
	return f.job(id)
}

func (f *fakeEngine) WaitJob(ctx context.Context, _ engine.Caller, id string, wait time.Duration) (*jobs.Job, error) {
	return f.wait(ctx, id, wait)
}

func (f *fakeEngine) LookupKey(_ context.Context, _ engine.Caller, key string) (jobs.KeyRecord, *jobs.Job, error) {
	return f.lookup(key)
}

func (f *fakeEngine) FenceKey(_ context.Context, _ engine.Caller, key, reason string) (jobs.KeyRecord, bool, *jobs.Job, error) {
	return f.fence(key, reason)
}

func (f *fakeEngine) Jobs(_ context.Context, _ engine.Caller, q jobs.Query) (jobs.Page, error) {
	return f.list(q)
}

func (f *fakeEngine) Watch(ctx context.Context, _ engine.Caller, r engine.WatchRequest, yield func(engine.WatchEvent) error) error {
	return f.watch(ctx, r, yield)
}

func (f *fakeEngine) Logs(ctx context.Context, _ engine.Caller, r engine.LogRequest, yield func(engine.LogChunk) error) error {
	return f.logs(ctx, r, yield)
}

func (f *fakeEngine) Cancel(_ context.Context, _ engine.Caller, id, reason string) (*jobs.Job, error) {
	return f.cancel(id, reason)
}

func (f *fakeEngine) CancelRun(_ context.Context, _ engine.Caller, runID, reason string) (engine.RunCancellation, error) {
	return f.cancelRun(runID, reason)
}

func (f *fakeEngine) SumUsage(_ context.Context, _ engine.Caller, q jobs.UsageQuery) (jobs.UsagePage, error) {
	return f.usage(q)
}

func (f *fakeEngine) Upload(_ context.Context, _ engine.Caller, r engine.UploadRequest) (server.Upload, error) {
	return f.upload(r)
}

func (f *fakeEngine) StatUpload(_ context.Context, _ engine.Caller, digest string, _ int64) (engine.UploadStatus, error) {
	if f.open == nil {
		return engine.UploadStatus{}, nil
	}
	file, info, err := f.open("sha256:" + digest)
	if err != nil {
		return engine.UploadStatus{}, nil //nolint:nilerr // it is not there
	}
	return engine.UploadStatus{File: &info, Offset: info.Size}, file.Close()
}

func (f *fakeEngine) StatFile(_ context.Context, _ engine.Caller, ref string) (engine.FileInfo, error) {
	file, info, err := f.open(ref)
	if err != nil {
		return engine.FileInfo{}, err
	}
	return info, file.Close()
}

func (f *fakeEngine) OpenFile(_ context.Context, _ engine.Caller, ref string) (engine.File, engine.FileInfo, error) {
	return f.open(ref)
}

func (f *fakeEngine) Projects(context.Context, engine.Caller) ([]jobs.Project, error) {
	return f.projects, nil
}

func (f *fakeEngine) HostID() string { return f.host.ID }

func (f *fakeEngine) Host(context.Context, engine.Caller) (engine.HostInfo, error) {
	return f.host, nil
}

func (f *fakeEngine) SetMode(_ context.Context, _ engine.Caller, mode jobs.Mode, reason string) (engine.HostInfo, error) {
	return f.setMode(mode, reason)
}

func (f *fakeEngine) OnMode(listen func(jobs.Mode)) {
	f.listen = listen
	listen(jobs.ModeOpen)
}

func (f *fakeEngine) VerifyJournal(context.Context, engine.Caller) (uint64, error) {
	return f.verify()
}

func (f *fakeEngine) Journal(_ context.Context, _ engine.Caller, after uint64, limit int, follow bool, yield func(jobs.Entry) error) error {
	return f.journal(after, limit, follow, yield)
}

// socket returns a short path for a socket in a folder of its own.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // t.TempDir is too long for a socket on macOS
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serve serves on a socket until the test ends, or until the returned stop is called.
func serve(t *testing.T, path string, o server.Options) (stop func()) {
	t.Helper()
	lis, err := server.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, lis, o)
}

func serveOn(t *testing.T, lis net.Listener, o server.Options) (stop func()) {
	t.Helper()
	s := server.New(o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, path string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial("unix:"+path, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// start serves a fake engine and returns a client of it.
func start(t *testing.T, f *fakeEngine) *client.Client {
	t.Helper()
	path := socket(t)
	serve(t, path, server.Options{Engine: f})
	return dial(t, path)
}

// failure returns err as the client's error.
func failure(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("not a client error: %v", err)
	}
	return e
}
