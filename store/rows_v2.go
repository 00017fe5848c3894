package store

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"go.etcd.io/bbolt"
)

// Version 2 kept the values of the newest jobs in rows of bucket index behind every
// chunk; all else of them was where it belongs.

// rowsChunk is where those rows lie in bucket index. The Seq of the row's first job follows.
const rowsChunk = math.MaxUint32

func rowKey(first uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(make([]byte, 0, 12), rowsChunk), first)
}

// moveRows makes the buckets of the newest jobs and of tombstones, which in a store of
// version 2 has none: what it has of the newest jobs goes into the sets.
func moveRows(tx *bbolt.Tx, now time.Time) error {
	for _, name := range []string{bucketRecent, bucketTombstones} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	b := newBatch(tx, now)
	index := b.bucket(bucketIndex)
	var keys [][]byte
	c := index.Cursor()
	for k, raw := c.Seek(rowKey(0)); k != nil; k, raw = c.Next() {
		keys = append(keys, bytes.Clone(k))
		if len(k) != len(rowKey(0)) {
			continue
		}
		first := binary.BigEndian.Uint64(k[4:])
		if eachOfRow(first, raw, b.mark) {
			continue
		}
		for _, j := range readAnew(b.jobs, first, first+recentJobs) {
			for _, v := range j.values {
				b.mark(j.seq, v)
			}
		}
	}
	for _, k := range keys {
		if err := index.Delete(k); err != nil {
			return err
		}
	}
	return b.flush()
}

// eachOfRow calls yield with what a row of version 2 has, and returns false if that
// cannot be read: of each job how far its Seq is behind the row's, in two bytes, the
// number of its values, in one, and these.
func eachOfRow(first uint64, raw []byte, yield func(seq uint64, v value)) (whole bool) {
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
