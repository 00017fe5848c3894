package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The parts of bbolt's file format that are needed to tell, without mapping a
// file, whether bbolt can open it. bbolt maps the file and trusts what it finds,
// so a file that is too short would end the process with a fault.
const (
	pageHeaderSize = 16
	pageFlagMeta   = 0x04
	metaMagic      = 0xED0CDAED
	metaVersion    = 2
	metaSize       = 64 // of the meta record, checksum included
	minPageSize    = 1 << 10
	maxPageSize    = 1 << 24
)

// metaPage is what one of the two meta pages says.
type metaPage struct {
	pageSize  int64
	root      uint64 // page of the root bucket
	freelist  uint64 // page of the free list, or noFreelist
	highWater uint64 // one past the last page in use
	txid      uint64
}

const noFreelist = ^uint64(0)

// parseMeta reads a meta page from the start of b.
func parseMeta(b []byte) (metaPage, error) {
	if len(b) < pageHeaderSize+metaSize {
		return metaPage{}, errors.New("it is too short")
	}
	order := binary.NativeEndian
	flags := order.Uint16(b[8:])
	rec := b[pageHeaderSize : pageHeaderSize+metaSize]
	m := metaPage{
		pageSize:  int64(order.Uint32(rec[8:])),
		root:      order.Uint64(rec[16:]),
		freelist:  order.Uint64(rec[32:]),
		highWater: order.Uint64(rec[40:]),
		txid:      order.Uint64(rec[48:]),
	}
	sum := fnv.New64a()
	sum.Write(rec[:56])
	switch {
	case order.Uint32(rec) != metaMagic:
		return m, errors.New("it is not a bbolt meta page")
	case order.Uint32(rec[4:]) != metaVersion:
		return m, fmt.Errorf("it has bbolt's file version %d, not %d", order.Uint32(rec[4:]), metaVersion)
	case order.Uint64(rec[56:]) != sum.Sum64():
		return m, errors.New("its checksum is wrong")
	case flags&pageFlagMeta == 0:
		return m, errors.New("its page is not marked as a meta page")
	case m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0:
		return m, fmt.Errorf("its page size %d is not possible", m.pageSize)
	}
	return m, nil
}

// fileHead is what the two meta pages of a file say together.
type fileHead struct {
	current metaPage
	both    bool // both meta pages are whole
}

// inspectFile reads the meta pages of a file of the given size and says why bbolt
// must not open it, if so.
func inspectFile(r io.ReaderAt, size int64) (fileHead, error) {
	if size == 0 {
		return fileHead{}, errors.New("the file is empty")
	}
	first, err0 := readMeta(r, 0, size)
	second, err1 := metaPage{}, errors.New("not found")
	if err0 == nil {
		second, err1 = readMeta(r, first.pageSize, size)
	} else {
		for ps := int64(minPageSize); ps <= maxPageSize && err1 != nil; ps *= 2 {
			if second, err1 = readMeta(r, ps, size); err1 == nil && second.pageSize != ps {
				err1 = errors.New("its page size does not fit its place")
			}
		}
	}
	head := fileHead{both: err0 == nil && err1 == nil}
	switch {
	case err0 != nil && err1 != nil:
		return head, fmt.Errorf("it is not a bbolt file, or both its meta pages are damaged: %w", err0)
	case err0 != nil, err1 == nil && second.txid > first.txid:
		head.current = second
	default:
		head.current = first
	}
	m := head.current
	pages := uint64(size) / uint64(m.pageSize)
	switch {
	case m.highWater > pages:
		return head, fmt.Errorf("it was cut short: it has %d bytes, and page %d of %d bytes is in use", size, m.highWater-1, m.pageSize)
	case m.highWater < 4, m.root < 2, m.root >= m.highWater:
		return head, errors.New("its meta page points outside the file")
	case m.freelist != noFreelist && (m.freelist < 2 || m.freelist >= m.highWater):
		return head, errors.New("its meta page points outside the file")
	}
	return head, nil
}

func readMeta(r io.ReaderAt, at, size int64) (metaPage, error) {
	var b [pageHeaderSize + metaSize]byte
	if at+int64(len(b)) > size {
		return metaPage{}, errors.New("it is too short")
	}
	if _, err := r.ReadAt(b[:], at); err != nil {
		return metaPage{}, fmt.Errorf("it cannot be read: %w", err)
	}
	return parseMeta(b[:])
}
