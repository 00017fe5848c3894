package store

import (
	"time"

	"go.etcd.io/bbolt"
)

// derive makes what version 2 keeps beside the jobs' records, from the records. A
// damaged one has nothing beside it.
func derive(tx *bbolt.Tx) error {
	for _, name := range []string{bucketPins, bucketClosed, bucketUsage} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	b := newBatch(tx, time.Time{})
	return b.jobs.ForEach(func(id, raw []byte) error {
		job, err := decodeJob(string(id), raw)
		if err != nil {
			return nil //nolint:nilerr // it is shown as damaged wherever it is read
		}
		stands := standingOf(job)
		if err := b.pin(job.ID, nil, stands.uploads); err != nil {
			return err
		}
		if stands.state.Terminal() {
			return b.addUsage(stands)
		}
		return b.open.Put(id, []byte(stands.state))
	})
}
