package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
)

// checkSkeleton reads the pages that lead to the records, and the list of those that are
// free, and says why bbolt must not be let loose on the file. The leaves with the records
// are not read, so it takes milliseconds for a store of a hundred thousand jobs: a damaged
// one is met by whoever reads it, and harms no other. A damaged branch would hide many,
// among them keys, which would then be free; and a free list that names a page in use
// would let a write destroy it.
func checkSkeleton(f *os.File, meta metaPage) error {
	w := newPageWalk(f, meta)
	w.shallow = true
	w.all()
	if len(w.problems) > 0 {
		return errors.New(w.problems[0] + more(len(w.problems)-1))
	}
	return nil
}

// skeleton walks the branch pages of a bucket's tree. All its leaves lie equally deep,
// and how deep tells the way to the first one.
func (w *pageWalk) skeleton(name string, root uint64) {
	height, ok := w.height(root)
	if !ok {
		w.problemf("%s leads nowhere", name)
		return
	}
	level := []childPage{{id: root}}
	for range height {
		var next []childPage
		for _, b := range level {
			next = append(next, w.branch(name, b)...)
		}
		level = next
	}
	for _, b := range level {
		leaf := b.id
		if leaf < 2 || leaf >= w.meta.highWater {
			w.problemf("page %d of %s is outside the file", leaf, name)
			continue
		}
		w.take(leaf)
	}
}

// childPage is a page with what its keys lie between, as those above it say.
type childPage struct {
	id        uint64
	low, high []byte // high is of the next page; nil: there is none
}

// branch returns what a branch page leads to. Its keys are compared with what leads to it;
// those right above the leaves only their keys could confirm, so whoever finds no key
// there does that (hidden.go).
func (w *pageWalk) branch(name string, at childPage) (list []childPage) {
	flags, count, b, ok := w.page(at.id)
	switch {
	case !ok, flags == pageFlagLeaf:
		return nil
	case flags != pageFlagBranch || count == 0:
		w.problemf("page %d of %s is no branch of a tree: flags %#x, %d elements", at.id, name, flags, count)
		return nil
	}
	w.children(at.id, b, count, func(key []byte, child uint64) {
		if bytes.Compare(key, at.low) < 0 || at.high != nil && bytes.Compare(key, at.high) >= 0 {
			w.problemf("page %d of %s leads to keys that it should not have", at.id, name)
		}
		if n := len(list); n > 0 {
			list[n-1].high = key
		}
		list = append(list, childPage{id: child, low: key, high: at.high})
	})
	return list
}

// height is how many branch pages lie above the first leaf of a tree.
func (w *pageWalk) height(id uint64) (height int, ok bool) {
	var b [pageHeaderSize + elementSize]byte
	for ; height < maxTreeDepth; height++ {
		if id < 2 || id >= w.meta.highWater {
			return 0, false
		}
		if _, err := w.f.ReadAt(b[:], int64(id)*w.meta.pageSize); err != nil {
			return 0, false
		}
		switch flags := binary.NativeEndian.Uint16(b[8:]); {
		case binary.NativeEndian.Uint64(b[:]) != id:
			return 0, false
		case flags == pageFlagLeaf:
			return height, true
		case flags != pageFlagBranch:
			return 0, false
		}
		id = binary.NativeEndian.Uint64(b[pageHeaderSize+8:])
	}
	return 0, false
}
