package engine

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// clock is a scheduler's time in a test.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time { return c.at }

// schedule is a scheduler under test: it says what has started and still runs.
type schedule struct {
	*scheduler
	*clock

	seq     uint64
	running []turn
}

func newSchedule(sizes map[string]int, other int) *schedule {
	c := newClock()
	s := &schedule{scheduler: newScheduler(sizes, other, c.now), clock: c}
	s.open()
	return s
}

// job makes a job that is accepted now.
func (s *schedule) job(principal, class string, priority int) turn {
	s.seq++
	return turn{
		id: fmt.Sprintf("%s%d", principal, s.seq), principal: principal, class: class,
		rank: rank{s.at.UnixMilli() - int64(priority)*priorityStep.Milliseconds(), s.seq},
	}
}

// submit is a job that is accepted and queued.
func (s *schedule) submit(t turn) {
	s.expect(t)
	s.add(t)
}

// takeUp is a job that ran when the daemon went.
func (s *schedule) takeUp(t turn) {
	t.state = jobs.StateRunning
	s.expect(t)
	s.occupy(t.id)
}

// started takes up what has got a slot, in order.
func (s *schedule) started() []turn {
	var list []turn
	for id, _, ok := s.take(); ok; id, _, ok = s.take() {
		list = append(list, *s.turns[id])
	}
	s.running = append(s.running, list...)
	return list
}

// end ends the i-th of the running jobs.
func (s *schedule) end(i int) turn {
	t := s.running[i]
	s.running = slices.Delete(s.running, i, i+1)
	s.remove(t.id)
	s.release(t.id)
	return t
}

func ids(turns []turn) []string {
	var list []string
	for _, t := range turns {
		list = append(list, t.id)
	}
	return list
}

// TestSchedulerOrdersByPriorityAndAge: within a principal a step of priority is worth
// a minute, so that age counts.
func TestSchedulerOrdersByPriorityAndAge(t *testing.T) {
	t.Parallel()
	s := newSchedule(nil, 1)
	s.submit(s.job("a", "x", 0)) // a1 has the slot
	s.submit(s.job("a", "x", 0)) // a2
	s.at = s.at.Add(30 * time.Second)
	s.submit(s.job("a", "x", 1)) // a3 passes a2
	s.at = s.at.Add(2 * time.Minute)
	s.submit(s.job("a", "x", 1))  // a4 comes too late for that
	s.submit(s.job("a", "x", -1)) // a5 is accepted before a6, and has less priority
	s.submit(s.job("a", "x", 0))  // a6
	again := *s.turns["a6"]
	s.add(again)          // is there already
	s.add(turn{id: "a7"}) // has ended before it could be queued
	wantPosition := []string{"a3", "a2", "a4", "a6", "a5"}
	for i, id := range wantPosition {
		if diff := cmp.Diff(&jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: "x", Position: i + 1}, s.waiting(id)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	order := ids(s.started())
	for len(s.running) > 0 {
		s.end(0)
		order = append(order, ids(s.started())...)
	}
	if diff := cmp.Diff(append([]string{"a1"}, wantPosition...), order); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
}

// TestSchedulerSharesAmongPrincipals: who has used less is next; a newcomer starts
// level, and old use is not held against anybody for long.
func TestSchedulerSharesAmongPrincipals(t *testing.T) {
	t.Parallel()
	s := newSchedule(nil, 1)
	minutes := map[string]int{"long": 10, "short": 1, "late": 1}
	used := map[string]int{}
	turnOver := func() {
		got := s.started()
		if len(got) != 1 {
			t.Fatalf("started %v", ids(got))
		}
		p := got[0].principal
		s.at = s.at.Add(time.Duration(minutes[p]) * time.Minute)
		used[p] += minutes[p]
		s.submit(s.job(p, "x", 0)) // it always wants more
		s.end(0)
	}
	for range 10 { // long has the slot for itself
		s.submit(s.job("long", "x", 0))
		turnOver()
	}
	s.submit(s.job("short", "x", 0))
	used = map[string]int{}
	for range 110 {
		turnOver()
	}
	if d := used["long"] - used["short"]; d > 20 || d < -20 {
		t.Errorf("used %v minutes", used)
	}
	s.submit(s.job("late", "x", 0))
	used = map[string]int{}
	for range 300 {
		turnOver()
	}
	if d := slices.Max(slices.Collect(maps.Values(used))) - slices.Min(slices.Collect(maps.Values(used))); d > 20 {
		t.Errorf("used %v minutes", used)
	}
}

// TestSchedulerLooksBackOnlySoFar: who used a lot while nobody else wanted it is
// behind by a bounded time only.
func TestSchedulerLooksBackOnlySoFar(t *testing.T) {
	t.Parallel()
	s := newSchedule(nil, 1)
	s.submit(s.job("a", "x", 0))
	s.started()
	s.at = s.at.Add(10 * time.Hour)
	for range 30 {
		s.submit(s.job("b", "x", 0))
		s.submit(s.job("a", "x", 0))
	}
	s.end(0)
	ahead := 0
	for s.started()[0].principal == "b" {
		s.at = s.at.Add(time.Minute)
		s.end(0)
		ahead++
	}
	if ahead < 10 || ahead > 11 {
		t.Errorf("b had %d minutes before a had one", ahead)
	}
}

// TestRecoveredJobsMayExceedTheirClass: what runs already keeps running, and
// nothing new starts until there is room.
func TestRecoveredJobsMayExceedTheirClass(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := &schedule{scheduler: newScheduler(map[string]int{"x": 1}, 2, c.now), clock: c}
	first, second, third := s.job("a", "x", 0), s.job("a", "x", 0), s.job("a", "x", 0)
	s.submit(third)
	s.takeUp(first)
	s.takeUp(second)
	if got := s.started(); len(got) > 0 {
		t.Fatalf("before it was opened: %v", ids(got))
	}
	s.open()
	s.release(first.id)
	s.release(first.id) // once is enough
	if got := s.started(); len(got) > 0 {
		t.Errorf("started beyond the class's size: %v", ids(got))
	}
	if diff := cmp.Diff([]Slot{{Class: "x", Size: 1, Used: 1}}, s.slots()); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	s.release(second.id)
	if got := s.started(); len(got) != 1 || got[0].id != third.id {
		t.Errorf("with a free slot: %v", ids(got))
	}
	s.close()
	s.submit(s.job("a", "y", 0))
	if got := s.started(); len(got) > 0 {
		t.Errorf("a closed scheduler gave %v", ids(got))
	}
}

// TestSchedulerQueuesAgainWhenTheSlotIsBack: a job that is queued again while its last
// attempt still holds a slot is in the queue once, at its old place.
func TestSchedulerQueuesAgainWhenTheSlotIsBack(t *testing.T) {
	t.Parallel()
	s := newSchedule(nil, 1)
	first := s.job("a", "x", 0)
	s.submit(first)
	s.submit(s.job("a", "x", 0))
	s.started()
	s.queueAgain(first.id)
	if got := s.started(); len(got) > 0 {
		t.Fatalf("started %v beside itself", ids(got))
	}
	if diff := cmp.Diff(&jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: "x", Position: 1}, s.waiting(first.id)); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	s.release(first.id)
	if got := s.started(); len(got) != 1 || got[0].id != first.id {
		t.Errorf("started %v", ids(got))
	}
}

// TestSchedulerGivesOneJobOneSlot: a job that is to be taken up while its attempt still
// has the slot is not, and gives back what it has.
func TestSchedulerGivesOneJobOneSlot(t *testing.T) {
	t.Parallel()
	s := newSchedule(nil, 1)
	job := s.job("a", "x", 0)
	s.submit(job)
	s.started()
	if s.occupy(job.id) {
		t.Error("it has two that attend to it")
	}
	s.release(job.id)
	if !s.occupy(job.id) {
		t.Error("nobody attends to it, and nobody may")
	}
	s.lost(job.id)
	s.release(job.id)
	if s.occupy(job.id) {
		t.Error("an unknown job was taken up")
	}
	s.rest(job.id) // each of these was too late
	s.add(job)
	if got := s.started(); len(got) > 0 || !s.turns[job.id].holds {
		t.Errorf("an unknown job was started: %v; it is now %+v", got, s.turns[job.id])
	}
	s.remove(job.id)
	if s.occupy(job.id) {
		t.Error("a job that has ended was taken up")
	}
	if diff := cmp.Diff([]Slot{{Class: "x", Size: 1}}, s.slots()); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

// TestRecoveredJobsHaveOneHolder: a job that does not wait for locks, and had to give
// them up before the restart, waits for who has them.
func TestRecoveredJobsHaveOneHolder(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := &schedule{scheduler: newScheduler(nil, 4, c.now), clock: c}
	lock := func() []claim { return addClaim(nil, claim{key: "k", mode: exclusive, name: "a.txt"}) }
	holder, refuses := s.job("a", "x", 0), s.job("a", "x", 0)
	holder.claims, refuses.claims, refuses.refuse = lock(), lock(), true
	s.takeUp(holder)
	if _, held := s.hold(refuses); held {
		t.Fatal("it has the lock of a running job")
	}
	refuses.refuse = false
	s.expect(refuses)
	refuses.refuse = true // as the record says it
	s.add(refuses)
	s.open()
	if got := s.started(); len(got) > 0 {
		t.Fatalf("started beside the holder: %v", ids(got))
	}
	if diff := cmp.Diff(&jobs.WaitingFor{Kind: jobs.WaitLock, Detail: "a.txt", JobID: holder.id, JobState: jobs.StateRunning, Position: 1}, s.waiting(refuses.id)); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	s.remove(holder.id)
	s.release(holder.id)
	if got := s.started(); len(got) != 1 || !s.relock(refuses.id, lock()) {
		t.Errorf("after the holder: %v", ids(got))
	}
}

func TestDefaultSlots(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cpus   int
		memory int64
		want   map[string]int
	}{
		{1, 0, map[string]int{"video": 1, "image": 1, "audio": 1, "inspect": 2, "publish": 2}},
		{10, 16 << 30, map[string]int{"video": 1, "image": 5, "audio": 10, "inspect": 20, "publish": 20}},
		{24, 8 << 30, map[string]int{"video": 2, "image": 8, "audio": 16, "inspect": 32, "publish": 48}},
	} {
		if diff := cmp.Diff(test.want, defaultSlots(test.cpus, test.memory)); diff != "" {
			t.Errorf("%d processors (-want +got):\n%s", test.cpus, diff)
		}
	}
	got := slotSizes(10, 16<<30, map[string]int{"video": 3, "mine": 7})
	if got["video"] != 3 || got["mine"] != 7 || got["audio"] != 10 {
		t.Errorf("configured: %v", got)
	}
}
