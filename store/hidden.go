package store

import (
	"bytes"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// hidden looks for what is known of a key where bbolt finds nothing, which is to make sure
// that it is free: a bit that flips where a page says what it has hides records that are
// whole. The page in which the key would lie is read as it is in the file. If that is no
// page as bbolt writes one, nobody can tell whether the key is free. Else the record with
// the key is returned, whatever bbolt makes of its order, or one of which known says that
// it is of the key, though it lies under another one; nil: there is none.
//
// The file is right also within a batch: what that has written was looked for before.
func (s *Store) hidden(tx *bbolt.Tx, bucket string, key []byte, known func(value []byte) bool) (value []byte, err error) {
	b := tx.Bucket([]byte(bucket))
	look := func(k, v []byte) {
		if bytes.Equal(k, key) || known(v) {
			value = v
		}
	}
	if b.RootPage() == 0 { // it has no page of its own, and that one was read at the start
		return value, b.ForEach(func(k, v []byte) error { look(k, v); return nil })
	}
	size := int64(tx.DB().Info().PageSize)
	p := keyPath{key: key, pageWalk: pageWalk{f: s.file, meta: metaPage{pageSize: size, highWater: uint64(tx.Size() / size)}}}
	for id, depth := uint64(b.RootPage()), 0; id != 0; depth++ {
		id = p.step(id, depth, look)
	}
	if len(p.problems) > 0 {
		return nil, jobs.Errorf(jobs.CodeRecordDamaged,
			"nobody can tell whether the key was used before, since a page of bucket %s is damaged, and is kept as it is: %s; restore a copy: macexec store restore FILE", bucket, p.problems[0])
	}
	return value, nil
}

// keyPath is the way through the pages of a bucket to where a key would lie.
type keyPath struct {
	pageWalk
	key       []byte
	low, high []byte // what the keys of the page lie between, as those above it say
}

// step looks at a page and returns the next one; 0: there is none, or this is damaged.
func (p *keyPath) step(id uint64, depth int, look func(k, v []byte)) (next uint64) {
	flags, count, raw, ok := p.page(id)
	switch {
	case !ok:
	case flags == pageFlagBranch && count > 0 && depth < maxTreeDepth:
		p.children(id, raw, count, func(from []byte, child uint64) {
			switch {
			case next == 0 || bytes.Compare(from, p.key) <= 0:
				next, p.low = child, from
			case p.high == nil || bytes.Compare(from, p.high) < 0:
				p.high = from
			}
		})
	case flags == pageFlagLeaf && (count > 0 || depth == 0):
		outside := 0
		p.rows(fmt.Sprintf("page %d", id), raw, count, func(_ uint32, k, v []byte) {
			if len(k) != len(p.key) {
				p.problemf("page %d has the odd key %x", id, k)
			}
			if bytes.Compare(k, p.low) < 0 || p.high != nil && bytes.Compare(k, p.high) >= 0 {
				outside++
			}
			look(k, v)
		})
		if outside > 1 || depth > 0 && outside == count { // of one the key is damaged; of more, what led here
			p.problemf("page %d is of other keys", id)
		}
	default:
		p.problemf("page %d is no page of a tree: flags %#x, %d elements", id, flags, count)
	}
	if len(p.problems) > 0 {
		return 0
	}
	return next
}
