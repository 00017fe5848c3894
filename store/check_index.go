package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// indexCheck compares the index with the jobs: each job is where its record says
// it must be, and there is nothing else.
type indexCheck struct {
	*checker
	order, indexed, principals *bbolt.Bucket
	sets                       map[indexPlace]*set // the last ones used
	rows                       *bbolt.Bucket
	recent                     map[uint64]recentJob // by Seq
	members                    int                  // that jobs must have in all sets together
}

// maxSetsKept bounds the memory of an indexCheck. Jobs come in nearly the order of
// their chunks, so few sets are read twice.
const maxSetsKept = 20_000

func newIndexCheck(c *checker, tx *bbolt.Tx) *indexCheck {
	i := &indexCheck{
		checker: c, sets: map[indexPlace]*set{}, recent: map[uint64]recentJob{}, rows: tx.Bucket([]byte(bucketRecent)),
		order: tx.Bucket([]byte(bucketOrder)), indexed: tx.Bucket([]byte(bucketIndex)), principals: tx.Bucket([]byte(bucketPrincipals)),
	}
	_ = i.rows.ForEach(func(k, raw []byte) error {
		list, _ := decodeRecent(decodeU64(k), raw) // whole tells
		for _, j := range list {
			i.recent[j.seq] = j
		}
		return nil
	})
	return i
}

// job checks all that the index has of a job.
func (c *indexCheck) job(j *jobs.Job) {
	stands, values := standingOf(j), valuesOf(j)
	recent, isRecent := c.recent[j.Seq]
	at, id, ok := decodeOrder(c.order.Get(encodeU64(j.Seq)))
	switch {
	case !isRecent && (!ok || at != stands.submitted || string(id) != j.ID):
		c.problemf("job %s is not in order at its seq %d", j.ID, j.Seq)
	case isRecent && (recent.at != stands.submitted || recent.id != j.ID):
		c.problemf("job %s is not the one of its seq %d among the newest", j.ID, j.Seq)
	}
	if j.Principal != "" && !has(c.principals, []byte(j.Principal)) {
		c.problemf("job %s: its principal is not listed", j.ID)
	}
	sum, ok := decodeSummary(c.indexed.Get(summaryKey(chunkOf(j.Seq))))
	if ok && !isRecent && (stands.submitted < sum.first || stands.submitted > sum.last || j.ID < sum.lowest || j.ID > sum.highest) {
		c.problemf("job %s lies outside what its chunk %d of the index says", j.ID, chunkOf(j.Seq))
	}
	if j.State.Terminal() {
		values = append(values, valueOf(ofState, string(j.State)))
	}
	for _, v := range values {
		c.members++
		if slices.Contains(recent.values, v) {
			continue
		}
		if s := c.set(placeOf(chunkOf(j.Seq), v)); s == nil || !s.has(offsetOf(j.Seq)) {
			c.problemf("job %s is not indexed by its value %x", j.ID, v)
		}
	}
}

// set returns a set of the index; one that cannot be read is told of in whole.
func (c *indexCheck) set(key indexPlace) *set {
	s, known := c.sets[key]
	if known {
		return s
	}
	if raw := c.indexed.Get(key[:]); raw != nil {
		if decoded, err := decodeSet(raw); err == nil {
			s = decoded
		} else {
			s = all()
		}
	}
	if len(c.sets) >= maxSetsKept {
		clear(c.sets)
	}
	c.sets[key] = s
	return s
}

// whole looks for what no job explains. What damaged records would explain is not
// known, so with one of them only what cannot be read is told.
func (c *indexCheck) whole(damaged int) {
	members := 0
	_ = c.indexed.ForEach(func(k, raw []byte) error {
		n, err := entrySize(k, raw)
		if err != nil {
			c.problemf("the index is damaged at %x: %v", k, err)
		}
		members += n
		return nil
	})
	_ = c.rows.ForEach(func(k, raw []byte) error {
		list, ok := decodeRecent(decodeU64(k), raw)
		if len(k) != 8 || !ok {
			c.problemf("the row at %x of the newest jobs cannot be read", k)
		}
		for _, j := range list {
			members += len(j.values)
			c.named(j.id, j.seq)
			if c.order.Get(encodeU64(j.seq)) != nil {
				c.problemf("job %s is both in order and among the newest", j.id)
			}
		}
		return nil
	})
	if members > c.members && damaged == 0 {
		c.problemf("the index has %d entries that no job explains", members-c.members)
	}
	_ = c.order.ForEach(func(k, raw []byte) error {
		if _, id, ok := decodeOrder(raw); len(k) == 8 && ok {
			c.named(string(id), decodeU64(k))
		} else {
			c.problemf("order has the odd record %x at %x", raw, k)
		}
		return nil
	})
}

// named checks that there is a job where one is said to be.
func (c *indexCheck) named(id string, seq uint64) {
	if job, exists := c.jobs[id]; !exists || !job.damaged && job.seq != seq {
		c.problemf("order names job %q at %d, which is not there", id, seq)
	}
}

// entrySize returns how many jobs an entry of the index names.
func entrySize(key, raw []byte) (int, error) {
	if len(key) < 5 {
		return 0, errors.New("its key is too short")
	}
	switch kind := key[4]; {
	case kind == ofChunk && len(key) == 5:
		if _, ok := decodeSummary(raw); !ok {
			return 0, fmt.Errorf("chunk %d has no summary that can be read", binary.BigEndian.Uint32(key))
		}
		return 0, nil
	case kind == ofChunk || kind > ofLabel || len(key) != 4+len(value{}):
		return 0, errors.New("its key is of no attribute")
	}
	s, err := decodeSet(raw)
	if err != nil {
		return 0, err
	}
	return s.size(), nil
}
