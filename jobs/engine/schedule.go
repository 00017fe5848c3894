package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/macexec/macexec/jobs"
)

// scheduler decides which queued job starts next. docs/scheduling.md states the rule:
//
//   - each class of jobs has a number of slots, and shares them fairly among the
//     principals that have jobs waiting for it: the next slot is for the one that has
//     used the least slot time of late;
//   - of one principal's jobs in one class the first by rank is next;
//   - a job starts with its locks or not at all, and waits for them outside of the
//     queue, so that others go on (see locks);
//   - while the store may have forgotten something, no job with outside effects starts.
//
// Whatever may start has been taken out of the queue before a method returns: what
// waits, waits for the reason that waiting tells. The scheduler knows ids and keys
// only, does no I/O and starts nothing; the records are in the store.
type scheduler struct {
	now func() time.Time

	mu      sync.Mutex
	closed  bool        // nothing starts: the engine recovers, or stops
	paused  atomic.Bool // nothing starts, until an operator says so; set under mu
	forgot  bool        // nothing with outside effects starts, until an operator says so
	classes map[string]*class
	named   map[string]int // the size of each class that has one of its own
	other   int            // the size of any other class
	turns   map[string]*turn
	locks   locks
	taken   []*turn // have what they need, and are still to be begun (see take)
}

// turn is a job in the scheduler's eyes.
type turn struct {
	id        string
	principal string
	class     string
	rank      rank
	needs     needs   // what its locks are worked out from
	claims    []claim // its locks
	external  bool    // it has outside effects
	refuse    bool    // it does not wait for locks: it holds them, and gives none back while it waits

	state jobs.State // as the scheduler knows it
	place place
	again bool // queue it once its slot is given back
	ended bool // forget it once its slot is given back

	holds     bool   // it has its locks
	passedFor *claim // the one that it was passed over for last
}

// rank orders the jobs of a principal: by the time of acceptance, in milliseconds,
// less a minute for each step of priority; then by acceptance. As it never changes,
// and time goes on, every job is the first one day.
type rank struct {
	at  int64
	seq uint64
}

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.at, o.at), cmp.Compare(r.seq, o.seq))
}

// place says where a job is on its way.
type place int

const (
	atRest   place = iota // known, and not to be started now
	inQueue               // waits for a slot
	aside                 // was passed over for a lock, and waits for that
	heldBack              // waits for an operator\'s word (see forgot)
	inSlot                // has one
)

// priorityStep is what one step of priority is worth in waiting.
const priorityStep = time.Minute

// newScheduler makes a scheduler that starts nothing until it is opened.
func newScheduler(sizes map[string]int, other int, now func() time.Time) *scheduler {
	s := &scheduler{now: now, closed: true, classes: map[string]*class{}, turns: map[string]*turn{}, locks: locks{}}
	s.named, s.other = sizes, other
	return s
}

// expect tells of a job before it is stored. From then on it is known until it has
// ended, so that whatever is told of a job in between comes to the right end.
func (s *scheduler) expect(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.know(t)
}

// add puts a job that is known and rests into the queue. It may be told of one that is
// not queued any more: who looked at the job and who changed it can be at work at the
// same time.
func (s *scheduler) add(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.turns[t.id]
	if known == nil || known.place != atRest || known.state == jobs.StateRunning || known.state == jobs.StateUnknown {
		return
	}
	s.giveUp(known)
	// Whether it waits for locks stays as it is: who waits has none to keep.
	known.principal, known.class, known.rank, known.external = t.principal, t.class, t.rank, t.external
	if !known.holds {
		known.needs, known.claims = t.needs, t.claims
	}
	s.enqueue(known)
	s.schedule()
}

// queueAgain tells that a job which has a slot waits for its next attempt: it is in the
// queue, at its old place, as soon as the slot is given back.
func (s *scheduler) queueAgain(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil && t.place == inSlot {
		t.state, t.again = jobs.StateQueued, true
	}
}

// know returns the scheduler's own record of a job.
func (s *scheduler) know(t turn) *turn {
	known := s.turns[t.id]
	if known == nil {
		known = &t
		s.turns[t.id] = known
	}
	return known
}

// giveUp takes the locks back from a job that waits for its turn, unless it is one
// that keeps them.
func (s *scheduler) giveUp(t *turn) {
	if !t.refuse {
		s.unlock(t)
	}
}

// unlock takes from a job what it holds and has reserved. Who can have it now is
// considered again.
func (s *scheduler) unlock(t *turn) {
	for _, freed := range s.locks.drop(t) {
		s.enqueue(freed)
	}
}

// take returns the next job that has got what it needs to start, and what its locks
// were worked out from: the world may have changed since.
func (s *scheduler) take() (id string, n needs, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.taken) == 0 {
		return "", needs{}, false
	}
	t := s.taken[0]
	s.taken = s.taken[1:]
	return t.id, t.needs, true
}

// claims returns the locks that a job has or waits for.
func (s *scheduler) claims(id string) []claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil {
		return slices.Clone(t.claims)
	}
	return nil
}

// relock gives a job that is about to start the locks as they are worked out now. If
// others have them, the job is queued again once its slot is given back.
func (s *scheduler) relock(id string, claims []claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[id]
	if t == nil || t.ended || t.holds && sameClaims(t.claims, claims) {
		return true
	}
	s.unlock(t)
	t.claims = claims
	if _, by := s.locks.blocked(t); by == nil {
		s.locks.seize(t)
		s.schedule()
		return true
	}
	t.refuse, t.again = false, true
	s.schedule()
	return false
}

// occupy takes slot and locks for a known job that runs already, whatever others have.
// It reports whether the caller is to attend to the job: nobody does, and it still runs.
func (s *scheduler) occupy(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[id]
	if t == nil || t.place == inSlot || t.state != jobs.StateRunning {
		return false
	}
	s.locks.seize(t)
	s.run(t)
	return true
}

// keep takes the locks for an unknown job that an earlier engine left, whatever others
// have.
func (s *scheduler) keep(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks.seize(s.know(t))
}

// hold takes the locks of a call that does not wait for them, before it is stored or
// after a restart; if somebody has one of them, it says so.
func (s *scheduler) hold(t turn) (o obstacle, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, by := s.locks.blocked(&t); by != nil {
		return t.obstacle(c, by), false
	}
	s.locks.seize(s.know(t))
	return obstacle{}, true
}

// obstacle says what would keep a job from its locks now.
func (s *scheduler) obstacle(t turn) (obstacle, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, by := s.locks.blocked(&t)
	if by == nil {
		return obstacle{}, false
	}
	return t.obstacle(c, by), true
}

// lost tells that nobody knows how a job ended: it keeps its locks.
func (s *scheduler) lost(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil {
		t.state = jobs.StateUnknown
	}
}

// rest tells that a job is queued again, and that add will say when it may start.
func (s *scheduler) rest(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil && t.state != jobs.StateUnknown {
		t.state = jobs.StateQueued
		s.giveUp(t)
		s.schedule()
	}
}

// release gives a job's slot back. Unless it is to be queued again or has ended, it
// rests, and keeps its locks.
func (s *scheduler) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[id]
	if t == nil || t.place != inSlot {
		return
	}
	c := s.class(t.class)
	c.used--
	sh := c.share(t.principal)
	sh.account(s.now())
	sh.running--
	t.place = atRest
	switch {
	case t.ended:
		delete(s.turns, id)
	case t.again:
		t.again = false
		s.giveUp(t)
		s.enqueue(t)
	}
	s.schedule()
}

// remove forgets a job that has ended. A slot that it has is its attempt's to give
// back.
func (s *scheduler) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[id]
	if t == nil {
		return
	}
	switch t.place {
	case inSlot:
		t.again, t.ended = false, true
	case inQueue:
		s.dequeue(t)
		delete(s.turns, id)
	case aside, heldBack, atRest:
		delete(s.turns, id)
	}
	s.unlock(t)
	s.schedule()
}

// pause stops and resumes starts. What runs goes on.
func (s *scheduler) pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused.Store(paused)
	s.schedule()
}

// holdBack lets no job with outside effects start, until trust. Before open.
func (s *scheduler) holdBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot = true
}

// held counts the jobs that wait for that.
func (s *scheduler) held() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forgot {
		return 0
	}
	for _, t := range s.turns {
		if t.place == heldBack {
			n++
		}
	}
	return n
}

// trust ends that.
func (s *scheduler) trust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot = false
	for _, t := range s.turns {
		if t.place == heldBack {
			s.enqueue(t)
		}
	}
	s.schedule()
}

// open lets jobs start.
func (s *scheduler) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
	s.schedule()
}

// close ends all starts.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// resize gives the classes other sizes. What runs beyond them goes on.
func (s *scheduler) resize(sizes map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = sizes
	for name, c := range s.classes {
		c.size = s.size(name)
	}
	s.schedule()
}

func (s *scheduler) size(class string) int {
	if n, ok := s.named[class]; ok {
		return n
	}
	return s.other
}

// schedule takes out of the queue whatever may start now.
func (s *scheduler) schedule() {
	if s.closed || s.paused.Load() {
		return
	}
	now := s.now()
	for {
		next := s.next(now)
		if next == nil {
			return
		}
		s.dequeue(next)
		if !s.locks.acquire(next) {
			next.place = aside
			continue
		}
		s.run(next)
		s.taken = append(s.taken, next)
	}
}

// next is the job whose turn it is: the first of each class that has a free slot, and
// of these the first by rank.
func (s *scheduler) next(now time.Time) *turn {
	var next *turn
	for _, c := range s.classes {
		if c.used >= c.size || len(c.wanting) == 0 {
			continue
		}
		first := c.wanting[0]
		for _, sh := range c.wanting[1:] {
			if sh.before(first, now) {
				first = sh
			}
		}
		if head := first.queue[0]; next == nil || head.rank.compare(next.rank) < 0 {
			next = head
		}
	}
	return next
}

func (s *scheduler) class(name string) *class {
	c := s.classes[name]
	if c == nil {
		c = &class{size: s.size(name), shares: map[string]*share{}}
		s.classes[name] = c
	}
	return c
}

func (s *scheduler) run(t *turn) {
	c := s.class(t.class)
	c.used++
	sh := c.share(t.principal)
	sh.account(s.now())
	sh.running++
	t.place, t.state = inSlot, jobs.StateRunning
}

func (s *scheduler) enqueue(t *turn) {
	if s.forgot && t.external {
		t.place, t.state = heldBack, jobs.StateQueued
		return
	}
	c := s.class(t.class)
	sh := c.share(t.principal)
	if len(sh.queue) == 0 {
		c.enter(sh, s.now())
	}
	i, _ := sh.find(t)
	sh.queue = slices.Insert(sh.queue, i, t)
	t.place, t.state = inQueue, jobs.StateQueued
}

func (s *scheduler) dequeue(t *turn) {
	c := s.class(t.class)
	sh := c.share(t.principal)
	switch i, found := sh.find(t); {
	case found && i == 0:
		sh.queue[0], sh.queue = nil, sh.queue[1:] // as a rule; nothing is moved
	case found:
		sh.queue = slices.Delete(sh.queue, i, i+1)
	}
	if len(sh.queue) == 0 {
		c.leave(sh, s.now())
	}
	t.place = atRest
}

// waiting says what a job waits for, or nil for one that is not known.
func (s *scheduler) waiting(id string) *jobs.WaitingFor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil {
		return s.reason(t)
	}
	return nil
}

func (s *scheduler) reason(t *turn) *jobs.WaitingFor {
	if t.place == heldBack {
		return &jobs.WaitingFor{Kind: jobs.WaitRestored}
	}
	w := &jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: t.class}
	// Who waits for a slot may have to wait for a lock after that. It is told of at
	// once if somebody has to do something about it.
	if c, by := s.locks.blocked(t); by != nil && (t.place == aside || by.state == jobs.StateUnknown) {
		o := t.obstacle(c, by)
		w.Kind, w.Detail, w.JobID, w.JobState = jobs.WaitLock, o.name, o.jobID, o.state
		w.Position = s.locks[c.key].ahead(t, c.mode) + 1
	} else if c := s.classes[t.class]; c == nil || t.place == inSlot && !t.again {
		w.Position = 1 // it has its slot already
	} else {
		w.Position = c.inLine(t, s.now())
	}
	if s.paused.Load() {
		w = &jobs.WaitingFor{Kind: jobs.WaitPaused, Position: w.Position}
	}
	return w
}

// slots lists every class that has a size of its own or was ever used, by name.
func (s *scheduler) slots() []Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Slot
	for name, size := range s.named {
		if s.classes[name] == nil {
			list = append(list, Slot{Class: name, Size: size})
		}
	}
	for name, c := range s.classes {
		list = append(list, Slot{Class: name, Size: c.size, Used: c.used})
	}
	slices.SortFunc(list, func(a, b Slot) int { return cmp.Compare(a.Class, b.Class) })
	return list
}
