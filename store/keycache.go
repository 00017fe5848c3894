package store

import (
	"bytes"
	"sync"

	"github.com/macexec/macexec/jobs"
)

// keyCacheMax bounds the memory that decoded key records take.
const keyCacheMax = 8192

// keyCache holds decoded key records, so that a replay need not decode one. A record
// is used only for the very bytes that it was decoded from, so nothing has to be
// told when they change.
type keyCache struct {
	mu      sync.Mutex
	records map[string]cachedKey // by place
}

type cachedKey struct {
	raw    []byte
	record jobs.KeyRecord
}

// decode reads the record of a key.
func (c *keyCache) decode(place, raw []byte) (record jobs.KeyRecord, err error) {
	c.mu.Lock()
	known, ok := c.records[string(place)]
	c.mu.Unlock()
	if ok && bytes.Equal(known.raw, raw) {
		return known.record, nil
	}
	if err := decodeInto("the record of a key", raw, &record); err != nil {
		return record, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records == nil {
		c.records = map[string]cachedKey{}
	}
	for old := range c.records { // any one
		if len(c.records) < keyCacheMax {
			break
		}
		delete(c.records, old)
	}
	c.records[string(place)] = cachedKey{bytes.Clone(raw), record}
	return record, nil
}
