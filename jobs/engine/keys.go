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

// lock waits for the key until ctx ends.
func (k *keyMutex) lock(ctx context.Context, key jobs.Key) (unlock func(), err error) {
	l := k.join(key)
	select {
	case l.slot <- struct{}{}:
		return func() { <-l.slot; k.leave(key, l) }, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, callerGone(ctx.Err())
	}
}

// tryLock takes the key if nobody has it.
func (k *keyMutex) tryLock(key jobs.Key) (unlock func(), ok bool) {
	l := k.join(key)
	select {
	case l.slot <- struct{}{}:
		return func() { <-l.slot; k.leave(key, l) }, true
	default:
		k.leave(key, l)
		return nil, false
	}
}

func (k *keyMutex) join(key jobs.Key) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.keys[key]
	if l == nil {
		if k.keys == nil {
			k.keys = map[jobs.Key]*keyLock{}
		}
		l = &keyLock{slot: make(chan struct{}, 1)}
		k.keys[key] = l
	}
	l.users++
	return l
}

func (k *keyMutex) leave(key jobs.Key, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.keys, key)
	}
}

// keyHold is what a call has of its key.
type keyHold struct {
	record  *jobs.KeyRecord // if the key is known
	release func()          // of the key's turn, or of nothing
}

// claim returns the record of a key if it has one, and the key's turn if not. A key that
// has a record keeps it, so repeats of it have no need of turns; only who might be the
// first waits, and looks again afterwards.
func (e *Engine) claim(ctx context.Context, key jobs.Key) (keyHold, error) {
	none := func() {}
	if key.Text == "" {
		return keyHold{release: none}, nil
	}
	release, mine := e.keys.tryLock(key)
	for {
		record, err := e.store.LookupKey(context.WithoutCancel(ctx), key)
		unknown := jobs.CodeOf(err) == jobs.CodeJobNotFound
		if mine && unknown {
			return keyHold{release: release}, nil
		}
		if mine {
			release()
		}
		switch {
		case err == nil:
			return keyHold{record: &record, release: none}, nil
		case !unknown:
			return keyHold{}, err
		}
		if release, err = e.keys.lock(ctx, key); err != nil {
			return keyHold{}, err
		}
		mine = true
	}
}

// callerGone says that a call was not decided because its caller did not wait for that.
func callerGone(why error) *jobs.Error {
	if errors.Is(why, context.DeadlineExceeded) {
		return jobs.Errorf(jobs.CodeDeadline, "the caller's deadline passed before the call was decided; repeat it with the same key")
	}
	return jobs.Errorf(jobs.CodeCallerGone, "the caller went away before the call was decided; repeat it with the same key")
}
