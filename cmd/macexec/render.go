package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// printJob prints one job.
func (a *app) printJob(job *macexecv1.Job) error {
	return a.print(job, job.GetId(), func(w io.Writer) error {
		return writeJob(w, job, a.format == formatWide, a.OutTerminal && a.colour())
	})
}

func stateStyle(state macexecv1.JobState) show.Style {
	switch state {
	case macexecv1.JobState_JOB_STATE_COMPLETED:
		return show.Green
	case macexecv1.JobState_JOB_STATE_FAILED:
		return show.Red
	case macexecv1.JobState_JOB_STATE_UNKNOWN, macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL:
		return show.Yellow
	case macexecv1.JobState_JOB_STATE_RUNNING:
		return show.Blue
	default:
		return show.Plain
	}
}

func writeJob(w io.Writer, job *macexecv1.Job, wide, colour bool) error {
	var f fields
	f.add("job", job.GetId())
	f.add("tool", strings.TrimSpace(job.GetTool().GetName()+" "+job.GetTool().GetVersion()))
	f.add("key", job.GetKey())
	f.addStyled("state", stateText(job), stateStyle(job.GetState()))
	f.add("waits for", waitsFor(job))
	f.add("message", job.GetMessage())
	f.add("cause", job.GetCause())
	f.addStyled("still lives", stillLives(job), show.Yellow)
	if job.GetEndReason() != macexecv1.EndReason_END_REASON_UNSPECIFIED {
		f.add("side effect", document.Word(job.GetSideEffect()))
		f.add("retry", document.Word(job.GetRetry()))
	}
	if job.GetReplayed() {
		f.add("replayed", "yes: nothing new was started")
	}
	for _, warning := range job.GetWarnings() {
		f.add("warning", warning)
	}
	f.add("supersedes", job.GetCall().GetOptions().GetSupersedes())
	f.add("superseded by", job.GetSupersededBy())
	for _, artifact := range job.GetArtifacts() {
		f.add("artifact", artifactText(artifact))
	}
	for _, input := range job.GetInputs() {
		f.add("input", input.GetPointer()+" = "+input.GetReference())
	}
	if wide {
		wideJob(&f, job)
	}
	if n := len(job.GetAttempts()); n > 0 {
		f.add("attempts", fmt.Sprintf("%d, %s running", n, show.Seconds(job.GetUsage().GetRunningSeconds())))
	}
	if err := f.table.Write(w, colour); err != nil {
		return err
	}
	if err := writeJSON(w, "result", job.GetResult()); err != nil {
		return err
	}
	for i, line := range job.GetLogTail() {
		if i == 0 {
			line = "last log lines:\n  " + show.Line(line)
		} else {
			line = "  " + show.Line(line)
		}
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// stillLives names what a tool has left that was given up.
func stillLives(job *macexecv1.Job) string {
	var pids []string
	for _, attempt := range job.GetAttempts() {
		for _, pid := range attempt.GetLeft() {
			pids = append(pids, strconv.FormatInt(pid, 10))
		}
	}
	if len(pids) == 0 {
		return ""
	}
	return "the tool, without a keeper: pids " + strings.Join(pids, ", ") + "; the job is kept until they have ended"
}

func stateText(job *macexecv1.Job) string {
	text := document.Word(job.GetState())
	for _, more := range []string{document.Word(job.GetPhase()), document.Word(job.GetEndReason())} {
		if more != "" && more != text {
			text += " (" + more + ")"
		}
	}
	return text
}

func artifactText(a *macexecv1.Artifact) string {
	text := a.GetName() + ", " + show.Size(a.GetSize()) + ", " + a.GetMediaType()
	if a.GetPath() != "" {
		text += ", in project " + a.GetProject() + " at " + a.GetPath()
	}
	return text
}

func wideJob(f *fields, job *macexecv1.Job) {
	f.add("principal", job.GetPrincipal())
	f.add("host", job.GetHost())
	f.add("run", job.GetCall().GetContext().GetRunId())
	f.add("tool call", job.GetCall().GetContext().GetToolCallId())
	f.add("trace", job.GetCall().GetContext().GetTraceId())
	f.add("fingerprint", job.GetFingerprint())
	f.add("arguments", string(job.GetCall().GetArguments()))
	if d := job.GetDecision(); d != nil {
		f.add("decision", document.Word(d.GetEffect())+": "+d.GetReason())
	}
	if b := job.GetApproval().GetBinding(); b != nil {
		f.add("binding", b.GetDigest())
	}
	f.add("submitted", moment(job.GetSubmittedAt()))
	f.add("started", moment(job.GetStartedAt()))
	f.add("ended", moment(job.GetEndedAt()))
	for _, e := range job.GetEvidence() {
		f.add("evidence", document.Word(e.GetKind())+": "+e.GetDetail())
	}
}

// moment writes a time, or "" for none.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

// writeJSON draws a JSON value with a heading; nothing when there is none.
func writeJSON(w io.Writer, heading string, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var b bytes.Buffer
	if json.Indent(&b, text, "  ", "  ") != nil {
		b.Write(text)
	}
	_, err := fmt.Fprintf(w, "%s:\n  %s\n", heading, show.Text(b.String()))
	return err
}

// writeCheck draws what a call would do.
func writeCheck(w io.Writer, check *macexecv1.Check, colour bool) error {
	var b strings.Builder
	var f fields
	f.add("tool", strings.TrimSpace(check.GetTool().GetName()+" "+check.GetTool().GetVersion()))
	f.add("effects", document.Word(check.GetTool().GetEffects()))
	f.add("fingerprint", check.GetFingerprint())
	if d := check.GetDecision(); d != nil {
		f.add("decision", document.Word(d.GetEffect())+": "+d.GetReason())
	}
	for _, p := range check.GetPrograms() {
		f.add("program", strings.TrimSpace(p.GetPath()+" "+p.GetVersion()))
	}
	for _, step := range check.GetPublishes() {
		f.add("publishes", document.Word(step.GetVerb())+" "+step.GetPath()+" in project "+step.GetProject())
	}
	for _, warning := range check.GetWarnings() {
		f.add("warning", warning)
	}
	if err := f.table.Write(&b, colour); err != nil {
		return err
	}
	writeVerdicts(&b, check.GetVerdicts())
	writeFindings(&b, check.GetVerdicts().GetFindings())
	_, err := io.WriteString(w, b.String())
	return err
}
