package store

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// The newest jobs are not in order yet, nor are their values in the sets: most values,
// like the ids of calls, are of one job only, and each would touch a page of its own in
// every commit. Each batch writes what is kept of its jobs as one row; the batch after
// which the rows would be of more than recentJobs puts them all where they belong
// instead. Whoever looks something up looks into the rows as well.
const recentJobs = 512

// recentJob is what a row has of one job.
type recentJob struct {
	seq    uint64
	at     int64 // when it was accepted, in milliseconds since 1970
	id     string
	values []value
}

// fits reports whether a row can have the job.
func (j *recentJob) fits() bool {
	return len(j.id) > 0 && len(j.id) <= math.MaxUint8 && len(j.values) <= math.MaxUint8
}

// recentHead is what a row has of a job beside its id and values.
const recentHead = 2 + 8 + 1 + 1

// encodeRecent writes a row: of each job how far its Seq is behind the row's, in two
// bytes, when it was accepted, its id and its values, with the number of either in one
// byte before it.
func encodeRecent(first uint64, list []recentJob) []byte {
	size := 0
	for _, j := range list {
		size += recentHead + len(j.id) + len(j.values)*len(value{})
	}
	out := make([]byte, 0, size)
	for _, j := range list {
		out = binary.BigEndian.AppendUint16(out, uint16(j.seq-first))
		out = binary.BigEndian.AppendUint64(out, uint64(j.at))
		out = append(append(out, byte(len(j.id))), j.id...)
		out = append(out, byte(len(j.values)))
		for _, v := range j.values {
			out = append(out, v[:]...)
		}
	}
	return out
}

// decodeRecent returns the jobs of a row, or false if it cannot be read.
func decodeRecent(first uint64, raw []byte) (list []recentJob, ok bool) {
	for more := true; more; more = len(raw) > 0 { // no row is empty
		if len(raw) < recentHead {
			return nil, false
		}
		behind := binary.BigEndian.Uint16(raw)
		j := recentJob{seq: first + uint64(behind), at: int64(binary.BigEndian.Uint64(raw[2:]))}
		size := int(raw[10])
		if raw = raw[11:]; behind >= recentJobs || size == 0 || len(raw) <= size {
			return nil, false
		}
		j.id = string(raw[:size])
		n := int(raw[size])
		if raw = raw[size+1:]; len(raw) < n*len(value{}) {
			return nil, false
		}
		for ; n > 0; n-- {
			v := value(raw)
			if v[0] <= ofState || v[0] > ofLabel {
				return nil, false
			}
			j.values = append(j.values, v)
			raw = raw[len(value{}):]
		}
		list = append(list, j)
	}
	return list, true
}

// newestJobs returns what the rows have. The jobs of a row that cannot be read are taken
// from their records.
func newestJobs(tx *bbolt.Tx) (list []recentJob) {
	rows := tx.Bucket([]byte(bucketRecent)).Cursor()
	k, raw := rows.First()
	for k != nil {
		first := decodeU64(k)
		some, ok := decodeRecent(first, raw)
		k, raw = rows.Next()
		if !ok {
			behind := decodeU64(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaJobSeq))) + 1
			if k != nil {
				behind = decodeU64(k)
			}
			some = readAnew(tx.Bucket([]byte(bucketJobs)), first, min(behind, first+recentJobs))
		}
		list = append(list, some...)
	}
	return list
}

// readAnew takes from the records what is kept of the jobs from one Seq to before
// another, newest id first. A damaged one has nothing kept of it.
func readAnew(records *bbolt.Bucket, from, behind uint64) (list []recentJob) {
	c := records.Cursor()
	for k, raw := c.Last(); k != nil && from < behind && uint64(len(list)) < behind-from; k, raw = c.Prev() {
		if seq := seqOf(raw); seq < from || seq >= behind {
			continue
		}
		if job, err := decodeJob(string(k), raw); err == nil {
			list = append(list, recentOf(job))
		}
	}
	return list
}

func recentOf(j *jobs.Job) recentJob {
	return recentJob{seq: j.Seq, at: j.SubmittedAt.UnixMilli(), id: j.ID, values: valuesOf(j)}
}

// seqOf finds the Seq in a job's record without decoding it; 0: it is not there.
func seqOf(raw []byte) uint64 {
	_, rest, _ := bytes.Cut(raw, []byte(`,"seq":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	seq, _ := strconv.ParseUint(string(digits), 10, 64) // 0 for what is no number
	return seq
}

// newestSets is the newest jobs as a list looks at them.
type newestSets struct {
	jobs   map[uint64]recentJob // by Seq
	sets   map[indexPlace]*set  // which of them have the wanted values
	bounds map[uint32]summary   // of those of a chunk
}

func newNewestSets(tx *bbolt.Tx, wanted []value) *newestSets {
	n := &newestSets{jobs: map[uint64]recentJob{}, sets: map[indexPlace]*set{}, bounds: map[uint32]summary{}}
	for _, j := range newestJobs(tx) {
		n.jobs[j.seq] = j
		chunk := chunkOf(j.seq)
		n.bounds[chunk] = n.bounds[chunk].with(j.at, j.id)
		for _, v := range j.values {
			if !slices.Contains(wanted, v) {
				continue
			}
			key := placeOf(chunk, v)
			if n.sets[key] == nil {
				n.sets[key] = new(set)
			}
			n.sets[key].add(offsetOf(j.seq))
		}
	}
	return n
}

// addRecent keeps what there is of the batch's new jobs: in a row while there are few
// such jobs, else where it belongs, with all that is in rows.
func (b *batch) addRecent() error {
	list := b.marks.recent
	if len(list) == 0 {
		return nil
	}
	b.marks.recent = nil
	rows := b.bucket(bucketRecent)
	first, last, fit := list[0].seq, list[0].seq, true
	for i := range list {
		first, last = min(first, list[i].seq), max(last, list[i].seq)
		fit = fit && list[i].fits()
	}
	oldest := first
	if k, _ := rows.Cursor().First(); k != nil {
		oldest = min(oldest, decodeU64(k))
	}
	if fit && last-oldest < b.recentJobs { // else they are more, or not one after the other
		return rows.Put(encodeU64(first), encodeRecent(first, list))
	}
	if err := b.spill(); err != nil {
		return err
	}
	return b.place(list)
}

// spill puts what is in rows where it belongs.
func (b *batch) spill() error {
	rows := b.bucket(bucketRecent)
	if err := b.place(newestJobs(b.tx)); err != nil {
		return err
	}
	var keys [][]byte
	_ = rows.ForEach(func(k, _ []byte) error { keys = append(keys, bytes.Clone(k)); return nil }) // it returns none of its own
	for _, k := range keys {
		if err := rows.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// place puts what there is of jobs into bucket order, the sets and the summaries.
func (b *batch) place(list []recentJob) error {
	order, index := b.bucket(bucketOrder), b.bucket(bucketIndex)
	order.FillPercent = fillAppended
	for _, j := range list {
		if err := order.Put(encodeU64(j.seq), encodeOrder(j.at, j.id)); err != nil {
			return err
		}
		for _, v := range j.values {
			b.mark(j.seq, v)
		}
		chunk := chunkOf(j.seq)
		sum, known := b.marks.summaries[chunk]
		if !known {
			if raw := index.Get(summaryKey(chunk)); raw != nil {
				if sum, known = decodeSummary(raw); !known {
					continue // it stays as it is, and passes nothing over
				}
			}
		}
		if b.marks.summaries == nil {
			b.marks.summaries = map[uint32]summary{}
		}
		b.marks.summaries[chunk] = sum.with(j.at, j.id)
	}
	return nil
}
