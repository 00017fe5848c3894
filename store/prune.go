package store

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// expiredChunk is how many jobs are looked at in one transaction.
const expiredChunk = 512

// Expired implements jobs.Store. The index says how many jobs are in the state and which
// they are; only of those that may be too old is the record asked when they ended.
func (s *Store) Expired(ctx context.Context, q jobs.ExpiredQuery) (found jobs.Expiry, err error) {
	excess := -1
	for from, more := q.From, true; more; {
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			w := newExpiredWalk(tx, q)
			if excess < 0 {
				excess = max(w.count()-q.Keep, 0)
				if q.Keep == 0 {
					excess = 0
				}
			}
			from, more = w.run(from, &excess, &found)
			return nil
		})
		if err != nil {
			return jobs.Expiry{}, err
		}
		found.Next = from
	}
	return found, nil
}

// expiredWalk goes through the jobs of one state by their Seq.
type expiredWalk struct {
	q       jobs.ExpiredQuery
	state   value
	indexed *bbolt.Bucket
	order   *bbolt.Bucket
	records *bbolt.Bucket
	recent  *newestSets
	chunks  []uint32
}

func newExpiredWalk(tx *bbolt.Tx, q jobs.ExpiredQuery) *expiredWalk {
	w := &expiredWalk{
		q: q, state: valueOf(ofState, string(q.State)), recent: newNewestSets(tx, nil),
		indexed: tx.Bucket([]byte(bucketIndex)), order: tx.Bucket([]byte(bucketOrder)), records: tx.Bucket([]byte(bucketJobs)),
	}
	w.chunks = chunksOf(w.indexed, w.order, w.recent)
	return w
}

// count is how many jobs are in the state.
func (w *expiredWalk) count() (n int) {
	for _, chunk := range w.chunks {
		key := placeOf(chunk, w.state)
		if s, err := decodeSet(w.indexed.Get(key[:])); err == nil {
			n += s.size()
		}
	}
	return n
}

// run looks at some jobs and says where to go on, if there is more to look at.
func (w *expiredWalk) run(from uint64, excess *int, found *jobs.Expiry) (next uint64, more bool) {
	looked := 0
	for _, chunk := range w.chunks {
		if chunk < chunkOf(from) {
			continue
		}
		s := lookUp(w.indexed, chunk, w.state)
		if s == nil {
			continue
		}
		for _, offset := range s.offsets() {
			seq := uint64(chunk)*chunkJobs + uint64(offset)
			if seq < from {
				continue
			}
			if len(found.IDs) >= w.q.Limit {
				return seq, false
			}
			if looked++; looked > expiredChunk {
				return seq, true
			}
			at, id := w.find(seq)
			tooMany := *excess > 0
			if id == "" || w.q.Spare[id] || !tooMany && !time.UnixMilli(at).Before(w.q.Before) {
				continue
			}
			job, err := decodeJob(id, w.records.Get([]byte(id)))
			if err != nil || job.State != w.q.State {
				continue // it is damaged, or the set is
			}
			if tooMany || job.EndedAt.Add(-job.Clock.Ended).Before(w.q.Before) {
				*excess = max(*excess-1, 0)
				found.IDs = append(found.IDs, id)
			}
		}
	}
	return 0, false
}

func (w *expiredWalk) find(seq uint64) (at int64, id string) {
	if at, id, ok := decodeOrder(w.order.Get(encodeU64(seq))); ok {
		return at, string(id)
	}
	j := w.recent.jobs[seq]
	return j.at, j.id
}

// Prune implements jobs.Store.
func (s *Store) Prune(ctx context.Context, ids []string, why string) (gone []string, err error) {
	err = s.do(ctx, func(b *batch) (write func() error, err error) {
		gone, write, err = b.prune(ids, why)
		return write, err
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

func (b *batch) prune(ids []string, why string) (gone []string, write func() error, err error) {
	var list []*jobs.Job
	for _, id := range ids {
		snap, err := b.snapshot(id)
		if err != nil {
			continue // it is gone already
		}
		if job, err := snap.decoded(); err == nil && job.State.Terminal() {
			list, gone = append(list, job), append(gone, id)
		}
	}
	if len(list) == 0 {
		return nil, nil, nil
	}
	entry, err := b.seal(jobs.Entry{Kind: jobs.EntryHost, Message: fmt.Sprintf("removed the records of %d jobs %s; their keys stay used", len(list), why)})
	if err != nil {
		return nil, nil, err
	}
	return gone, func() error {
		if err := b.flush(); err != nil { // what the operations before have written
			return err
		}
		if err := b.spill(); err != nil {
			return err
		}
		for _, job := range list {
			if err := b.bury(job); err != nil {
				return err
			}
		}
		if err := b.dropSummaries(list); err != nil {
			return err
		}
		return b.putEntry(entry)
	}, nil
}

// bury removes a job's record and all that is beside it, but for its usage, and leaves
// a tombstone.
func (b *batch) bury(j *jobs.Job) error {
	place := keyPlace(jobs.Key{Principal: j.Principal, Text: j.Key})
	for _, v := range append(valuesOf(j), valueOf(ofState, string(j.State))) {
		b.unmark(j.Seq, v)
	}
	b.fresh[j.ID] = nil
	for _, err := range [...]error{
		b.bucket(bucketTombstones).Put(tombstoneKey(place), tombstoneOf(j).encode(b.s.hostID)),
		b.keys.Delete(place),
		b.jobs.Delete([]byte(j.ID)),
		b.bucket(bucketOrder).Delete(encodeU64(j.Seq)),
		b.markLeft(j.ID, false),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) unmark(seq uint64, v value) {
	if b.marks.gone == nil {
		b.marks.gone = map[indexPlace][]uint16{}
	}
	key := placeOf(chunkOf(seq), v)
	b.marks.gone[key] = append(b.marks.gone[key], offsetOf(seq))
}

// flushGone takes pruned jobs out of the sets.
func (b *batch) flushGone() error {
	index := b.bucket(bucketIndex)
	for _, key := range slices.SortedFunc(maps.Keys(b.marks.gone), func(a, b indexPlace) int { return bytes.Compare(a[:], b[:]) }) {
		s, err := decodeSet(index.Get(key[:]))
		if err != nil {
			continue // it is not there, or stays as it is
		}
		for _, offset := range b.marks.gone[key] {
			s[offset/64] &^= 1 << (offset % 64)
		}
		if s.size() == 0 {
			err = index.Delete(key[:])
		} else {
			err = index.Put(key[:], s.encode())
		}
		if err != nil {
			return err
		}
	}
	clear(b.marks.gone)
	return nil
}

// dropSummaries removes those of chunks that have no jobs any more and get none.
func (b *batch) dropSummaries(pruned []*jobs.Job) error {
	chunks := map[uint32]bool{}
	for _, j := range pruned {
		chunks[chunkOf(j.Seq)] = true
	}
	if err := b.flush(); err != nil {
		return err
	}
	for chunk := range chunks {
		if chunk >= chunkOf(b.jobSeq+1) || anyIn(b.bucket(bucketOrder).Cursor(), chunk) {
			continue
		}
		if err := b.bucket(bucketIndex).Delete(summaryKey(chunk)); err != nil {
			return err
		}
	}
	return nil
}
