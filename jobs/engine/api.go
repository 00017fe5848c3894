package engine

import (
	"io"
	"time"

	"github.com/macexec/macexec/jobs"
)

// Caller is who asks, as a face has proved it.
type Caller struct {
	Principal string
}

// Request is a call as it arrives. Arguments are the raw bytes as sent.
type Request struct {
	Tool        string
	ToolVersion string // empty: the newest
	Arguments   []byte
	Key         string // may be empty for a tool that only reads
	Purpose     jobs.Purpose
	Options     jobs.Options
	Context     jobs.CallContext
}

// Receipt is the answer to a submission.
type Receipt struct {
	Job      *jobs.Job
	Replayed bool             // the key was known: nothing new was started
	Context  jobs.CallContext // this request's own ids; a replay's job carries the first request's
	Warnings []string
}

// Check says what a submission would be answered now. It uses no key and runs nothing.
type Check struct {
	Tool        jobs.ToolRef
	Verdicts    jobs.Verdicts
	Decision    *jobs.Decision // nil when a verdict already refuses
	Fingerprint string
	Programs    []jobs.Program
	Publishes   []jobs.PublishStep
	Warnings    []string
}

// ToolInfo describes a tool to callers.
type ToolInfo struct {
	Name, Version, Title, Description string
	Effects                           jobs.Effects
	Destructive                       bool
	Purposes, Needs                   []string
	InputSchema, OutputSchema         []byte // JSON Schema 2020-12
	ManifestDigest                    string
	Source                            string // "shipped", or the manifest's file name
	Available                         bool   // every program it needs is on this host
	Missing                           []string
	Programs                          []jobs.Program
	KeyOptional                       bool
	FileArguments                     []FileArgument
	SecretArguments                   []string
}

// FileArgument is an argument that names a file.
type FileArgument struct {
	Name  string
	Role  string // input or output
	Kinds []string
}

// ToolProblem is a manifest that could not be loaded; it disables only itself.
type ToolProblem struct {
	File, Message string
}

// WatchRequest selects events. Entries after the cursor After are sent, or from
// now on with FromNow; After 0 is from the oldest kept entry on. With JobID the first
// event is a snapshot of that job. Of the others only those are sent whose job the
// filter selects, as it is after the event.
type WatchRequest struct {
	After    uint64
	FromNow  bool
	JobID    string
	Filter   jobs.Query
	Progress bool
}

// WatchEvent is one event. Snapshot: Job is set, Entry and Progress are not. With
// FromNow the first event has nothing but the cursor that the watch begins from.
// Otherwise exactly one of Entry (with Job as it is now) and Progress is set;
// progress carries no cursor and may be dropped.
type WatchEvent struct {
	Cursor   uint64 // resume after this one
	Snapshot bool
	Entry    *jobs.Entry
	Job      *jobs.Job
	Progress *Progress
}

// Progress is advisory: it never changes a job.
type Progress struct {
	JobID    string
	Attempt  int
	Phase    jobs.Phase
	Percent  *float64 // 0 to 100, never going back within an attempt; nil: unknown
	Rate     string   // as the tool states it, such as "2.1x"
	TimeLeft *time.Duration
	Detail   string
}

// LogRequest selects a job's log. Attempt 0 is the newest.
type LogRequest struct {
	JobID     string
	Attempt   int
	Cursor    int64 // continue after this one; 0: the start
	Follow    bool  // wait for more until the job is settled
	TailBytes int64 // 0: everything
}

// LogChunk is a piece of a log: raw bytes of one stream, or a gap.
type LogChunk struct {
	Attempt int
	Stream  string // stdout or stderr
	At      time.Time
	Data    []byte
	Cursor  int64 // resume after this chunk
	Gap     int64 // bytes that were dropped here
}

// UploadRequest announces a file. SHA256 may be empty and Size -1 when unknown.
type UploadRequest struct {
	SHA256 string
	Size   int64
	Offset int64 // where the bytes go on; 0 begins anew
}

// UploadStatus says how far an upload is.
type UploadStatus struct {
	File   *FileInfo // once it is there
	Offset int64     // bytes that have come in
}

// FileInfo describes a stored file or an artifact.
type FileInfo struct {
	Reference string // sha256:<hex> or job:<id>/<artifact>
	Name      string
	SHA256    string
	Size      int64
	MediaType string
	Folder    bool  // it is sent as a tar
	Transfer  int64 // bytes that a download sends

	files int // how many files a folder has
}

// File is an opened stored file.
type File interface {
	io.ReadSeekCloser
}

// HostInfo describes the host and what its daemon is doing.
type HostInfo struct {
	ID, Hostname, OS, OSVersion, Arch, BootSession, Version, StatePath string
	CPUs                                                               int
	MemoryBytes, DiskFreeBytes                                         int64
	StartedAt                                                          time.Time
	Accepting                                                          bool // new calls are taken
	Mode                                                               jobs.HostMode
	Restored                                                           *jobs.Restore // nil: the store has forgotten nothing, as far as is known
	Retention                                                          RetentionStatus
	Confinement                                                        string // what this host can enforce, in words
	Running, Queued, AwaitingApproval, Unknown                         int
	Slots                                                              []Slot
	ToolPath                                                           []string
}

// Slot is a class of jobs and how many of it may run at once.
type Slot struct {
	Class      string
	Size, Used int
}
