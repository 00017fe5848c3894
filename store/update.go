package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"

	"github.com/macexec/macexec/jobs"
)

// Update implements jobs.Store.
func (s *Store) Update(ctx context.Context, id string, change func(*jobs.Job) (jobs.Note, error)) (*jobs.Job, error) {
	u := update{id: id, change: change}
	if snap := s.cache.get(id); snap != nil {
		u.base = snap
		u.private, _ = decodeJob(id, snap.raw) // an error shows again in the writer
	}
	var snap *snapshot
	err := s.do(ctx, func(b *batch) (write func() error, err error) {
		snap, write, err = b.update(&u)
		return write, err
	})
	if err != nil {
		return nil, err
	}
	return snap.decoded()
}

// update is one change of a job. private is a copy of base that was decoded
// before the writer took the operation, so that it need not do it.
type update struct {
	id      string
	change  func(*jobs.Job) (jobs.Note, error)
	base    *snapshot
	private *jobs.Job
}

// copyOf returns a job that shares nothing with any snapshot.
func (u *update) copyOf(snap *snapshot) (*jobs.Job, error) {
	if private := u.private; private != nil && u.base == snap {
		u.private = nil // the change owns it now
		return private, nil
	}
	return decodeJob(u.id, snap.raw)
}

func (b *batch) update(u *update) (*snapshot, func() error, error) {
	old, err := b.snapshot(u.id)
	if err != nil {
		return nil, nil, err
	}
	job, err := u.copyOf(old)
	if err != nil {
		return nil, nil, err
	}
	before, was, labels := identityOf(job), standingOf(job), maps.Clone(job.Call.Context.Labels)
	note, err := b.s.runChange(u, job)
	if err != nil {
		return nil, nil, err
	}
	if after := identityOf(job); after != before || !maps.Equal(labels, job.Call.Context.Labels) {
		return nil, nil, jobs.Errorf(jobs.CodeInternal, "a change of job %s touched what never changes: %+v became %+v", u.id, before, after).WithJob(u.id)
	}
	now := standingOf(job)
	if was.state.Terminal() && now.state != was.state {
		return nil, nil, jobs.Errorf(jobs.CodeInternal, "a change of job %s made it %s after it was %s", u.id, now.state, was.state).WithJob(u.id)
	}
	job.Revision = before.revision + 1
	raw, err := encodeRecord(job)
	if err != nil {
		return nil, nil, err
	}
	e := changeOf(job, note)
	if note.Data != nil {
		if e.Data, err = json.Marshal(note.Data); err != nil {
			return nil, nil, jobs.Errorf(jobs.CodeInternal, "the data of a note cannot be written as JSON: %w", err)
		}
	}
	entry, err := b.seal(e)
	if err != nil {
		return nil, nil, err
	}
	snap := &snapshot{id: u.id, raw: withLink(entry.seq, raw)}
	link, _, _ := splitLink(old.raw)
	return snap, func() error { return b.putJob(snap, link, &was, &now, entry) }, nil
}

// changeOf is the entry of a change, without the note's data.
func changeOf(j *jobs.Job, note jobs.Note) jobs.Entry {
	e := jobs.Entry{
		Kind: jobs.EntryChanged, Principal: note.Principal, Owner: j.Principal, Event: j.Event, Message: note.Message,
		ToolCallID: j.Call.Context.ToolCallID, RunID: j.Call.Context.RunID, TraceID: j.Call.Context.TraceID,
	}
	describe(&e, j)
	return e
}

// identity is what no change may touch: what a job is, and what it is found by.
type identity struct {
	id, host, principal, key, fingerprint                       string
	tool, run, parentRun, thread, context, toolCall, parentCall string
	seq, revision                                               uint64
	submitted                                                   int64
}

func identityOf(j *jobs.Job) identity {
	c := &j.Call.Context
	return identity{
		j.ID, j.Host, j.Principal, j.Key, j.Fingerprint,
		j.Tool.Name, c.RunID, c.ParentRunID, c.ThreadID, c.ContextID, c.ToolCallID, c.ParentCallID,
		j.Seq, j.Revision, j.SubmittedAt.UnixMilli(),
	}
}

// runChange calls the change and makes an error of its panic: the fault of one
// caller must not take the writer away from all others.
func (s *Store) runChange(u *update, job *jobs.Job) (note jobs.Note, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a change of a job panicked", "job", u.id, "panic", p, "stack", string(debug.Stack()))
			err = jobs.Errorf(jobs.CodeInternal, "the change of job %s panicked: %s", u.id, fmt.Sprint(p)).WithJob(u.id)
		}
	}()
	return u.change(job)
}
