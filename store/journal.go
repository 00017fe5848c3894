package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// The bounds of what is read of the journal in one transaction. Entries are handed
// on outside of it, so a slow or curious reader holds nothing up.
const (
	journalChunk      = 256
	journalChunkBytes = 1 << 20
)

// Append implements jobs.Store.
func (s *Store) Append(ctx context.Context, e jobs.Entry) error {
	return s.do(ctx, func(b *batch) (func() error, error) {
		entry, err := b.seal(e)
		if err != nil {
			return nil, err
		}
		return func() error { return b.putEntry(entry) }, nil
	})
}

// Head implements jobs.Store.
func (s *Store) Head() uint64 { return s.head.Load() }

// Wait implements jobs.Store.
func (s *Store) Wait(ctx context.Context, after uint64) error {
	for {
		s.mu.Lock()
		grown, err := s.grown, s.usableLocked()
		s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case s.head.Load() > after:
			return nil
		}
		select {
		case <-grown:
		case <-s.failed:
		case <-s.closing:
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
}

// rawEntry is a stored entry, copied out of its transaction.
type rawEntry struct {
	seq uint64
	raw []byte // nil: it is missing
}

func (r rawEntry) decode() (e jobs.Entry, err error) {
	what := "entry " + strconv.FormatUint(r.seq, 10) + " of the journal"
	seq := strconv.FormatUint(r.seq, 10)
	if r.raw == nil {
		return e, damaged(what, "it is missing").With("seq", seq)
	}
	_, record, _ := splitLink(r.raw)
	if err := json.Unmarshal(record, &e); err != nil {
		return e, damaged(what, err.Error()).With("seq", seq)
	}
	if e.Seq != r.seq {
		return e, damaged(what, "it has another seq").With("seq", seq)
	}
	return e, nil
}

// chunk collects entries until it is full.
type chunk struct {
	entries []rawEntry
	bytes   int
	last    uint64 // seq of the newest
}

func (c *chunk) add(seq uint64, raw []byte) (full bool) {
	c.entries = append(c.entries, rawEntry{seq, bytes.Clone(raw)})
	c.bytes += len(raw)
	c.last = seq
	return len(c.entries) >= journalChunk || c.bytes >= journalChunkBytes
}

// show yields the entries; false when the reader has enough.
func (c *chunk) show(yield func(jobs.Entry) bool) (more bool, err error) {
	for _, r := range c.entries {
		e, err := r.decode()
		if err != nil {
			return false, err
		}
		if !yield(e) {
			return false, nil
		}
	}
	return true, nil
}

// beyondHead refuses a cursor that this journal never gave: after a restore from a
// copy a reader would otherwise wait, and miss what happens until then (G12).
func (s *Store) beyondHead(ctx context.Context, after, head uint64) error {
	oldest := head
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		first, _ := tx.Bucket([]byte(bucketJournal)).Cursor().First()
		oldest = decodeU64(first)
		return nil
	})
	if err != nil {
		return err
	}
	return jobs.Errorf(jobs.CodeCursorExpired, "the cursor %d lies beyond the newest entry %d, so it is of another store, or of this one before it was restored; begin anew", after, head).
		With("oldest", strconv.FormatUint(oldest, 10))
}

// Journal implements jobs.Store. It shows the entries up to the head at its start.
// An entry that is damaged ends it with CodeRecordDamaged and the metadata "seq";
// the reader may go on behind that.
func (s *Store) Journal(ctx context.Context, after uint64, limit int, yield func(jobs.Entry) bool) error {
	until := s.head.Load()
	if after > until {
		return s.beyondHead(ctx, after, until)
	}
	if limit > 0 && until > after {
		until = after + min(until-after, uint64(limit))
	}
	for after < until {
		var c chunk
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			cursor := tx.Bucket([]byte(bucketJournal)).Cursor()
			if first, _ := cursor.First(); first == nil || decodeU64(first) > after+1 {
				oldest := strconv.FormatUint(decodeU64(first), 10)
				return jobs.Errorf(jobs.CodeCursorExpired, "the entries behind %d are gone; the oldest is %s", after, oldest).With("oldest", oldest)
			}
			want := after + 1
			for k, raw := cursor.Seek(encodeU64(want)); want <= until; k, raw = cursor.Next() {
				if k == nil || decodeU64(k) != want {
					c.add(want, nil)
					return nil
				}
				if c.add(want, raw) {
					return nil
				}
				want++
			}
			return nil
		})
		if err != nil {
			return err
		}
		if more, err := c.show(yield); err != nil || !more {
			return err
		}
		after = c.last
	}
	return nil
}

// VerifyJournal implements jobs.Store.
func (s *Store) VerifyJournal(ctx context.Context) (good uint64, err error) {
	v := verifier{until: s.head.Load()}
	for more := true; more; {
		err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
			more, err = v.chunk(tx, journalChunk)
			return err
		})
		if err != nil {
			return v.good, err
		}
	}
	return v.good, nil
}

// verifier walks the hash chain up to an entry. It begins behind the anchor, and again
// there if entries are dropped meanwhile.
type verifier struct {
	next, until uint64
	prev        string // hash of the entry before next; "" is not known
	good        uint64
}

// chunk checks up to n entries and reports whether there are more.
func (v *verifier) chunk(tx *bbolt.Tx, n int) (more bool, err error) {
	c := tx.Bucket([]byte(bucketJournal)).Cursor()
	anchor, whole := readAnchor(tx)
	if !whole {
		return false, damaged("the anchor of the journal", "it is not a Seq and a hash")
	}
	if v.next <= anchor.seq {
		v.next, v.prev = anchor.seq+1, hex.EncodeToString(anchor.hash[:])
		if anchor.seq > 0 && anchor.hash == (chainHead{}).hash {
			v.prev = "" // the newest entry that was dropped was damaged
		}
	}
	for k, raw := c.Seek(encodeU64(v.next)); v.next <= v.until; k, raw = c.Next() {
		if n == 0 {
			return true, nil
		}
		n--
		seq := strconv.FormatUint(v.next, 10)
		if k == nil || decodeU64(k) != v.next {
			return false, damaged("entry "+seq+" of the journal", "it is missing").With("seq", seq)
		}
		hash, problem := checkEntry(raw, v.next, v.prev)
		if problem != "" {
			return false, damaged("entry "+seq+" of the journal", problem).With("seq", seq)
		}
		v.prev = hash
		v.good++
		v.next++
	}
	return false, nil
}
