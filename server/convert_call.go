package server

import (
	"maps"
	"slices"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// callRequest is what SubmitJobRequest and CheckCallRequest have in common.
type callRequest interface {
	GetTool() string
	GetToolVersion() string
	GetArguments() []byte
	GetPurpose() macexecv1.Purpose
	GetOptions() *macexecv1.Options
	GetContext() *macexecv1.CallContext
}

func requestOf(req callRequest, key string) (engine.Request, error) {
	purpose, err := word[jobs.Purpose]("purpose", req.GetPurpose())
	if err != nil {
		return engine.Request{}, err
	}
	if purpose == "" {
		purpose = jobs.PurposeProduction
	}
	options, err := optionsOf(req.GetOptions())
	if err != nil {
		return engine.Request{}, err
	}
	return engine.Request{
		Tool: req.GetTool(), ToolVersion: req.GetToolVersion(), Arguments: req.GetArguments(),
		Key: key, Purpose: purpose, Options: options, Context: contextOf(req.GetContext()),
	}, nil
}

func optionsOf(o *macexecv1.Options) (jobs.Options, error) {
	onLock, err := word[jobs.OnLock]("options.on_lock", o.GetOnLock())
	if err != nil {
		return jobs.Options{}, err
	}
	timeout, err := durationOf("options.timeout_seconds", o.GetTimeoutSeconds())
	if err != nil {
		return jobs.Options{}, err
	}
	startBy, err := timeOf("options.start_by", o.GetStartBy())
	if err != nil {
		return jobs.Options{}, err
	}
	return jobs.Options{
		Replace: o.GetReplace(), OnLock: onLock, SerialContext: o.GetSerialContext(), Priority: o.GetPriority(),
		Timeout: timeout, StartBy: startBy, Supersedes: o.GetSupersedes(),
	}, nil
}

func convertOptions(o jobs.Options) *macexecv1.Options {
	return &macexecv1.Options{
		Replace: o.Replace, OnLock: enum[macexecv1.OnLock](o.OnLock), SerialContext: o.SerialContext, Priority: o.Priority,
		TimeoutSeconds: o.Timeout.Seconds(), StartBy: timestamp(o.StartBy), Supersedes: o.Supersedes,
	}
}

func contextOf(c *macexecv1.CallContext) jobs.CallContext {
	return jobs.CallContext{
		TraceID: c.GetTraceId(), CorrelationID: c.GetCorrelationId(), InteractionID: c.GetInteractionId(),
		ToolCallID: c.GetToolCallId(), ParentCallID: c.GetParentCallId(), ParallelGroup: c.GetParallelGroup(),
		Sequence: c.GetSequence(), RunID: c.GetRunId(), ParentRunID: c.GetParentRunId(), ThreadID: c.GetThreadId(),
		CheckpointID: c.GetCheckpointId(), Step: c.GetStep(), Node: c.GetNode(), ContextID: c.GetContextId(),
		TaskID: c.GetTaskId(), Model: agentOf(c.GetModel()), Orchestrator: agentOf(c.GetOrchestrator()),
		VisibleTools: c.GetVisibleTools(), Labels: c.GetLabels(),
		TraceParent: c.GetTraceparent(), TraceState: c.GetTracestate(),
	}
}

func convertContext(c jobs.CallContext) *macexecv1.CallContext {
	return &macexecv1.CallContext{
		TraceId: c.TraceID, CorrelationId: c.CorrelationID, InteractionId: c.InteractionID,
		ToolCallId: c.ToolCallID, ParentCallId: c.ParentCallID, ParallelGroup: c.ParallelGroup,
		Sequence: c.Sequence, RunId: c.RunID, ParentRunId: c.ParentRunID, ThreadId: c.ThreadID,
		CheckpointId: c.CheckpointID, Step: c.Step, Node: c.Node, ContextId: c.ContextID,
		TaskId: c.TaskID, Model: convertAgent(c.Model), Orchestrator: convertAgent(c.Orchestrator),
		VisibleTools: slices.Clone(c.VisibleTools), Labels: maps.Clone(c.Labels),
		Traceparent: c.TraceParent, Tracestate: c.TraceState,
	}
}

func agentOf(a *macexecv1.Agent) jobs.Agent {
	return jobs.Agent{Name: a.GetName(), Version: a.GetVersion()}
}

func convertAgent(a jobs.Agent) *macexecv1.Agent {
	if a == (jobs.Agent{}) {
		return nil
	}
	return &macexecv1.Agent{Name: a.Name, Version: a.Version}
}

func convertCall(c jobs.Call) *macexecv1.Call {
	return &macexecv1.Call{
		Tool: c.Tool, ToolVersion: c.ToolVersion, Arguments: c.Arguments, Purpose: enum[macexecv1.Purpose](c.Purpose),
		Options: convertOptions(c.Options), Context: convertContext(c.Context),
	}
}

func convertFindings(list []jobs.Finding) []*macexecv1.Finding {
	return each(list, func(f jobs.Finding) *macexecv1.Finding {
		return &macexecv1.Finding{
			Verdict: enum[macexecv1.Verdict](f.Verdict), Pointer: f.Pointer, Keyword: f.Keyword, Message: f.Message, Hint: f.Hint,
		}
	})
}

func convertVerdicts(v jobs.Verdicts) *macexecv1.Verdicts {
	return &macexecv1.Verdicts{
		SyntaxValid: v.SyntaxValid, SchemaValid: v.SchemaValid, BusinessValid: v.BusinessValid,
		SyntaxChecked: v.SyntaxChecked, SchemaChecked: v.SchemaChecked, BusinessChecked: v.BusinessChecked,
		Findings: convertFindings(v.Findings),
	}
}

func convertDecision(d jobs.Decision) *macexecv1.Decision {
	return &macexecv1.Decision{
		Effect: enum[macexecv1.DecisionEffect](d.Effect), Rules: slices.Clone(d.Rules), Reason: d.Reason,
		PolicyVersion: d.PolicyVersion, DecidedAt: timestamp(d.DecidedAt),
	}
}
