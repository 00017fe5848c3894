package jobs

import (
	"encoding/json"
	"time"
)

// Job is an accepted call with a state. A *Job that a Store returns is a
// snapshot: nobody changes it. To change a job, pass a function to Store.Update;
// inside it, use the methods of transition.go for the state, and set the other
// fields as needed.
type Job struct {
	ID       string `json:"id"`       // ULID, "-", host id: unique across hosts, sorts by time
	Host     string `json:"host"`     // the host id
	Seq      uint64 `json:"seq"`      // order of acceptance on this host; set by the store
	Revision uint64 `json:"revision"` // goes up by one with each change; set by the store

	Principal   string `json:"principal"`
	Key         string `json:"key"`
	KeyMade     bool   `json:"key_made,omitempty"` // macexec made the key, since the caller sent none
	Fingerprint string `json:"fingerprint"`        // "v1:" and hex SHA-256 of the canonical call

	Call     Call      `json:"call"`
	Tool     ToolRef   `json:"tool"`
	Verdicts Verdicts  `json:"verdicts"`
	Decision Decision  `json:"decision"`
	Approval *Approval `json:"approval,omitempty"`

	State      State        `json:"state"`
	Phase      Phase        `json:"phase,omitempty"`
	WaitingFor *WaitingFor  `json:"waiting_for,omitempty"`
	EndReason  EndReason    `json:"end_reason,omitempty"`
	SideEffect SideEffect   `json:"side_effect"`
	Message    string       `json:"message,omitempty"`  // one sentence for a person: why it is as it is
	Cause      string       `json:"cause,omitempty"`    // the likely cause of a failure, from the tool's own words
	Retry      Retry        `json:"retry,omitempty"`    // set when settled
	LogTail    []string     `json:"log_tail,omitempty"` // last log lines of a job that did not complete, masked
	Stop       *StopRequest `json:"stop,omitempty"`

	Attempts  []Attempt       `json:"attempts,omitempty"`
	Inputs    []InputFile     `json:"inputs,omitempty"`
	Artifacts []Artifact      `json:"artifacts,omitempty"`
	Plan      *PublishPlan    `json:"plan,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Evidence  []Evidence      `json:"evidence,omitempty"`
	Warnings  []string        `json:"warnings,omitempty"`
	Usage     Usage           `json:"usage,omitzero"`

	// Sealed holds the secret arguments, by JSON pointer, encrypted with a key that
	// is not in the store.
	Sealed map[string][]byte `json:"sealed,omitempty"`

	// Needs is worked out at the acceptance: a job's slot and locks must not depend on
	// whether its manifest can be read later. An older record has none.
	Needs Needs `json:"needs,omitzero"`

	// Event is the transition that the change in progress has made. The store writes
	// it into the journal with the change, and keeps it nowhere else.
	Event Event `json:"-"`

	// Trace is the W3C traceparent of the span of the request that made the job, when
	// that was traced.
	Trace string `json:"trace,omitempty"`

	SupersededBy string `json:"superseded_by,omitempty"`

	// Overtaken says why a job with outside effects is never to be started: the store that
	// a restored one replaced knew that it was started or ended. Empty: it may be.
	Overtaken string `json:"overtaken,omitempty"`

	// Clock says what the times of the job are worth, which are of a clock that can be set.
	Clock JobClock `json:"clock,omitzero"`

	SubmittedAt time.Time `json:"submitted_at"`
	QueuedAt    time.Time `json:"queued_at,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"` // of the first attempt
	EndedAt     time.Time `json:"ended_at,omitzero"`
}

// JobClock says by how much the wall clock was ahead of one that nobody sets in a boot
// session, at the job's acceptance and at its end. An older record says nothing.
type JobClock struct {
	Accepted time.Duration `json:"accepted,omitzero"`
	Ended    time.Duration `json:"ended,omitzero"`
}

// ToolRef pins the tool that a job uses.
type ToolRef struct {
	Name           string  `json:"name"`
	Version        string  `json:"version"`
	ManifestDigest string  `json:"manifest_digest"` // hex SHA-256 of the manifest's bytes
	Effects        Effects `json:"effects"`
	Destructive    bool    `json:"destructive,omitempty"`
}

// Needs is what a job needs to start. What its locks are is worked out from that, and
// from the world as it is then; the lock of a serial context is by the call itself.
type Needs struct {
	Slot    string    `json:"slot"` // the class
	Project string    `json:"project,omitempty"`
	Paths   []PathUse `json:"paths,omitempty"` // in the project
	// Locks are those that the job had when its newest attempt began. They are its own
	// over a restart, whatever has become of the names that they were worked out from.
	Locks []Lock `json:"locks,omitempty"`
}

// Lock is a lock that a job has, as the scheduler of this boot session knows it.
type Lock struct {
	Key  string `json:"key"`
	Mode int    `json:"mode"`
	Name string `json:"name"` // what the caller knows it by
}

// PathUse is a path that a job reads or, if Write, changes.
type PathUse struct {
	Path  string `json:"path"`
	Write bool   `json:"write,omitempty"`
}

// WaitKind says what kind of thing a job waits for.
type WaitKind string

// What a job can wait for.
const (
	WaitApproval WaitKind = "approval"
	WaitSlot     WaitKind = "slot"
	WaitLock     WaitKind = "lock"
	WaitPaused   WaitKind = "host_paused"
	WaitRestored WaitKind = "host_restored" // somebody's word on what the restored store may have forgotten
)

// WaitingFor says what a job waits for.
type WaitingFor struct {
	Kind     WaitKind `json:"kind"`
	Detail   string   `json:"detail,omitempty"`    // the slot class; the path or the context
	JobID    string   `json:"job_id,omitempty"`    // the job that holds the lock or has it next; empty for another principal's
	JobState State    `json:"job_state,omitempty"` // of the holder: while it is unknown, only a resolution ends the wait
	Position int      `json:"position,omitempty"`  // 1 is next
}

// StopRequest is durable before it is acknowledged.
type StopRequest struct {
	Principal string    `json:"principal"`
	Reason    string    `json:"reason,omitempty"`
	End       EndReason `json:"end"` // cancelled_by_caller or run_cancelled
	At        time.Time `json:"at"`
}

// Approval is what a person is asked to agree to, and what they said.
type Approval struct {
	Binding   Binding   `json:"binding"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Decided   bool      `json:"decided"`
	Approved  bool      `json:"approved"`
	Approver  string    `json:"approver,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	DecidedAt time.Time `json:"decided_at,omitzero"`
}

// Binding fixes what is approved; it is compared again at the start (promise G8).
type Binding struct {
	Digest         string            `json:"digest"` // hex SHA-256 over all the other fields
	Tool           string            `json:"tool"`
	Version        string            `json:"version"`
	ManifestDigest string            `json:"manifest_digest"`
	Fingerprint    string            `json:"fingerprint"`
	Inputs         map[string]string `json:"inputs,omitempty"`   // JSON pointer → hex SHA-256
	Programs       map[string]string `json:"programs,omitempty"` // absolute path → hex SHA-256
	PolicyVersion  string            `json:"policy_version"`
	Requester      string            `json:"requester"`
}

// InputFile is one file argument and the digest of what the tool really read.
type InputFile struct {
	Pointer   string `json:"pointer"`   // where in the arguments
	Reference string `json:"reference"` // as the call wrote it
	Project   string `json:"project,omitempty"`
	Path      string `json:"path,omitempty"` // inside the project
	SHA256    string `json:"sha256,omitempty"`
	Size      int64  `json:"size"`
	MediaType string `json:"media_type,omitempty"`
	InPlace   bool   `json:"in_place,omitempty"`
	Folder    bool   `json:"folder,omitempty"` // SHA256 and Size are of the folder, as an Artifact's
	Files     int    `json:"files,omitempty"`  // how many files a folder has
	// ModTime is when a project's file was last written, as seen on acceptance: it
	// tells a repeat that the file has changed since.
	ModTime time.Time `json:"mod_time,omitzero"`
}

// Artifact is a file that a job made.
type Artifact struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`
	MediaType string `json:"media_type"`
	SHA256    string `json:"sha256"`
	// Project and Path say where it was published; both empty while it is only kept
	// with the job.
	Project string `json:"project,omitempty"`
	Path    string `json:"path,omitempty"`
	// Kept is the path inside the job's folder where the bytes lie; empty once they
	// were moved to their destination.
	Kept string `json:"kept,omitempty"`
	// Folder: Size is that of all files together, SHA256 the digest of the sorted list
	// of paths, modes and digests.
	Folder bool `json:"folder,omitempty"`
	Files  int  `json:"files,omitempty"` // how many files a folder has
}

// Program is an executable that a job used.
type Program struct {
	Name    string `json:"name"`
	Path    string `json:"path"` // absolute, symbolic links resolved
	Version string `json:"version,omitempty"`
	SHA256  string `json:"sha256"`
}

// Attempt is one start of the job's process. Intent is stored before the keeper
// is asked to start anything; Started and Exit are copies of the keeper's records.
type Attempt struct {
	N           int       `json:"n"`
	BegunAt     time.Time `json:"begun_at"`
	BootSession string    `json:"boot_session"`
	Intent      *Intent   `json:"intent,omitempty"`
	Started     *Started  `json:"started,omitempty"`
	Exit        *Exit     `json:"exit,omitempty"`
	Lost        string    `json:"lost,omitempty"` // why the attempt was given up, if it was
	Left        []int     `json:"left,omitempty"` // pids that live on, of a tool that may not be stopped; none once their end was seen
	EndedAt     time.Time `json:"ended_at,omitzero"`
}

// Intent is what an attempt is about to start.
type Intent struct {
	Argv     []string      `json:"argv"` // never holds a secret
	EnvNames []string      `json:"env_names,omitempty"`
	Programs []Program     `json:"programs"`
	Timeout  time.Duration `json:"timeout"`
	Variant  int           `json:"variant"` // which way to run of the manifest was chosen
	At       time.Time     `json:"at"`
}

// Started says which process the tool is.
type Started struct {
	PID         int       `json:"pid"`
	StartTime   string    `json:"start_time"` // the kernel's own stamp; with pid and boot session it is the process's identity
	BootSession string    `json:"boot_session"`
	At          time.Time `json:"at"`
}

// Exit says how the tool ended.
type Exit struct {
	Code       int       `json:"code"`                  // -1 when it was killed by a signal
	Signal     string    `json:"signal,omitempty"`      // "SIGKILL", …
	StoppedFor string    `json:"stopped_for,omitempty"` // "request", "timeout", …: why the keeper stopped it, if it did
	Escaped    []int     `json:"escaped,omitempty"`     // pids that left the tool's session and still live
	At         time.Time `json:"at"`
}

// Verb is one kind of change to a project.
type Verb string

// The verbs of a publish plan.
const (
	VerbCreate  Verb = "create"
	VerbReplace Verb = "replace"
	VerbRemove  Verb = "remove" // to the trash
)

// PublishPlan is stored before the first change to a project, and finished, not
// repeated, after a crash.
type PublishPlan struct {
	Steps []PublishStep `json:"steps"`
}

// PublishStep is one change. Device and Inode are of the file that moves: the
// new file for create and replace, the removed one for remove.
type PublishStep struct {
	Verb     Verb   `json:"verb"`
	Artifact string `json:"artifact,omitempty"` // create and replace: which one
	Project  string `json:"project"`
	Path     string `json:"path"`
	Folder   bool   `json:"folder,omitempty"` // it is a folder that moves, and that is replaced
	Temp     string `json:"temp,omitempty"`   // hidden name beside the destination
	Trash    string `json:"trash,omitempty"`  // replace and remove: where the old file goes, inside the project
	// OldSHA256 is the digest of what replace and remove may move out of the way.
	OldSHA256 string `json:"old_sha256,omitempty"`
	SHA256    string `json:"sha256,omitempty"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	Done      bool   `json:"done"`
}

// Evidence is one thing that proves a state, kept for ever.
type Evidence struct {
	Kind     EvidenceKind `json:"kind"`
	Detail   string       `json:"detail"`
	Attempt  int          `json:"attempt,omitempty"`
	By       string       `json:"by,omitempty"` // the principal, for a person's word
	At       time.Time    `json:"at"`
	AfterEnd bool         `json:"after_end,omitempty"` // it came when the job was already settled; the state stayed
}

// Usage is what a job cost, summed over its attempts. Durations are wall-clock
// nanoseconds unless named otherwise.
type Usage struct {
	Waiting    time.Duration `json:"waiting"`
	Staging    time.Duration `json:"staging"`
	Running    time.Duration `json:"running"`
	Publishing time.Duration `json:"publishing"` // verifying included
	CPUUser    time.Duration `json:"cpu_user"`
	CPUSystem  time.Duration `json:"cpu_system"`
	PeakMemory int64         `json:"peak_memory_bytes"` // largest single process
	BytesIn    int64         `json:"bytes_in"`
	BytesOut   int64         `json:"bytes_out"`
	Scope      UsageScope    `json:"scope,omitempty"`
}

// UsageScope says what the CPU and memory figures cover.
type UsageScope string

// What the CPU and memory figures can cover.
const (
	UsageWhole   UsageScope = "whole"   // every process that the tool started
	UsagePartial UsageScope = "partial" // others worked for the tool, or outlived the keeper
)
