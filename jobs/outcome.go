package jobs

// Ended says how an attempt is known to have ended, seen from the keeper's
// records.
type Ended string

// Every way an attempt can end.
const (
	EndedZero         Ended = "exit_zero"     // exited 0, outputs verified
	EndedBadOutput    Ended = "bad_output"    // exited 0, an output is missing or wrong
	EndedInputChanged Ended = "input_changed" // exited 0, an input read in place changed meanwhile
	EndedNonZero      Ended = "exit_non_zero" // exited with another code
	EndedTimeout      Ended = "timeout"       // stopped by the keeper at its time limit
	EndedStopped      Ended = "stopped"       // stopped by the keeper on request
	EndedSignal       Ended = "signal"        // killed by a signal that macexec did not send
	EndedMemory       Ended = "memory"        // killed for its memory
	EndedDiskFull     Ended = "disk_full"     // it met the end of the disk, whatever its exit code
	EndedOutputLimit  Ended = "output_limit"  // it wrote more than it may
	EndedNotStarted   Ended = "not_started"   // the launcher could not start it; no instruction of the tool ran
	EndedKeeperLost   Ended = "keeper_lost"   // started, no exit record, no living process
	EndedUnwatched    Ended = "unwatched"     // started, no exit record, the tool still lives
	EndedRebooted     Ended = "rebooted"      // started, no exit record, another boot session
	EndedFolderGone   Ended = "folder_gone"   // intent stored, but the attempt's folder is gone
)

// Endeds lists every way an attempt can end.
func Endeds() []Ended {
	return []Ended{
		EndedZero, EndedBadOutput, EndedInputChanged, EndedNonZero, EndedTimeout, EndedStopped, EndedSignal,
		EndedMemory, EndedDiskFull, EndedOutputLimit, EndedNotStarted, EndedKeeperLost,
		EndedUnwatched, EndedRebooted, EndedFolderGone,
	}
}

// Lost reports whether the end is unproven, so that a tool that leaves nothing
// behind is queued again rather than ended.
func (e Ended) Lost() bool {
	switch e {
	case EndedKeeperLost, EndedUnwatched, EndedRebooted, EndedFolderGone:
		return true
	default:
		return false
	}
}

// Outcome is what an end means. State is StateQueued when the job is run again.
type Outcome struct {
	State      State
	Reason     EndReason
	SideEffect SideEffect
	Retry      Retry
}

// OutcomeOf is the one table of what (effects × how the attempt ended) becomes.
// It speaks of the tool only: what a publish plan adds is PublishOutcome.
// A killed external tool is never without a side effect.
func OutcomeOf(effects Effects, ended Ended) Outcome {
	possible := SideEffectPossible
	if effects.LeavesNothing() {
		possible = SideEffectNone
	}
	switch ended {
	case EndedZero:
		applied := SideEffectApplied
		if effects.LeavesNothing() {
			applied = SideEffectNone
		}
		return Outcome{StateCompleted, EndOK, applied, RetryNever}
	case EndedBadOutput:
		return Outcome{StateFailed, EndOutputInvalid, possible, RetryNewKey}
	case EndedInputChanged:
		return Outcome{StateFailed, EndInputChanged, possible, RetryNewKey}
	case EndedNonZero:
		return Outcome{StateFailed, EndExitCode, possible, RetryNewKey}
	case EndedTimeout:
		return Outcome{StateFailed, EndTimeout, possible, RetryNewKey}
	case EndedStopped:
		return Outcome{StateCancelled, EndCancelledByCaller, possible, RetryNewKey}
	case EndedSignal:
		return Outcome{StateFailed, EndSignal, possible, RetryNewKey}
	case EndedMemory:
		return Outcome{StateFailed, EndMemory, possible, RetryNewKey}
	case EndedDiskFull:
		return Outcome{StateFailed, EndDiskFull, possible, RetryNewKey}
	case EndedOutputLimit:
		return Outcome{StateFailed, EndOutputLimit, possible, RetryNewKey}
	case EndedNotStarted:
		return Outcome{StateFailed, EndStartFailed, SideEffectNone, RetryNewKey}
	case EndedKeeperLost, EndedUnwatched, EndedRebooted, EndedFolderGone:
		if effects.LeavesNothing() {
			return Outcome{StateQueued, EndNone, SideEffectNone, RetrySameKey}
		}
		return Outcome{StateUnknown, EndNone, SideEffectPossible, RetrySameKey}
	}
	return Outcome{StateUnknown, EndNone, SideEffectPossible, RetrySameKey}
}

// PublishOutcome is what a publish plan becomes with done of total steps carried
// out, and why it stopped (EndOK when it did not).
func PublishOutcome(done, total int, reason EndReason) Outcome {
	switch {
	case reason == EndOK && done == total && total > 0:
		return Outcome{StateCompleted, EndOK, SideEffectApplied, RetryNever}
	case done == 0:
		return Outcome{StateFailed, reason, SideEffectNone, RetryNewKey}
	default:
		return Outcome{StateFailed, reason, SideEffectPartial, RetryNewKey}
	}
}
