package jobs

import (
	"encoding/json"
	"time"
)

// EntryKind says what a journal entry records.
type EntryKind string

// The kinds of journal entries. Those that begin with "job." are also the events
// of WatchJobs; the others are about calls that made no job, or about the host.
const (
	EntrySubmitted EntryKind = "job.submitted" // a new job; its verdicts and decision
	EntryReplayed  EntryKind = "job.replayed"  // the same call again under its key
	EntryChanged   EntryKind = "job.changed"   // a job changed; State, Phase, … say how
	EntryConflict  EntryKind = "call.conflict" // another call under a used key
	EntryRejected  EntryKind = "call.rejected" // a verdict or the policy refused a call
	EntryFence     EntryKind = "key.fenced"    // a key was fenced while it was free
	EntryRun       EntryKind = "run.closed"    // a run was cancelled; no later submission of it is taken
	EntryFile      EntryKind = "file.stored"   // an upload is complete
	EntryProject   EntryKind = "project.changed"
	EntryHost      EntryKind = "host.changed"    // the daemon started or stopped, recovery
	EntryAdopted   EntryKind = "store.adopted"   // an operator decided to use a store that may have forgotten
	EntryConfirmed EntryKind = "store.confirmed" // and that what it may have forgotten is dealt with
)

// EntryKinds lists every kind.
func EntryKinds() []EntryKind {
	return []EntryKind{
		EntrySubmitted, EntryReplayed, EntryChanged, EntryConflict, EntryRejected,
		EntryFence, EntryRun, EntryFile, EntryProject, EntryHost, EntryAdopted, EntryConfirmed,
	}
}

// Entry is one line of the journal. The store gives it its Seq, Prev and Hash.
// Seq has no holes: a reader that sees one has missed an entry.
type Entry struct {
	Seq       uint64    `json:"seq"`
	At        time.Time `json:"at"`
	Kind      EntryKind `json:"kind"`
	Principal string    `json:"principal,omitempty"` // who caused it; empty: macexec itself
	Owner     string    `json:"owner,omitempty"`     // whose job or call it is about; only they and readers of all see it
	JobID     string    `json:"job_id,omitempty"`
	Event     Event     `json:"event,omitempty"` // job.changed: the transition, if it was one

	// What the job is after the entry (kinds that begin with "job.").
	Revision   uint64     `json:"revision,omitempty"`
	State      State      `json:"state,omitempty"`
	Phase      Phase      `json:"phase,omitempty"`
	EndReason  EndReason  `json:"end_reason,omitempty"`
	SideEffect SideEffect `json:"side_effect,omitempty"`

	// The request's own ids: a replay carries other ones than its job.
	ToolCallID string `json:"tool_call_id,omitempty"`
	RunID      string `json:"run_id,omitempty"`
	TraceID    string `json:"trace_id,omitempty"`

	Message string          `json:"message,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"` // verdicts, decision, fingerprint, evidence, …; never a secret

	Prev string `json:"prev"` // hex SHA-256 of the entry before; 64 zeros for the first
	Hash string `json:"hash"` // hex SHA-256 of this entry's JSON without hash
}
