package store

import (
	"encoding/binary"
	"math"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// The values of the newest jobs are not in the sets yet: most of them, like the ids of
// calls, are of one job only, and each would touch a page of its own in every commit.
// Each batch writes those of its jobs as one row; the batch after which the rows would
// be of more than recentJobs adds them all to the sets instead. Whoever looks a value up
// looks into the rows as well.
const recentJobs = 512

// recentChunk is where the keys of the rows lie in bucket index: behind every chunk. The
// Seq of the row's first job follows.
const recentChunk = math.MaxUint32

const recentKeySize = 4 + 8

func recentKey(first uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(make([]byte, 0, recentKeySize), recentChunk), first)
}

// firstOf is the inverse of recentKey.
func firstOf(key []byte) (first uint64, ok bool) {
	if len(key) != recentKeySize || binary.BigEndian.Uint32(key) != recentChunk {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[4:]), true
}

// recentJob is a job whose values are in no set yet.
type recentJob struct {
	seq    uint64
	values []value
}

// encodeRecent writes a row: of each job how far its Seq is behind the row's, in two
// bytes, the number of its values, in one, and these. No job has more.
func encodeRecent(first uint64, list []recentJob) []byte {
	out := make([]byte, 0, len(list)*(3+8*len(value{})))
	for _, j := range list {
		out = binary.BigEndian.AppendUint16(out, uint16(j.seq-first))
		out = append(out, byte(len(j.values)))
		for _, v := range j.values {
			out = append(out, v[:]...)
		}
	}
	return out
}

// eachRecent calls yield with what a row has, and returns false if that cannot be read.
func eachRecent(first uint64, raw []byte, yield func(seq uint64, v value)) (whole bool) {
	for more := true; more; more = len(raw) > 0 { // no row is empty
		if len(raw) < 3 {
			return false
		}
		behind, n := binary.BigEndian.Uint16(raw), int(raw[2])*len(value{})
		if raw = raw[3:]; behind >= recentJobs || len(raw) < n {
			return false
		}
		for ; n > 0; n -= len(value{}) {
			v := value(raw)
			if v[0] <= ofState || v[0] > ofLabel {
				return false
			}
			yield(first+uint64(behind), v)
			raw = raw[len(value{}):]
		}
	}
	return true
}

// eachRow calls yield with the rows, oldest first.
func eachRow(index *bbolt.Bucket, yield func(first uint64, raw []byte)) {
	c := index.Cursor()
	for k, raw := c.Seek(recentKey(0)); k != nil; k, raw = c.Next() {
		if first, ok := firstOf(k); ok {
			yield(first, raw)
		}
	}
}

// recentSets returns which of the newest jobs have some values. A row that cannot be read
// counts as if all jobs had them that it can be of.
func recentSets(index *bbolt.Bucket, wanted []value) map[indexPlace]*set {
	sets := map[indexPlace]*set{}
	add := func(seq uint64, v value) {
		key := placeOf(chunkOf(seq), v)
		if sets[key] == nil {
			sets[key] = new(set)
		}
		sets[key].add(offsetOf(seq))
	}
	eachRow(index, func(first uint64, raw []byte) {
		whole := eachRecent(first, raw, func(seq uint64, v value) {
			if slices.Contains(wanted, v) {
				add(seq, v)
			}
		})
		if whole {
			return
		}
		for seq := first; seq < first+recentJobs; seq++ {
			for _, v := range wanted {
				add(seq, v)
			}
		}
	})
	return sets
}

// addRecent keeps the values of the batch's new jobs: in a row while there are few such
// jobs, else in the sets, with those of all rows.
func (b *batch) addRecent() error {
	list := b.marks.recent
	if len(list) == 0 {
		return nil
	}
	b.marks.recent = nil
	index := b.bucket(bucketIndex)
	first, last := list[0].seq, list[0].seq
	for _, j := range list {
		first, last = min(first, j.seq), max(last, j.seq)
	}
	oldest := first
	if k, _ := index.Cursor().Seek(recentKey(0)); k != nil {
		if row, ok := firstOf(k); ok {
			oldest = min(oldest, row)
		}
	}
	if last-oldest < b.recentJobs && // else they are more, or not one after the other
		!slices.ContainsFunc(list, func(j recentJob) bool { return len(j.values) > math.MaxUint8 }) {
		return index.Put(recentKey(first), encodeRecent(first, list))
	}
	for _, j := range list {
		for _, v := range j.values {
			b.mark(j.seq, v)
		}
	}
	var rows []uint64
	eachRow(index, func(first uint64, raw []byte) {
		rows = append(rows, first)
		if !eachRecent(first, raw, b.mark) {
			b.markAnew(first)
		}
	})
	for _, first := range rows {
		if err := index.Delete(recentKey(first)); err != nil {
			return err
		}
	}
	return nil
}

// markAnew takes the values of the jobs that a row can be of from their records.
func (b *batch) markAnew(first uint64) {
	order := b.bucket(bucketOrder)
	for seq := first; seq < first+recentJobs; seq++ {
		_, id, ok := decodeOrder(order.Get(encodeU64(seq)))
		if !ok {
			continue
		}
		var job *jobs.Job
		if raw := b.jobs.Get(id); raw != nil {
			job, _ = decodeJob(string(id), raw) // a damaged one is found by no value
		}
		if job == nil || job.Seq != seq {
			continue
		}
		for _, v := range valuesOf(job) {
			b.mark(seq, v)
		}
	}
}
