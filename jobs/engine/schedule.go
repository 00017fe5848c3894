package engine

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/macexec/macexec/jobs"
)

// scheduler decides which queued job starts next: the oldest one whose class has
// a free slot. It holds ids only; the records are in the store.
type scheduler struct {
	mu     sync.Mutex
	closed bool
	queue  []queued // by seq
	sizes  map[string]int
	other  int // the size of a class that is not named
	used   map[string]int
}

type queued struct {
	id    string
	class string
	seq   uint64
}

func newScheduler(sizes map[string]int, cpus int) *scheduler {
	return &scheduler{sizes: sizes, other: cpus, used: map[string]int{}}
}

func (s *scheduler) size(class string) int {
	if n, ok := s.sizes[class]; ok {
		return n
	}
	return s.other
}

func (s *scheduler) add(q queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearchFunc(s.queue, q.seq, func(a queued, seq uint64) int { return cmp.Compare(a.seq, seq) })
	if !found {
		s.queue = slices.Insert(s.queue, i, q)
	}
}

// take removes the next job that may start and occupies its slot.
func (s *scheduler) take() (queued, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return queued{}, false
	}
	for i, q := range s.queue {
		if s.used[q.class] < s.size(q.class) {
			s.used[q.class]++
			s.queue = slices.Delete(s.queue, i, i+1)
			return q, true
		}
	}
	return queued{}, false
}

// occupy takes a slot for a job that already runs, even beyond the class's size.
func (s *scheduler) occupy(class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[class]++
}

func (s *scheduler) release(class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[class]--
}

// remove takes a job out of the queue, if it is still there.
func (s *scheduler) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(q queued) bool { return q.id == id })
}

func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// waiting says what a queued job waits for: a slot of its class, and how many of
// that class stand before it. It returns nil for a job that is not in the queue.
func (s *scheduler) waiting(id string) *jobs.WaitingFor {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.queue, func(q queued) bool { return q.id == id })
	if i < 0 {
		return nil
	}
	position := 1
	for _, q := range s.queue[:i] {
		if q.class == s.queue[i].class {
			position++
		}
	}
	return &jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: s.queue[i].class, Position: position}
}

// slots lists every class that is configured or in use, by name.
func (s *scheduler) slots() []Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Slot
	for class, size := range s.sizes {
		list = append(list, Slot{Class: class, Size: size, Used: s.used[class]})
	}
	for class, used := range s.used {
		if _, named := s.sizes[class]; !named {
			list = append(list, Slot{Class: class, Size: s.other, Used: used})
		}
	}
	slices.SortFunc(list, func(a, b Slot) int { return cmp.Compare(a.Class, b.Class) })
	return list
}

// dispatch starts every queued job that has a slot.
func (e *Engine) dispatch() {
	for {
		q, ok := e.sched.take()
		if !ok {
			return
		}
		e.attend(q.id, q.class, func() { e.runAttempt(q.id) })
	}
}

// attend runs f, which sees a job through an attempt in a slot, and gives the slot
// back. A panic is a fault of macexec's own: it stops nothing else (promise G13), and
// the job's records are looked at again.
func (e *Engine) attend(id, slot string, f func()) {
	e.goRun(func() {
		defer e.dispatch()
		defer e.sched.release(slot)
		defer e.endLive(id)
		defer func() {
			if fault := recover(); fault != nil {
				e.tryAgain(id, fmt.Errorf("panic: %v\n%s", fault, debug.Stack()))
			}
		}()
		f()
	})
}

// goRun runs f unless the engine is stopping. A panic is logged and stops nothing
// else.
func (e *Engine) goRun(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped.Err() == nil {
		e.running.Go(func() { e.guarded(f) })
	}
}

func (e *Engine) guarded(f func()) {
	defer func() {
		if fault := recover(); fault != nil {
			e.log.Error("a fault in macexec itself", "fault", fault, "stack", string(debug.Stack()))
		}
	}()
	f()
}
