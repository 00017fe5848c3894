package store

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/macexec/macexec/jobs"
)

// The buckets; doc.go draws them.
const (
	bucketMeta       = "meta"
	bucketJobs       = "jobs"
	bucketKeys       = "keys"
	bucketOpen       = "open"
	bucketJournal    = "journal"
	bucketJobJournal = "job_journal"
	bucketBlobs      = "blobs"
	bucketProjects   = "projects"
	bucketManifests  = "manifests"
	bucketPins       = "pins"
	bucketClosed     = "closed"
	bucketUsage      = "usage"
	bucketOrder      = "order"
	bucketIndex      = "index"
	bucketRecent     = "recent"
	bucketTombstones = "tombstones"
	bucketPrincipals = "principals"
)

// buckets lists every bucket.
func buckets() []string {
	return []string{
		bucketMeta, bucketJobs, bucketKeys, bucketOpen,
		bucketJournal, bucketJobJournal, bucketBlobs, bucketProjects, bucketManifests,
		bucketPins, bucketClosed, bucketUsage, bucketOrder, bucketIndex, bucketRecent, bucketPrincipals, bucketTombstones,
	}
}

// firstBuckets lists those that a store of every version has.
func firstBuckets() []string {
	return []string{bucketMeta, bucketJobs, bucketKeys, bucketOpen, bucketJournal, bucketJobJournal, bucketBlobs, bucketProjects, bucketManifests}
}

// The keys of bucket meta.
const (
	metaSchemaVersion = "schema_version"
	metaHostID        = "host_id"
	metaCreatedAt     = "created_at"
	metaJobSeq        = "job_seq"
	metaJournalHead   = "journal_head"
	metaJournalAnchor = "journal_anchor"
	metaHostMode      = "host_mode"
	metaRestored      = "restored"
	metaFirstMoment   = "first_moment"
	// metaLeft and its id is there for each ended job of which processes may still live.
	metaLeft = "left/"
)

const (
	// placeVersion is the first byte of every place; another way of making places
	// gets another byte.
	placeVersion = 1
	keyNamespace = "idempotency-key"
)

// keyPlace says where a key's record lies.
func keyPlace(key jobs.Key) []byte { return place(keyNamespace, key.Principal, key.Text) }

// place says where a record lies whose name is made of a caller's texts.
func place(namespace string, texts ...string) []byte {
	text := make([]byte, 0, 256)
	text = appendSized(text, namespace)
	for _, t := range texts {
		text = appendSized(text, t)
	}
	sum := sha256.Sum256(text)
	return append([]byte{placeVersion}, sum[:]...)
}

func appendSized(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(text))), text...)
}

func encodeU64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeU64 returns 0 for anything that is not eight bytes.
func decodeU64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func jobJournalKey(jobID string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(jobJournalPrefix(jobID), seq)
}

func jobJournalPrefix(jobID string) []byte {
	key := make([]byte, 0, len(jobID)+9)
	return append(append(key, jobID...), 0)
}

// A link is the Seq of an entry, before the JSON of a record. The record of a job has
// that of the newest entry that told of a change of it; such an entry has that of the one
// before, 0 if it was the first. Its first byte is 0, so it is told from a record without,
// which begins with a brace: version 2 linked nothing.
const linkSize = 8

func withLink(seq uint64, record []byte) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, linkSize+len(record)), seq), record...)
}

func splitLink(raw []byte) (seq uint64, record []byte, ok bool) {
	if len(raw) < linkSize || raw[0] != 0 {
		return 0, raw, false
	}
	return binary.BigEndian.Uint64(raw), raw[linkSize:], true
}

// splitJobJournalKey is the inverse of jobJournalKey.
func splitJobJournalKey(key []byte) (jobID string, seq uint64, ok bool) {
	i := len(key) - 9
	if i < 1 || key[i] != 0 || bytes.IndexByte(key[:i], 0) >= 0 {
		return "", 0, false
	}
	return string(key[:i]), binary.BigEndian.Uint64(key[i+1:]), true
}

// chainHead is the newest link of the journal's hash chain.
type chainHead struct {
	seq  uint64
	hash [sha256.Size]byte // zero before the first entry
}

func (h chainHead) encode() []byte { return append(encodeU64(h.seq), h.hash[:]...) }

func decodeChainHead(b []byte) (h chainHead, ok bool) {
	if len(b) != 8+sha256.Size {
		return h, false
	}
	h.seq = binary.BigEndian.Uint64(b)
	copy(h.hash[:], b[8:])
	return h, true
}

const (
	hostIDLength   = 8
	hostIDAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
)

func newHostID() string {
	var id [hostIDLength]byte
	_, _ = rand.Read(id[:]) // never fails; see crypto/rand
	for i, b := range id {
		id[i] = hostIDAlphabet[int(b)%len(hostIDAlphabet)]
	}
	return string(id[:])
}

func validHostID(id string) bool {
	if len(id) != hostIDLength {
		return false
	}
	for i := range len(id) {
		if strings.IndexByte(hostIDAlphabet, id[i]) < 0 {
			return false
		}
	}
	return true
}
