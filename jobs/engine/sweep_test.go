package engine

import (
	"testing"
	"time"
)

// TestSweepGoesOnAfterAPanic: one sweep that panics is not the last one.
func TestSweepGoesOnAfterAPanic(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Stop()
	swept := make(chan int)
	n := 0
	h.store.collecting = func() {
		n++
		swept <- n
		if n == 1 {
			panic("a sweep")
		}
	}
	h.limit = Limits{BlobUnused: time.Millisecond}
	h.start()
	for want := 1; want <= 3; want++ {
		if got := <-swept; got != want {
			t.Errorf("sweep %d is said to be %d", want, got)
		}
	}
	go func() {
		for range swept { // until the engine has stopped
		}
	}()
	h.Stop()
	close(swept)
}
