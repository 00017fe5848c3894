package store

import (
	"encoding/binary"
)

// Size returns the bytes of the store's file, and how many of them are free for new
// records. What cannot be told is 0.
func (s *Store) Size() (size, free int64) {
	s.gate.RLock() // no commit moves the free list while it is read
	defer s.gate.RUnlock()
	info, err := s.file.Stat()
	if err != nil {
		return 0, 0
	}
	head, err := inspectFile(s.file, info.Size())
	if err != nil {
		return info.Size(), 0
	}
	m := head.current
	pages := info.Size()/m.pageSize - int64(m.highWater) // never used yet
	if m.freelist != noFreelist {
		pages += s.freeListed(m)
	}
	return info.Size(), pages * m.pageSize
}

// freeListed is how many pages the free list names: its page's header has the count,
// unless that is too large for it.
func (s *Store) freeListed(m metaPage) int64 {
	const overflown = 0xffff
	var b [pageHeaderSize + 8]byte
	if _, err := s.file.ReadAt(b[:], int64(m.freelist)*m.pageSize); err != nil {
		return 0
	}
	if n := binary.NativeEndian.Uint16(b[10:]); n < overflown {
		return int64(n)
	}
	return int64(binary.NativeEndian.Uint64(b[pageHeaderSize:]))
}
