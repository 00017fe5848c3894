package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"math"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// pageBytes bounds the records of a page, and of what is read in one transaction: a
	// page ends before the record that would be too much, unless that is its only one.
	pageBytes = 8 << 20
)

// List implements jobs.Store. It reads what the index proposes, a page at a time, and
// shows what matches; nothing is decoded in a transaction.
func (s *Store) List(ctx context.Context, q jobs.Query) (jobs.Page, error) {
	if q.Limit < 0 || q.Limit > maxPage {
		return jobs.Page{}, jobs.Errorf(jobs.CodeRequestInvalid, "a page has 1 to %d jobs, not %d", maxPage, q.Limit)
	}
	limit := cmp.Or(q.Limit, defaultPage)
	l := newListing(q, s.log)
	page := jobs.Page{Damaged: map[string]error{}}
	below, last := q.After, ""
	for size, total := 0, 0; ; {
		want := limit + 1 - size // one more than the page takes tells whether there is another
		var records []*snapshot
		more := false
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			ids, err := l.next(tx, below, want)
			more = len(ids) == want
			bucket, read := tx.Bucket([]byte(bucketJobs)), 0
			for _, id := range ids {
				raw := bucket.Get([]byte(id))
				if read += len(raw); read > pageBytes && len(records) > 0 {
					more = true
					break
				}
				records = append(records, s.keep(id, raw))
			}
			return err
		})
		if err != nil {
			return jobs.Page{}, err
		}
		for _, r := range records {
			below = r.id
			job, err := r.decoded()
			if err == nil && !q.Matches(job) {
				continue
			}
			size++
			if total += len(r.raw); size > limit || total > pageBytes && size > 1 {
				page.Next = last
				return page, nil
			}
			if last = r.id; err != nil {
				page.Damaged[r.id] = err
			} else {
				page.Jobs = append(page.Jobs, job)
			}
		}
		if !more {
			return page, nil
		}
	}
}

// keep takes a record out of its transaction: the cache's snapshot if that is of the
// same record, else a copy.
func (s *Store) keep(id string, raw []byte) *snapshot {
	if snap := s.cache.get(id); snap != nil && bytes.Equal(snap.raw, raw) {
		return snap
	}
	return &snapshot{id: id, raw: bytes.Clone(raw)}
}

// listing is a query as the index understands it.
type listing struct {
	q            jobs.Query
	log          *slog.Logger
	values       []value // that every job must have
	byState      bool
	open         []jobs.State // wanted ones that are not terminal
	ended        []value      // wanted ones that are
	since, until int64        // bounds of acceptance, in milliseconds, both included
}

func newListing(q jobs.Query, log *slog.Logger) *listing {
	l := &listing{q: q, log: log, values: filters(q), since: math.MinInt64, until: math.MaxInt64}
	for _, state := range q.States {
		if state.Terminal() {
			l.ended = append(l.ended, valueOf(ofState, string(state)))
		} else {
			l.open = append(l.open, state)
		}
	}
	l.byState = len(q.States) > 0
	if !q.Since.IsZero() {
		l.since = q.Since.UnixMilli()
	}
	if !q.Until.IsZero() {
		l.until = q.Until.UnixMilli()
	}
	return l
}

// next returns the ids of up to n jobs that may match and lie below an id, newest
// first; fewer if there are no more.
func (l *listing) next(tx *bbolt.Tx, below string, n int) ([]string, error) {
	switch {
	case l.q.Key != "":
		return l.byKey(tx, below, n)
	case len(l.values) > 0 || l.byState || !l.q.Since.IsZero() || !l.q.Until.IsZero():
		return l.byIndex(tx, below, n), nil
	}
	var ids []string
	c := tx.Bucket([]byte(bucketJobs)).Cursor()
	for k := before(c, below); k != nil && len(ids) < n; k, _ = c.Prev() {
		ids = append(ids, string(k))
	}
	return ids, nil
}

// before places the cursor on the greatest key below id, or on the last key of all.
func before(c *bbolt.Cursor, id string) []byte {
	if id == "" {
		k, _ := c.Last()
		return k
	}
	if k, _ := c.Seek([]byte(id)); k == nil {
		k, _ = c.Last()
		return k
	}
	k, _ := c.Prev()
	return k
}

// byKey looks a key up for the principal of the query, or for every one.
func (l *listing) byKey(tx *bbolt.Tx, below string, n int) ([]string, error) {
	found := newest{n: n}
	keys := tx.Bucket([]byte(bucketKeys))
	look := func(principal string) error {
		raw := keys.Get(keyPlace(jobs.Key{Principal: principal, Text: l.q.Key}))
		if raw == nil {
			return nil
		}
		var record jobs.KeyRecord
		if err := decodeInto("the record of a key", raw, &record); err != nil {
			return err
		}
		if record.Kind == jobs.KeyJob && (below == "" || record.JobID < below) {
			found.add([]byte(record.JobID))
		}
		return nil
	}
	if l.q.Principal != "" {
		err := look(l.q.Principal)
		return found.ids, err
	}
	err := tx.Bucket([]byte(bucketPrincipals)).ForEach(func(name, _ []byte) error { return look(string(name)) })
	return found.ids, err
}

// byIndex goes through the chunks of the index, those with the highest ids first.
func (l *listing) byIndex(tx *bbolt.Tx, below string, n int) []string {
	indexed, order := tx.Bucket([]byte(bucketIndex)), tx.Bucket([]byte(bucketOrder))
	found := newest{n: n}
	open, recent := l.openSets(tx, below, &found), newNewestSets(tx, l.values)
	for _, c := range l.chunks(indexed, order, recent, below) {
		if found.full() && c.highest <= found.ids[n-1] {
			break // here and in all that follow are only lower ids
		}
		if s, some := l.chunk(indexed, c.number, open[c.number], recent); some {
			if l.pick(order, recent, c.number, s, below, &found) {
				continue
			}
			l.log.Error("a part of the order of jobs is damaged, so they are looked for one by one", "chunk", c.number)
			l.pickUnnamed(tx, c, below, &found)
		}
	}
	return found.ids
}

// bounded is one chunk of the index and what bounds it.
type bounded struct {
	summary

	number uint32
}

// chunks returns those that may have a wanted job, by their highest ids. Ids follow
// the order of acceptance, so that is nearly their own order, but for a clock that was
// set back.
func (l *listing) chunks(indexed, order *bbolt.Bucket, recent *newestSets, below string) []bounded {
	places := order.Cursor()
	var list []bounded
	for _, number := range chunksOf(indexed, order, recent) {
		c := bounded{number: number}
		some, here := recent.bounds[number]
		raw := indexed.Get(summaryKey(number))
		sum, ok := decodeSummary(raw)
		switch {
		case !ok && (raw != nil || anyIn(places, number)):
			c.summary = anything()
		case !ok && !here:
			continue
		case !here:
			c.summary = sum
		case !ok:
			c.summary = some
		default:
			c.summary = sum.and(some)
		}
		if (below == "" || c.lowest < below) && c.last >= l.since && c.first <= l.until {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b bounded) int { return cmp.Compare(b.highest, a.highest) })
	return list
}

// chunksOf returns the chunks that any row is of, ascending. It goes from one that there
// is to the next: a damaged row, which may be of any, then costs one more and not millions.
func chunksOf(indexed, order *bbolt.Bucket, recent *newestSets) []uint32 {
	found := map[uint32]bool{}
	for chunk := range recent.bounds {
		found[chunk] = true
	}
	sets, places := indexed.Cursor(), order.Cursor()
	for from := uint64(0); from <= math.MaxUint32; {
		next := uint64(math.MaxUint32) + 1
		if k, _ := sets.Seek(binary.BigEndian.AppendUint32(nil, uint32(from))); len(k) >= 4 {
			next = uint64(binary.BigEndian.Uint32(k))
		}
		k, _ := places.Seek(encodeU64(from * chunkJobs))
		for k != nil && len(k) != 8 {
			k, _ = places.Next()
		}
		if k != nil {
			next = min(next, decodeU64(k)/chunkJobs)
		}
		if next <= math.MaxUint32 {
			found[uint32(next)] = true
		}
		from = next + 1
	}
	return slices.Sorted(maps.Keys(found))
}

// anyIn reports whether bucket order has a job of a chunk.
func anyIn(order *bbolt.Cursor, chunk uint32) bool {
	k, _ := order.Seek(encodeU64(uint64(chunk) * chunkJobs))
	return k != nil && chunkOf(decodeU64(k)) == chunk
}

// openSets returns the jobs in the wanted states that are not terminal, by chunk. A
// job whose state and place are not said is found at once, so that its record decides.
func (l *listing) openSets(tx *bbolt.Tx, below string, found *newest) map[uint32]*set {
	sets := map[uint32]*set{}
	if len(l.open) == 0 {
		return sets
	}
	c := tx.Bucket([]byte(bucketOpen)).Cursor()
	for k, raw := c.First(); k != nil; k, raw = c.Next() {
		seq, state, ok := splitOpenValue(raw)
		if !ok && (below == "" || string(k) < below) {
			found.add(k)
		}
		if !ok || !slices.Contains(l.open, state) {
			continue
		}
		s := sets[chunkOf(seq)]
		if s == nil {
			s = new(set)
			sets[chunkOf(seq)] = s
		}
		s.add(offsetOf(seq))
	}
	return sets
}

// chunk returns the jobs of a chunk that may match, and whether there are any. open
// is those of them in a wanted state that is not terminal, recent what is in no set yet.
func (l *listing) chunk(indexed *bbolt.Bucket, chunk uint32, open *set, recent *newestSets) (*set, bool) {
	result := all()
	if l.byState {
		*result = set{}
		if open != nil {
			result.or(open)
		}
		for _, state := range l.ended {
			if s := lookUp(indexed, chunk, state); s != nil {
				result.or(s)
			}
		}
		if *result == (set{}) {
			return nil, false
		}
	}
	for _, v := range slices.Backward(l.values) { // the rarest are behind
		s := lookUp(indexed, chunk, v)
		switch r := recent.sets[placeOf(chunk, v)]; {
		case s == nil:
			s = r
		case r != nil:
			s.or(r)
		}
		if s == nil || !result.and(s) {
			return nil, false
		}
	}
	return result, true
}

// lookUp returns the jobs of a chunk that have a value, or nil.
func lookUp(indexed *bbolt.Bucket, chunk uint32, v value) *set {
	key := placeOf(chunk, v)
	raw := indexed.Get(key[:])
	if raw == nil {
		return nil
	}
	s, err := decodeSet(raw)
	if err != nil {
		return all()
	}
	return s
}

// pick finds the ids of a set's jobs, highest Seq first, so that most of those that
// are too low for the page are told at a glance. It returns false if the id of one
// cannot be read.
func (l *listing) pick(order *bbolt.Bucket, recent *newestSets, chunk uint32, s *set, below string, found *newest) (whole bool) {
	first := uint64(chunk) * chunkJobs
	whole = true
	propose := func(at int64, id []byte) {
		if at >= l.since && at <= l.until && (below == "" || string(id) < below) {
			found.add(id)
		}
	}
	look := func(raw []byte) {
		at, id, ok := decodeOrder(raw)
		whole = whole && (ok || raw == nil)
		if ok {
			propose(at, id)
		}
	}
	if _, here := recent.bounds[chunk]; here {
		for seq, j := range recent.jobs {
			if chunkOf(seq) == chunk && s.has(offsetOf(seq)) {
				propose(j.at, []byte(j.id))
			}
		}
	}
	const few = chunkJobs / 32
	if offsets := s.offsets(); len(offsets) <= few {
		for _, offset := range slices.Backward(offsets) {
			look(order.Get(encodeU64(first + uint64(offset))))
		}
		return whole
	}
	c := order.Cursor()
	k, raw := c.Seek(encodeU64(first + chunkJobs))
	if k == nil {
		k, raw = c.Last()
	}
	for ; k != nil && decodeU64(k) >= first; k, raw = c.Prev() {
		if seq := decodeU64(k); seq < first+chunkJobs && s.has(offsetOf(seq)) {
			look(raw)
		}
	}
	return whole
}

// pickUnnamed finds the jobs among those of a chunk that bucket order does not name,
// since what it has of them is damaged. Their records decide.
func (l *listing) pickUnnamed(tx *bbolt.Tx, c bounded, below string, found *newest) {
	named := map[string]bool{}
	order := tx.Bucket([]byte(bucketOrder)).Cursor()
	for k, raw := order.Seek(encodeU64(uint64(c.number) * chunkJobs)); k != nil && chunkOf(decodeU64(k)) == c.number; k, raw = order.Next() {
		if _, id, ok := decodeOrder(raw); ok {
			named[string(id)] = true
		}
	}
	records := tx.Bucket([]byte(bucketJobs)).Cursor()
	for id, _ := records.Seek([]byte(c.lowest)); id != nil && string(id) <= c.highest; id, _ = records.Next() {
		if !named[string(id)] && (below == "" || string(id) < below) {
			found.add(id)
		}
	}
}
