package store

import (
	"bytes"
	"time"

	"go.etcd.io/bbolt"
)

// maxMarks bounds what derive collects before it writes it.
const maxMarks = 200_000

// derive makes what version 2 keeps beside the jobs' records, from the records. A
// damaged one has nothing beside it.
func derive(tx *bbolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	b := newBatch(tx, time.Time{})
	b.marks.summaries = map[uint32]summary{} // no id is known yet
	err := b.jobs.ForEach(func(id, raw []byte) error {
		job, err := decodeJob(string(id), raw)
		if err != nil {
			return nil //nolint:nilerr // it is shown as damaged wherever it is read
		}
		stands := standingOf(job)
		stands.values = valuesOf(job)
		if err := b.putBeside(job.ID, standing{}, stands); err != nil {
			return err
		}
		if len(b.marks.sets) > maxMarks {
			return b.flush()
		}
		return nil
	})
	if err == nil {
		err = b.flush()
	}
	if err != nil {
		return err
	}
	return b.raiseTops()
}

// raiseTops gives each chunk the highest id of it and all before it; until then it
// has that of whatever came before it in the order of ids.
func (b *batch) raiseTops() error {
	top := ""
	last, _ := b.bucket(bucketOrder).Cursor().Last()
	for chunk := range chunkOf(decodeU64(last)) + 1 {
		raw := b.bucket(bucketIndex).Get(summaryKey(chunk))
		sum, ok := decodeSummary(raw)
		if !ok {
			continue
		}
		top = max(top, sum.top)
		sum.top = top
		if fixed := sum.encode(); !bytes.Equal(fixed, raw) {
			if err := b.bucket(bucketIndex).Put(summaryKey(chunk), fixed); err != nil {
				return err
			}
		}
	}
	return nil
}
