package jobs_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

var now = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

// The matrix is written down a second time, by hand, from design §3: a change to
// the table has to be made in both places on purpose.
const matrix = `
from               event     to                          evidence
new                accept    queued                      -
new                hold      awaiting_approval           -
awaiting_approval  approve   queued                      person
awaiting_approval  deny      cancelled                   person
awaiting_approval  expire    cancelled                   decision
awaiting_approval  cancel    cancelled                   never_started
awaiting_approval  too_late  cancelled                   never_started
awaiting_approval  lose      unknown                     lost_attempt
queued             start     running                     -
queued             cancel    cancelled                   never_started
queued             too_late  cancelled                   never_started
queued             void      cancelled                   decision
queued             lose      unknown                     lost_attempt
running            void      cancelled                   decision
running            too_late  cancelled                   never_started
running            requeue   queued                      never_started,lost_attempt
running            complete  completed                   exit_record,outputs,published
running            fail      failed                      never_started,exit_record,lost_attempt,outputs,published
running            stop      cancelled                   never_started,exit_record,lost_attempt
running            lose      unknown                     lost_attempt
unknown            settle    completed,failed,cancelled  probe,exit_record
unknown            resolve   completed,failed,cancelled  person
`

func TestTransitionTableIsTheDesign(t *testing.T) {
	t.Parallel()
	type key struct{ from, event string }
	want := map[key][2]string{}
	for line := range strings.Lines(strings.TrimSpace(matrix)) {
		f := strings.Fields(line)
		if f[0] != "from" {
			want[key{f[0], f[1]}] = [2]string{f[2], f[3]}
		}
	}
	got := map[key][2]string{}
	for _, tr := range jobs.Transitions() {
		k := key{string(tr.From), string(tr.Event)}
		if tr.From == "" {
			k.from = "new"
		}
		if _, twice := got[k]; twice {
			t.Errorf("%v stands twice in the table", k)
		}
		got[k] = [2]string{join(tr.To), join(tr.Evidence)}
	}
	froms := append([]jobs.State{"new"}, jobs.States()...)
	for _, from := range froms {
		for _, event := range jobs.Events() {
			k := key{string(from), string(event)}
			if got[k] != want[k] {
				t.Errorf("%s + %s: table says %q, design says %q", from, event, got[k], want[k])
			}
		}
	}
	for k := range got {
		if !slices.Contains(froms, jobs.State(k.from)) || !slices.Contains(jobs.Events(), jobs.Event(k.event)) {
			t.Errorf("%v is not a known state and event", k)
		}
	}
}

func join[T ~string](list []T) string {
	if len(list) == 0 {
		return "-"
	}
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(s))
	}
	return b.String()
}

// newJob makes a job in a state by the ways that lead there.
func newJob(t *testing.T, state jobs.State, effects jobs.Effects) *jobs.Job {
	t.Helper()
	j := &jobs.Job{ID: "j", Tool: jobs.ToolRef{Effects: effects}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if state == jobs.StateAwaitingApproval {
		j.Approval = &jobs.Approval{Binding: jobs.Binding{Digest: "d"}}
		must(j.Hold(now))
		return j
	}
	must(j.Accept(now))
	if state == jobs.StateQueued {
		return j
	}
	must(j.Begin("boot", now))
	if state == jobs.StateRunning {
		return j
	}
	must(j.Intend(jobs.Intent{At: now}))
	ended := map[jobs.State]jobs.Ended{
		jobs.StateCompleted: jobs.EndedZero, jobs.StateFailed: jobs.EndedNonZero,
		jobs.StateCancelled: jobs.EndedStopped, jobs.StateUnknown: jobs.EndedKeeperLost,
	}[state]
	kind := jobs.EvidenceExitRecord
	if state == jobs.StateUnknown {
		kind = jobs.EvidenceLostAttempt
		j.Tool.Effects = jobs.EffectsExternal
	}
	must(j.End(jobs.OutcomeOf(j.Tool.Effects, ended), jobs.Evidence{Kind: kind}, "", now))
	if j.State != state {
		t.Fatalf("made %s, wanted %s", j.State, state)
	}
	return j
}

// TestMethodsObeyTheTable calls each method in each state: it succeeds exactly
// where the table has the step, and a refusal changes nothing.
func TestMethodsObeyTheTable(t *testing.T) {
	t.Parallel()
	exit := jobs.Evidence{Kind: jobs.EvidenceExitRecord}
	lost := jobs.Evidence{Kind: jobs.EvidenceLostAttempt}
	methods := map[jobs.Event]func(*jobs.Job) error{
		jobs.EventApprove: func(j *jobs.Job) error { return j.Approve("p", "ok", "", now) },
		jobs.EventDeny:    func(j *jobs.Job) error { return j.Deny("p", "no", now) },
		jobs.EventExpire:  func(j *jobs.Job) error { return j.Expire(now) },
		jobs.EventVoid:    func(j *jobs.Job) error { return j.Void("changed", now) },
		jobs.EventCancel: func(j *jobs.Job) error {
			return j.Cancel(jobs.StopRequest{Principal: "p", End: jobs.EndCancelledByCaller, At: now})
		},
		jobs.EventTooLate:  func(j *jobs.Job) error { return j.TooLate(now) },
		jobs.EventStart:    func(j *jobs.Job) error { return j.Begin("boot", now) },
		jobs.EventRequeue:  func(j *jobs.Job) error { return j.Requeue(lost, now) },
		jobs.EventComplete: func(j *jobs.Job) error { return j.End(jobs.OutcomeOf(jobs.EffectsNone, jobs.EndedZero), exit, "", now) },
		jobs.EventFail: func(j *jobs.Job) error {
			return j.End(jobs.OutcomeOf(jobs.EffectsNone, jobs.EndedNonZero), exit, "", now)
		},
		jobs.EventStop: func(j *jobs.Job) error {
			return j.End(jobs.OutcomeOf(jobs.EffectsNone, jobs.EndedStopped), exit, "", now)
		},
		jobs.EventLose: func(j *jobs.Job) error {
			return j.End(jobs.OutcomeOf(jobs.EffectsExternal, jobs.EndedKeeperLost), lost, "", now)
		},
		jobs.EventSettle: func(j *jobs.Job) error {
			return j.Settle(jobs.StateCompleted, jobs.EndProbed, jobs.SideEffectApplied, jobs.Evidence{Kind: jobs.EvidenceProbe}, now)
		},
		jobs.EventResolve: func(j *jobs.Job) error { return j.Resolve(jobs.StateFailed, "p", "looked", now) },
	}
	for _, state := range jobs.States() {
		j := newJob(t, state, jobs.EffectsNone)
		err := j.EndLate(jobs.OutcomeOf(jobs.EffectsExternal, jobs.EndedNonZero), exit, "", now)
		if state == jobs.StateUnknown && (err != nil || j.EndReason != jobs.EndExitCode) || state != jobs.StateUnknown && err == nil {
			t.Errorf("a late record in %s: %v, and then it is %s (%s)", state, err, j.State, j.EndReason)
		}
	}
	allowed := map[jobs.State][]jobs.Event{}
	for _, tr := range jobs.Transitions() {
		allowed[tr.From] = append(allowed[tr.From], tr.Event)
	}
	for _, state := range jobs.States() {
		for event, call := range methods {
			j := newJob(t, state, jobs.EffectsNone)
			before := *j
			err := call(j)
			if want := slices.Contains(allowed[state], event); want != (err == nil) {
				t.Errorf("%s in %s: %v, allowed %v", event, state, err, want)
			}
			if err != nil && (j.State != before.State || len(j.Evidence) != len(before.Evidence) || j.EndReason != before.EndReason) {
				t.Errorf("%s in %s was refused but changed the job", event, state)
			}
		}
	}
}

// TestG5NobodySaysThatAnOvertakenJobNeverStarted: a job that was started before its store
// was restored is unknown, whatever would have ended it before its start.
func TestG5NobodySaysThatAnOvertakenJobNeverStarted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*jobs.Job) error{
		"denied":  func(j *jobs.Job) error { return j.Deny("p", "no", now) },
		"expired": func(j *jobs.Job) error { return j.Expire(now) },
		"void":    func(j *jobs.Job) error { return j.Void("changed", now) },
		"cancelled": func(j *jobs.Job) error {
			return j.Cancel(jobs.StopRequest{Principal: "p", End: jobs.EndCancelledByCaller, At: now})
		},
		"too late": func(j *jobs.Job) error { return j.TooLate(now) },
	} {
		for _, state := range []jobs.State{jobs.StateAwaitingApproval, jobs.StateQueued} {
			if state == jobs.StateQueued && (name == "denied" || name == "expired") || state == jobs.StateAwaitingApproval && name == "void" {
				continue
			}
			j := newJob(t, state, jobs.EffectsExternal)
			j.Overtaken = "the store that was replaced says so"
			if err := end(j); err != nil {
				t.Errorf("%s while %s: %v", name, state, err)
				continue
			}
			last := j.Evidence[len(j.Evidence)-1]
			if j.State != jobs.StateUnknown || j.SideEffect != jobs.SideEffectPossible || j.Retry != jobs.RetrySameKey || j.EndReason != jobs.EndNone ||
				last.Kind != jobs.EvidenceLostAttempt || !strings.Contains(j.Message, j.Overtaken) {
				t.Errorf("%s while %s: %s (%s), side effect %s, retry %s, %+v: %s", name, state, j.State, j.EndReason, j.SideEffect, j.Retry, last, j.Message)
			}
		}
	}
}

// TestG5EndsNeedEvidence: no end without a kind of evidence that the table names.
func TestG5EndsNeedEvidence(t *testing.T) {
	t.Parallel()
	for _, tr := range jobs.Transitions() {
		leavesRunning := tr.From == jobs.StateRunning || tr.From == jobs.StateUnknown
		if leavesRunning && len(tr.Evidence) == 0 {
			t.Errorf("%s by %s needs no evidence", tr.From, tr.Event)
		}
	}
	for _, kind := range jobs.EvidenceKinds() {
		for _, ended := range jobs.Endeds() {
			j := newJob(t, jobs.StateRunning, jobs.EffectsExternal)
			out := jobs.OutcomeOf(j.Tool.Effects, ended)
			err := j.End(out, jobs.Evidence{Kind: kind}, "", now)
			event := map[jobs.State]jobs.Event{
				jobs.StateCompleted: jobs.EventComplete, jobs.StateFailed: jobs.EventFail,
				jobs.StateCancelled: jobs.EventStop, jobs.StateUnknown: jobs.EventLose,
			}[out.State]
			i := slices.IndexFunc(jobs.Transitions(), func(tr jobs.Transition) bool { return tr.From == jobs.StateRunning && tr.Event == event })
			if want := slices.Contains(jobs.Transitions()[i].Evidence, kind); want != (err == nil) {
				t.Errorf("%s with %s: %v, wanted allowed=%v", ended, kind, err, want)
			}
		}
	}
}

// TestG4ExternalIsNeverRequeued: only the proof that nothing started lets an
// external tool go back to the queue.
func TestG4ExternalIsNeverRequeued(t *testing.T) {
	t.Parallel()
	for _, effects := range []jobs.Effects{jobs.EffectsNone, jobs.EffectsStaged, jobs.EffectsExternal} {
		for _, kind := range jobs.EvidenceKinds() {
			j := newJob(t, jobs.StateRunning, effects)
			err := j.Requeue(jobs.Evidence{Kind: kind, Detail: "x"}, now)
			want := kind == jobs.EvidenceNeverStarted || (kind == jobs.EvidenceLostAttempt && effects.LeavesNothing())
			if want != (err == nil) {
				t.Errorf("requeue of %s with %s: %v", effects, kind, err)
			}
		}
	}
}

// TestOutcomeTable walks effects × ends against the design's rules.
func TestOutcomeTable(t *testing.T) {
	t.Parallel()
	for _, effects := range []jobs.Effects{jobs.EffectsNone, jobs.EffectsStaged, jobs.EffectsExternal} {
		for _, ended := range jobs.Endeds() {
			out := jobs.OutcomeOf(effects, ended)
			external := effects == jobs.EffectsExternal
			switch {
			case ended.Lost() && external && (out.State != jobs.StateUnknown || out.SideEffect != jobs.SideEffectPossible):
				t.Errorf("%s %s: %+v, want unknown", effects, ended, out)
			case ended.Lost() && !external && (out.State != jobs.StateQueued || out.SideEffect != jobs.SideEffectNone):
				t.Errorf("%s %s: %+v, want queued again", effects, ended, out)
			case !ended.Lost() && !out.State.Terminal():
				t.Errorf("%s %s: %s is no end", effects, ended, out.State)
			case out.State == jobs.StateCompleted && ended != jobs.EndedZero:
				t.Errorf("%s %s completes", effects, ended)
			case external && ended != jobs.EndedNotStarted && out.SideEffect == jobs.SideEffectNone:
				t.Errorf("%s %s claims no side effect", effects, ended)
			case !external && out.SideEffect != jobs.SideEffectNone:
				t.Errorf("%s %s claims side effect %s", effects, ended, out.SideEffect)
			}
		}
	}
	if out := jobs.OutcomeOf(jobs.EffectsExternal, "something new"); out.State != jobs.StateUnknown {
		t.Errorf("an end that the table does not know becomes %s", out.State)
	}
}

func TestPublishOutcome(t *testing.T) {
	t.Parallel()
	cases := []struct {
		done, total int
		reason      jobs.EndReason
		want        jobs.State
		side        jobs.SideEffect
	}{
		{1, 1, jobs.EndOK, jobs.StateCompleted, jobs.SideEffectApplied},
		{2, 2, jobs.EndOK, jobs.StateCompleted, jobs.SideEffectApplied},
		{0, 2, jobs.EndDestinationTaken, jobs.StateFailed, jobs.SideEffectNone},
		{1, 2, jobs.EndDestinationTaken, jobs.StateFailed, jobs.SideEffectPartial},
		{1, 2, jobs.EndOK, jobs.StateFailed, jobs.SideEffectPartial},
	}
	for _, c := range cases {
		if got := jobs.PublishOutcome(c.done, c.total, c.reason); got.State != c.want || got.SideEffect != c.side {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestStopComesTooLateOnceThePlanIsStored(t *testing.T) {
	t.Parallel()
	stop := jobs.StopRequest{Principal: "p", End: jobs.EndCancelledByCaller, At: now}
	j := newJob(t, jobs.StateRunning, jobs.EffectsStaged)
	if err := j.Plans(jobs.PublishPlan{}); err != nil {
		t.Fatal(err)
	}
	if err := j.RequestStop(stop); jobs.CodeOf(err) != jobs.CodeStopTooLate {
		t.Errorf("stop after the plan: %v", err)
	}
	j = newJob(t, jobs.StateRunning, jobs.EffectsStaged)
	if err := j.RequestStop(stop); err != nil {
		t.Fatal(err)
	}
	if err := j.Plans(jobs.PublishPlan{}); err == nil {
		t.Error("a plan was stored after a stop request")
	}
	if err := j.Intend(jobs.Intent{}); err == nil {
		t.Error("an intent was stored after a stop request")
	}
}

// TestG15NothingBeginsTooLate: start_by is checked in the step itself.
func TestG15NothingBeginsTooLate(t *testing.T) {
	t.Parallel()
	j := newJob(t, jobs.StateQueued, jobs.EffectsNone)
	j.Call.Options.StartBy = now.Add(-time.Second)
	if err := j.Begin("boot", now); jobs.CodeOf(err) != jobs.CodeTooLate || j.State != jobs.StateQueued {
		t.Errorf("begin after start_by: %v, job is %s", err, j.State)
	}
}

// TestG15RefusedByTheLauncher: the keeper's word that nothing was executed ends the job,
// and takes back what the started record had shown. Before an intent no keeper has a word.
func TestG15RefusedByTheLauncher(t *testing.T) {
	t.Parallel()
	proof := jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Attempt: 1, At: now}
	for _, effects := range []jobs.Effects{jobs.EffectsNone, jobs.EffectsStaged, jobs.EffectsExternal} {
		j := newJob(t, jobs.StateRunning, effects)
		if err := j.RefusedTooLate(proof, now); jobs.CodeOf(err) != jobs.CodeStateConflict || j.State != jobs.StateRunning {
			t.Errorf("without an intent: %v, job is %s", err, j.State)
		}
		if err := j.Intend(jobs.Intent{At: now}); err != nil {
			t.Fatal(err)
		}
		j.RecordStarted(jobs.Started{PID: 7})
		j.RecordNotStarted()
		if err := j.RefusedTooLate(jobs.Evidence{Kind: jobs.EvidenceExitRecord}, now); err == nil {
			t.Error("an end by start_by was taken from another kind of evidence")
		}
		if err := j.RefusedTooLate(proof, now); err != nil {
			t.Fatal(err)
		}
		if j.State != jobs.StateCancelled || j.EndReason != jobs.EndTooLate || j.SideEffect != jobs.SideEffectNone || j.Retry != jobs.RetryNewKey || j.Attempts[0].Started != nil {
			t.Errorf("%s: %+v", effects, j)
		}
	}
}

func TestApprovalIsOfOneBinding(t *testing.T) {
	t.Parallel()
	j := newJob(t, jobs.StateAwaitingApproval, jobs.EffectsNone)
	if err := j.Approve("p", "", "other", now); err == nil {
		t.Error("another binding was approved")
	}
}

func TestEveryCodeIsInTheTable(t *testing.T) {
	t.Parallel()
	for code, info := range jobs.Codes() {
		if !slices.Contains(jobs.Classes(), info.Class) || !slices.Contains(jobs.UserActions(), info.Action) || info.Meaning == "" {
			t.Errorf("%s: %+v", code, info)
		}
		if strings.ToUpper(string(code)) != string(code) || len(code) > 63 {
			t.Errorf("%s is not a reason as AIP-193 has it", code)
		}
	}
}
