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
// it is of the key, though it lies under another one; nil: there is none. Where there is
// none, the key also has to lie between the first key of the page and that of the next
// one: a bit that flips in the keys that lead to pages leads to the wrong one of two whole
// pages.
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
	room, _ := s.rooms.Get().(*pageRoom)
	if room == nil {
		room = new(pageRoom)
	}
	defer func() {
		value = bytes.Clone(value) // it is in the room
		room.used = 0
		s.rooms.Put(room)
	}()
	size := int64(tx.DB().Info().PageSize)
	p := keyPath{key: key, pageWalk: pageWalk{f: s.file, room: room, meta: metaPage{pageSize: size, highWater: uint64(tx.Size() / size)}}}
	for id, depth := uint64(b.RootPage()), 0; id != 0; depth++ {
		id = p.step(id, depth, look)
	}
	if value == nil && len(p.problems) == 0 {
		p.between()
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
	behind    bool   // there is a page before that of the key
	first     []byte // key of the page
	next      uint64 // page that leads to what comes after the page of the key, or is that; 0: nothing comes
}

// between holds that the key belongs to the page to which it was led.
func (p *keyPath) between() {
	if p.behind && bytes.Compare(p.key, p.first) < 0 {
		p.problemf("the key would lie before the page to which those above it lead")
	}
	for id, depth := p.next, 0; id != 0 && len(p.problems) == 0; depth++ {
		flags, count, raw, ok := p.page(id)
		page := id
		id = 0
		switch {
		case !ok:
		case flags == pageFlagBranch && count > 0 && depth < maxTreeDepth:
			p.children(page, raw, count, func(_ []byte, child uint64) {
				if id == 0 {
					id = child
				}
			})
		case flags == pageFlagLeaf && count > 0:
			var first []byte
			p.rows(fmt.Sprintf("page %d", page), raw, count, func(_ uint32, k, _ []byte) {
				if first == nil {
					first = k
				}
			})
			if bytes.Compare(p.key, first) >= 0 {
				p.problemf("the key would lie behind the page to which those above it lead")
			}
		default:
			p.problemf("page %d is no page of a tree: flags %#x, %d elements", page, flags, count)
		}
	}
}

// step looks at a page and returns the next one; 0: there is none, or this is damaged.
func (p *keyPath) step(id uint64, depth int, look func(k, v []byte)) (next uint64) {
	flags, count, raw, ok := p.page(id)
	var after uint64
	switch {
	case !ok:
	case flags == pageFlagBranch && count > 0 && depth < maxTreeDepth:
		p.children(id, raw, count, func(from []byte, child uint64) {
			switch {
			case next == 0 || bytes.Compare(from, p.key) <= 0:
				p.behind = p.behind || next != 0
				next, p.low = child, from
			case after == 0:
				after = child
				if p.high == nil || bytes.Compare(from, p.high) < 0 {
					p.high = from
				}
			}
		})
		if after != 0 {
			p.next = after
		}
	case flags == pageFlagLeaf && (count > 0 || depth == 0):
		p.leafOf(id, raw, count, depth, look)
	default:
		p.problemf("page %d is no page of a tree: flags %#x, %d elements", id, flags, count)
	}
	if len(p.problems) > 0 {
		return 0
	}
	return next
}

// leafOf looks at the page in which the key would lie.
func (p *keyPath) leafOf(id uint64, raw []byte, count, depth int, look func(k, v []byte)) {
	outside := 0
	p.rows(fmt.Sprintf("page %d", id), raw, count, func(_ uint32, k, v []byte) {
		if p.first == nil {
			p.first = k
		}
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
}
