package store

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// LookupKey implements jobs.Store.
func (s *Store) LookupKey(ctx context.Context, key jobs.Key) (record jobs.KeyRecord, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		place := keyPlace(key)
		known, err := s.keyRecord(tx, key, place, true)
		switch {
		case err != nil:
			return err
		case known == nil:
			s.free.note(place)
			return jobs.Errorf(jobs.CodeJobNotFound, "the key is not used")
		}
		record = *known
		return nil
	})
	return record, err
}

// freePlaces are those of keys that LookupKey has found to be free, with care (see hidden).
// Who is about to use a key asks first, so that the commit, which asks once more whether it
// is, need not look for what damage hides a second time. Each is good for one commit.
type freePlaces struct {
	mu     sync.Mutex
	places map[string]struct{}
}

// freePlacesMax bounds their memory. Who finds no place there looks with care.
const freePlacesMax = 8192

func (f *freePlaces) note(place []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.places == nil || len(f.places) >= freePlacesMax {
		f.places = map[string]struct{}{}
	}
	f.places[string(place)] = struct{}{}
}

func (f *freePlaces) take(place []byte) (noted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, noted = f.places[string(place)]
	delete(f.places, string(place))
	return noted
}

// Get implements jobs.Store.
func (s *Store) Get(ctx context.Context, id string) (*jobs.Job, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	if snap := s.cache.get(id); snap != nil {
		return snap.decoded()
	}
	snap, err := s.fill(id)
	if err != nil {
		return nil, err
	}
	return snap.decoded()
}

// fill reads one record into the cache. It holds the gate's read side all the
// while, so that no commit can come between reading the record and keeping it.
func (s *Store) fill(id string) (snap *snapshot, err error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	tx, err := s.beginRead()
	if err != nil {
		return nil, err
	}
	err = s.read(tx, func(tx *bbolt.Tx) error {
		raw := tx.Bucket([]byte(bucketJobs)).Get([]byte(id))
		if raw == nil {
			return jobNotFound(id)
		}
		snap = &snapshot{id: id, raw: bytes.Clone(raw)}
		s.cache.put(snap)
		return nil
	})
	return snap, err
}

// Open implements jobs.Store.
func (s *Store) Open(ctx context.Context) ([]*jobs.Job, map[string]error, error) {
	var open []*jobs.Job
	broken := map[string]error{}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte(bucketJobs))
		return tx.Bucket([]byte(bucketOpen)).ForEach(func(id, _ []byte) error {
			if job, err := s.decode(string(id), records.Get(id)); err != nil {
				broken[string(id)] = err
			} else {
				open = append(open, job)
			}
			return nil
		})
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(open, func(a, b *jobs.Job) int { return cmp.Compare(a.Seq, b.Seq) })
	s.broken.Store(&broken)
	return open, maps.Clone(broken), nil
}

// Counts implements jobs.Store. Bucket open says the states; only where it does not is
// the record asked.
func (s *Store) Counts(ctx context.Context) (map[jobs.State]int, error) {
	counts, broken := map[jobs.State]int{}, map[string]error{}
	if known := s.broken.Load(); known != nil {
		broken = *known
	}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte(bucketJobs))
		return tx.Bucket([]byte(bucketOpen)).ForEach(func(id, raw []byte) error {
			if _, bad := broken[string(id)]; bad {
				return nil
			}
			_, state, ok := splitOpenValue(raw)
			if !ok {
				job, err := s.decode(string(id), records.Get(id))
				if err != nil {
					return nil //nolint:nilerr // it is damaged, as Open says
				}
				state = job.State
			}
			counts[state]++
			return nil
		})
	})
	return counts, err
}

// decode returns the job of a record, from the cache if that is the same record.
func (s *Store) decode(id string, raw []byte) (*jobs.Job, error) {
	if raw == nil {
		return nil, damaged("job "+id, "its record is missing").WithJob(id)
	}
	if snap := s.cache.get(id); snap != nil && bytes.Equal(snap.raw, raw) {
		return snap.decoded()
	}
	return decodeJob(id, raw)
}
