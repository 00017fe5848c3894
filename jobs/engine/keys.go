package engine

import (
	"sync"

	"github.com/macexec/macexec/jobs"
)

// keyTurns lets submissions under one key be decided one after the other. A caller
// that lost an answer repeats the call while the first try may still be looked at;
// were the two decided side by side, the repeat could be refused for what has changed
// in between (a drain, a file, a closed run) and the first be accepted after that, so
// that its caller takes the key for free. One after the other, the repeat finds the
// job. The zero value is ready.
type keyTurns struct {
	mu   sync.Mutex
	keys map[jobs.Key]*keyTurn
}

// keyTurn is the turn of one key, as long as somebody has it or waits for it.
type keyTurn struct {
	mu    sync.Mutex
	users int
}

// take waits for the key's turn. Calling the returned function ends it.
func (k *keyTurns) take(key jobs.Key) (done func()) {
	k.mu.Lock()
	t := k.keys[key]
	if t == nil {
		if k.keys == nil {
			k.keys = map[jobs.Key]*keyTurn{}
		}
		t = &keyTurn{}
		k.keys[key] = t
	}
	t.users++
	k.mu.Unlock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(k.keys, key)
		}
	}
}
