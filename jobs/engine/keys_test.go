package engine

import (
	"sync"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// One at a time has a key's turn, other keys do not wait, and nothing stays behind.
func TestKeyTurns(t *testing.T) {
	t.Parallel()
	var turns keyTurns
	done := turns.take(jobs.Key{Principal: "p", Text: "k"})
	turns.take(jobs.Key{Principal: "q", Text: "k"})() // another's key is another key
	var work sync.WaitGroup
	entered := make(chan int, 100)
	for i := range 100 {
		work.Go(func() {
			done := turns.take(jobs.Key{Principal: "p", Text: "k"})
			defer done()
			entered <- i
			if len(entered) > 1 {
				t.Error("two have the turn")
			}
			<-entered
		})
	}
	if len(entered) > 0 {
		t.Error("somebody has the turn that is taken")
	}
	done()
	work.Wait()
	if len(turns.keys) > 0 {
		t.Errorf("%d keys stay behind", len(turns.keys))
	}
}
