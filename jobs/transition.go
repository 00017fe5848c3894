package jobs

import (
	"fmt"
	"slices"
	"time"
)

// Event is what moves a job from one state to another.
type Event string

// Every event.
const (
	EventAccept   Event = "accept"   // stored, may start
	EventHold     Event = "hold"     // stored, waits for approval
	EventApprove  Event = "approve"  // a person agreed
	EventDeny     Event = "deny"     // a person refused
	EventExpire   Event = "expire"   // nobody decided in time
	EventVoid     Event = "void"     // what was approved is not what would run
	EventCancel   Event = "cancel"   // stopped before anything started
	EventTooLate  Event = "too_late" // start_by has passed
	EventStart    Event = "start"    // an attempt begins
	EventRequeue  Event = "requeue"  // a lost attempt left nothing: run again
	EventComplete Event = "complete" // proved: succeeded, verified, published
	EventFail     Event = "fail"     // proved: did not succeed
	EventStop     Event = "stop"     // proved: stopped on request, processes gone
	EventLose     Event = "lose"     // started, and nothing proves how it ended
	EventSettle   Event = "settle"   // later evidence proves how an unknown job ended
	EventResolve  Event = "resolve"  // a named principal says how an unknown job ended
)

// Events lists every event.
func Events() []Event {
	return []Event{
		EventAccept, EventHold, EventApprove, EventDeny, EventExpire, EventVoid, EventCancel,
		EventTooLate, EventStart, EventRequeue, EventComplete, EventFail, EventStop, EventLose,
		EventSettle, EventResolve,
	}
}

// stateNone is where a call is before it is a job.
const stateNone State = ""

// Transition is one allowed step: From and Event lead to one of To, and need one
// of Evidence. A step with no Evidence needs none.
type Transition struct {
	From     State
	Event    Event
	To       []State
	Evidence []EvidenceKind
}

// Transitions returns the one table of allowed steps. Whatever is not in it is
// refused with CodeStateConflict.
func Transitions() (all []Transition) {
	for _, from := range append([]State{stateNone}, States()...) {
		all = append(all, transitionsFrom(from)...)
	}
	return all
}

// transitionsFrom returns the part of the table for one state.
func transitionsFrom(from State) []Transition {
	anyEnd := []State{StateCompleted, StateFailed, StateCancelled}
	switch from {
	case stateNone:
		return []Transition{
			{stateNone, EventAccept, []State{StateQueued}, nil},
			{stateNone, EventHold, []State{StateAwaitingApproval}, nil},
		}
	case StateAwaitingApproval:
		return []Transition{
			{StateAwaitingApproval, EventApprove, []State{StateQueued}, []EvidenceKind{EvidencePerson}},
			{StateAwaitingApproval, EventDeny, []State{StateCancelled}, []EvidenceKind{EvidencePerson}},
			{StateAwaitingApproval, EventExpire, []State{StateCancelled}, []EvidenceKind{EvidenceDecision}},
			{StateAwaitingApproval, EventCancel, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted}},
			{StateAwaitingApproval, EventTooLate, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted}},
			{StateAwaitingApproval, EventLose, []State{StateUnknown}, []EvidenceKind{EvidenceLostAttempt}},
		}
	case StateQueued:
		return []Transition{
			{StateQueued, EventStart, []State{StateRunning}, nil},
			{StateQueued, EventCancel, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted}},
			{StateQueued, EventTooLate, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted}},
			{StateQueued, EventVoid, []State{StateCancelled}, []EvidenceKind{EvidenceDecision}},
			{StateQueued, EventLose, []State{StateUnknown}, []EvidenceKind{EvidenceLostAttempt}},
		}
	case StateRunning:
		// While an attempt is staging nothing has started, so a running job can still
		// be void or cancelled with the evidence of that.
		return []Transition{
			{StateRunning, EventVoid, []State{StateCancelled}, []EvidenceKind{EvidenceDecision}},
			{StateRunning, EventTooLate, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted}},
			{StateRunning, EventRequeue, []State{StateQueued}, []EvidenceKind{EvidenceNeverStarted, EvidenceLostAttempt}},
			{StateRunning, EventComplete, []State{StateCompleted}, []EvidenceKind{EvidenceExitRecord, EvidenceOutputs, EvidencePublished}},
			{StateRunning, EventFail, []State{StateFailed}, []EvidenceKind{EvidenceNeverStarted, EvidenceExitRecord, EvidenceLostAttempt, EvidenceOutputs, EvidencePublished}},
			{StateRunning, EventStop, []State{StateCancelled}, []EvidenceKind{EvidenceNeverStarted, EvidenceExitRecord, EvidenceLostAttempt}},
			{StateRunning, EventLose, []State{StateUnknown}, []EvidenceKind{EvidenceLostAttempt}},
		}
	case StateUnknown:
		return []Transition{
			{StateUnknown, EventSettle, anyEnd, []EvidenceKind{EvidenceProbe, EvidenceExitRecord}},
			{StateUnknown, EventResolve, anyEnd, []EvidenceKind{EvidencePerson}},
		}
	default: // what has ended stays as it is
		return nil
	}
}

// step looks (j.State, event) up in the table and makes the transition to one of
// its targets, keeping the evidence. It is the only place that writes State.
func (j *Job) step(event Event, to State, now time.Time, evidence *Evidence) error {
	for _, t := range transitionsFrom(j.State) {
		if t.Event != event {
			continue
		}
		if !slices.Contains(t.To, to) {
			return Errorf(CodeStateConflict, "%s does not lead from %s to %s", event, orNew(j.State), to).WithJob(j.ID)
		}
		if len(t.Evidence) > 0 && (evidence == nil || !slices.Contains(t.Evidence, evidence.Kind)) {
			return Errorf(CodeInternal, "%s of a job that is %s needs evidence of kind %v", event, orNew(j.State), t.Evidence).WithJob(j.ID)
		}
		if evidence != nil {
			e := *evidence
			if e.At.IsZero() {
				e.At = now
			}
			j.Evidence = append(j.Evidence, e)
		}
		j.State, j.Event = to, event
		j.Phase, j.WaitingFor = PhaseNone, nil
		if to.Terminal() {
			j.EndedAt = now
		}
		return nil
	}
	return Errorf(CodeStateConflict, "job %s is %s; %s is not possible then", j.ID, orNew(j.State), event).WithJob(j.ID)
}

func orNew(s State) string {
	if s == stateNone {
		return "new"
	}
	return string(s)
}

// Accept makes a new job queued.
func (j *Job) Accept(now time.Time) error {
	if err := j.step(EventAccept, StateQueued, now, nil); err != nil {
		return err
	}
	j.QueuedAt, j.SideEffect = now, SideEffectNone
	return nil
}

// Hold makes a new job wait for a person. j.Approval must be set.
func (j *Job) Hold(now time.Time) error {
	if j.Approval == nil {
		return Errorf(CodeInternal, "job %s has nothing to approve", j.ID)
	}
	if err := j.step(EventHold, StateAwaitingApproval, now, nil); err != nil {
		return err
	}
	j.SideEffect = SideEffectNone
	j.WaitingFor = &WaitingFor{Kind: WaitApproval}
	return nil
}

// Approve records a person's yes to exactly the binding with the given digest
// and queues the job. Whether the yes came in time is for the caller to know.
func (j *Job) Approve(approver, reason, bindingDigest string, now time.Time) error {
	if err := j.decidable(bindingDigest); err != nil {
		return err
	}
	ev := &Evidence{Kind: EvidencePerson, By: approver, Detail: "approved binding " + j.Approval.Binding.Digest}
	if err := j.step(EventApprove, StateQueued, now, ev); err != nil {
		return err
	}
	a := *j.Approval
	a.Decided, a.Approved, a.Approver, a.Reason, a.DecidedAt = true, true, approver, reason, now
	j.Approval, j.QueuedAt = &a, now
	return nil
}

// Deny records a person's no and cancels the job.
func (j *Job) Deny(approver, reason string, now time.Time) error {
	if err := j.decidable(""); err != nil {
		return err
	}
	proof := Evidence{Kind: EvidencePerson, By: approver, Detail: "denied: " + reason}
	if err := j.endUnstarted(EventDeny, proof, EndDenied, fmt.Sprintf("%s denied it: %s", approver, reason), now); err != nil {
		return err
	}
	a := *j.Approval
	a.Decided, a.Approver, a.Reason, a.DecidedAt = true, approver, reason, now
	j.Approval = &a
	return nil
}

// endUnstarted cancels a job before its start. Of one that was started before its store was
// restored nobody can say any more that nothing happened: it is unknown.
func (j *Job) endUnstarted(event Event, proof Evidence, reason EndReason, message string, now time.Time) error {
	if j.Overtaken != "" {
		out := Outcome{State: StateUnknown, SideEffect: SideEffectPossible, Retry: RetrySameKey}
		return j.endBy(EventLose, out, Evidence{Kind: EvidenceLostAttempt, Detail: j.Overtaken}, message+"; but "+j.Overtaken, now)
	}
	if err := j.step(event, StateCancelled, now, &proof); err != nil {
		return err
	}
	j.end(reason, message, RetryNewKey)
	return nil
}

func (j *Job) decidable(bindingDigest string) error {
	switch {
	case j.State != StateAwaitingApproval || j.Approval == nil || j.Approval.Decided:
		return Errorf(CodeApprovalDecided, "job %s is %s; there is nothing to decide any more", j.ID, j.State).WithJob(j.ID)
	case bindingDigest != "" && bindingDigest != j.Approval.Binding.Digest:
		return Errorf(CodeStateConflict, "job %s asks for approval of %s, not of %s; look at it again", j.ID, j.Approval.Binding.Digest, bindingDigest).WithJob(j.ID)
	}
	return nil
}

// Expire cancels a job that nobody decided in time.
func (j *Job) Expire(now time.Time) error {
	proof := Evidence{Kind: EvidenceDecision, Detail: "no decision before the deadline"}
	return j.endUnstarted(EventExpire, proof, EndApprovalExpired, "nobody decided before the approval's deadline", now)
}

// Void cancels an approved job because what would run is not what was approved.
// Nothing of it has been started.
func (j *Job) Void(difference string, now time.Time) error {
	if err := j.notIntended(); err != nil {
		return err
	}
	proof := Evidence{Kind: EvidenceDecision, Detail: difference}
	return j.endUnstarted(EventVoid, proof, EndApprovalVoid, "the approval no longer holds: "+difference, now)
}

func (j *Job) notIntended() error {
	if a := j.lastAttempt(); j.State == StateRunning && a != nil && a.Intent != nil {
		return Errorf(CodeStateConflict, "job %s has stored its intent; what became of it is in its records", j.ID).WithJob(j.ID)
	}
	return nil
}

// Cancel ends a job that has not started (awaiting approval or queued).
func (j *Job) Cancel(stop StopRequest) error {
	proof := Evidence{Kind: EvidenceNeverStarted, By: stop.Principal, Detail: "cancelled before it started"}
	if err := j.endUnstarted(EventCancel, proof, stop.End, stopMessage(stop), stop.At); err != nil {
		return err
	}
	j.Stop = &stop
	return nil
}

// RequestStop stores the wish to stop a running job. It is refused with
// CodeStopTooLate once the publish plan is stored or the job is settled.
func (j *Job) RequestStop(stop StopRequest) error {
	if j.State != StateRunning || j.Plan != nil {
		return Errorf(CodeStopTooLate, "job %s is %s and can no longer be stopped", j.ID, describe(j)).WithJob(j.ID)
	}
	if j.Stop == nil {
		j.Stop = &stop
	}
	return nil
}

func describe(j *Job) string {
	if j.State == StateRunning && j.Plan != nil {
		return "publishing its result"
	}
	return string(j.State)
}

// TooLate cancels a job whose start_by has passed before its intent was stored.
func (j *Job) TooLate(now time.Time) error {
	if err := j.notIntended(); err != nil {
		return err
	}
	proof := Evidence{Kind: EvidenceNeverStarted, Detail: "start_by has passed; no attempt may start any more"}
	return j.endUnstarted(EventTooLate, proof, EndTooLate, j.tooLateMessage(), now)
}

// RefusedTooLate cancels a job whose keeper recorded that start_by had passed when the
// tool was to be executed, so that nothing of it ran.
func (j *Job) RefusedTooLate(proof Evidence, now time.Time) error {
	if a := j.lastAttempt(); a == nil || a.Intent == nil {
		return Errorf(CodeStateConflict, "job %s has stored no intent, so no keeper had it", j.ID).WithJob(j.ID)
	}
	return j.endUnstarted(EventTooLate, proof, EndTooLate, j.tooLateMessage(), now)
}

func (j *Job) tooLateMessage() string {
	return "it had not started by " + j.Call.Options.StartBy.Format(time.RFC3339)
}

// InTime is nil until the call's start_by, and then CodeTooLate.
func (j *Job) InTime(now time.Time) error {
	if by := j.Call.Options.StartBy; !by.IsZero() && now.After(by) {
		return Errorf(CodeTooLate, "job %s may not start after %s", j.ID, by.Format(time.RFC3339)).WithJob(j.ID)
	}
	return nil
}

// Begin starts the next attempt, in the phase staging. It is refused after the
// call's start_by (promise G15).
func (j *Job) Begin(bootSession string, now time.Time) error {
	if err := j.InTime(now); err != nil {
		return err
	}
	if err := j.step(EventStart, StateRunning, now, nil); err != nil {
		return err
	}
	j.Phase = PhaseStaging
	if j.StartedAt.IsZero() {
		j.StartedAt = now
	}
	j.Usage.Waiting += now.Sub(j.QueuedAt)
	j.Attempts = append(j.Attempts, Attempt{N: len(j.Attempts) + 1, BegunAt: now, BootSession: bootSession})
	return nil
}

// Intend stores what the attempt is about to start. After it, only the keeper's
// records can say whether anything started. A stored stop request refuses it with
// CodeStateConflict, a start_by that has passed with CodeTooLate (promise G15). The
// launcher asks the time again, right before it executes the tool.
func (j *Job) Intend(intent Intent) error {
	a := j.lastAttempt()
	if j.State != StateRunning || j.Phase != PhaseStaging || a == nil || a.Intent != nil {
		return Errorf(CodeStateConflict, "job %s is not staging", j.ID).WithJob(j.ID)
	}
	if j.Stop != nil {
		return Errorf(CodeStateConflict, "job %s is to be stopped", j.ID).WithJob(j.ID)
	}
	if err := j.InTime(intent.At); err != nil {
		return err
	}
	j.setAttempt(func(a *Attempt) { a.Intent = &intent })
	j.Phase = PhaseRunning
	return nil
}

// Enter moves a running job to a later phase; phases never go back within an
// attempt.
func (j *Job) Enter(p Phase) error {
	order := []Phase{PhaseStaging, PhaseRunning, PhaseVerifying, PhasePublishing}
	if j.State != StateRunning || slices.Index(order, p) < slices.Index(order, j.Phase) {
		return Errorf(CodeStateConflict, "job %s is %s %s; it cannot enter %s", j.ID, j.State, j.Phase, p).WithJob(j.ID)
	}
	j.Phase = p
	return nil
}

// Plans stores the publish plan, after which a stop comes too late. A stop
// request stored before refuses it with CodeStateConflict.
func (j *Job) Plans(plan PublishPlan) error {
	if j.Stop != nil {
		return Errorf(CodeStateConflict, "job %s is to be stopped", j.ID).WithJob(j.ID)
	}
	if err := j.Enter(PhasePublishing); err != nil {
		return err
	}
	j.Plan = &plan
	return nil
}

// RecordStarted keeps the keeper's word that the tool was released.
func (j *Job) RecordStarted(s Started) { j.setAttempt(func(a *Attempt) { a.Started = &s }) }

// RecordNotStarted takes back what was shown of a start: the started record is written
// before the tool is let go, and the keeper recorded later that it never was.
func (j *Job) RecordNotStarted() { j.setAttempt(func(a *Attempt) { a.Started = nil }) }

// RecordExit keeps the keeper's word on how the tool ended.
func (j *Job) RecordExit(e Exit) {
	j.setAttempt(func(a *Attempt) { a.Exit, a.EndedAt = &e, e.At })
}

// Requeue gives a lost attempt up and queues the job again. Only a tool that
// leaves nothing behind, or an attempt that never started, may be run again
// (promise G4).
func (j *Job) Requeue(why Evidence, now time.Time) error {
	if why.Kind != EvidenceNeverStarted && !j.Tool.Effects.LeavesNothing() {
		return Errorf(CodeInternal, "job %s has outside effects and is never run again", j.ID).WithJob(j.ID)
	}
	if err := j.step(EventRequeue, StateQueued, now, &why); err != nil {
		return err
	}
	j.QueuedAt = now
	j.setAttempt(func(a *Attempt) { a.Lost, a.EndedAt = why.Detail, now })
	return nil
}

// End applies an outcome of the outcome table to a running job.
func (j *Job) End(out Outcome, why Evidence, message string, now time.Time) error {
	event := map[State]Event{
		StateCompleted: EventComplete, StateFailed: EventFail,
		StateCancelled: EventStop, StateUnknown: EventLose,
	}[out.State]
	if event == "" {
		return Errorf(CodeInternal, "%s is not an end", out.State)
	}
	return j.endBy(event, out, why, message, now)
}

// EndLate applies an outcome of the outcome table to an unknown job whose exit record came
// late.
func (j *Job) EndLate(out Outcome, why Evidence, message string, now time.Time) error {
	return j.endBy(EventSettle, out, why, message, now)
}

func (j *Job) endBy(event Event, out Outcome, why Evidence, message string, now time.Time) error {
	if err := j.step(event, out.State, now, &why); err != nil {
		return err
	}
	j.SideEffect = out.SideEffect
	j.end(out.Reason, message, out.Retry)
	j.setAttempt(func(a *Attempt) {
		if why.Kind == EvidenceLostAttempt {
			a.Lost = why.Detail
		}
		if a.EndedAt.IsZero() {
			a.EndedAt = now
		}
	})
	return nil
}

// Settle ends an unknown job by later evidence.
func (j *Job) Settle(to State, reason EndReason, side SideEffect, proof Evidence, now time.Time) error {
	if err := j.step(EventSettle, to, now, &proof); err != nil {
		return err
	}
	j.SideEffect = side
	j.end(reason, proof.Detail, retryAfter(to))
	return nil
}

// Resolve ends an unknown job by a named principal's word.
func (j *Job) Resolve(to State, principal, reason string, now time.Time) error {
	if principal == "" || reason == "" {
		return Errorf(CodeRequestInvalid, "a resolution needs a principal and a reason")
	}
	if !to.Terminal() {
		return Errorf(CodeRequestInvalid, "a job can be resolved as completed, failed or cancelled, not as %s", to)
	}
	ev := &Evidence{Kind: EvidencePerson, By: principal, Detail: reason}
	if err := j.step(EventResolve, to, now, ev); err != nil {
		return err
	}
	if to == StateCompleted {
		j.SideEffect = SideEffectApplied
	}
	j.end(EndResolved, fmt.Sprintf("%s resolved it: %s", principal, reason), retryAfter(to))
	return nil
}

// retryAfter: what is known to be done must not be done again.
func retryAfter(to State) Retry {
	if to == StateCompleted {
		return RetryNever
	}
	return RetryNewKey
}

// AddEvidence keeps evidence that leads nowhere: it only says more, or it came when the
// job had ended by other means, and then it says so.
func (j *Job) AddEvidence(e Evidence) {
	e.AfterEnd = j.State.Terminal()
	j.Evidence = append(slices.Clone(j.Evidence), e)
}

// LeftBehind reports whether processes of an ended job may still live: it was resolved, or
// its probe answered, while they did, and their end was not seen.
func (j *Job) LeftBehind() bool {
	last := j.lastAttempt()
	return j.State.Terminal() && last != nil && len(last.Left) > 0 && !slices.ContainsFunc(j.Evidence, func(e Evidence) bool {
		return e.Attempt == last.N && (e.Kind == EvidenceToolEnded || e.Kind == EvidenceExitRecord)
	})
}

// RecordLeft keeps which processes of a lost attempt live on.
func (j *Job) RecordLeft(pids []int) { j.setAttempt(func(a *Attempt) { a.Left = pids }) }

func (j *Job) end(reason EndReason, message string, retry Retry) {
	j.EndReason, j.Message, j.Retry = reason, message, retry
}

func (j *Job) lastAttempt() *Attempt {
	if len(j.Attempts) == 0 {
		return nil
	}
	return &j.Attempts[len(j.Attempts)-1]
}

// LastAttempt returns a copy of the newest attempt, and whether there is one.
func (j *Job) LastAttempt() (Attempt, bool) {
	if a := j.lastAttempt(); a != nil {
		return *a, true
	}
	return Attempt{}, false
}

// setAttempt changes the newest attempt in a copied slice, since snapshots share
// the old one.
func (j *Job) setAttempt(change func(*Attempt)) {
	if len(j.Attempts) == 0 {
		return
	}
	j.Attempts = slices.Clone(j.Attempts)
	change(&j.Attempts[len(j.Attempts)-1])
}

func stopMessage(s StopRequest) string {
	if s.Reason == "" {
		return s.Principal + " cancelled it"
	}
	return fmt.Sprintf("%s cancelled it: %s", s.Principal, s.Reason)
}
