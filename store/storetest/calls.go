package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/macexec/macexec/jobs"
)

// Time is when everything in the suite happens.
func Time() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC) }

// JobID returns the n-th job id; ids sort as their numbers do.
func JobID(n int) string { return fmt.Sprintf("01K%023d-testhost", n) }

// NewJob returns a job as the engine makes it, accepted, with ids made from n.
func NewJob(n int) *jobs.Job {
	j := &jobs.Job{
		ID: JobID(n), Host: "testhost", Principal: "orchestrator",
		Key: fmt.Sprintf("key-%d", n), Fingerprint: fmt.Sprintf("v1:%064x", n),
		Call: jobs.Call{
			Tool: "export_video", Purpose: jobs.PurposeProduction,
			Arguments: json.RawMessage(fmt.Sprintf(`{"input":"in/clip <%d>.mov","output":"out/%d.mp4","rate":1.50,"big":123456789012345678901234567890}`, n, n)),
			Context: jobs.CallContext{
				TraceID: "trace-1", ToolCallID: fmt.Sprintf("call-%d", n), RunID: fmt.Sprintf("run-%d", n%10),
				Labels: map[string]string{"batch": fmt.Sprint(n % 3)}, VisibleTools: []string{"export_video", "inspect_audio"},
			},
		},
		Tool: jobs.ToolRef{Name: "export_video", Version: "2026-01-01", ManifestDigest: fmt.Sprintf("%064x", 7), Effects: jobs.EffectsStaged},
		Verdicts: jobs.Verdicts{
			SyntaxValid: true, SchemaValid: true, BusinessValid: true,
			SyntaxChecked: true, SchemaChecked: true, BusinessChecked: true,
		},
		Decision:    jobs.Decision{Effect: jobs.Allow, Rules: []string{"default/staged"}, Reason: "writes only what is published", PolicyVersion: fmt.Sprintf("%064x", 9), DecidedAt: Time()},
		SubmittedAt: Time(),
	}
	defer func() { j.Event = "" }() // the store keeps it nowhere
	if err := j.Accept(Time()); err != nil {
		panic(err) // the table of transitions forbids a new job to be accepted
	}
	return j
}

// Submission returns the submission of a job, with the ids of its own request.
func Submission(j *jobs.Job) jobs.Submission {
	return jobs.Submission{
		Key: jobs.Key{Principal: j.Principal, Text: j.Key}, Fingerprint: j.Fingerprint, Job: j,
		Entry: jobs.Entry{ToolCallID: j.Call.Context.ToolCallID, RunID: j.Call.Context.RunID, TraceID: j.Call.Context.TraceID},
	}
}

// Start begins the first attempt of a queued job.
func Start(j *jobs.Job) (jobs.Note, error) {
	return jobs.Note{Message: "an attempt begins"}, j.Begin("boot-1", Time())
}

// Cancel ends a queued job.
func Cancel(j *jobs.Job) (jobs.Note, error) {
	stop := jobs.StopRequest{Principal: "operator", End: jobs.EndCancelledByCaller, At: Time()}
	return jobs.Note{Principal: "operator"}, j.Cancel(stop)
}

// Lose makes a running job unknown.
func Lose(j *jobs.Job) (jobs.Note, error) {
	lost := jobs.Outcome{State: jobs.StateUnknown, SideEffect: jobs.SideEffectPossible, Retry: jobs.RetrySameKey}
	return jobs.Note{}, j.End(lost, jobs.Evidence{Kind: jobs.EvidenceLostAttempt}, "nobody saw its end", Time())
}

// Resolve ends an unknown job by a person's word.
func Resolve(j *jobs.Job) (jobs.Note, error) {
	return jobs.Note{Principal: "operator"}, j.Resolve(jobs.StateCompleted, "operator", "seen", Time())
}
