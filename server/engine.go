package server

import (
	"context"
	"io"
	"time"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Engine is what this face needs of the engine; see package engine for what each
// method promises. Errors are *jobs.Error or the context's.
type Engine interface {
	Tools(ctx context.Context, c engine.Caller) ([]engine.ToolInfo, []engine.ToolProblem, error)
	Tool(ctx context.Context, c engine.Caller, name, version string) (engine.ToolInfo, error)
	Check(ctx context.Context, c engine.Caller, r engine.Request) (engine.Check, error)

	Submit(ctx context.Context, c engine.Caller, r engine.Request) (engine.Receipt, error)
	Job(ctx context.Context, c engine.Caller, id string) (*jobs.Job, error)
	WaitJob(ctx context.Context, c engine.Caller, id string, wait time.Duration) (*jobs.Job, error)
	LookupKey(ctx context.Context, c engine.Caller, key string) (jobs.KeyRecord, *jobs.Job, error)
	FenceKey(ctx context.Context, c engine.Caller, key, reason string) (jobs.KeyRecord, bool, *jobs.Job, error)
	Jobs(ctx context.Context, c engine.Caller, q jobs.Query) (jobs.Page, error)
	Watch(ctx context.Context, c engine.Caller, r engine.WatchRequest, yield func(engine.WatchEvent) error) error
	Logs(ctx context.Context, c engine.Caller, r engine.LogRequest, yield func(engine.LogChunk) error) error
	Cancel(ctx context.Context, c engine.Caller, id, reason string) (*jobs.Job, error)
	CancelRun(ctx context.Context, c engine.Caller, runID, reason string) (engine.RunCancellation, error)
	Approve(ctx context.Context, c engine.Caller, id, bindingDigest, reason string) (*jobs.Job, error)
	Deny(ctx context.Context, c engine.Caller, id, reason string) (*jobs.Job, error)
	SumUsage(ctx context.Context, c engine.Caller, q jobs.UsageQuery) (jobs.UsagePage, error)
	ProbeJob(ctx context.Context, c engine.Caller, id string) (engine.Probed, error)
	Resolve(ctx context.Context, c engine.Caller, id string, to jobs.State, reason string) (*jobs.Job, error)

	Upload(ctx context.Context, c engine.Caller, r engine.UploadRequest) (Upload, error)
	StatUpload(ctx context.Context, c engine.Caller, digest string, size int64) (engine.UploadStatus, error)
	StatFile(ctx context.Context, c engine.Caller, ref string) (engine.FileInfo, error)
	OpenFile(ctx context.Context, c engine.Caller, ref string) (engine.File, engine.FileInfo, error)

	Projects(ctx context.Context, c engine.Caller) ([]jobs.Project, error)
	AddProject(ctx context.Context, c engine.Caller, p jobs.Project) (jobs.Project, error)
	RemoveProject(ctx context.Context, c engine.Caller, name string) error
	HostID() string
	Host(ctx context.Context, c engine.Caller) (engine.HostInfo, error)
	SetMode(ctx context.Context, c engine.Caller, mode jobs.Mode, reason string) (engine.HostInfo, error)
	OnMode(listen func(jobs.Mode))

	Journal(ctx context.Context, c engine.Caller, after uint64, limit int, follow bool, yield func(jobs.Entry) error) error
	VerifyJournal(ctx context.Context, c engine.Caller) (good uint64, err error)

	BackupStore(ctx context.Context, c engine.Caller) (jobs.StoreCopy, error)
	ConfirmRestore(ctx context.Context, c engine.Caller, reason string) (*jobs.Restore, error)
	DescribeStore(ctx context.Context, c engine.Caller) (engine.StoreUse, error)
	Prune(ctx context.Context, c engine.Caller, olderThan time.Duration, dry bool) (engine.Pruned, error)
}

// Upload is a file on its way in. It is there once Commit has succeeded.
type Upload interface {
	io.Writer
	Commit(ctx context.Context) (jobs.Blob, error)
	Abort()
}
