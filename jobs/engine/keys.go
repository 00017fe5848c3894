package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/macexec/macexec/jobs"
)

// keyMutex is a mutex for each key. Submissions under one key are decided one after the
// other: a caller that lost an answer repeats the call while the first try may still be
// looked at; were the two decided side by side, the repeat could be refused for what has
// changed in between (a drain, a file, a closed run) and the first be accepted after
// that, so that its caller takes the key for free. One after the other, the repeat finds
// the job. The zero value is ready.
type keyMutex struct {
	mu   sync.Mutex
	keys map[jobs.Key]*keyLock
}

// keyLock is the lock of one key, as long as somebody has it or waits for it.
type keyLock struct {
	slot  chan struct{} // has one place; who fills it has the lock
	users int
}

// lock waits for the key until ctx ends. Only the first call of unlock does anything.
func (k *keyMutex) lock(ctx context.Context, key jobs.Key) (unlock func(), err error) {
	k.mu.Lock()
	l := k.keys[key]
	if l == nil {
		if k.keys == nil {
			k.keys = map[jobs.Key]*keyLock{}
		}
		l = &keyLock{slot: make(chan struct{}, 1)}
		k.keys[key] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.keys, key)
		}
	}
	select {
	case l.slot <- struct{}{}:
		return sync.OnceFunc(func() { <-l.slot; leave() }), nil
	case <-ctx.Done():
		leave()
		return nil, callerGone(ctx.Err())
	}
}

// callerGone says that a call was not decided because its caller did not wait for that.
func callerGone(why error) *jobs.Error {
	if errors.Is(why, context.DeadlineExceeded) {
		return jobs.Errorf(jobs.CodeDeadline, "the caller's deadline passed before the call was decided; repeat it with the same key")
	}
	return jobs.Errorf(jobs.CodeCallerGone, "the caller went away before the call was decided; repeat it with the same key")
}
