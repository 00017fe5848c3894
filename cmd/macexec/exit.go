package main

import (
	"slices"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// exitCode is what the program tells the one that started it. Scripts depend on
// the numbers; docs and tests name them.
type exitCode int

// Every exit code.
const (
	exitOK          exitCode = 0  // completed; with --detach: accepted
	exitFailed      exitCode = 1  // the job failed; or a check of the journal, the store or a manifest did
	exitUsage       exitCode = 2  // the command line itself is wrong
	exitRejected    exitCode = 3  // a verdict refused the call
	exitDenied      exitCode = 4  // the policy, a missing role or a person refused it
	exitAwaiting    exitCode = 5  // a person has to approve it
	exitUnknown     exitCode = 6  // nothing proves how it ended
	exitCancelled   exitCode = 7  // it was stopped, or never started
	exitNotReached  exitCode = 8  // nothing was accepted: the daemon was not reached
	exitKeyConflict exitCode = 9  // the key belongs to another call, or to one that this could not be compared with
	exitRefused     exitCode = 10 // any other refusal: quota, lock, paused, not found
	exitAnswerLost  exitCode = 11 // it was sent and may be accepted, or its artifacts are not all here: repeat it with the same key
	exitNotSettled  exitCode = 12 // it is still queued or running
	exitExpired     exitCode = 13 // it was seen before, and its result is gone
	exitFault       exitCode = 70 // a fault in macexec itself
)

// exitOf is the one place that decides. Anything that nobody thought of is a fault.
func exitOf(err error) exitCode {
	if err == nil {
		return exitOK
	}
	return explain(err).code
}

// exitOfJob is what the state of a job means to the one that waited for it.
func exitOfJob(job *macexecv1.Job) exitCode {
	switch job.GetState() {
	case macexecv1.JobState_JOB_STATE_COMPLETED:
		return exitOK
	case macexecv1.JobState_JOB_STATE_FAILED:
		return exitFailed
	case macexecv1.JobState_JOB_STATE_CANCELLED:
		if job.GetEndReason() == macexecv1.EndReason_END_REASON_DENIED {
			return exitDenied
		}
		return exitCancelled
	case macexecv1.JobState_JOB_STATE_UNKNOWN:
		return exitUnknown
	case macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL:
		return exitAwaiting
	case macexecv1.JobState_JOB_STATE_QUEUED, macexecv1.JobState_JOB_STATE_RUNNING:
		return exitNotSettled
	default:
		return exitFault
	}
}

// worse returns which of two ends of jobs counts when both were waited for: what
// nobody knows before what failed, before what a person or somebody else ended, before
// what goes on. The help of jobs wait tells this order.
func worse(x, y exitCode) exitCode {
	order := []exitCode{exitOK, exitNotSettled, exitAwaiting, exitCancelled, exitDenied, exitFailed, exitUnknown, exitAnswerLost, exitFault}
	if slices.Index(order, y) > slices.Index(order, x) {
		return y
	}
	return x
}

// exitOfCheck is what a check means: what a submission would be refused with.
func exitOfCheck(check *macexecv1.Check) exitCode {
	v := check.GetVerdicts()
	switch {
	case !v.GetSyntaxValid() || !v.GetSchemaValid() || !v.GetBusinessValid():
		return exitRejected
	case check.GetDecision().GetEffect() == macexecv1.DecisionEffect_DECISION_EFFECT_DENY:
		return exitDenied
	default:
		return exitOK
	}
}

// exitOfInspection is what a look at a journal, a store or a manifest means.
func exitOfInspection(ok bool) exitCode {
	if ok {
		return exitOK
	}
	return exitFailed
}

// exitOfRefusal is what an error of the daemon, or of the way to it, means.
func exitOfRefusal(e *macexecv1.Error) exitCode {
	switch jobs.Code(e.GetCode()) {
	case client.CodeNotReached:
		return exitNotReached
	case client.CodeAnswerLost:
		return exitAnswerLost
	case jobs.CodeRequestInvalid, jobs.CodeKeyRequired:
		return exitUsage // no verdict: the command line said it wrong
	case jobs.CodeKeyConflict:
		return exitKeyConflict
	case jobs.CodeKeyExpired:
		return exitExpired
	case jobs.CodeTooLate:
		return exitRefused // the call's own deadline, not an answer that was lost
	case jobs.CodeStoreFailed, jobs.CodeCommitUnknown:
		return exitAnswerLost // a write that came before the failure may be durable
	default:
	}
	switch e.GetClass() {
	case macexecv1.ErrorClass_ERROR_CLASS_SYNTAX,
		macexecv1.ErrorClass_ERROR_CLASS_SCHEMA,
		macexecv1.ErrorClass_ERROR_CLASS_BUSINESS:
		return exitRejected
	case macexecv1.ErrorClass_ERROR_CLASS_AUTHORIZATION,
		macexecv1.ErrorClass_ERROR_CLASS_POLICY:
		return exitDenied
	case macexecv1.ErrorClass_ERROR_CLASS_CONFLICT,
		macexecv1.ErrorClass_ERROR_CLASS_RESOURCE,
		macexecv1.ErrorClass_ERROR_CLASS_QUOTA,
		macexecv1.ErrorClass_ERROR_CLASS_UNAVAILABLE:
		return exitRefused
	case macexecv1.ErrorClass_ERROR_CLASS_TIMEOUT:
		return exitAnswerLost
	case macexecv1.ErrorClass_ERROR_CLASS_TOOL:
		return exitFailed
	default:
		return exitFault
	}
}
