package server

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// maxAnswer is how large an answer may become, so that it stays below what a gRPC
// client takes by default (4 MiB), with room for what comes beside it.
const maxAnswer = 3 << 20

// convertJob converts a job and leaves fields out, and says so, if it is too large
// for one message. It keeps what tells how the job stands.
func convertJob(j *jobs.Job) *macexecv1.Job {
	if j == nil {
		return nil
	}
	out := fullJob(j)
	for _, name := range []protoreflect.Name{
		"result", "log_tail", "attempts", "evidence", "inputs", "artifacts", "plan", "warnings",
	} {
		if proto.Size(out) <= maxAnswer {
			break
		}
		m := out.ProtoReflect()
		if f := m.Descriptor().Fields().ByName(name); m.Has(f) {
			m.Clear(f)
			out.Omitted = append(out.Omitted, string(name))
		}
	}
	return out
}

func fullJob(j *jobs.Job) *macexecv1.Job {
	return &macexecv1.Job{
		Id: j.ID, Host: j.Host, Seq: j.Seq, Revision: j.Revision,
		Principal: j.Principal, Key: j.Key, KeyMade: j.KeyMade, Fingerprint: j.Fingerprint,
		Call: convertCall(j.Call), Tool: convertToolRef(j.Tool),
		Verdicts: convertVerdicts(j.Verdicts), Decision: convertDecision(j.Decision), Approval: convertApproval(j.Approval),
		State: enum[macexecv1.JobState](j.State), Phase: enum[macexecv1.JobPhase](j.Phase),
		WaitingFor: convertWaitingFor(j.WaitingFor), EndReason: enum[macexecv1.EndReason](j.EndReason),
		SideEffect: enum[macexecv1.SideEffect](j.SideEffect), Message: j.Message, Cause: j.Cause,
		Retry: enum[macexecv1.Retry](j.Retry), LogTail: slices.Clone(j.LogTail), Stop: convertStop(j.Stop),
		Attempts: each(j.Attempts, convertAttempt), Inputs: each(j.Inputs, convertInput),
		Artifacts: each(j.Artifacts, convertArtifact), Plan: convertPlan(j.Plan), Result: j.Result,
		Evidence: each(j.Evidence, convertEvidence), Warnings: slices.Clone(j.Warnings), Usage: convertUsage(j.Usage),
		SupersededBy: j.SupersededBy,
		SubmittedAt:  timestamp(j.SubmittedAt), QueuedAt: timestamp(j.QueuedAt),
		StartedAt: timestamp(j.StartedAt), EndedAt: timestamp(j.EndedAt),
	}
}

func convertApproval(a *jobs.Approval) *macexecv1.Approval {
	if a == nil {
		return nil
	}
	b := a.Binding
	return &macexecv1.Approval{
		Binding: &macexecv1.Binding{
			Digest: b.Digest, Tool: b.Tool, Version: b.Version, ManifestDigest: b.ManifestDigest, Fingerprint: b.Fingerprint,
			Inputs: maps.Clone(b.Inputs), Programs: maps.Clone(b.Programs), PolicyVersion: b.PolicyVersion, Requester: b.Requester,
		},
		ExpiresAt: timestamp(a.ExpiresAt), Decided: a.Decided, Approved: a.Approved,
		Approver: a.Approver, Reason: a.Reason, DecidedAt: timestamp(a.DecidedAt),
	}
}

func convertWaitingFor(w *jobs.WaitingFor) *macexecv1.WaitingFor {
	if w == nil {
		return nil
	}
	return &macexecv1.WaitingFor{Kind: enum[macexecv1.WaitKind](w.Kind), Detail: w.Detail, JobId: w.JobID, Position: int32of(w.Position), JobState: enum[macexecv1.JobState](w.JobState)}
}

func convertStop(s *jobs.StopRequest) *macexecv1.StopRequest {
	if s == nil {
		return nil
	}
	return &macexecv1.StopRequest{Principal: s.Principal, Reason: s.Reason, End: enum[macexecv1.EndReason](s.End), At: timestamp(s.At)}
}

func convertAttempt(a jobs.Attempt) *macexecv1.Attempt {
	out := &macexecv1.Attempt{
		N: int32of(a.N), BegunAt: timestamp(a.BegunAt), BootSession: a.BootSession, Lost: a.Lost, EndedAt: timestamp(a.EndedAt),
		Left: each(a.Left, func(pid int) int64 { return int64(pid) }),
	}
	if i := a.Intent; i != nil {
		out.Intent = &macexecv1.Intent{
			Argv: slices.Clone(i.Argv), EnvNames: slices.Clone(i.EnvNames), Programs: each(i.Programs, convertProgram),
			TimeoutSeconds: i.Timeout.Seconds(), At: timestamp(i.At),
		}
	}
	if s := a.Started; s != nil {
		out.Started = &macexecv1.Started{Pid: int64(s.PID), StartTime: s.StartTime, BootSession: s.BootSession, At: timestamp(s.At)}
	}
	if e := a.Exit; e != nil {
		out.Exit = &macexecv1.Exit{
			Code: int32of(e.Code), Signal: e.Signal, StoppedFor: e.StoppedFor, At: timestamp(e.At),
			Escaped: each(e.Escaped, func(pid int) int64 { return int64(pid) }),
		}
	}
	return out
}

func convertInput(i jobs.InputFile) *macexecv1.InputFile {
	return &macexecv1.InputFile{
		Pointer: i.Pointer, Reference: i.Reference, Project: i.Project, Path: i.Path,
		Sha256: i.SHA256, Size: i.Size, MediaType: i.MediaType, InPlace: i.InPlace,
	}
}

func convertArtifact(a jobs.Artifact) *macexecv1.Artifact {
	return &macexecv1.Artifact{
		Name: a.Name, Size: a.Size, MediaType: a.MediaType, Sha256: a.SHA256, Project: a.Project, Path: a.Path, Kept: a.Kept,
		Folder: a.Folder, Files: int32of(a.Files),
	}
}

func convertPlan(p *jobs.PublishPlan) *macexecv1.PublishPlan {
	if p == nil {
		return nil
	}
	return &macexecv1.PublishPlan{Steps: each(p.Steps, convertStep)}
}

func convertStep(s jobs.PublishStep) *macexecv1.PublishStep {
	return &macexecv1.PublishStep{
		Verb: enum[macexecv1.PublishVerb](s.Verb), Artifact: s.Artifact, Project: s.Project, Path: s.Path, Temp: s.Temp,
		Trash: s.Trash, OldSha256: s.OldSHA256, Sha256: s.SHA256, Device: s.Device, Inode: s.Inode, Done: s.Done,
	}
}

func convertEvidence(e jobs.Evidence) *macexecv1.Evidence {
	return &macexecv1.Evidence{
		Kind: enum[macexecv1.EvidenceKind](e.Kind), Detail: e.Detail, Attempt: int32of(e.Attempt), By: e.By,
		At: timestamp(e.At), AfterEnd: e.AfterEnd,
	}
}

func convertUsage(u jobs.Usage) *macexecv1.Usage {
	return &macexecv1.Usage{
		WaitingSeconds: u.Waiting.Seconds(), StagingSeconds: u.Staging.Seconds(), RunningSeconds: u.Running.Seconds(),
		PublishingSeconds: u.Publishing.Seconds(), CpuUserSeconds: u.CPUUser.Seconds(), CpuSystemSeconds: u.CPUSystem.Seconds(),
		PeakMemoryBytes: u.PeakMemory, BytesIn: u.BytesIn, BytesOut: u.BytesOut, Scope: enum[macexecv1.UsageScope](u.Scope),
	}
}

func convertUsageRow(by jobs.UsageBy, r jobs.UsageRow) *macexecv1.UsageRow {
	return &macexecv1.UsageRow{
		Name: r.Name, By: enum[macexecv1.UsageBy](by), Completed: r.Completed, Failed: r.Failed, Cancelled: r.Cancelled,
		Usage: convertUsage(r.Usage), Since: timestamp(r.Since),
	}
}

func convertKey(r jobs.KeyRecord, j *jobs.Job) *macexecv1.KeyRecord {
	return &macexecv1.KeyRecord{
		Principal: r.Key.Principal, Key: r.Key.Text, Kind: enum[macexecv1.KeyKind](r.Kind), Fingerprint: r.Fingerprint,
		JobId: r.JobID, CreatedAt: timestamp(r.CreatedAt), Job: convertJob(j),
	}
}

func convertCancellation(c engine.RunCancellation) *macexecv1.CancelRunResponse {
	return &macexecv1.CancelRunResponse{
		RunIds: slices.Clone(c.Runs), JobIds: slices.Clone(c.Stopped),
		TooLateJobIds: slices.Clone(c.TooLate), UnknownJobIds: slices.Clone(c.Unknown),
	}
}
