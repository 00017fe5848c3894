package server

import (
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// filters are what a list and a watch of jobs can be narrowed by.
type filters interface {
	GetStates() []macexecv1.JobState
	GetTool() string
	GetPrincipal() string
	GetKey() string
	GetRunId() string
	GetParentRunId() string
	GetThreadId() string
	GetContextId() string
	GetToolCallId() string
	GetParentCallId() string
	GetLabels() map[string]string
}

func queryOf(f filters) (jobs.Query, error) {
	q := jobs.Query{
		Tool: f.GetTool(), Principal: f.GetPrincipal(), Key: f.GetKey(),
		RunID: f.GetRunId(), ParentRunID: f.GetParentRunId(), ThreadID: f.GetThreadId(), ContextID: f.GetContextId(),
		ToolCall: f.GetToolCallId(), ParentCall: f.GetParentCallId(), Labels: f.GetLabels(),
	}
	for _, st := range f.GetStates() {
		state, err := word[jobs.State]("states", st)
		if err != nil {
			return jobs.Query{}, err
		}
		if state != "" {
			q.States = append(q.States, state)
		}
	}
	return q, nil
}
