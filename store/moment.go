package store

import (
	"context"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// FirstMoment implements jobs.Store. One that cannot be read is replaced: it only spares
// what is waited for from a clock that was set.
func (s *Store) FirstMoment(ctx context.Context, now jobs.Moment) (kept jobs.Moment, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		kept = readMoment(tx)
		return nil
	})
	if err != nil || kept.BootSession == now.BootSession {
		return kept, err
	}
	raw, err := encodeRecord(now)
	if err != nil {
		return now, err
	}
	return now, s.do(ctx, func(b *batch) (func() error, error) {
		return func() error { return b.bucket(bucketMeta).Put([]byte(metaFirstMoment), raw) }, nil
	})
}

func readMoment(tx *bbolt.Tx) (m jobs.Moment) {
	if raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(metaFirstMoment)); raw != nil && decodeInto("the first moment", raw, &m) == nil {
		return m
	}
	return jobs.Moment{}
}
