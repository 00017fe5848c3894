package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

func TestSchedulerKeepsOrderAndSlots(t *testing.T) {
	t.Parallel()
	s := newScheduler(map[string]int{"video": 1}, 2)
	for _, q := range []queued{{"c", "video", 3}, {"a", "video", 1}, {"b", "audio", 2}, {"a", "video", 1}} {
		s.add(q)
	}
	if got := s.waiting("c"); !cmp.Equal(got, &jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: "video", Position: 2}) {
		t.Errorf("c waits for %+v", got)
	}
	var order []string
	for q, ok := s.take(); ok; q, ok = s.take() {
		order = append(order, q.id)
	}
	if diff := cmp.Diff([]string{"a", "b"}, order); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	s.release("video")
	if q, ok := s.take(); !ok || q.id != "c" {
		t.Errorf("after a slot is free: %+v, %v", q, ok)
	}
	if s.waiting("c") != nil {
		t.Error("a started job still waits")
	}
	want := []Slot{{Class: "audio", Size: 2, Used: 1}, {Class: "video", Size: 1, Used: 1}}
	if diff := cmp.Diff(want, s.slots()); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

func TestSchedulerAfterRemoveAndClose(t *testing.T) {
	t.Parallel()
	s := newScheduler(nil, 1)
	s.add(queued{"a", "x", 1})
	s.add(queued{"b", "x", 2})
	s.remove("a")
	if q, ok := s.take(); !ok || q.id != "b" {
		t.Errorf("took %+v, %v", q, ok)
	}
	s.release("x")
	s.add(queued{"c", "x", 3})
	s.close()
	if q, ok := s.take(); ok {
		t.Errorf("a closed scheduler gave %+v", q)
	}
}

// TestRecoveredJobsMayExceedTheirClass: what runs already keeps running, and
// nothing new starts until there is room.
func TestRecoveredJobsMayExceedTheirClass(t *testing.T) {
	t.Parallel()
	s := newScheduler(map[string]int{"x": 1}, 1)
	s.occupy("x")
	s.occupy("x")
	s.add(queued{"a", "x", 1})
	s.release("x")
	if _, ok := s.take(); ok {
		t.Error("started beyond the class's size")
	}
	s.release("x")
	if _, ok := s.take(); !ok {
		t.Error("did not start with a free slot")
	}
}
