package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

const (
	pageFlagBranch   = 0x01
	pageFlagLeaf     = 0x02
	pageFlagFreelist = 0x10

	leafFlagBucket    = 0x01
	elementSize       = 16 // of a branch or leaf element
	bucketHeaderSize  = 16
	maxTreeDepth      = 64
	freelistOverflown = 0xFFFF // the real count follows the header
)

// checkPages walks the page tree of a file by reading, and returns why bbolt must
// not be let loose on it. bbolt follows every number it finds in the mapped file;
// a wild one ends the process with a fault.
func checkPages(f *os.File) []string {
	info, err := f.Stat()
	if err != nil {
		return []string{fmt.Sprintf("the file cannot be read: %v", err)}
	}
	head, err := inspectFile(f, info.Size())
	if err != nil {
		return []string{err.Error()}
	}
	w := newPageWalk(f, head.current)
	w.all()
	return w.problems
}

// checkHead says whether one of the two head pages is damaged. bbolt goes by the other one
// then, and from what it reads nobody can tell any more that the newest write is missing.
func checkHead(f *os.File) []string {
	if both, err := wholeHead(f); err == nil && !both {
		return []string{"one of its two head pages is damaged, so its newest write may be missing"}
	}
	return nil // the rest is for checkPages to tell
}

// wholeHead reports whether both pages are whole that say where everything is.
func wholeHead(f *os.File) (both bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	head, err := inspectFile(f, info.Size())
	return head.both, err
}

type pageWalk struct {
	problems
	f       *os.File
	meta    metaPage
	used    pageSet // nil: nobody asks
	free    pageSet
	shallow bool // leaves of the records are not read (skeleton.go)
	room    *pageRoom
}

// pageRoom is memory for pages that are looked at for a moment, again and again. Nil:
// each page that is read has memory of its own.
type pageRoom struct {
	pages [][]byte
	used  int
}

func (r *pageRoom) take(size int64) []byte {
	if r == nil {
		return make([]byte, size)
	}
	if r.used == len(r.pages) {
		r.pages = append(r.pages, make([]byte, size))
	}
	r.used++
	return r.pages[r.used-1]
}

func newPageWalk(f *os.File, meta metaPage) *pageWalk {
	return &pageWalk{f: f, meta: meta, used: newPageSet(meta.highWater), free: newPageSet(meta.highWater)}
}

func (w *pageWalk) all() {
	if w.meta.freelist != noFreelist {
		w.freelist(w.meta.freelist)
	}
	w.tree(w.meta.root, true, 0)
	for id := range w.meta.highWater {
		if w.used.has(id) && w.free.has(id) {
			w.problemf("page %d is used and in the free list", id)
		}
	}
}

// pageSet is a set of pages of a file.
type pageSet []uint64

func newPageSet(highWater uint64) pageSet { return make(pageSet, highWater/64+1) }

func (s pageSet) has(id uint64) bool { return s[id/64]&(1<<(id%64)) != 0 }

func (s pageSet) add(id uint64) { s[id/64] |= 1 << (id % 64) }

// take marks a page as used, or says that it was before.
func (w *pageWalk) take(id uint64) bool {
	if w.used == nil {
		return true
	}
	if w.used.has(id) {
		w.problemf("page %d is used twice", id)
		return false
	}
	w.used.add(id)
	return true
}

// page reads a page with its overflow pages.
func (w *pageWalk) page(id uint64) (flags uint16, count int, b []byte, ok bool) {
	if id < 2 || id >= w.meta.highWater {
		w.problemf("page %d is outside the file", id)
		return 0, 0, nil, false
	}
	b = w.room.take(w.meta.pageSize)
	if _, err := w.f.ReadAt(b, int64(id)*w.meta.pageSize); err != nil {
		w.problemf("page %d cannot be read: %v", id, err)
		return 0, 0, nil, false
	}
	order := binary.NativeEndian
	flags, count = order.Uint16(b[8:]), int(order.Uint16(b[10:]))
	pages := uint64(order.Uint32(b[12:])) + 1
	if order.Uint64(b) != id || pages > w.meta.highWater-id {
		w.problemf("page %d is damaged: its header says page %d with %d pages", id, order.Uint64(b), pages)
		return 0, 0, nil, false
	}
	for i := id; i < id+pages; i++ {
		if !w.take(i) {
			return 0, 0, nil, false
		}
	}
	if pages > 1 {
		b = make([]byte, int64(pages)*w.meta.pageSize)
		if _, err := w.f.ReadAt(b, int64(id)*w.meta.pageSize); err != nil {
			w.problemf("page %d cannot be read: %v", id, err)
			return 0, 0, nil, false
		}
	}
	return flags, count, b, true
}

func (w *pageWalk) freelist(id uint64) {
	flags, count, b, ok := w.page(id)
	if !ok {
		return
	}
	if flags != pageFlagFreelist {
		w.problemf("page %d is to be the free list and is not", id)
		return
	}
	at := uint64(pageHeaderSize)
	n := uint64(count)
	if count == freelistOverflown {
		n = binary.NativeEndian.Uint64(b[at:])
		at += 8
	}
	if n > (uint64(len(b))-at)/8 {
		w.problemf("the free list has %d pages, which do not fit into it", n)
		return
	}
	for i := range n {
		switch free := binary.NativeEndian.Uint64(b[at+8*i:]); {
		case free < 2 || free >= w.meta.highWater:
			w.problemf("the free list has page %d, which is outside the file", free)
		case w.free.has(free):
			w.problemf("the free list has page %d twice", free)
		default:
			w.free.add(free)
		}
	}
}

// tree follows a tree from its root, or from a page below that. Only a root may be empty.
func (w *pageWalk) tree(id uint64, root bool, depth int) {
	flags, count, b, ok := w.page(id)
	switch {
	case !ok:
	case depth > maxTreeDepth:
		w.problemf("page %d lies too deep", id)
	case flags == pageFlagBranch && count > 0:
		w.children(id, b, count, func(_ []byte, child uint64) { w.tree(child, false, depth+1) })
	case flags == pageFlagLeaf && (count > 0 || root):
		w.leaf(fmt.Sprintf("page %d", id), b, count, depth)
	default:
		w.problemf("page %d is no page of a tree: flags %#x, %d elements", id, flags, count)
	}
}

// slice returns n bytes of b from at, or false if they are not all there.
func slice(b []byte, at, n uint64) ([]byte, bool) {
	if at > uint64(len(b)) || n > uint64(len(b))-at {
		return nil, false
	}
	return b[at : at+n], true
}

// dataOf is where the keys and values of a page with so many elements begin. bbolt puts
// them right behind the elements, one behind the other, so a number of elements that is
// too low, which would hide the last ones, leaves a gap there.
func dataOf(count int) uint64 { return uint64(pageHeaderSize + count*elementSize) }

// children shows the pages that a branch page leads to, each with the first key that may
// be there.
func (w *pageWalk) children(id uint64, b []byte, count int, show func(key []byte, child uint64)) {
	order := binary.NativeEndian
	var previous []byte
	next := dataOf(count)
	for i := range count {
		at := uint64(pageHeaderSize + i*elementSize)
		e, ok := slice(b, at, elementSize)
		if !ok {
			w.problemf("page %d ends before its element %d", id, i)
			return
		}
		keyAt := at + uint64(order.Uint32(e))
		key, ok := slice(b, keyAt, uint64(order.Uint32(e[4:])))
		if !ok || keyAt != next || i > 0 && bytes.Compare(previous, key) >= 0 {
			w.problemf("page %d: element %d is damaged", id, i)
			return
		}
		previous, next = key, keyAt+uint64(len(key))
		show(key, order.Uint64(e[8:]))
	}
}

// rows shows the keys and values of a leaf page and returns where they end.
func (w *pageWalk) rows(name string, b []byte, count int, show func(flags uint32, key, value []byte)) (end uint64) {
	order := binary.NativeEndian
	end = dataOf(count)
	for i := range count {
		at := uint64(pageHeaderSize + i*elementSize)
		e, ok := slice(b, at, elementSize)
		if !ok {
			w.problemf("%s ends before its element %d", name, i)
			return end
		}
		keyAt, keyLen := at+uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:]))
		key, ok1 := slice(b, keyAt, keyLen)
		value, ok2 := slice(b, keyAt+keyLen, uint64(order.Uint32(e[12:])))
		if !ok1 || !ok2 || keyAt != end {
			w.problemf("%s: element %d is damaged", name, i)
			return end
		}
		end = keyAt + keyLen + uint64(len(value))
		show(order.Uint32(e), key, value)
	}
	return end
}

func (w *pageWalk) leaf(name string, b []byte, count, depth int) (end uint64) {
	var previous []byte
	return w.rows(name, b, count, func(flags uint32, key, value []byte) {
		if previous != nil && bytes.Compare(previous, key) >= 0 {
			w.problemf("%s: its keys are not in their order", name)
		}
		previous = key
		if flags&leafFlagBucket != 0 {
			w.bucket(fmt.Sprintf("bucket %q", key), value, depth)
		}
	})
}

// bucket follows a bucket's value: the page of its root, or, when that is 0, a
// whole leaf page that lies behind its header.
func (w *pageWalk) bucket(name string, value []byte, depth int) {
	if len(value) < bucketHeaderSize {
		w.problemf("%s is damaged", name)
		return
	}
	order := binary.NativeEndian
	switch root := order.Uint64(value); {
	case root != 0 && w.shallow:
		w.skeleton(name, root)
		return
	case root != 0:
		w.tree(root, true, depth+1)
		return
	}
	inline := value[bucketHeaderSize:]
	if len(inline) < pageHeaderSize || order.Uint16(inline[8:]) != pageFlagLeaf || depth > maxTreeDepth {
		w.problemf("%s is damaged", name)
		return
	}
	if end := w.leaf(name, inline, int(order.Uint16(inline[10:])), depth+1); end != uint64(len(inline)) {
		w.problemf("%s has %d bytes, of which its elements are %d", name, len(inline), end)
	}
}
