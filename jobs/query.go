package jobs

import (
	"slices"
	"time"
)

// Query selects jobs. Zero fields select everything. Jobs are listed by id,
// newest first; After continues below the id that ended the page before.
type Query struct {
	After string
	Limit int // 0: 100; at most 1000

	States      []State
	Tool        string
	Principal   string
	Key         string
	RunID       string
	ParentRunID string
	ThreadID    string
	ContextID   string
	ToolCall    string
	ParentCall  string
	Since       time.Time // accepted then or later
	Until       time.Time // accepted before
	Labels      map[string]string
}

// Matches reports whether a job is one that the query selects. After and Limit cut
// a list; they select nothing.
func (q Query) Matches(j *Job) bool {
	c := &j.Call.Context
	for _, field := range [...]struct{ want, got string }{
		{q.Tool, j.Tool.Name},
		{q.Principal, j.Principal},
		{q.Key, j.Key},
		{q.RunID, c.RunID},
		{q.ParentRunID, c.ParentRunID},
		{q.ThreadID, c.ThreadID},
		{q.ContextID, c.ContextID},
		{q.ToolCall, c.ToolCallID},
		{q.ParentCall, c.ParentCallID},
	} {
		if field.want != "" && field.want != field.got {
			return false
		}
	}
	if len(q.States) > 0 && !slices.Contains(q.States, j.State) {
		return false
	}
	if j.SubmittedAt.Before(q.Since) || !q.Until.IsZero() && !j.SubmittedAt.Before(q.Until) {
		return false
	}
	for name, value := range q.Labels {
		if got, ok := c.Labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}
