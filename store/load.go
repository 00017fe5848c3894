package store

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/macexec/macexec/jobs"
)

// loadBatch is how many jobs Load writes in one transaction.
const loadBatch = 8192

// fillRandom is how full pages get in the end when keys come in any order.
const fillRandom = 0.69

// Load puts jobs that have ended into a store that no process has open, each with its
// key and one entry in the journal. It is for making large stores to measure: nothing
// is durable before it returns, and when it fails the store is of no use any more.
func Load(ctx context.Context, path string, list iter.Seq[*jobs.Job]) (err error) {
	s, err := Open(ctx, Options{Path: path})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	s.db.NoSync = true
	l := loader{s: s}
	defer l.giveUp() // a store with an open transaction cannot be closed
	for j := range list {
		if err := errors.Join(ctx.Err(), l.add(j)); err != nil {
			return err
		}
	}
	if err := errors.Join(l.commit(), l.addKeys()); err != nil {
		return err
	}
	return s.db.Sync()
}

// loader writes in the place of the writer, which has nothing to do meanwhile.
type loader struct {
	s    *Store
	b    *batch
	n    int // jobs in the batch
	keys []loadedKey
}

// loadedKey waits until all keys are known: they lie anywhere, and are written
// quickly only in their order.
type loadedKey struct{ place, record []byte }

func (l *loader) add(j *jobs.Job) error {
	p, err := l.s.prepare(jobs.Submission{Key: jobs.Key{Principal: j.Principal, Text: j.Key}, Fingerprint: j.Fingerprint, Job: j})
	if err != nil {
		return err
	}
	if l.b == nil {
		if l.b, err = l.s.begin(); err != nil {
			return err
		}
	}
	b := l.b
	b.jobSeq++
	p.stands.seq = b.jobSeq
	e := jobs.Entry{Kind: jobs.EntrySubmitted, Principal: j.Principal, Owner: j.Principal}
	describe(&e, j)
	e.Revision = 1
	entry, err := b.seal(e)
	if err != nil {
		return err
	}
	snap := &snapshot{id: j.ID, raw: withSeq(p.raw, b.jobSeq, entry.seq)}
	if err := b.putJob(snap, 0, &standing{}, &p.stands, entry); err != nil {
		return err
	}
	l.keys = append(l.keys, loadedKey{p.place, p.key})
	if l.n++; l.n < loadBatch {
		return nil
	}
	return l.commit()
}

func (l *loader) commit() error {
	if l.b == nil {
		return nil
	}
	b := l.b
	if err := b.finish(); err != nil {
		return err
	}
	if err := b.tx.Commit(); err != nil {
		return err
	}
	l.b, l.n = nil, 0
	l.s.jobSeq, l.s.chain = b.jobSeq, b.chain
	return nil
}

// giveUp drops what is not committed.
func (l *loader) giveUp() {
	if l.b != nil {
		_ = l.b.tx.Rollback()
	}
}

func (l *loader) addKeys() error {
	slices.SortFunc(l.keys, func(a, b loadedKey) int { return bytes.Compare(a.place, b.place) })
	for some := range slices.Chunk(l.keys, 8*loadBatch) {
		var err error
		if l.b, err = l.s.begin(); err != nil {
			return err
		}
		l.b.keys.FillPercent = fillRandom
		for _, key := range some {
			if err := l.b.keys.Put(key.place, key.record); err != nil {
				return err
			}
		}
		if err := l.commit(); err != nil {
			return err
		}
	}
	return nil
}
