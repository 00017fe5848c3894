package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// segmentEntries is how many entries are dropped from the journal at once: from one
// multiple of it to the next.
const segmentEntries = 1024

// readAnchor returns the Seq and the hash of the newest entry that was dropped. A hash
// of zeros is not known, but for Seq 0.
func readAnchor(tx *bbolt.Tx) (anchor chainHead, ok bool) {
	raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(metaJournalAnchor))
	if raw == nil {
		return chainHead{}, true
	}
	return decodeChainHead(raw)
}

// DropJournal implements jobs.Store.
func (s *Store) DropJournal(ctx context.Context, before time.Time, keep int) (dropped int, err error) {
	err = s.do(ctx, func(b *batch) (write func() error, err error) {
		dropped, write, err = b.dropSegment(before, keep)
		return write, err
	})
	if err != nil {
		return 0, err
	}
	return dropped, nil
}

func (b *batch) dropSegment(before time.Time, keep int) (n int, write func() error, err error) {
	anchor, ok := readAnchor(b.tx)
	if !ok {
		return 0, nil, damaged("the anchor of the journal", "it is not a Seq and a hash")
	}
	last, ok := droppable(b.journal, anchor.seq, b.chain.seq, before, keep)
	if !ok {
		return 0, nil, nil
	}
	next := chainHead{seq: last}
	if hash, problem := checkEntry(b.journal.Get(encodeU64(last)), last, ""); problem == "" {
		_, _ = hex.Decode(next.hash[:], []byte(hash)) // it was just made of such bytes
	} else {
		b.s.log.Error("the entry at the end of a segment of the journal that is dropped is damaged", "seq", last, "error", problem)
	}
	n = int(last - anchor.seq)
	data, err := json.Marshal(map[string]any{"anchor_seq": last, "anchor_hash": hex.EncodeToString(next.hash[:])})
	if err != nil {
		return 0, nil, jobs.Errorf(jobs.CodeInternal, "the data of an entry cannot be written as JSON: %w", err)
	}
	entry, err := b.seal(jobs.Entry{Kind: jobs.EntryHost, Message: fmt.Sprintf("dropped the journal up to entry %d", last), Data: data})
	if err != nil {
		return 0, nil, err
	}
	return n, func() error {
		if err := b.dropEntries(last); err != nil {
			return err
		}
		if err := b.bucket(bucketMeta).Put([]byte(metaJournalAnchor), next.encode()); err != nil {
			return err
		}
		return b.putEntry(entry)
	}, nil
}

// droppable returns the end of the segment behind the anchor, and whether it may go.
func droppable(journal *bbolt.Bucket, anchor, head uint64, before time.Time, keep int) (last uint64, ok bool) {
	last = (anchor/segmentEntries + 1) * segmentEntries
	if last >= head { // the newest entry always stays
		return last, false
	}
	return last, keep > 0 && head-last >= uint64(keep) || endsBefore(journal, anchor, last, before)
}

// endsBefore reports whether all entries of a segment that can be read are of before a
// time. The newest one alone may have been written while the clock was set back.
func endsBefore(journal *bbolt.Bucket, anchor, last uint64, before time.Time) bool {
	readable := false
	for seq := last; seq > anchor; seq-- {
		e, err := rawEntry{seq, journal.Get(encodeU64(seq))}.decode()
		if err != nil {
			continue
		}
		if readable = true; !e.At.Before(before) {
			return false
		}
	}
	return readable
}

// JournalToDrop implements jobs.Store.
func (s *Store) JournalToDrop(ctx context.Context, before time.Time, keep int) (n int, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		anchor, ok := readAnchor(tx)
		if !ok {
			return damaged("the anchor of the journal", "it is not a Seq and a hash")
		}
		journal := tx.Bucket([]byte(bucketJournal))
		newest, _ := journal.Cursor().Last()
		at, head := anchor.seq, decodeU64(newest)
		for {
			last, ok := droppable(journal, at, head, before, keep)
			if !ok {
				n = int(at - anchor.seq)
				return nil
			}
			at = last
		}
	})
	return n, err
}

// dropEntries removes the entries up to one, and what bucket job_journal has of them.
func (b *batch) dropEntries(last uint64) error {
	var rows, keys [][]byte
	c := b.journal.Cursor()
	for k, raw := c.First(); k != nil && decodeU64(k) <= last; k, raw = c.Next() {
		keys = append(keys, bytes.Clone(k))
		if _, record, linked := splitLink(raw); !linked {
			var e jobs.Entry
			if json.Unmarshal(record, &e) == nil && e.JobID != "" {
				rows = append(rows, jobJournalKey(e.JobID, e.Seq))
			}
		}
	}
	for _, k := range keys {
		if err := b.journal.Delete(k); err != nil {
			return err
		}
	}
	for _, k := range rows {
		if err := b.bucket(bucketJobJournal).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Describe implements jobs.Store. Each bucket is read in a transaction of its own.
func (s *Store) Describe(ctx context.Context) (d jobs.StoreDescription, err error) {
	d.Size, d.Free = s.Size()
	if d.Jobs, err = s.Counts(ctx); err != nil {
		return d, err
	}
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		for _, state := range jobs.States() {
			if state.Terminal() {
				d.Jobs[state] = newExpiredWalk(tx, jobs.ExpiredQuery{State: state}).count()
			}
		}
		oldest, _ := tx.Bucket([]byte(bucketJournal)).Cursor().First()
		d.Oldest = decodeU64(oldest)
		return nil
	})
	for _, name := range buckets() {
		if err != nil {
			break
		}
		err = s.view(ctx, func(tx *bbolt.Tx) error {
			st := tx.Bucket([]byte(name)).Stats()
			if name == bucketTombstones {
				d.Tombstones = int64(st.KeyN)
			}
			pages := st.BranchPageN + st.BranchOverflowN + st.LeafPageN + st.LeafOverflowN
			d.Buckets = append(d.Buckets, jobs.BucketDescription{Name: name, Rows: int64(st.KeyN), Bytes: int64(pages) * int64(tx.DB().Info().PageSize)})
			return nil
		})
	}
	return d, err
}
