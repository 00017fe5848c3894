package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// A tombstone is kept for ever, for every key whose job was pruned, so it is as small as
// it may be. It lies under a part of the key's place, and is one byte that says how it is
// written, the digest of the fingerprint, and the id of the job: the 16 bytes of its ULID
// if the rest of the id is this host, else the text. With what bbolt needs beside it, and
// pages that are two thirds full since the places come in any order, one takes some 90
// bytes of the file.
const (
	tombstoneText    byte = 1      // the id is text
	tombstoneULID    byte = 2      // the id is a ULID of this host
	tombstoneSecrets byte = 1 << 7 // and the call had secret arguments
)

// tombstoneKeySize is how much of a place tells keys apart: nobody can make two keys
// that share it.
const tombstoneKeySize = 16

func tombstoneKey(place []byte) []byte { return place[1 : 1+tombstoneKeySize] }

// tombstone is one as it is stored.
type tombstone struct {
	digest  [12]byte // of the fingerprint
	secrets bool
	jobID   string
}

func tombstoneOf(j *jobs.Job) tombstone {
	sum := sha256.Sum256([]byte(j.Fingerprint))
	return tombstone{digest: [12]byte(sum[:12]), secrets: len(j.Sealed) > 0, jobID: j.ID}
}

// fingerprint is what the record of the key has.
func (t tombstone) fingerprint() string {
	if t.secrets {
		return jobs.AnyFingerprint
	}
	return "short:" + hex.EncodeToString(t.digest[:])
}

func (t tombstone) encode(hostID string) []byte {
	var flags byte
	if t.secrets {
		flags = tombstoneSecrets
	}
	out := append([]byte{flags}, t.digest[:]...)
	if text, ok := strings.CutSuffix(t.jobID, "-"+hostID); ok {
		if id, err := ulid.ParseStrict(text); err == nil && strings.ToLower(id.String()) == text {
			out[0] |= tombstoneULID
			return append(out, id[:]...)
		}
	}
	out[0] |= tombstoneText
	return append(out, t.jobID...)
}

func decodeTombstone(raw []byte, hostID string) (t tombstone, ok bool) {
	head := 1 + len(t.digest)
	if len(raw) <= head {
		return t, false
	}
	t.secrets = raw[0]&tombstoneSecrets != 0
	copy(t.digest[:], raw[1:])
	id := raw[head:]
	switch raw[0] &^ tombstoneSecrets {
	case tombstoneText:
		t.jobID = string(id)
		return t, bytes.Equal(t.encode(hostID), raw)
	case tombstoneULID:
		if len(id) != len(ulid.ULID{}) {
			return t, false
		}
		t.jobID = strings.ToLower(ulid.ULID(id).String()) + "-" + hostID
		return t, true
	}
	return t, false
}

// acceptedAt is when the job was accepted, as its id says; zero if it does not.
func (t tombstone) acceptedAt() time.Time {
	text, _, _ := strings.Cut(t.jobID, "-")
	id, err := ulid.ParseStrict(text)
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(id.Time()).UTC()
}

// keyRecord returns what is known of a key, nil if it is free. With care it also finds what
// damage has hidden.
func (s *Store) keyRecord(tx *bbolt.Tx, key jobs.Key, place []byte, care bool) (*jobs.KeyRecord, error) {
	raw := tx.Bucket([]byte(bucketKeys)).Get(place)
	if raw == nil && care {
		start, err := encodeJSON(struct {
			Key jobs.Key `json:"key"` // as in jobs.KeyRecord, where more follows
		}{key})
		if err != nil {
			return nil, err
		}
		start = bytes.TrimSuffix(start, []byte("}"))
		if raw, err = s.hidden(tx, bucketKeys, place, func(value []byte) bool { return bytes.HasPrefix(value, start) }); err != nil {
			return nil, err
		}
	}
	if raw != nil {
		record, err := s.keys.decode(place, raw)
		if err != nil {
			return nil, err
		}
		return &record, nil
	}
	raw = tx.Bucket([]byte(bucketTombstones)).Get(tombstoneKey(place))
	if raw == nil && care {
		var err error
		if raw, err = s.hidden(tx, bucketTombstones, tombstoneKey(place), func([]byte) bool { return false }); err != nil {
			return nil, err
		}
	}
	if raw == nil {
		return nil, nil //nolint:nilnil // it is free
	}
	t, ok := decodeTombstone(raw, s.hostID)
	if !ok {
		return nil, damaged("the tombstone of a key", "it is not one")
	}
	return &jobs.KeyRecord{Key: key, Kind: jobs.KeyTombstone, Fingerprint: t.fingerprint(), JobID: t.jobID, CreatedAt: t.acceptedAt()}, nil
}
