package store

import (
	"container/list"
	"sync"

	"github.com/macexec/macexec/jobs"
)

// snapshot is one committed or about to be committed record of a job. It never
// changes; the job is decoded when somebody first wants it, so the writer does not
// pay for it, and what is shown is always exactly what is stored.
type snapshot struct {
	id  string
	raw []byte

	once sync.Once
	job  *jobs.Job
	err  error
}

func (s *snapshot) decoded() (*jobs.Job, error) {
	s.once.Do(func() { s.job, s.err = decodeJob(s.id, s.raw) })
	return s.job, s.err
}

// The bounds of the cache. A decoded job takes a few times the memory of its JSON.
const (
	cacheMaxJobs  = 8192
	cacheMaxBytes = 32 << 20
)

// cache holds the committed snapshots that were used last. Only the writer puts a
// changed snapshot in, inside the gate; readers fill it only while they hold the
// gate's read side, so an old record never replaces a newer one.
type cache struct {
	mu    sync.Mutex
	items map[string]*list.Element // of *snapshot
	order *list.List               // the last used in front
	bytes int
}

func newCache() *cache {
	return &cache{items: map[string]*list.Element{}, order: list.New()}
}

func (c *cache) get(id string) *snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.items[id]
	if el == nil {
		return nil
	}
	c.order.MoveToFront(el)
	return snapshotOf(el)
}

func snapshotOf(el *list.Element) *snapshot {
	return el.Value.(*snapshot) //nolint:errcheck,forcetypeassert // put puts in nothing else
}

// drop forgets a job that is pruned.
func (c *cache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.items[id]; el != nil {
		c.order.Remove(el)
		delete(c.items, id)
		c.bytes -= len(snapshotOf(el).raw)
	}
}

func (c *cache) put(s *snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.items[s.id]; el != nil {
		c.bytes += len(s.raw) - len(snapshotOf(el).raw)
		el.Value = s
		c.order.MoveToFront(el)
	} else {
		c.items[s.id] = c.order.PushFront(s)
		c.bytes += len(s.raw)
	}
	for len(c.items) > cacheMaxJobs || (c.bytes > cacheMaxBytes && len(c.items) > 1) {
		last := c.order.Back()
		oldest := snapshotOf(last)
		c.order.Remove(last)
		delete(c.items, oldest.id)
		c.bytes -= len(oldest.raw)
	}
}
