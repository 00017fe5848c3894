package jobs

// State says what macexec knows about a job. Each comment says how the state is
// entered, how it is left, and what a crash of the daemon makes of it.
type State string

const (
	// StateAwaitingApproval is entered when the policy requires a person's word.
	// It is left by approve (queued), or by deny, expire or cancel (cancelled).
	// A crash changes nothing: the job and its deadline are on disk.
	StateAwaitingApproval State = "awaiting_approval"

	// StateQueued is entered on acceptance, on approval, and when a lost attempt
	// left nothing behind. It is left by start (running), or by cancel, too late
	// or a void approval (cancelled). A crash changes nothing.
	StateQueued State = "queued"

	// StateRunning is entered when an attempt begins; Phase says how far it is.
	// It is left with evidence (completed, failed, cancelled), without evidence
	// (unknown), or by a lost attempt that left nothing (queued). After a crash
	// the recovery table decides, while it holds the attempt's lock.
	StateRunning State = "running"

	// StateCompleted is entered with evidence that the tool succeeded and its
	// outputs are verified and in place. It is final.
	StateCompleted State = "completed"

	// StateFailed is entered with evidence that the tool did not succeed. It is
	// final under its key.
	StateFailed State = "failed"

	// StateCancelled is entered with evidence that the job never started or that
	// it was stopped and its processes are gone. It is final.
	StateCancelled State = "cancelled"

	// StateUnknown is entered when a tool with outside effects was started and
	// nothing proves how it ended. It is left only by later evidence or by a named
	// principal's resolution, never by running again. A crash changes nothing.
	StateUnknown State = "unknown"
)

// States lists every state, in the order a job meets them.
func States() []State {
	return []State{
		StateAwaitingApproval, StateQueued, StateRunning,
		StateCompleted, StateFailed, StateCancelled, StateUnknown,
	}
}

// Terminal reports whether no event leaves the state.
func (s State) Terminal() bool {
	return s == StateCompleted || s == StateFailed || s == StateCancelled
}

// Settled reports whether nothing will happen to the job by itself any more:
// it is terminal, or unknown and waits for evidence or a person.
func (s State) Settled() bool { return s.Terminal() || s == StateUnknown }

// Phase says how far a running job is.
type Phase string

// The phases of a running job, in order.
const (
	PhaseNone       Phase = ""
	PhaseStaging    Phase = "staging"    // inputs are being copied in; no process has been started
	PhaseRunning    Phase = "running"    // the intent is stored; the keeper may have started the tool
	PhaseVerifying  Phase = "verifying"  // the tool ended well; its outputs are being checked
	PhasePublishing Phase = "publishing" // the publish plan is stored; a stop comes too late
)

// EndReason says why a job ended. The list is closed.
type EndReason string

// Every reason a job can end for.
const (
	EndNone              EndReason = ""
	EndOK                EndReason = "ok"                  // the tool succeeded and its outputs are in place
	EndExitCode          EndReason = "exit_code"           // the tool exited with a code other than 0
	EndSignal            EndReason = "signal"              // the tool was killed by a signal that macexec did not send
	EndTimeout           EndReason = "timeout"             // the tool ran longer than its time limit
	EndMemory            EndReason = "memory"              // the tool was killed for its memory
	EndDiskFull          EndReason = "disk_full"           // the disk was full
	EndOutputLimit       EndReason = "output_limit"        // the tool wrote more than it may
	EndInputInvalid      EndReason = "input_invalid"       // a staged input is not what the tool needs
	EndInputChanged      EndReason = "input_changed"       // an input read in place changed while the tool ran
	EndOutputInvalid     EndReason = "output_invalid"      // an output is missing, empty or not what was asked
	EndDestinationTaken  EndReason = "destination_taken"   // a destination exists now; the artifacts are kept
	EndPublishFailed     EndReason = "publish_failed"      // the plan could not be carried out; see the message
	EndStartFailed       EndReason = "start_failed"        // the tool could not be started
	EndAttemptsExhausted EndReason = "attempts_exhausted"  // every allowed attempt was lost
	EndDenied            EndReason = "denied"              // a person said no
	EndApprovalExpired   EndReason = "approval_expired"    // nobody said yes in time
	EndApprovalVoid      EndReason = "approval_void"       // what was approved is not what would run
	EndTooLate           EndReason = "too_late"            // the call's own start_by has passed
	EndFenced            EndReason = "fenced"              // the key was fenced
	EndCancelledByCaller EndReason = "cancelled_by_caller" // a principal asked for it
	EndRunCancelled      EndReason = "run_cancelled"       // the run it belongs to was cancelled
	EndResolved          EndReason = "resolved"            // a named principal said how it ended
	EndProbed            EndReason = "probed"              // the tool's probe proved how it ended
)

// EndReasons lists every end reason but EndNone.
func EndReasons() []EndReason {
	return []EndReason{
		EndOK, EndExitCode, EndSignal, EndTimeout, EndMemory, EndDiskFull, EndOutputLimit,
		EndInputInvalid, EndInputChanged, EndOutputInvalid, EndDestinationTaken, EndPublishFailed,
		EndStartFailed, EndAttemptsExhausted, EndDenied, EndApprovalExpired, EndApprovalVoid,
		EndTooLate, EndFenced, EndCancelledByCaller, EndRunCancelled, EndResolved, EndProbed,
	}
}

// SideEffect says what a job left outside its staging folder.
type SideEffect string

const (
	// SideEffectNone: nothing outside the staging folder was touched.
	SideEffectNone SideEffect = "none"
	// SideEffectPossible: an external tool was started and may have acted.
	SideEffectPossible SideEffect = "possible"
	// SideEffectPartial: some steps of the publish plan are done, others are not.
	SideEffectPartial SideEffect = "partial"
	// SideEffectApplied: everything the job was to do has been done.
	SideEffectApplied SideEffect = "applied"
)

// Retry says what a caller may do after a job has ended.
type Retry string

const (
	// RetryNever: calling again would end the same way.
	RetryNever Retry = "never"
	// RetryNewKey: the same call may be made again, under a new key.
	RetryNewKey Retry = "new_key"
	// RetrySameKey: repeat under the same key; the answer is not final yet.
	RetrySameKey Retry = "same_key"
)

// Effects says what a tool touches. A manifest states it; the operator who
// installed the manifest vouches for it.
type Effects string

const (
	// EffectsNone: the tool only reads.
	EffectsNone Effects = "none"
	// EffectsStaged: the tool writes only files that macexec publishes.
	EffectsStaged Effects = "staged"
	// EffectsExternal: the tool touches anything else: an app, a service, a script's target.
	EffectsExternal Effects = "external"
)

// LeavesNothing reports whether a lost attempt left nothing behind outside its
// own folder, so that it may be run again (promise G4).
func (e Effects) LeavesNothing() bool { return e == EffectsNone || e == EffectsStaged }

// EvidenceKind names what proves a state.
type EvidenceKind string

// The kinds of evidence.
const (
	EvidenceNeverStarted EvidenceKind = "never_started" // held under the lock: no process was ever released
	EvidenceExitRecord   EvidenceKind = "exit_record"   // the keeper's record of how the tool ended
	EvidenceLostAttempt  EvidenceKind = "lost_attempt"  // the lock was free, a start is recorded, an end is not
	EvidenceToolEnded    EvidenceKind = "tool_ended"    // nothing of a lost attempt lives any more; not how it ended
	EvidenceOutputs      EvidenceKind = "outputs"       // digests of the verified outputs
	EvidencePublished    EvidenceKind = "published"     // the temporary names are gone, device and inode match
	EvidenceProbe        EvidenceKind = "probe"         // the tool's own probe answered
	EvidencePerson       EvidenceKind = "person"        // a named principal's word
	EvidenceDecision     EvidenceKind = "decision"      // a decision that no start followed (denied, expired, void)
)

// EvidenceKinds lists every kind of evidence.
func EvidenceKinds() []EvidenceKind {
	return []EvidenceKind{
		EvidenceNeverStarted, EvidenceExitRecord, EvidenceLostAttempt, EvidenceToolEnded, EvidenceOutputs,
		EvidencePublished, EvidenceProbe, EvidencePerson, EvidenceDecision,
	}
}
