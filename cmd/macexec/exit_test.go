package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Every error code of the table has the exit code that the design gives it.
func TestExitCodeOfEveryError(t *testing.T) {
	t.Parallel()
	want := map[exitCode][]jobs.Code{
		exitFailed: {jobs.CodeToolFailed},
		exitUsage:  {jobs.CodeRequestInvalid, jobs.CodeKeyRequired},
		exitRejected: {
			jobs.CodeArgumentsNotJSON, jobs.CodeArgumentsTooLarge, jobs.CodeArgumentsSchema,
			jobs.CodeArgumentsBusiness, jobs.CodeToolUnavailable,
		},
		exitDenied:      {jobs.CodeNotAuthenticated, jobs.CodeNotAuthorized, jobs.CodePolicyDenied},
		exitNotReached:  {client.CodeNotReached},
		exitKeyConflict: {jobs.CodeKeyConflict},
		exitRefused: {
			jobs.CodeToolNotFound, jobs.CodeJobNotFound, jobs.CodeFileNotFound, jobs.CodeProjectNotFound,
			jobs.CodeProjectExists, jobs.CodeProjectInUse, jobs.CodeArtifactChanged, jobs.CodeArtifactGone,
			jobs.CodeOtherHost, jobs.CodeKeyFenced, jobs.CodeRunClosed, jobs.CodeLockHeld, jobs.CodeSuperseded,
			jobs.CodeUploadInProgress, jobs.CodeStateConflict, jobs.CodeStopTooLate,
			jobs.CodeApprovalDecided, jobs.CodeTooLate, jobs.CodeDigestMismatch, jobs.CodeFileTooLarge,
			jobs.CodeCursorExpired, jobs.CodeDiskFull, jobs.CodeNotRemoved, jobs.CodeDraining, jobs.CodeCannotServe,
			jobs.CodeStoreMissing, jobs.CodeStoreReplaced, jobs.CodeStoreOlder,
		},
		exitAnswerLost: {client.CodeAnswerLost, jobs.CodeStoreFailed, jobs.CodeCommitUnknown, jobs.CodeDeadline, jobs.CodeCallerGone},
		exitExpired:    {jobs.CodeKeyExpired},
		exitFault:      {jobs.CodeRecordDamaged, jobs.CodeInternal},
	}
	codes := jobs.Codes()
	codes[client.CodeNotReached] = jobs.CodeInfo{Class: jobs.ClassUnavailable}
	codes[client.CodeAnswerLost] = jobs.CodeInfo{Class: jobs.ClassUnavailable}
	seen := map[jobs.Code]bool{}
	for exit, list := range want {
		for _, code := range list {
			seen[code] = true
			info, ok := codes[code]
			if !ok {
				t.Errorf("%s is in no table", code)
			}
			class, _ := document.Enum[macexecv1.ErrorClass](string(info.Class))
			if got := exitOfRefusal(&macexecv1.Error{Code: string(code), Class: class}); got != exit {
				t.Errorf("%s exits with %d, want %d", code, got, exit)
			}
		}
	}
	for code := range codes {
		if !seen[code] {
			t.Errorf("%s has no expected exit code", code)
		}
	}
}

// A code that only a later daemon knows is told by its class.
func TestExitCodeOfEveryClass(t *testing.T) {
	t.Parallel()
	want := map[jobs.Class]exitCode{
		jobs.ClassSyntax: exitRejected, jobs.ClassSchema: exitRejected, jobs.ClassBusiness: exitRejected,
		jobs.ClassAuthorization: exitDenied, jobs.ClassPolicy: exitDenied,
		jobs.ClassConflict: exitRefused, jobs.ClassResource: exitRefused, jobs.ClassQuota: exitRefused,
		jobs.ClassUnavailable: exitRefused, jobs.ClassTimeout: exitAnswerLost,
		jobs.ClassTool: exitFailed, jobs.ClassInternal: exitFault,
	}
	for _, class := range jobs.Classes() {
		word, ok := document.Enum[macexecv1.ErrorClass](string(class))
		if got := exitOfRefusal(&macexecv1.Error{Code: "FROM_THE_FUTURE", Class: word}); !ok || got != want[class] {
			t.Errorf("class %s exits with %d, want %d", class, got, want[class])
		}
	}
	if len(want) != len(jobs.Classes()) {
		t.Errorf("%d classes expected, %d exist", len(want), len(jobs.Classes()))
	}
	if got := exitOfRefusal(&macexecv1.Error{}); got != exitFault {
		t.Errorf("an error that says nothing exits with %d", got)
	}
}

func TestExitCodeOfEveryState(t *testing.T) {
	t.Parallel()
	want := map[jobs.State]exitCode{
		jobs.StateCompleted: exitOK, jobs.StateFailed: exitFailed, jobs.StateCancelled: exitCancelled,
		jobs.StateUnknown: exitUnknown, jobs.StateAwaitingApproval: exitAwaiting,
		jobs.StateQueued: exitNotSettled, jobs.StateRunning: exitNotSettled,
	}
	for _, state := range jobs.States() {
		for _, reason := range append(jobs.EndReasons(), jobs.EndNone) {
			s, ok1 := document.Enum[macexecv1.JobState](string(state))
			r, ok2 := document.Enum[macexecv1.EndReason](string(reason))
			expected := want[state]
			if state == jobs.StateCancelled && reason == jobs.EndDenied {
				expected = exitDenied
			}
			if got := exitOfJob(&macexecv1.Job{State: s, EndReason: r}); !ok1 || !ok2 || got != expected {
				t.Errorf("%s (%s) exits with %d, want %d", state, reason, got, expected)
			}
		}
	}
	if got := exitOfJob(&macexecv1.Job{State: 99}); got != exitFault {
		t.Errorf("a state that nobody knows exits with %d", got)
	}
	if len(want) != len(jobs.States()) {
		t.Errorf("%d states expected, %d exist", len(want), len(jobs.States()))
	}
}

func TestExitCodeOfChecks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		syntax, schema, business bool
		effect                   macexecv1.DecisionEffect
		want                     exitCode
	}{
		{true, true, true, macexecv1.DecisionEffect_DECISION_EFFECT_ALLOW, exitOK},
		{true, true, true, macexecv1.DecisionEffect_DECISION_EFFECT_REQUIRE_APPROVAL, exitOK},
		{true, true, true, macexecv1.DecisionEffect_DECISION_EFFECT_DENY, exitDenied},
		{true, true, false, 0, exitRejected},
		{true, false, false, 0, exitRejected},
		{false, false, false, 0, exitRejected},
	} {
		check := &macexecv1.Check{Verdicts: &macexecv1.Verdicts{SyntaxValid: c.syntax, SchemaValid: c.schema, BusinessValid: c.business}}
		if c.effect != 0 {
			check.Decision = &macexecv1.Decision{Effect: c.effect}
		}
		if got := exitOfCheck(check); got != c.want {
			t.Errorf("%v exits with %d, want %d", c, got, c.want)
		}
	}
	if exitOfInspection(true) != exitOK || exitOfInspection(false) != exitFailed {
		t.Error("a look at a journal, a store or a manifest exits with 0 or 1")
	}
}

func TestExitCodeOfOwnErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want exitCode
	}{
		{nil, exitOK},
		{usagef("", "bad"), exitUsage},
		{fmt.Errorf("wrapped: %w", usagef("", "bad")), exitUsage},
		{&argument.Error{Message: "bad"}, exitUsage},
		{unreadable(errors.New("gone")), exitUsage},
		{unwritable(errors.New("full")), exitRefused},
		{ended(exitAwaiting), exitAwaiting},
		{ended(exitOK), exitOK},
		{context.Canceled, exitNotReached},
		{jobs.Errorf(jobs.CodeStoreFailed, "held by another daemon"), exitRefused},
		{jobs.Errorf(jobs.CodeInternal, "broken"), exitFault},
		{errors.New("nobody thought of this"), exitFault},
	} {
		if got := exitOf(c.err); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.err, got, c.want)
		}
	}
}

// The help tells every exit code.
func TestExitCodesAreDistinct(t *testing.T) {
	t.Parallel()
	all := map[exitCode]string{
		exitOK: "completed", exitFailed: "failed", exitUsage: "usage", exitRejected: "rejected", exitDenied: "denied",
		exitAwaiting: "awaiting approval", exitUnknown: "unknown", exitCancelled: "cancelled", exitNotReached: "daemon not reached",
		exitKeyConflict: "key conflict", exitRefused: "other refusal", exitAnswerLost: "answer", exitNotSettled: "still queued or running",
		exitExpired: "seen, result", exitFault: "a fault in macexec",
	}
	want := []exitCode{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 70}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Errorf("exit codes are %v, want %v", got, want)
	}
	help := (&app{}).root(nil).Long
	for code, words := range all {
		if !slices.ContainsFunc([]string{fmt.Sprintf("%d %s", code, words), fmt.Sprintf("%d\n%s", code, words)}, func(s string) bool {
			return containsWords(help, s)
		}) {
			t.Errorf("the help does not tell %d %s", code, words)
		}
	}
}
