package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// One at a time has a key, other keys do not wait, who gives up has nothing, and
// nothing stays behind.
func TestKeyMutex(t *testing.T) {
	t.Parallel()
	var keys keyMutex
	key := jobs.Key{Principal: "p", Text: "k"}
	lock := func(key jobs.Key) func() {
		unlock, err := keys.lock(t.Context(), key)
		if err != nil {
			t.Error(err)
			return func() {}
		}
		return unlock
	}
	unlock := lock(key)
	lock(jobs.Key{Principal: "q", Text: "k"})() // another's key is another key
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for ctx, want := range map[context.Context]jobs.Code{gone: jobs.CodeCallerGone, late: jobs.CodeDeadline} {
		if _, err := keys.lock(ctx, key); jobs.CodeOf(err) != want {
			t.Errorf("a caller that does not wait got %v, want %s", err, want)
		}
	}
	if _, ok := keys.tryLock(key); ok {
		t.Error("two have the key")
	}
	var work sync.WaitGroup
	entered := make(chan int, 100)
	for i := range 100 {
		work.Go(func() {
			defer lock(key)()
			entered <- i
			if len(entered) > 1 {
				t.Error("two have the key")
			}
			<-entered
		})
	}
	if len(entered) > 0 {
		t.Error("somebody has the key that is taken")
	}
	unlock()
	work.Wait()
	if again, ok := keys.tryLock(key); !ok {
		t.Error("nobody has the key, and it cannot be taken")
	} else {
		again()
	}
	if len(keys.keys) > 0 {
		t.Errorf("%d keys stay behind", len(keys.keys))
	}
}
