package telemetry

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is when the jobs of these tests are submitted.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// life is a job and the changes that it has gone through, made by the job's own
// methods: nothing in it that a real one could not have.
type life struct {
	t       *testing.T
	job     *jobs.Job
	now     time.Time
	changes []engine.Change
}

func newLife(t *testing.T, id string, c jobs.CallContext) *life {
	t.Helper()
	l := &life{t: t, now: noon()}
	l.job = &jobs.Job{
		ID: id, Principal: "owner", SubmittedAt: l.now, Call: jobs.Call{Context: c},
		Tool: jobs.ToolRef{Name: "copy", Version: "2026-11-30", Effects: jobs.EffectsStaged},
	}
	return l
}

// step makes a change one second after the one before.
func (l *life) step(change func(*jobs.Job) error) {
	l.t.Helper()
	next := *l.job
	c := engine.Change{From: next.State, Phase: next.Phase}
	next.Event = ""
	if err := change(&next); err != nil {
		l.t.Fatal(err)
	}
	c.Event, c.Job = next.Event, &next
	l.job = &next
	l.changes = append(l.changes, c)
	l.now = l.now.Add(time.Second)
}

func (l *life) accept() { l.step(func(j *jobs.Job) error { return j.Accept(l.now) }) }
func (l *life) begin()  { l.step(func(j *jobs.Job) error { return j.Begin("boot", l.now) }) }

func (l *life) intend() {
	l.step(func(j *jobs.Job) error {
		j.Usage.Staging += time.Second
		return j.Intend(jobs.Intent{At: l.now})
	})
}

// exited ends the job from an exit record of its tool, a second old.
func (l *life) exited(code int) {
	l.step(func(j *jobs.Job) error {
		at := l.now.Add(-time.Second / 2)
		j.RecordStarted(jobs.Started{PID: 4711, At: at.Add(-time.Second / 4)})
		j.RecordExit(jobs.Exit{Code: code, At: at})
		j.Usage.Running, j.Usage.CPUUser, j.Usage.CPUSystem = 2*time.Second, 3*time.Second, time.Second
		j.Usage.PeakMemory, j.Usage.BytesIn, j.Usage.BytesOut, j.Usage.Publishing = 5<<20, 100, 200, time.Second
		ended := jobs.EndedZero
		if code != 0 {
			ended = jobs.EndedNonZero
		}
		return j.End(jobs.OutcomeOf(j.Tool.Effects, ended), jobs.Evidence{Kind: jobs.EvidenceExitRecord}, "", l.now)
	})
}

func (l *life) requeue() {
	l.step(func(j *jobs.Job) error {
		return j.Requeue(jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: "its keeper is gone"}, l.now)
	})
}

// lose makes the job unknown.
func (l *life) lose() {
	l.step(func(j *jobs.Job) error {
		j.Tool.Effects = jobs.EffectsExternal
		return j.End(jobs.OutcomeOf(j.Tool.Effects, jobs.EndedKeeperLost), jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: "its keeper is gone"}, "", l.now)
	})
}

func (l *life) resolve() {
	l.step(func(j *jobs.Job) error { return j.Resolve(jobs.StateFailed, "owner", "looked", l.now) })
}

func (l *life) tell(o engine.Observer) {
	for _, c := range l.changes {
		o.Changed(c)
	}
}
