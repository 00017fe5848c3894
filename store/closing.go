package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// FenceKey implements jobs.Store. A fence and a submission of its key pass through
// the one writer, so one of them is first and the other is told of it.
func (s *Store) FenceKey(ctx context.Context, key jobs.Key, e jobs.Entry) (record jobs.KeyRecord, planted bool, err error) {
	if key.Text == "" {
		return record, false, jobs.Errorf(jobs.CodeInternal, "a fence needs a key")
	}
	place := keyPlace(key)
	e.Kind = jobs.EntryFence
	e.Principal, e.Owner = cmp.Or(e.Principal, key.Principal), cmp.Or(e.Owner, key.Principal)
	err = s.do(ctx, func(b *batch) (func() error, error) {
		record, planted = jobs.KeyRecord{}, false
		s.free.take(place) // no commit may find it noted any more
		if known, err := s.keyRecord(b.tx, key, place, true); known != nil || err != nil {
			if known != nil {
				record = *known
			}
			return nil, err
		}
		record = jobs.KeyRecord{Key: key, Kind: jobs.KeyFence, CreatedAt: b.now}
		raw, err := encodeRecord(record)
		if err != nil {
			return nil, err
		}
		entry, err := b.seal(e)
		if err != nil {
			return nil, err
		}
		planted = true
		return func() error {
			if err := b.keys.Put(place, raw); err != nil {
				return err
			}
			return b.putEntry(entry)
		}, nil
	})
	if err != nil {
		return jobs.KeyRecord{}, false, err
	}
	return record, planted, nil
}

// closing is the record of one closed run or call. A call of a run has two: its own,
// and that some call of its id is closed, which has no run.
type closing struct {
	Kind      string    `json:"kind"`
	Principal string    `json:"principal"`
	RunID     string    `json:"run_id,omitempty"` // of a call
	ID        string    `json:"id"`
	Reason    string    `json:"reason,omitempty"`
	ClosedAt  time.Time `json:"closed_at"`
}

// The kinds of what can be closed; each is a namespace of places.
const (
	closedRun  = "run"
	closedCall = "call"
)

func (c closing) place() []byte {
	if c.RunID == "" {
		return place("closed-"+c.Kind, c.Principal, c.ID)
	}
	return place("closed-"+c.Kind, c.Principal, c.RunID, c.ID)
}

// CloseRuns implements jobs.Store.
func (s *Store) CloseRuns(ctx context.Context, c jobs.RunClosing) (fresh jobs.RunClosing, err error) {
	if c.Principal == "" || slices.Contains(c.RunIDs, "") || slices.ContainsFunc(c.Calls, func(call jobs.RunCall) bool { return call.CallID == "" }) {
		return fresh, jobs.Errorf(jobs.CodeInternal, "what is to be closed needs a principal and a name")
	}
	err = s.do(ctx, func(b *batch) (write func() error, err error) {
		fresh, write, err = b.closeRuns(c)
		return write, err
	})
	if err != nil {
		return jobs.RunClosing{}, err
	}
	return fresh, nil
}

func (b *batch) closeRuns(c jobs.RunClosing) (fresh jobs.RunClosing, write func() error, err error) {
	fresh = jobs.RunClosing{Principal: c.Principal, Reason: c.Reason}
	records := map[string][]byte{} // by place
	keep := func(kind, run, id string) (isNew bool, err error) {
		one := closing{Kind: kind, Principal: c.Principal, RunID: run, ID: id, Reason: c.Reason, ClosedAt: b.now}
		at := string(one.place())
		if records[at] != nil || b.bucket(bucketClosed).Get([]byte(at)) != nil {
			return false, nil
		}
		records[at], err = encodeRecord(one)
		return err == nil, err
	}
	for _, id := range c.RunIDs {
		isNew, err := keep(closedRun, "", id)
		if err != nil {
			return fresh, nil, err
		}
		if isNew {
			fresh.RunIDs = append(fresh.RunIDs, id)
		}
	}
	for _, call := range c.Calls {
		isNew, err := keep(closedCall, call.RunID, call.CallID)
		if err == nil {
			_, err = keep(closedCall, "", call.CallID)
		}
		if err != nil {
			return fresh, nil, err
		}
		if isNew {
			fresh.Calls = append(fresh.Calls, call)
		}
	}
	if len(records) == 0 {
		return fresh, nil, nil
	}
	data, err := json.Marshal(closingData{fresh.RunIDs, fresh.Calls})
	if err != nil {
		return fresh, nil, jobs.Errorf(jobs.CodeInternal, "the data of an entry cannot be written as JSON: %w", err)
	}
	e := jobs.Entry{Kind: jobs.EntryRun, Principal: c.Principal, Owner: c.Principal, Message: c.Reason, Data: data}
	if len(c.RunIDs) > 0 {
		e.RunID = c.RunIDs[0]
	}
	entry, err := b.seal(e)
	if err != nil {
		return fresh, nil, err
	}
	return fresh, func() error {
		for at, raw := range records {
			if err := b.bucket(bucketClosed).Put([]byte(at), raw); err != nil {
				return err
			}
		}
		return b.putEntry(entry)
	}, nil
}

// closingData is the data of an entry that tells what was closed.
type closingData struct {
	Runs  []string       `json:"run_ids,omitempty"`
	Calls []jobs.RunCall `json:"calls,omitempty"`
}

// Closed implements jobs.Store.
func (s *Store) Closed(ctx context.Context, j *jobs.Job) (why string, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		c := closings{records: tx.Bucket([]byte(bucketClosed)), own: func(run, call string) (bool, error) { return s.hasCall(tx, j, run, call) }}
		why, err = c.of(j)
		return err
	})
	return why, err
}

// closedFor says in words which of a new job's run, parent run and parent call is
// closed, or "".
func (b *batch) closedFor(j *jobs.Job) (string, error) {
	c := closings{records: b.bucket(bucketClosed), own: func(run, call string) (bool, error) {
		if b.broken = guarded(b.flush); b.broken != nil { // of what the operations before have written
			return false, b.broken
		}
		return b.s.hasCall(b.tx, j, run, call)
	}}
	return c.of(j)
}

// closings looks closed runs and calls up.
type closings struct {
	records *bbolt.Bucket
	// own reports whether the job that is asked about is of a run in which another
	// job is the call of an id. It is asked only when some call of that id is closed.
	own func(run, call string) (bool, error)
}

// of says in words what of a job is closed, or "".
func (c closings) of(j *jobs.Job) (string, error) {
	if first, _ := c.records.Cursor().First(); first == nil {
		return "", nil // as for most: nothing was ever closed
	}
	ids := &j.Call.Context
	for _, named := range [...]struct{ what, id string }{{"run", ids.RunID}, {"parent run", ids.ParentRunID}} {
		if named.id == "" {
			continue
		}
		if raw := c.records.Get(closing{Kind: closedRun, Principal: j.Principal, ID: named.id}.place()); raw != nil {
			return inWords(named.what, named.id, raw)
		}
	}
	if ids.ParentCallID == "" {
		return "", nil
	}
	raw, err := c.ofCall(j)
	if raw == nil || err != nil {
		return "", err
	}
	return inWords("parent call", ids.ParentCallID, raw)
}

// ofCall returns the record that closes the call that a job came from, or nil.
func (c closings) ofCall(j *jobs.Job) ([]byte, error) {
	ids := &j.Call.Context
	look := func(run string) []byte {
		return c.records.Get(closing{Kind: closedCall, Principal: j.Principal, RunID: run, ID: ids.ParentCallID}.place())
	}
	if ids.ParentRunID != "" {
		return look(ids.ParentRunID), nil
	}
	some := look("")
	if some == nil || ids.RunID == "" {
		return some, nil
	}
	if raw := look(ids.RunID); raw != nil {
		return raw, nil
	}
	if own, err := c.own(ids.RunID, ids.ParentCallID); own || err != nil {
		return nil, err
	}
	return some, nil
}

// inWords says what a record closes.
func inWords(what, id string, raw []byte) (string, error) {
	var record closing
	if err := decodeInto("the record of the closed "+what+" "+id, raw, &record); err != nil {
		return "", err
	}
	words := "the " + what + " " + id + " was cancelled"
	if record.Reason != "" {
		words += " (" + record.Reason + ")"
	}
	return words, nil
}

// hasCall reports whether a run has a call of an id that is not the job itself. A job
// that cannot be read is no call.
func (s *Store) hasCall(tx *bbolt.Tx, j *jobs.Job, run, call string) (bool, error) {
	const some = 16
	q := jobs.Query{Principal: j.Principal, RunID: run, ToolCall: call}
	l, records := newListing(q, s.log), tx.Bucket([]byte(bucketJobs))
	for below := ""; ; {
		ids, err := l.next(tx, below, some)
		if err != nil {
			return false, err
		}
		for _, id := range ids {
			below = id
			if id == j.ID {
				continue
			}
			if other, err := s.decode(id, records.Get([]byte(id))); err == nil && q.Matches(other) {
				return true, nil
			}
		}
		if len(ids) < some {
			return false, nil
		}
	}
}
