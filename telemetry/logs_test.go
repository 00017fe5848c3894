package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Each line about a job says which, whoever writes it.
func TestLogs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := NewLogs(&out, LogOptions{JSON: true, Level: slog.LevelDebug})
	j := newLife(t, "job1", jobs.CallContext{RunID: "run1", ToolCallID: "call1", TraceID: "own", TraceParent: callersTrace})
	j.accept()
	j.begin()
	j.intend()
	j.exited(3)
	for _, c := range j.changes {
		l.Changed(c)
	}
	l.Logger.With("room", "executor").Warn("a folder could not be tidied", "job_id", "job1", "error", errors.New("busy"))
	l.Logger.Warn("of a job that nobody knows", "job_id", "job2")
	l.Submitted(t.Context(), engine.Decided{Answer: engine.Refused, Code: jobs.CodePolicyDenied, Tool: "copy", Context: j.job.Call.Context})
	l.Submitted(t.Context(), engine.Decided{Answer: engine.Replayed, Job: j.job})
	var got []map[string]any
	for line := range strings.Lines(out.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(fields, "time")
		got = append(got, fields)
	}
	call := map[string]any{"tool": "copy", "run_id": "run1", "tool_call_id": "call1", "trace_id": "0af7651916cd43dd8448eb211c80319c"}
	with := func(more map[string]any) map[string]any {
		maps.Copy(more, call)
		return more
	}
	want := []map[string]any{
		with(map[string]any{"level": "DEBUG", "msg": "a job was accepted", "job_id": "job1", "state": "queued", "principal": "owner"}),
		with(map[string]any{
			"level": "INFO", "msg": "a job ended", "job_id": "job1", "state": "failed", "end_reason": "exit_code", "side_effect": "none",
			"attempts": 1.0, "duration": 3e9,
		}),
		with(map[string]any{"level": "WARN", "msg": "a folder could not be tidied", "room": "executor", "job_id": "job1", "error": "busy"}),
		{"level": "WARN", "msg": "of a job that nobody knows", "job_id": "job2"},
		with(map[string]any{"level": "INFO", "msg": "a call was refused", "code": "POLICY_DENIED"}),
		with(map[string]any{"level": "DEBUG", "msg": "a call was repeated", "job_id": "job1", "state": "failed"}),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("log (-want +got):\n%s", d)
	}
}

// What did not start, is unknown or was lost is said louder.
func TestLogsOfTrouble(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := NewLogs(&out, LogOptions{Level: slog.LevelWarn})
	unstarted := newLife(t, "job1", jobs.CallContext{})
	unstarted.accept()
	unstarted.begin()
	unstarted.step(func(j *jobs.Job) error { return j.TooLate(unstarted.now) })
	unstarted.tell(l)
	lost := newLife(t, "job2", jobs.CallContext{})
	lost.accept()
	lost.begin()
	lost.requeue()
	lost.begin()
	lost.intend()
	lost.lose()
	lost.tell(l)
	for _, want := range []string{
		`level=WARN msg="a start was refused" job_id=job1 state=cancelled end_reason=too_late attempt=1 tool=copy`,
		`level=WARN msg="an attempt was lost; the job is queued again" job_id=job2 state=queued attempts=1 tool=copy`,
		`level=WARN msg="a job is unknown" job_id=job2 state=unknown attempts=2 tool=copy`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %s in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}

// What is known of ended jobs is bounded.
func TestLogsForget(t *testing.T) {
	t.Parallel()
	l := NewLogs(new(bytes.Buffer), LogOptions{})
	for i := range 3 * rememberEnded {
		j := newLife(t, fmt.Sprint("job", i), jobs.CallContext{})
		j.accept()
		j.step(func(k *jobs.Job) error { return k.Cancel(jobs.StopRequest{Principal: "owner", At: j.now}) })
		j.tell(l)
	}
	if n := len(l.known.jobs); n != rememberEnded {
		t.Errorf("%d jobs are known, want %d", n, rememberEnded)
	}
}
