package endtoend

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"maps"
	"os"
	"slices"
)

// content is what is in a file. It is never changed, only made anew, and shares with
// the one it was made of what is the same. Pages of zeroes are left out.
type content struct {
	size  int64
	pages map[int64]page
}

type page struct {
	bytes *[pageSize]byte
	sum   [32]byte
}

const pageSize = 4096

// write is one change of a file's bytes: to a length, or some bytes at a place.
type write struct {
	at    int64
	bytes []byte
	cut   bool // at is the new length
}

// on is a content after the write.
func (w write) on(c content) content {
	out := content{size: max(c.size, w.at+int64(len(w.bytes))), pages: maps.Clone(c.pages)}
	if out.pages == nil {
		out.pages = map[int64]page{}
	}
	if w.cut {
		out.size = w.at
		maps.DeleteFunc(out.pages, func(i int64, _ page) bool { return i*pageSize >= w.at })
		if last := w.at / pageSize; w.at < c.size && out.pages[last].bytes != nil {
			out.patch(last, w.at%pageSize, make([]byte, pageSize-w.at%pageSize))
		}
		return out
	}
	for at, rest := w.at, w.bytes; len(rest) > 0; {
		n := min(pageSize-at%pageSize, int64(len(rest)))
		out.patch(at/pageSize, at%pageSize, rest[:n])
		at, rest = at+n, rest[n:]
	}
	return out
}

func (c content) patch(i, at int64, b []byte) {
	var p [pageSize]byte
	if old := c.pages[i].bytes; old != nil {
		p = *old
	}
	copy(p[at:], b)
	if p == [pageSize]byte{} {
		delete(c.pages, i)
		return
	}
	c.pages[i] = page{&p, sha256.Sum256(p[:])}
}

func (c content) bytes() []byte {
	b := make([]byte, c.size)
	for i, p := range c.pages {
		copy(b[i*pageSize:], p.bytes[:])
	}
	return b
}

// digest writes what tells the content from every other one.
func (c content) digest(h hash.Hash) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(c.size)))
	for _, i := range slices.Sorted(maps.Keys(c.pages)) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(i)))
		sum := c.pages[i].sum
		h.Write(sum[:])
	}
}

// store makes a file of it.
func (c content) store(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(c.size)
	for i, p := range c.pages {
		_, failed := f.WriteAt(p.bytes[:min(pageSize, c.size-i*pageSize)], i*pageSize)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, f.Close())
}
