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
		if raw := b.keys.Get(place); raw != nil {
			return nil, decodeInto("the record of a key", raw, &record)
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

// closing is the record of one closed run or call.
type closing struct {
	Kind      string    `json:"kind"`
	Principal string    `json:"principal"`
	ID        string    `json:"id"`
	Reason    string    `json:"reason,omitempty"`
	ClosedAt  time.Time `json:"closed_at"`
}

// The kinds of what can be closed; each is a namespace of places.
const (
	closedRun  = "run"
	closedCall = "call"
)

func (c closing) place() []byte { return place("closed-"+c.Kind, c.Principal, c.ID) }

// CloseRuns implements jobs.Store.
func (s *Store) CloseRuns(ctx context.Context, c jobs.RunClosing) (fresh jobs.RunClosing, err error) {
	if c.Principal == "" || slices.Contains(c.RunIDs, "") || slices.Contains(c.CallIDs, "") {
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
	keep := func(kind string, ids []string) (kept []string, err error) {
		for _, id := range ids {
			one := closing{Kind: kind, Principal: c.Principal, ID: id, Reason: c.Reason, ClosedAt: b.now}
			at := string(one.place())
			if records[at] != nil || b.bucket(bucketClosed).Get([]byte(at)) != nil {
				continue
			}
			if records[at], err = encodeRecord(one); err != nil {
				return nil, err
			}
			kept = append(kept, id)
		}
		return kept, nil
	}
	if fresh.RunIDs, err = keep(closedRun, c.RunIDs); err != nil {
		return fresh, nil, err
	}
	if fresh.CallIDs, err = keep(closedCall, c.CallIDs); err != nil || len(records) == 0 {
		return fresh, nil, err
	}
	data, err := json.Marshal(map[string][]string{"run_ids": fresh.RunIDs, "call_ids": fresh.CallIDs})
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

// Closed implements jobs.Store.
func (s *Store) Closed(ctx context.Context, j *jobs.Job) (why string, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		why, err = closedFor(tx.Bucket([]byte(bucketClosed)), j)
		return err
	})
	return why, err
}

// closedFor says in words which of a job's run, parent run and parent call is
// closed, or "".
func closedFor(records *bbolt.Bucket, j *jobs.Job) (string, error) {
	c := &j.Call.Context
	for _, named := range [...]struct{ what, kind, id string }{
		{"run", closedRun, c.RunID},
		{"parent run", closedRun, c.ParentRunID},
		{"parent call", closedCall, c.ParentCallID},
	} {
		if named.id == "" {
			continue
		}
		raw := records.Get(closing{Kind: named.kind, Principal: j.Principal, ID: named.id}.place())
		if raw == nil {
			continue
		}
		var record closing
		if err := decodeInto("the record of the closed "+named.what+" "+named.id, raw, &record); err != nil {
			return "", err
		}
		words := "the " + named.what + " " + named.id + " was cancelled"
		if record.Reason != "" {
			words += " (" + record.Reason + ")"
		}
		return words, nil
	}
	return "", nil
}
