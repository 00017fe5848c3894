package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
)

// actTool waits until it may go on, and then does what can be proved, if it is to.
func actTool(probe string) string {
	return manifest("act", "external", "echo > begun; while [ ! -e go ]; do sleep 0.05; done; if [ -e do ]; then echo did > done; fi",
		"    slot: one\n    timeout: 1m\n"+probe+"result: \"{'ok': true}\"")
}

// actProbe also asks for what a probe may use besides.
const actProbe = `probe:
  program: sh
  argv: ["-c", "cat done || true"]
  parser: {kind: text}
  happened: "steps.probe.contains('did') && programs.sh.path != '' && inputs.input.size == 4"
  not_happened: "!steps.probe.contains('did') && inputs.input.name == 'some'"
`

// orphan is an unknown job whose tool lives on without a keeper.
type orphan struct {
	*host

	job     *jobs.Job
	started keeper.Started
}

func newOrphan(t *testing.T, manifest, args string) *orphan {
	t.Helper()
	h := newHost(t, manifest)
	h.write(h.project("some"), "some")
	job := h.mustCall(owner(), "act", "k", args, jobs.Options{})
	h.await(job.ID, func(j *jobs.Job) bool { return len(j.Attempts) == 1 && j.Attempts[0].Started != nil })
	o := &orphan{host: h}
	var err error
	// The record of the start comes before the start.
	for deadline := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		if _, err = os.Stat(filepath.Join(h.state, "jobs", job.ID, "a1", "work", "begun")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if o.started, err = h.exec.Started(job.ID, 1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = o.started.Tool().Signal(syscall.SIGKILL)
		keeper.AwaitEnd([]keeper.Process{o.started.Tool()}, time.Minute)
	})
	if err := o.started.Keeper().Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o.job = h.await(job.ID, settled)
	o.wantState(o.job, jobs.StateUnknown, jobs.EndNone)
	if left := o.job.Attempts[0].Left; !slices.Contains(left, o.started.Pid) {
		t.Errorf("it says that %v live on, and not %d", left, o.started.Pid)
	}
	return o
}

func (o *orphan) work(name string) { o.write(filepath.Join("jobs", o.job.ID, "a1", "work", name), "") }

// has is whether the job has evidence of a kind, and whether that came after its end.
func has(j *jobs.Job, kind jobs.EvidenceKind) (there, after bool) {
	i := slices.IndexFunc(j.Evidence, func(e jobs.Evidence) bool { return e.Kind == kind && e.Attempt == 1 })
	return i >= 0, i >= 0 && j.Evidence[i].AfterEnd
}

func ended(j *jobs.Job) bool {
	there, _ := has(j, jobs.EvidenceToolEnded)
	return there
}

// TestG5LateEvidence: a tool with outside effects outlives its keeper. It is watched, no
// caller meanwhile, and its end makes its probe's answer believable, whatever becomes of
// the daemon and the host in between.
func TestG5LateEvidence(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(o *orphan){
		"the same daemon": func(o *orphan) {
			if !o.IsTool(o.started.Pid) {
				o.t.Error("a tool without a keeper is taken for a caller")
			}
			o.work("go")
		},
		"another daemon": func(o *orphan) {
			o.Stop()
			o.start()
			if !o.IsTool(o.started.Pid) {
				o.t.Error("after a restart a tool without a keeper is taken for a caller")
			}
			o.work("go")
		},
		"no daemon": func(o *orphan) {
			o.Stop()
			o.work("go")
			keeper.AwaitEnd([]keeper.Process{o.started.Tool()}, time.Minute)
			o.start()
		},
		"the host was started again": func(o *orphan) {
			o.Stop()
			o.work("go")
			keeper.AwaitEnd([]keeper.Process{o.started.Tool()}, time.Minute)
			o.boot = "another boot"
			o.start()
		},
	} {
		for _, does := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", and it happened", false: ", and it did not happen"}[does], func(t *testing.T) {
				t.Parallel()
				o := newOrphan(t, actTool(actProbe), `{"input":"some"}`)
				got, err := o.ProbeJob(t.Context(), owner(), o.job.ID)
				if err != nil || got.Answer != ProbeNoAnswer || got.Job.State != jobs.StateUnknown || !strings.Contains(got.Detail, "may still live") {
					t.Errorf("while it lives the probe says %+v, %v", got, err)
				}
				want := jobs.StateFailed
				if does {
					o.work("do")
					want = jobs.StateCompleted
				}
				between(o)
				job := o.await(o.job.ID, func(j *jobs.Job) bool { return j.State.Terminal() })
				o.wantState(job, want, jobs.EndProbed)
				if probed, _ := has(job, jobs.EvidenceProbe); !ended(job) || !probed || starts(job) != 1 {
					t.Errorf("%d starts, and the evidence %+v", starts(job), job.Evidence)
				}
				if _, err := o.ProbeJob(t.Context(), owner(), o.job.ID); jobs.CodeOf(err) != jobs.CodeStateConflict {
					t.Errorf("the probe of a job that is %s: %v", job.State, err)
				}
			})
		}
	}
}

// TestG5AProbeThatWasNotAskedIsAsked: the engine leaves when the end of the tool is stored and
// before its probe has answered. The next one asks it.
func TestG5AProbeThatWasNotAskedIsAsked(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, actTool(actProbe), `{"input":"some"}`)
	o.work("do")
	o.store.failing(false, func(int) error { o.leave(); return nil })
	o.work("go")
	job := o.await(o.job.ID, ended)
	o.Stop()
	o.wantState(job, jobs.StateUnknown, jobs.EndNone)
	o.store.failing(false, nil)
	o.start()
	o.wantState(o.await(o.job.ID, func(j *jobs.Job) bool { return j.State.Terminal() }), jobs.StateCompleted, jobs.EndProbed)
}

// TestG5LateEvidenceWithoutAProbe: that the tool ended does not say how, so the job stays
// unknown; it says so once, whatever is started again.
func TestG5LateEvidenceWithoutAProbe(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, actTool(""), `{}`)
	if _, err := o.ProbeJob(t.Context(), owner(), o.job.ID); jobs.CodeOf(err) != jobs.CodeStateConflict {
		t.Errorf("a probe that there is not: %v", err)
	}
	o.work("go")
	job := o.await(o.job.ID, ended)
	o.wantState(job, jobs.StateUnknown, jobs.EndNone)
	if left := job.Attempts[0].Left; len(left) > 0 || strings.Contains(job.Message, "still runs") || !strings.Contains(job.Message, "none lives") {
		t.Errorf("it still tells of %v: %s", left, job.Message)
	}
	o.Stop()
	o.start()
	if again := o.await(o.job.ID, ended); again.Revision != job.Revision {
		t.Errorf("the evidence is now %+v", again.Evidence)
	}
}

// TestG5EvidenceAfterAResolution: what is seen after a person's word is kept and flagged,
// and the person's word stands.
func TestG5EvidenceAfterAResolution(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, actTool(actProbe), `{"input":"some"}`)
	o.work("done") // says nothing yet
	if _, err := o.Resolve(t.Context(), owner(), o.job.ID, jobs.StateFailed, "looked"); err != nil {
		t.Fatal(err)
	}
	if !o.IsTool(o.started.Pid) {
		t.Error("the tool of a resolved job is taken for a caller")
	}
	o.Stop()
	o.start()
	if !o.IsTool(o.started.Pid) {
		t.Error("after a restart the tool of a resolved job is taken for a caller")
	}
	if got, err := o.Prune(t.Context(), owner(), time.Nanosecond, false); err != nil || got.Jobs > 0 {
		t.Errorf("with its tool alive, retention removes %d jobs: %v", got.Jobs, err)
	}
	if err := o.started.Tool().Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	job := o.await(o.job.ID, ended)
	o.wantState(job, jobs.StateFailed, jobs.EndResolved)
	if left, err := o.store.LeftBehind(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("after its end it is still watched for: %v, %v", left, err)
	}
	if _, after := has(job, jobs.EvidenceToolEnded); !after {
		t.Errorf("the evidence is %+v", job.Evidence)
	}
	if _, err := o.ProbeJob(t.Context(), Caller{Principal: "other"}, o.job.ID); jobs.CodeOf(err) != jobs.CodeJobNotFound {
		t.Errorf("the probe of somebody else's job: %v", err)
	}
}

// TestG5ProbeOfAVanishedAttempt: its folder is gone. What the job knows of the tool's first
// process has to do: that it did not happen proves nothing as long as that one lives.
func TestG5ProbeOfAVanishedAttempt(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, actTool("probe: {program: sh, argv: [\"-c\", \"true\"], parser: {kind: text}, happened: 'false', not_happened: 'true'}\n"), `{}`)
	if err := os.RemoveAll(filepath.Join(o.state, "jobs", o.job.ID, "a1")); err != nil {
		t.Fatal(err)
	}
	got, err := o.ProbeJob(t.Context(), owner(), o.job.ID)
	if err != nil || got.Answer != ProbeNoAnswer || !strings.Contains(got.Detail, "may still live") {
		t.Errorf("the probe says %+v, %v", got, err)
	}
	if err := o.started.Tool().Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o.wantState(o.await(o.job.ID, func(j *jobs.Job) bool { return j.State.Terminal() }), jobs.StateFailed, jobs.EndProbed)
}
