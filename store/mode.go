package store

import (
	"context"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// SetMode implements jobs.Store. A mode that cannot be read is replaced as well: the
// host could not be opened otherwise.
func (s *Store) SetMode(ctx context.Context, m jobs.HostMode) error {
	if !slices.Contains(jobs.Modes(), m.Mode) {
		return jobs.Errorf(jobs.CodeRequestInvalid, "a host's mode is one of %v, not %q", jobs.Modes(), m.Mode)
	}
	return s.do(ctx, func(b *batch) (func() error, error) {
		kept := m
		if kept.Since.IsZero() {
			kept.Since = b.now
		}
		raw, err := encodeRecord(kept)
		if err != nil {
			return nil, err
		}
		message := "the host is " + string(m.Mode)
		if m.Reason != "" {
			message += ": " + m.Reason
		}
		return b.putWithEntry(b.tx.Bucket([]byte(bucketMeta)), metaHostMode, raw, jobs.Entry{
			Kind: jobs.EntryHost, Principal: m.By, Message: message, Data: withoutSum(raw),
		})
	})
}

// Mode implements jobs.Store.
func (s *Store) Mode(ctx context.Context) (m jobs.HostMode, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(metaHostMode))
		if raw == nil {
			return nil
		}
		m, err = decodeMode(raw)
		return err
	})
	if err != nil {
		return jobs.HostMode{}, err
	}
	return m, nil
}

func decodeMode(raw []byte) (m jobs.HostMode, err error) {
	if err := decodeInto("the host's mode", raw, &m); err != nil {
		return m, err
	}
	if !slices.Contains(jobs.Modes(), m.Mode) {
		return m, damaged("the host's mode", "it says "+string(m.Mode))
	}
	return m, nil
}
