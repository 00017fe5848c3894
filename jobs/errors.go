package jobs

import (
	"errors"
	"fmt"
)

// Class groups errors by who has to do something about them.
type Class string

// The classes of errors. The list is closed.
const (
	ClassSyntax        Class = "syntax"        // the bytes are not JSON as macexec takes it
	ClassSchema        Class = "schema"        // the JSON does not fit the tool's input schema
	ClassBusiness      Class = "business"      // the arguments make no sense on this host now
	ClassAuthorization Class = "authorization" // this principal may not do this
	ClassPolicy        Class = "policy"        // the policy or a person said no
	ClassConflict      Class = "conflict"      // it clashes with what is already there
	ClassResource      Class = "resource"      // the thing named does not exist or cannot be had
	ClassQuota         Class = "quota"         // a limit is reached
	ClassUnavailable   Class = "unavailable"   // macexec cannot take it now
	ClassTimeout       Class = "timeout"       // it took too long
	ClassTool          Class = "tool"          // the tool itself failed
	ClassInternal      Class = "internal"      // a fault in macexec
)

// Classes lists every class.
func Classes() []Class {
	return []Class{
		ClassSyntax, ClassSchema, ClassBusiness, ClassAuthorization, ClassPolicy, ClassConflict,
		ClassResource, ClassQuota, ClassUnavailable, ClassTimeout, ClassTool, ClassInternal,
	}
}

// UserAction says what the caller should do next. The list is closed.
type UserAction string

// What a caller can do next.
const (
	ActionNone          UserAction = "none"
	ActionFixArguments  UserAction = "fix_arguments"   // change the call and submit it under a new key
	ActionFixRequest    UserAction = "fix_request"     // change the request itself (a page token, a cursor, an id)
	ActionUseNewKey     UserAction = "use_new_key"     // the key is spent: choose another
	ActionRepeatSameKey UserAction = "repeat_same_key" // repeat the very same call
	ActionRetryLater    UserAction = "retry_later"     // repeat after a pause
	ActionAskApprover   UserAction = "ask_approver"    // a person has to decide
	ActionAskOperator   UserAction = "ask_operator"    // the person who runs this host has to act
	ActionInspectJob    UserAction = "inspect_job"     // look at the job the error names
	ActionResolveJob    UserAction = "resolve_job"     // a named principal has to say how it ended
)

// UserActions lists every user action.
func UserActions() []UserAction {
	return []UserAction{
		ActionNone, ActionFixArguments, ActionFixRequest, ActionUseNewKey, ActionRepeatSameKey,
		ActionRetryLater, ActionAskApprover, ActionAskOperator, ActionInspectJob, ActionResolveJob,
	}
}

// Code names one error exactly. Every code has a row in the table of CodeInfo.
type Code string

// Every error code. Meanings are in the table below.
const (
	CodeArgumentsNotJSON  Code = "ARGUMENTS_NOT_JSON"
	CodeArgumentsTooLarge Code = "ARGUMENTS_TOO_LARGE"
	CodeArgumentsSchema   Code = "ARGUMENTS_SCHEMA_VIOLATION"
	CodeArgumentsBusiness Code = "ARGUMENTS_NOT_POSSIBLE"
	CodeRequestInvalid    Code = "REQUEST_INVALID"
	CodeKeyRequired       Code = "KEY_REQUIRED"
	CodeToolNotFound      Code = "TOOL_NOT_FOUND"
	CodeToolUnavailable   Code = "TOOL_UNAVAILABLE"
	CodeJobNotFound       Code = "JOB_NOT_FOUND"
	CodeFileNotFound      Code = "FILE_NOT_FOUND"
	CodeProjectNotFound   Code = "PROJECT_NOT_FOUND"
	CodeProjectExists     Code = "PROJECT_EXISTS"
	CodeProjectInUse      Code = "PROJECT_IN_USE"
	CodeArtifactChanged   Code = "ARTIFACT_CHANGED"
	CodeArtifactGone      Code = "ARTIFACT_GONE"
	CodeOtherHost         Code = "JOB_ON_OTHER_HOST"
	CodeNotAuthenticated  Code = "NOT_AUTHENTICATED"
	CodeNotAuthorized     Code = "NOT_AUTHORIZED"
	CodePolicyDenied      Code = "POLICY_DENIED"
	CodeKeyConflict       Code = "IDEMPOTENCY_KEY_CONFLICT"
	CodeKeyExpired        Code = "RESULT_EXPIRED"
	CodeKeyFenced         Code = "KEY_FENCED"
	CodeRunClosed         Code = "RUN_CLOSED"
	CodeLockHeld          Code = "LOCK_HELD"
	CodeSuperseded        Code = "ALREADY_SUPERSEDED"
	CodeUploadInProgress  Code = "UPLOAD_IN_PROGRESS"
	CodeStateConflict     Code = "JOB_STATE_CONFLICT"
	CodeStopTooLate       Code = "STOP_TOO_LATE"
	CodeApprovalDecided   Code = "APPROVAL_ALREADY_DECIDED"
	CodeTooLate           Code = "START_BY_PASSED"
	CodeDigestMismatch    Code = "DIGEST_MISMATCH"
	CodeFileTooLarge      Code = "FILE_TOO_LARGE"
	CodeCursorExpired     Code = "CURSOR_EXPIRED"
	CodeDiskFull          Code = "DISK_FULL"
	CodeNotRemoved        Code = "FILES_NOT_REMOVED"
	CodeDraining          Code = "HOST_DRAINING"
	CodeStoreFailed       Code = "STORE_FAILED"
	CodeStoreMissing      Code = "STORE_MISSING"
	CodeStoreReplaced     Code = "STORE_REPLACED"
	CodeStoreOlder        Code = "STORE_OLDER"
	CodeCommitUnknown     Code = "COMMIT_UNKNOWN"
	CodeRecordDamaged     Code = "RECORD_DAMAGED"
	CodeDeadline          Code = "DEADLINE_EXCEEDED"
	CodeCallerGone        Code = "CALLER_GONE"
	CodeToolFailed        Code = "TOOL_FAILED"
	CodeNotReached        Code = "DAEMON_NOT_REACHED"
	CodeAnswerLost        Code = "ANSWER_LOST"
	CodeCannotServe       Code = "CANNOT_SERVE"
	CodeInternal          Code = "INTERNAL"
)

// CodeInfo is what is true of a code wherever it is used.
type CodeInfo struct {
	Class     Class
	Retryable bool // repeating the very same request may succeed
	Action    UserAction
	Meaning   string
}

// Codes returns the table of every error code.
func Codes() map[Code]CodeInfo {
	return map[Code]CodeInfo{
		CodeArgumentsNotJSON:  {ClassSyntax, false, ActionFixArguments, "the arguments are not one strict JSON value"},
		CodeArgumentsTooLarge: {ClassSyntax, false, ActionFixArguments, "the arguments exceed a stated limit of size, depth or number length"},
		CodeArgumentsSchema:   {ClassSchema, false, ActionFixArguments, "the arguments do not fit the tool's input schema"},
		CodeArgumentsBusiness: {ClassBusiness, false, ActionFixArguments, "the arguments ask for something this host cannot do now"},
		CodeRequestInvalid:    {ClassSchema, false, ActionFixRequest, "a field of the request itself is missing or wrong"},
		CodeKeyRequired:       {ClassSchema, false, ActionFixRequest, "a tool that does more than read needs an idempotency key"},
		CodeToolNotFound:      {ClassResource, false, ActionFixRequest, "no tool of that name and version is installed, or it is hidden"},
		CodeToolUnavailable:   {ClassBusiness, false, ActionAskOperator, "the tool is installed but a program it needs is not on this host"},
		CodeJobNotFound:       {ClassResource, false, ActionFixRequest, "no such job, or it is hidden"},
		CodeFileNotFound:      {ClassResource, false, ActionFixRequest, "no such file, or it is hidden"},
		CodeProjectNotFound:   {ClassResource, false, ActionFixRequest, "no such project, or it is hidden"},
		CodeProjectExists:     {ClassConflict, false, ActionFixRequest, "a project of that name has another folder"},
		CodeProjectInUse:      {ClassConflict, true, ActionRetryLater, "an unsettled job uses the project"},
		CodeArtifactChanged:   {ClassConflict, false, ActionNone, "the published file is no longer what the job made"},
		CodeArtifactGone:      {ClassResource, false, ActionNone, "the file that the job made is no longer there"},
		CodeOtherHost:         {ClassResource, false, ActionFixRequest, "the job lives on another host, which the message names"},
		CodeNotAuthenticated:  {ClassAuthorization, false, ActionAskOperator, "the peer proves no known principal"},
		CodeNotAuthorized:     {ClassAuthorization, false, ActionAskOperator, "the principal's roles do not allow this"},
		CodePolicyDenied:      {ClassPolicy, false, ActionAskOperator, "the policy denies this call"},
		CodeKeyConflict:       {ClassConflict, false, ActionUseNewKey, "the key belongs to another call; the error names its job"},
		CodeKeyExpired:        {ClassConflict, false, ActionUseNewKey, "the key was used and its job's record has been pruned; it will not run again"},
		CodeKeyFenced:         {ClassConflict, false, ActionUseNewKey, "the key was fenced; nothing will ever start under it"},
		CodeRunClosed:         {ClassConflict, false, ActionNone, "the run, or a run or call that it came from, was cancelled; nothing of it starts any more. The key is still free"},
		CodeLockHeld:          {ClassConflict, true, ActionRetryLater, "another job holds what the call needs, and the call asked not to wait; its key is still free"},
		CodeSuperseded:        {ClassConflict, false, ActionInspectJob, "the job to supersede has a successor, which the error names"},
		CodeUploadInProgress:  {ClassConflict, true, ActionRetryLater, "another stream of the same upload is open"},
		CodeStateConflict:     {ClassConflict, false, ActionInspectJob, "the job's state does not allow this"},
		CodeStopTooLate:       {ClassConflict, false, ActionInspectJob, "the job has ended or its publish plan is stored, so it can no longer be stopped"},
		CodeApprovalDecided:   {ClassConflict, false, ActionInspectJob, "the approval was decided before, or has expired"},
		CodeTooLate:           {ClassTimeout, false, ActionFixRequest, "the call's own start_by had passed before it was accepted; its key is still free"},
		CodeDigestMismatch:    {ClassConflict, true, ActionRepeatSameKey, "the bytes received are not the bytes announced"},
		CodeFileTooLarge:      {ClassQuota, false, ActionFixRequest, "the file exceeds the configured limit"},
		CodeCursorExpired:     {ClassResource, false, ActionFixRequest, "events between the cursor and the oldest kept one are gone; the error names the oldest"},
		CodeDiskFull:          {ClassQuota, true, ActionAskOperator, "there is not enough room on the disk"},
		CodeNotRemoved:        {ClassUnavailable, true, ActionAskOperator, "retention could not remove some files; what else was due is removed, and the next pass tries again"},
		CodeDraining:          {ClassUnavailable, true, ActionRetryLater, "the host takes no new calls now"},
		CodeStoreFailed:       {ClassUnavailable, true, ActionRepeatSameKey, "the store cannot be written; the daemon is stopping"},
		CodeStoreMissing:      {ClassUnavailable, false, ActionAskOperator, "made at a start: this host had a store, and there is none"},
		CodeStoreReplaced:     {ClassUnavailable, false, ActionAskOperator, "made at a start: the store is not the one that was here, or nobody can tell"},
		CodeStoreOlder:        {ClassUnavailable, false, ActionAskOperator, "made at a start: the store is an earlier state of the one that was here"},
		CodeCommitUnknown:     {ClassUnavailable, true, ActionRepeatSameKey, "the store cannot tell whether the write is durable; repeat with the same key"},
		CodeRecordDamaged:     {ClassInternal, false, ActionAskOperator, "the record is damaged; it is kept as it is"},
		CodeDeadline:          {ClassTimeout, true, ActionRepeatSameKey, "the caller's deadline passed before an answer"},
		CodeCallerGone:        {ClassTimeout, true, ActionRepeatSameKey, "the caller went away before an answer"},
		CodeToolFailed:        {ClassTool, false, ActionInspectJob, "the tool ran and failed"},
		CodeNotReached:        {ClassUnavailable, true, ActionRepeatSameKey, "made by clients: the daemon was not reached, so nothing was accepted"},
		CodeAnswerLost:        {ClassUnavailable, true, ActionRepeatSameKey, "made by clients: the request was sent and its answer lost; the same key tells what became of it"},
		CodeCannotServe:       {ClassUnavailable, false, ActionAskOperator, "made by macexec serve: the daemon cannot start on this host as it is"},
		CodeInternal:          {ClassInternal, false, ActionAskOperator, "a fault in macexec itself"},
	}
}

// Error is the one shape of an error on every face.
type Error struct {
	Code     Code
	Message  string            // one sentence that says what to do
	Findings []Finding         // what exactly is wrong with the arguments
	Verdicts *Verdicts         // set when a call was judged
	Decision *Decision         // set when the policy refused
	JobID    string            // the job the error is about
	Metadata map[string]string // dynamic parts of the message, lower_snake names
	// SideEffect is what the failed request left behind; empty means none.
	SideEffect SideEffect
	cause      error
}

// Errorf makes an Error. A %w operand becomes its cause, which is kept for logs
// and never shown to callers.
func Errorf(code Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: wrapped.Error(), cause: errors.Unwrap(wrapped)}
}

// WithJob names the job the error is about and returns the error.
func (e *Error) WithJob(id string) *Error { e.JobID = id; return e }

// With adds one dynamic part of the message and returns the error.
func (e *Error) With(name, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	e.Metadata[name] = value
	return e
}

// Info returns the code's row in the table; an unlisted code counts as internal.
func (e *Error) Info() CodeInfo {
	if info, ok := Codes()[e.Code]; ok {
		return info
	}
	return Codes()[CodeInternal]
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, &Error{Code: c}) compare codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// CodeOf returns the code of the first *Error in err's chain, CodeInternal for
// any other error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}
