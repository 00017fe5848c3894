package server

import (
	"context"
	"io"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Engine is what this face needs of the engine; see package engine for what each
// method promises. Errors are *jobs.Error or the context's.
type Engine interface {
	Tools(context.Context, engine.Caller) ([]engine.ToolInfo, []engine.ToolProblem, error)
	Tool(ctx context.Context, c engine.Caller, name, version string) (engine.ToolInfo, error)
	Check(context.Context, engine.Caller, engine.Request) (engine.Check, error)

	Submit(context.Context, engine.Caller, engine.Request) (engine.Receipt, error)
	Job(ctx context.Context, c engine.Caller, id string) (*jobs.Job, error)
	LookupKey(ctx context.Context, c engine.Caller, key string) (jobs.KeyRecord, *jobs.Job, error)
	Jobs(context.Context, engine.Caller, jobs.Query) (jobs.Page, error)
	Watch(context.Context, engine.Caller, engine.WatchRequest, func(engine.WatchEvent) error) error
	Logs(context.Context, engine.Caller, engine.LogRequest, func(engine.LogChunk) error) error
	Cancel(ctx context.Context, c engine.Caller, id, reason string) (*jobs.Job, error)
	Approve(ctx context.Context, c engine.Caller, id, bindingDigest, reason string) (*jobs.Job, error)
	Deny(ctx context.Context, c engine.Caller, id, reason string) (*jobs.Job, error)
	Resolve(ctx context.Context, c engine.Caller, id string, to jobs.State, reason string) (*jobs.Job, error)

	Upload(context.Context, engine.Caller, engine.UploadRequest) (Upload, error)
	StatFile(ctx context.Context, c engine.Caller, ref string) (engine.FileInfo, error)
	OpenFile(ctx context.Context, c engine.Caller, ref string) (engine.File, engine.FileInfo, error)

	Projects(context.Context, engine.Caller) ([]jobs.Project, error)
	AddProject(context.Context, engine.Caller, jobs.Project) (jobs.Project, error)
	RemoveProject(ctx context.Context, c engine.Caller, name string) error
	Host(context.Context, engine.Caller) (engine.HostInfo, error)

	Journal(ctx context.Context, c engine.Caller, after uint64, limit int, follow bool, yield func(jobs.Entry) error) error
	VerifyJournal(context.Context, engine.Caller) (good uint64, err error)
}

// Upload is a file on its way in. Nothing of it is kept unless Commit succeeds.
type Upload interface {
	io.Writer
	Commit(context.Context) (jobs.Blob, error)
	Abort()
}
