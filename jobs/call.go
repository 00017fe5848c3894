package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Purpose says why a call is made.
type Purpose string

// The purposes.
const (
	PurposePreview    Purpose = "preview"
	PurposeValidation Purpose = "validation"
	PurposeProduction Purpose = "production"
	PurposeRestore    Purpose = "restore"
)

// Purposes lists every purpose.
func Purposes() []Purpose {
	return []Purpose{PurposePreview, PurposeValidation, PurposeProduction, PurposeRestore}
}

// Call is what a caller asked for, as stored with the job.
type Call struct {
	Tool        string `json:"tool"`
	ToolVersion string `json:"tool_version,omitempty"` // as asked; empty: the newest
	// Arguments is the JSON text as sent, with secret values replaced by a marker.
	Arguments json.RawMessage `json:"arguments"`
	Purpose   Purpose         `json:"purpose"`
	Options   Options         `json:"options,omitzero"`
	Context   CallContext     `json:"context,omitzero"`
}

// OnLock says what to do when another job stands in the way.
type OnLock string

// What to do when another job stands in the way.
const (
	OnLockWait   OnLock = "wait"
	OnLockRefuse OnLock = "refuse"
)

// Options are a call's wishes that are not part of its fingerprint, except Replace.
type Options struct {
	Replace       bool          `json:"replace,omitempty"` // an existing destination may be replaced (part of the fingerprint)
	OnLock        OnLock        `json:"on_lock,omitempty"`
	SerialContext bool          `json:"serial_context,omitempty"`
	Priority      int32         `json:"priority,omitempty"`
	Timeout       time.Duration `json:"timeout,omitempty"` // shortens the tool's own limit; 0: the tool's
	StartBy       time.Time     `json:"start_by,omitzero"` // zero: any time
	Supersedes    string        `json:"supersedes,omitempty"`
}

// Agent names a program or a model and its version.
type Agent struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
}

// CallContext carries the caller's own ids. macexec keeps them on every record
// and never interprets them, except ContextID (serial contexts) and RunID
// (cancelling a run).
type CallContext struct {
	TraceID       string            `json:"trace_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	InteractionID string            `json:"interaction_id,omitempty"`
	ToolCallID    string            `json:"tool_call_id,omitempty"`
	ParentCallID  string            `json:"parent_call_id,omitempty"`
	ParallelGroup string            `json:"parallel_group,omitempty"`
	Sequence      int64             `json:"sequence,omitempty"`
	RunID         string            `json:"run_id,omitempty"`
	ParentRunID   string            `json:"parent_run_id,omitempty"`
	ThreadID      string            `json:"thread_id,omitempty"`
	CheckpointID  string            `json:"checkpoint_id,omitempty"`
	Step          string            `json:"step,omitempty"`
	Node          string            `json:"node,omitempty"`
	ContextID     string            `json:"context_id,omitempty"`
	TaskID        string            `json:"task_id,omitempty"`
	Model         Agent             `json:"model,omitzero"`
	Orchestrator  Agent             `json:"orchestrator,omitzero"`
	VisibleTools  []string          `json:"visible_tools,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	TraceParent   string            `json:"traceparent,omitempty"` // W3C trace context, as received
	TraceState    string            `json:"tracestate,omitempty"`
}

// Key is an idempotency key in the namespace of the principal that owns it.
type Key struct {
	Principal string `json:"principal"`
	Text      string `json:"text"`
}

// KeyKind says what a key stands for.
type KeyKind string

const (
	// KeyJob: the key belongs to a job whose record exists.
	KeyJob KeyKind = "job"
	// KeyTombstone: the job's record has been pruned; the key stays used for ever.
	KeyTombstone KeyKind = "tombstone"
	// KeyFence: the key was fenced before any job used it; none ever will.
	KeyFence KeyKind = "fence"
)

// KeyRecord is what the store keeps for a used key.
type KeyRecord struct {
	Key         Key       `json:"key"`
	Kind        KeyKind   `json:"kind"`
	Fingerprint string    `json:"fingerprint,omitempty"` // of a tombstone: ShortFingerprint of it, or AnyFingerprint
	JobID       string    `json:"job_id,omitempty"`
	CreatedAt   time.Time `json:"created_at"` // of a tombstone: when its job was accepted
}

// AnyFingerprint is that of a tombstone whose call had secret arguments. Which they were
// is gone, so the fingerprint of a repeat cannot be made, and every call counts as the same.
const AnyFingerprint = "short:any"

// shortFingerprint is how many bytes a tombstone has of the digest of a fingerprint.
const shortFingerprint = 12

// ShortFingerprint is what a tombstone keeps of a fingerprint.
func ShortFingerprint(fingerprint string) string {
	sum := sha256.Sum256([]byte(fingerprint))
	return "short:" + hex.EncodeToString(sum[:shortFingerprint])
}

// Same reports whether a call of a fingerprint is the one that the key was used for.
func (r KeyRecord) Same(fingerprint string) bool {
	if r.Kind == KeyTombstone && (r.Fingerprint == AnyFingerprint || r.Fingerprint == ShortFingerprint(fingerprint)) {
		return true
	}
	return r.Fingerprint == fingerprint
}

// Finding is one thing that is wrong with a call, written so that a model can
// act on it.
type Finding struct {
	Verdict string `json:"verdict"` // syntax, schema or business
	Pointer string `json:"pointer"` // RFC 6901, into the arguments; "" is the whole
	Keyword string `json:"keyword"` // the JSON Schema keyword, or the name of the check
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to send instead
}

// Verdicts are the three answers about a call's arguments, always kept apart. A
// verdict that was not reached is not checked and shown false.
type Verdicts struct {
	SyntaxValid     bool      `json:"syntax_valid"`
	SchemaValid     bool      `json:"schema_valid"`
	BusinessValid   bool      `json:"business_valid"`
	SyntaxChecked   bool      `json:"syntax_checked"`
	SchemaChecked   bool      `json:"schema_checked"`
	BusinessChecked bool      `json:"business_checked"`
	Findings        []Finding `json:"findings,omitempty"`
}

// OK reports whether all three verdicts are good.
func (v Verdicts) OK() bool { return v.SyntaxValid && v.SchemaValid && v.BusinessValid }

// DecisionEffect is the policy's answer.
type DecisionEffect string

// The policy's answers.
const (
	Allow           DecisionEffect = "allow"
	Deny            DecisionEffect = "deny"
	RequireApproval DecisionEffect = "require_approval"
)

// Decision is the policy's answer about one call, and why.
type Decision struct {
	Effect        DecisionEffect `json:"effect"`
	Rules         []string       `json:"rules"` // the rules that matched, the deciding one first
	Reason        string         `json:"reason"`
	PolicyVersion string         `json:"policy_version"` // digest of the policy in force
	DecidedAt     time.Time      `json:"decided_at"`
}
