package store

import (
	"time"

	"go.etcd.io/bbolt"
)

// maxDerived bounds how many jobs derive collects before it writes what there is of them.
const maxDerived = 10_000

// derive makes what version 2 keeps beside the jobs' records, from the records. A
// damaged one has nothing beside it.
func derive(tx *bbolt.Tx, now time.Time) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	b := newBatch(tx, now)
	b.recentJobs = 0 // jobs come in the order of their ids here: each goes where it belongs
	err := b.jobs.ForEach(func(id, raw []byte) error {
		job, err := decodeJob(string(id), raw)
		if err != nil {
			return nil //nolint:nilerr // it is shown as damaged wherever it is read
		}
		stands := standingOf(job)
		stands.values = valuesOf(job)
		if err := b.putBeside(job.ID, &standing{}, &stands); err != nil {
			return err
		}
		if len(b.marks.recent) >= maxDerived {
			return b.flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := b.flush(); err != nil {
		return err
	}
	return b.touchAll()
}

// touchAll notes that every file was used until now: version 1 kept them for ever and
// noted no use, so nobody had a reason to send one again.
func (b *batch) touchAll() error {
	var digests []string
	err := b.bucket(bucketBlobs).ForEach(func(digest, _ []byte) error {
		digests = append(digests, string(digest))
		return nil
	})
	for _, digest := range digests {
		if err == nil {
			err = b.touch(digest)
		}
	}
	return err
}
