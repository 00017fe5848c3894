package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/macexec/macexec/jobs"
)

// The index says which jobs have a value. It is cut by the jobs' Seq into chunks,
// and within a chunk the jobs that share a value are one set of small numbers. So a
// write touches pages of the newest chunks only, however large the store has become;
// a whole chunk of a list is decided by combining a few sets; and a million jobs are
// a few hundred chunks, each passed over by one look when a value is not in it.
//
// The newest jobs are in no set yet, but in bucket recent (recent.go).
//
// It only ever proposes: a job is shown when its record matches. A set that cannot be
// read counts as the set of all, so that damage costs time and hides nothing.
const chunkJobs = 1 << 12

// place in a chunk of a job's Seq.
func chunkOf(seq uint64) uint32  { return uint32(seq / chunkJobs) }
func offsetOf(seq uint64) uint16 { return uint16(seq % chunkJobs) }

// The first byte behind the chunk in a key of the index: what the value is of. They
// never change their meaning.
const (
	ofChunk byte = iota // the summary of the chunk
	ofState             // only the terminal ones; the others are in bucket open
	ofPrincipal
	ofTool
	ofRun
	ofParentRun
	ofThread
	ofContext
	ofToolCall
	ofParentCall
	ofLabel
)

// value is one value of one attribute: its kind and the start of its digest.
type value [1 + 8]byte

func valueOf(kind byte, texts ...string) (v value) {
	text := make([]byte, 0, 128)
	text = append(text, kind)
	for _, t := range texts {
		text = appendSized(text, t)
	}
	sum := sha256.Sum256(text)
	v[0] = kind
	copy(v[1:], sum[:])
	return v
}

// indexPlace is the key of one set.
type indexPlace [4 + len(value{})]byte

func placeOf(chunk uint32, v value) (p indexPlace) {
	binary.BigEndian.PutUint32(p[:], chunk)
	copy(p[4:], v[:])
	return p
}

func summaryKey(chunk uint32) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 5), chunk), ofChunk)
}

// valuesOf returns what a job is found by and what never changes, sorted. What is
// empty is not indexed.
func valuesOf(j *jobs.Job) []value {
	c := &j.Call.Context
	values := make([]value, 0, 8+len(c.Labels))
	for _, a := range [...]struct {
		kind byte
		text string
	}{
		{ofPrincipal, j.Principal},
		{ofTool, j.Tool.Name},
		{ofRun, c.RunID},
		{ofParentRun, c.ParentRunID},
		{ofThread, c.ThreadID},
		{ofContext, c.ContextID},
		{ofToolCall, c.ToolCallID},
		{ofParentCall, c.ParentCallID},
	} {
		if a.text != "" {
			values = append(values, valueOf(a.kind, a.text))
		}
	}
	labels := len(values)
	for name, text := range c.Labels {
		values = append(values, valueOf(ofLabel, name, text))
	}
	slices.SortFunc(values[labels:], func(a, b value) int { return bytes.Compare(a[:], b[:]) })
	return values
}

// filters returns the values that every job has that matches a query, but for its
// state and key.
func filters(q jobs.Query) []value {
	return valuesOf(&jobs.Job{
		Principal: q.Principal, Tool: jobs.ToolRef{Name: q.Tool},
		Call: jobs.Call{Context: jobs.CallContext{
			RunID: q.RunID, ParentRunID: q.ParentRunID, ThreadID: q.ThreadID, ContextID: q.ContextID,
			ToolCallID: q.ToolCall, ParentCallID: q.ParentCall, Labels: q.Labels,
		}},
	})
}

// set is a set of the jobs of one chunk, by their offsets.
type set [chunkJobs / 64]uint64

func (s *set) add(offset uint16)      { s[offset/64] |= 1 << (offset % 64) }
func (s *set) has(offset uint16) bool { return s[offset/64]>>(offset%64)&1 == 1 }

// and keeps what o has too and reports whether anything is left.
func (s *set) and(o *set) (left bool) {
	var rest uint64
	for i := range s {
		s[i] &= o[i]
		rest |= s[i]
	}
	return rest != 0
}

func (s *set) or(o *set) {
	for i := range s {
		s[i] |= o[i]
	}
}

// offsets returns the members, ascending.
func (s *set) offsets() (list []uint16) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			list = append(list, uint16(i*64+bits.TrailingZeros64(word)))
		}
	}
	return list
}

func (s *set) size() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// all is the set of every job of a chunk.
func all() *set {
	s := new(set)
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}

// A set is stored as its members, two bytes each, while that is shorter than one bit
// for each job of the chunk.
const (
	setBytes = chunkJobs / 8
	maxList  = setBytes/2 - 1
)

func (s *set) encode() []byte {
	if n := s.size(); n <= maxList {
		out := make([]byte, 0, 2*n)
		for _, offset := range s.offsets() {
			out = binary.BigEndian.AppendUint16(out, offset)
		}
		return out
	}
	out := make([]byte, 0, setBytes)
	for _, word := range s {
		out = binary.BigEndian.AppendUint64(out, word)
	}
	return out
}

var errSet = errors.New("it is no set of jobs")

func decodeSet(raw []byte) (*set, error) {
	s := new(set)
	switch {
	case len(raw) == setBytes:
		for i := range s {
			s[i] = binary.BigEndian.Uint64(raw[8*i:])
		}
		if s.size() <= maxList {
			return nil, errSet
		}
		return s, nil
	case len(raw) == 0, len(raw) > setBytes, len(raw)%2 != 0:
		return nil, errSet
	}
	last := -1
	for ; len(raw) > 0; raw = raw[2:] {
		offset := binary.BigEndian.Uint16(raw)
		if int(offset) <= last || offset >= chunkJobs {
			return nil, errSet
		}
		last = int(offset)
		s.add(offset)
	}
	return s, nil
}

// summary bounds the jobs of a chunk: a list takes the chunks with the highest ids
// first, and passes over one that cannot have what it wants.
type summary struct {
	first, last     int64  // times of acceptance, in milliseconds since 1970
	lowest, highest string // ids
}

// with returns a summary that holds for one more job.
func (s summary) with(at int64, id string) summary {
	if s.lowest == "" {
		s = summary{at, at, id, id}
	}
	return summary{first: min(s.first, at), last: max(s.last, at), lowest: min(s.lowest, id), highest: max(s.highest, id)}
}

// and returns a summary that holds for the jobs of both.
func (s summary) and(o summary) summary { return s.with(o.first, o.lowest).with(o.last, o.highest) }

func (s summary) encode() []byte {
	out := binary.BigEndian.AppendUint64(nil, uint64(s.first))
	out = binary.BigEndian.AppendUint64(out, uint64(s.last))
	out = append(out, s.lowest...)
	return append(append(out, 0), s.highest...)
}

func decodeSummary(raw []byte) (s summary, ok bool) {
	if len(raw) < 16 {
		return s, false
	}
	s.first, s.last = int64(binary.BigEndian.Uint64(raw)), int64(binary.BigEndian.Uint64(raw[8:]))
	lowest, highest, found := bytes.Cut(raw[16:], []byte{0})
	s.lowest, s.highest = string(lowest), string(highest)
	return s, found && s.first <= s.last && s.lowest != "" && s.lowest <= s.highest
}

// anything is the summary of a chunk whose own cannot be read: it may have every job.
func anything() summary {
	return summary{first: math.MinInt64, last: math.MaxInt64, highest: "\xff"}
}

// A value of bucket order is the time of acceptance and the id.
func encodeOrder(at int64, id string) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(id)), uint64(at)), id...)
}

func decodeOrder(raw []byte) (at int64, id []byte, ok bool) {
	if len(raw) <= 8 {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(raw)), raw[8:], true
}

// marks collects what a batch adds to the index, so that each set is written once
// however many jobs of the batch are in it.
type marks struct {
	sets       map[indexPlace][]uint16
	gone       map[indexPlace][]uint16 // what is taken out of sets
	summaries  map[uint32]summary
	recent     []recentJob
	principals map[string]bool // that are known to be listed
}

// index makes a new job known to the index.
func (b *batch) index(id string, j *standing) error {
	b.marks.recent = append(b.marks.recent, recentJob{seq: j.seq, at: j.submitted, id: id, values: j.values})
	return b.list(j.principal)
}

// list makes a principal known.
func (b *batch) list(principal string) error {
	if principal == "" || b.marks.principals[principal] {
		return nil
	}
	if b.marks.principals == nil {
		b.marks.principals = map[string]bool{}
	}
	b.marks.principals[principal] = true
	principals := b.bucket(bucketPrincipals)
	if has(principals, []byte(principal)) {
		return nil
	}
	return principals.Put([]byte(principal), nil)
}

func (b *batch) mark(seq uint64, v value) {
	if b.marks.sets == nil {
		b.marks.sets = map[indexPlace][]uint16{}
	}
	key := placeOf(chunkOf(seq), v)
	b.marks.sets[key] = append(b.marks.sets[key], offsetOf(seq))
}

// flush writes what was collected.
func (b *batch) flush() error {
	if err := b.addRecent(); err != nil {
		return err
	}
	index := b.bucket(bucketIndex)
	for _, key := range slices.SortedFunc(maps.Keys(b.marks.sets), func(a, b indexPlace) int { return bytes.Compare(a[:], b[:]) }) {
		var s set
		if raw := index.Get(key[:]); raw != nil {
			old, err := decodeSet(raw)
			if err != nil {
				continue // it counts as the set of all, which has them
			}
			s = *old
		}
		for _, offset := range b.marks.sets[key] {
			s.add(offset)
		}
		if err := index.Put(key[:], s.encode()); err != nil {
			return err
		}
	}
	clear(b.marks.sets)
	if err := b.flushGone(); err != nil {
		return err
	}
	for chunk, sum := range b.marks.summaries {
		if err := index.Put(summaryKey(chunk), sum.encode()); err != nil {
			return err
		}
	}
	clear(b.marks.summaries)
	return nil
}

// openValue is what bucket open keeps of a job.
func openValue(seq uint64, state jobs.State) []byte { return append(encodeU64(seq), state...) }

func splitOpenValue(raw []byte) (seq uint64, state jobs.State, ok bool) {
	if len(raw) <= 8 {
		return 0, "", false
	}
	state = jobs.State(raw[8:])
	return binary.BigEndian.Uint64(raw), state, slices.Contains(jobs.States(), state) && !state.Terminal()
}

// newest keeps the highest n ids that it is given, highest first.
type newest struct {
	n   int
	ids []string
}

func (k *newest) add(id []byte) {
	if k.full() && string(id) <= k.ids[k.n-1] {
		return
	}
	at, there := slices.BinarySearchFunc(k.ids, id, func(have string, id []byte) int { return cmp.Compare(string(id), have) })
	if there {
		return
	}
	k.ids = slices.Insert(k.ids, at, string(id))
	if len(k.ids) > k.n {
		k.ids = k.ids[:k.n]
	}
}

func (k *newest) full() bool { return len(k.ids) >= k.n }
