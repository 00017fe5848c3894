package jobs

import (
	"context"
	"io"
	"time"
)

// Store keeps every record on stable storage. Package store implements it on
// bbolt; storetest holds what any implementation must do. All methods are safe
// for concurrent use.
//
// A write has three results: done (nil error), not done (any error but
// CodeCommitUnknown), and unknown (CodeCommitUnknown). After the third the store
// refuses everything with CodeStoreFailed and Failed is closed: the daemon must
// exit, and what is true is read from disk at the next start.
//
// A write returns only after its commit is on stable storage. A read never shows
// a write that is not. Records returned are snapshots that nobody may change.
type Store interface {
	// HostID is this store's host id, made once: 8 characters of a-z and 2-7.
	HostID() string

	// Submit decides a submission under its key in one write. If the key is free it
	// stores s.Job and its key, writes an EntrySubmitted, and returns the job as
	// stored. If the key is used with the same fingerprint it writes an
	// EntryReplayed that carries s.Entry's ids. If it is used with another one it
	// writes an EntryConflict. s.Job may be nil: then a free key is reported as
	// SubmitFree and nothing is written.
	//
	// Under a free key the same write also looks at what the job stands on; whatever
	// of it fails leaves the key free and nothing written:
	//   - its run, its parent run and its parent call are not closed, else SubmitClosed;
	//   - the job to supersede is the same principal's, else CodeJobNotFound; settled,
	//     else CodeStateConflict; and not superseded before, else CodeSuperseded, which
	//     names the successor. It is marked as superseded with an EntryChanged of its own;
	//   - each uploaded file among its inputs ("sha256:" and the digest) has its record
	//     and the principal may use it, else CodeFileNotFound. The file is pinned until
	//     the job is terminal.
	Submit(ctx context.Context, s Submission) (Submitted, error)

	// FenceKey makes sure that nothing ever starts under a key: it returns the record of
	// a used key as it is, or plants a fence in one write with e, which becomes an
	// EntryFence.
	FenceKey(ctx context.Context, key Key, e Entry) (record KeyRecord, planted bool, err error)

	// CloseRuns closes runs and calls of a principal for every later submission, for
	// ever. Only what was not closed before is written, with one EntryRun that has the
	// first of c.RunIDs as its run, and returned; if all was closed nothing is written.
	CloseRuns(ctx context.Context, c RunClosing) (fresh RunClosing, err error)

	// Closed says in words which of a job's run, parent run and parent call is closed;
	// "": none of them. Ids of calls repeat from run to run, so which call a job came
	// from is looked for in this order:
	//   - if the job names a parent run, the call is one of that;
	//   - else, if another job of its own run is the call of that id, it is that;
	//   - else it is every call of that id.
	Closed(ctx context.Context, j *Job) (why string, err error)

	// LookupKey returns the record of a used key, or CodeJobNotFound.
	LookupKey(ctx context.Context, key Key) (KeyRecord, error)

	// Get returns a job, CodeJobNotFound, or CodeRecordDamaged.
	Get(ctx context.Context, id string) (*Job, error)

	// List returns jobs newest first. See Query.
	List(ctx context.Context, q Query) (Page, error)

	// Open returns every job that is not terminal, oldest first, and the ids whose
	// records are damaged with the reason. A damaged record stops nothing else.
	Open(ctx context.Context) (open []*Job, damaged map[string]error, err error)

	// Counts returns how many jobs are in each state that is not terminal, without
	// reading them. Jobs that Open found damaged are not counted.
	Counts(ctx context.Context) (map[State]int, error)

	// Update changes one job in one write. It calls change with a private copy of
	// the job as it is now; if change returns an error nothing is written and
	// Update returns that error. Otherwise it stores the copy with the next
	// revision and appends one EntryChanged that describes it, filled from the note
	// that change returns; its Owner is the job's principal, its Event the transition
	// that change made. change must be quick and do no I/O; it may run more than
	// once only if its first run's write was not done.
	Update(ctx context.Context, id string, change func(*Job) (Note, error)) (*Job, error)

	// Append writes one journal entry that belongs to no change of a job.
	Append(ctx context.Context, e Entry) error

	// Journal calls yield with the entries after the given sequence number, oldest
	// first, at most limit of them (0: all), until yield returns false. Entries that
	// were dropped give CodeCursorExpired with the metadata "oldest"; so does a sequence
	// number beyond the newest entry.
	Journal(ctx context.Context, after uint64, limit int, yield func(Entry) bool) error

	// JobJournal calls yield with the entries of one job, oldest first.
	JobJournal(ctx context.Context, jobID string, yield func(Entry) bool) error

	// VerifyJournal walks the hash chain and returns how many entries are good. The
	// error names the first bad one.
	VerifyJournal(ctx context.Context) (good uint64, err error)

	// Head is the sequence number of the newest entry, 0 if there is none.
	Head() uint64

	// Wait returns when Head is greater than after, or with ctx's error, or with
	// CodeStoreFailed once the store has failed.
	Wait(ctx context.Context, after uint64) error

	// SetMode keeps the host's mode, with an EntryHost.
	SetMode(ctx context.Context, m HostMode) error
	// Mode returns the host's mode as it was set last.
	Mode(ctx context.Context) (HostMode, error)

	// LeftBehind returns the ended jobs of which processes may still live. One whose record
	// is damaged is left out.
	LeftBehind(ctx context.Context) ([]*Job, error)

	// FirstMoment keeps a moment, unless it has one of the same boot session already, and
	// returns the one that it has.
	FirstMoment(ctx context.Context, now Moment) (Moment, error)

	// SumUsage sums what ended jobs cost. Each counts from the write that made it
	// terminal, and goes on counting when its record is gone.
	SumUsage(ctx context.Context, q UsageQuery) (UsagePage, error)

	// PutBlob records an uploaded file; the same digest again adds the principal.
	PutBlob(ctx context.Context, b Blob) error
	// GetBlob returns the record of an uploaded file, or CodeFileNotFound.
	GetBlob(ctx context.Context, sha256 string) (Blob, error)

	// CollectBlobs removes the records of at most limit files (0: all) that no job pins
	// and that were last stored or used before a time, and returns them. Whoever calls
	// may then delete the files themselves.
	CollectBlobs(ctx context.Context, unusedSince time.Time, limit int) ([]Blob, error)

	// PutManifest keeps the text of a manifest under its digest, so that a job can be
	// finished by the manifest that it was accepted with. It is written once.
	PutManifest(ctx context.Context, digest string, text []byte) error
	// Manifest returns a kept manifest, or CodeToolNotFound.
	Manifest(ctx context.Context, digest string) ([]byte, error)

	// PutProject adds a project: CodeProjectExists if the name has another folder.
	PutProject(ctx context.Context, p Project, by string) error
	// ReplaceProjects gives each project its folder, in place of one that its name may
	// have, in one write with an entry for each that changes. In that write inUse is asked
	// about every job that is not settled, with those whose folder changes; an error of it
	// is the answer, and nothing is written.
	ReplaceProjects(ctx context.Context, list []Project, by string, inUse func(job *Job, changed []Project) error) error
	// DeleteProject removes a project, not its files, or CodeProjectNotFound.
	DeleteProject(ctx context.Context, name, by string) error
	// Projects returns every project, by name.
	Projects(ctx context.Context) ([]Project, error)

	// Copy makes a whole copy of the store as it is at one moment. Writes go on meanwhile.
	// CodeDiskFull if there is no room for it.
	Copy(ctx context.Context) (StoreCopy, error)

	// Restored returns why the store may have forgotten something, until somebody has
	// confirmed that this is dealt with; nil: there is nothing to confirm.
	Restored(ctx context.Context) (*Restore, error)
	// ConfirmRestore ends that, with an EntryConfirmed, and returns what was confirmed;
	// nil: there was nothing, and nothing is written.
	ConfirmRestore(ctx context.Context, by, reason string) (*Restore, error)

	// Expired looks for jobs that may be pruned, oldest first, from a Seq on. It decides
	// nothing: Prune looks again.
	Expired(ctx context.Context, q ExpiredQuery) (Expiry, error)

	// Prune removes the records of those of the jobs that have ended, in one write with
	// one entry, and returns their ids. Each leaves its key as a tombstone, and what it cost
	// in the sums. Whoever calls may then delete the files of those jobs.
	Prune(ctx context.Context, ids []string, why string) (gone []string, err error)

	// DropJournal drops the oldest segment of the journal, in one write with one entry, if
	// the journal has more than keep entries without it (0: any number) or all of it is from
	// before a time, and returns how many entries it had. The chain goes on from an anchor:
	// the Seq and the hash of the newest entry that was dropped.
	DropJournal(ctx context.Context, before time.Time, keep int) (dropped int, err error)
	// JournalToDrop returns how many entries all calls of DropJournal would drop now.
	JournalToDrop(ctx context.Context, before time.Time, keep int) (int, error)

	// CollectManifests removes the texts of manifests that no job with a record was
	// accepted with, in one write with one entry, and returns how many they are, and their
	// bytes. It reads the records of jobs if there may be one.
	CollectManifests(ctx context.Context, q ManifestQuery) (n int, bytes int64, err error)

	// Describe counts and measures what the store holds. It reads the whole file.
	Describe(ctx context.Context) (StoreDescription, error)

	// Failed is closed when the store can no longer be trusted.
	Failed() <-chan struct{}
}

// ExpiredQuery says which jobs in one terminal state may be pruned: those that ended
// before a time, and the oldest of more than Keep.
type ExpiredQuery struct {
	State  State
	Before time.Time       // zero: none for its age
	Keep   int             // 0: any number
	Spare  map[string]bool // ids that are left alone
	From   uint64          // Seq
	Limit  int             // of jobs that are returned
}

// ManifestQuery says which kept manifests are collected.
type ManifestQuery struct {
	Spare map[string]bool // digests of those that calls may be accepted with now
	Gone  map[string]bool // ids of jobs that count as removed
	Dry   bool            // remove nothing
}

// Expiry is what Expired found. Next is the From of the next part, 0 at the end.
type Expiry struct {
	IDs  []string
	Next uint64
}

// StoreDescription is what a store holds.
type StoreDescription struct {
	Size, Free int64 // bytes of the file, and how many of them are free
	Buckets    []BucketDescription
	Jobs       map[State]int // that are kept, by state
	Oldest     uint64        // entry of the journal that is kept
	Tombstones int64
}

// BucketDescription is one part of a store.
type BucketDescription struct {
	Name  string
	Rows  int64
	Bytes int64 // of its pages
}

// Submission is what Submit decides.
type Submission struct {
	Key         Key
	Fingerprint string
	Job         *Job  // the job to store if the key is free; nil: only look
	Entry       Entry // ids, principal, message and data for the journal
}

// SubmitOutcome says what became of a submission.
type SubmitOutcome int

// What becomes of a submission.
const (
	SubmitFree     SubmitOutcome = iota + 1 // nothing written: the key is free and no job was given
	SubmitAccepted                          // the job is stored
	SubmitReplayed                          // the key's job is returned
	SubmitConflict                          // the key belongs to another call; its record is returned
	SubmitExpired                           // the key is a tombstone of this call
	SubmitFenced                            // the key is fenced
	SubmitClosed                            // nothing written: the run, or what it came from, is closed
)

// Submitted is Submit's answer. Job is nil for SubmitFree, SubmitExpired,
// SubmitFenced and SubmitClosed, and for a SubmitConflict whose job is pruned.
type Submitted struct {
	Outcome SubmitOutcome
	Job     *Job
	Key     KeyRecord
	Closed  string // SubmitClosed: what is closed and why, in words
}

// RunClosing names runs and tool calls of one principal that are closed: a job
// that names one of them, as its own run or as where it came from, is refused.
type RunClosing struct {
	Principal string
	RunIDs    []string
	Calls     []RunCall
	Reason    string
}

// RunCall is a tool call of a run, by the model's id of it.
type RunCall struct {
	RunID  string `json:"run_id,omitempty"` // empty: it is of no run
	CallID string `json:"call_id"`
}

// Note tells the journal about a change.
type Note struct {
	Principal string // who caused it; empty: macexec itself
	Message   string
	Data      any // marshalled to JSON; never a secret
}

// Page is a part of a list. Next is the After of the next page, empty at the end.
type Page struct {
	Jobs    []*Job
	Damaged map[string]error
	Next    string
}

// StoreCopy is a whole copy of a store, to be read once and closed.
type StoreCopy struct {
	io.ReadCloser

	HostID string
	Head   uint64 // the newest entry that it has
	Size   int64
}

// Restore says that the store may have forgotten keys and jobs: it is a copy of an
// earlier one, or a new one in the place of one that is lost, and a named principal
// decided to use it.
type Restore struct {
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason"`
	Head   uint64    `json:"head"` // its newest entry then
	// Known is how far the store that was there before had come; zero: that is not known.
	Known StoreStanding `json:"known,omitzero"`
}

// StoreStanding says how far a store has come.
type StoreStanding struct {
	HostID string `json:"host_id"`
	Head   uint64 `json:"head"`
	Hash   string `json:"hash"` // of that entry
}

// Blob is an uploaded file, stored under its digest. A digest is not a
// capability: only the principals that uploaded it may use it.
type Blob struct {
	SHA256     string    `json:"sha256"`
	Size       int64     `json:"size"`
	MediaType  string    `json:"media_type"`
	Principals []string  `json:"principals"`
	StoredAt   time.Time `json:"stored_at"`
	// UsedAt is when the file was sent again, or when a job that used it ended.
	UsedAt time.Time `json:"used_at,omitzero"`
}

// LastUse is when the file was last stored or used, as far as no job uses it now.
func (b Blob) LastUse() time.Time {
	if b.UsedAt.After(b.StoredAt) {
		return b.UsedAt
	}
	return b.StoredAt
}

// Project is a named folder tree that calls may read or write.
type Project struct {
	Name string `json:"name"`
	Root string `json:"root"` // absolute
}

// Mode says whether a host takes calls and starts jobs.
type Mode string

// The modes of a host.
const (
	ModeOpen     Mode = "open"     // calls are taken, and jobs start
	ModePaused   Mode = "paused"   // calls are taken and wait; nothing starts
	ModeDraining Mode = "draining" // new calls are refused; what was accepted is run to its end
)

// Modes lists every mode.
func Modes() []Mode { return []Mode{ModeOpen, ModePaused, ModeDraining} }

// Moment is a moment by two clocks: by the wall clock, and as the time since the start of
// the host, which nobody sets.
type Moment struct {
	BootSession string        `json:"boot_session"`
	SinceBoot   time.Duration `json:"since_boot"`
	At          time.Time     `json:"at"`
}

// HostMode is a mode with who set it and why. It is kept over restarts; the zero
// value means open, and that nobody has ever set it.
type HostMode struct {
	Mode   Mode      `json:"mode"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}
