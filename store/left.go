package store

import (
	"bytes"
	"context"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// LeftBehind implements jobs.Store.
func (s *Store) LeftBehind(ctx context.Context) (list []*jobs.Job, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		list = nil
		eachLeft(tx, func(id []byte) {
			if job, err := s.decode(string(id), tx.Bucket([]byte(bucketJobs)).Get(id)); err == nil {
				list = append(list, job)
			}
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func eachLeft(tx *bbolt.Tx, each func(id []byte)) {
	prefix := []byte(metaLeft)
	c := tx.Bucket([]byte(bucketMeta)).Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		each(k[len(prefix):])
	}
}

func (b *batch) markLeft(id string, left bool) error {
	key := []byte(metaLeft + id)
	if left {
		return b.bucket(bucketMeta).Put(key, []byte{1})
	}
	return b.bucket(bucketMeta).Delete(key)
}
