package engine

import (
	"cmp"
	"slices"
	"sync"
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
//     queue, so that others go on (see locks).
//
// Whatever may start has been taken out of the queue before a method returns: what
// waits, waits for the reason that waiting tells. The scheduler knows ids and keys
// only, does no I/O and starts nothing; the records are in the store.
type scheduler struct {
	now func() time.Time

	mu      sync.Mutex
	closed  bool // nothing starts: the engine recovers, or stops
	paused  bool // nothing starts, until an operator says so
	classes map[string]*class
	named   map[string]int // the size of each class that has one of its own
	other   int            // the size of any other class
	turns   map[string]*turn
	taken   []*turn // have a slot, and are still to be begun (see take)
}

// class is a kind of jobs that shares slots.
type class struct {
	size, used int
	shares     map[string]*share // by principal
	wanting    []*share          // those with jobs in the queue
}

// share is what one principal has used of a class, and what it wants.
type share struct {
	principal string
	used      time.Duration // of slot time, up to at
	at        time.Time
	running   int
	queue     []*turn // by rank

	// When it last wanted a slot, and how far it was behind the others then.
	left time.Time
	owed time.Duration
}

// turn is a job in the scheduler's eyes.
type turn struct {
	id        string
	principal string
	class     string
	rank      rank

	place place
	again bool // queue it once its slot is given back
	ended bool // forget it once its slot is given back
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
	atRest  place = iota // known, and not to be started now
	inQueue              // waits for a slot
	inSlot               // has one
)

// priorityStep is what one step of priority is worth in waiting.
const priorityStep = time.Minute

// lookBack is how much slot time "of late" is. A principal that comes with new work is
// at most so far behind the others: nobody pays for long for what it used while nobody
// else wanted it. What it is owed, it is owed for so long.
const lookBack = 10 * time.Minute

// newScheduler makes a scheduler that starts nothing until it is opened.
func newScheduler(sizes map[string]int, other int, now func() time.Time) *scheduler {
	s := &scheduler{now: now, closed: true, classes: map[string]*class{}, turns: map[string]*turn{}}
	s.named, s.other = sizes, other
	return s
}

// add puts a job into the queue. It may be there already. One that still has a slot
// from its last attempt is queued when it gives that back.
func (s *scheduler) add(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.turns[t.id]
	switch {
	case old == nil:
		s.turns[t.id] = &t
		s.enqueue(&t)
	case old.place == inSlot:
		old.again = true
	case old.place == atRest:
		s.enqueue(old)
	}
	s.settle()
}

// take returns the next job that has got what it needs to start.
func (s *scheduler) take() (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.taken) == 0 {
		return "", false
	}
	t := s.taken[0]
	s.taken = s.taken[1:]
	return t.id, true
}

// occupy takes a slot for a job that already runs, even beyond the class's size.
func (s *scheduler) occupy(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.turns[t.id]
	if known == nil {
		known = &t
		s.turns[t.id] = known
	}
	s.run(known)
}

// release gives a job's slot back. Unless it is to be queued again or has ended, it
// rests.
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
		s.enqueue(t)
	}
	s.settle()
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
		return
	case inQueue:
		s.dequeue(t)
	case atRest:
	}
	delete(s.turns, id)
	s.settle()
}

// pause stops and resumes starts. What runs goes on.
func (s *scheduler) pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
	s.settle()
}

// open lets jobs start.
func (s *scheduler) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
	s.settle()
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
	s.settle()
}

func (s *scheduler) size(class string) int {
	if n, ok := s.named[class]; ok {
		return n
	}
	return s.other
}

// settle takes out of the queue whatever may start now.
func (s *scheduler) settle() {
	if s.closed || s.paused {
		return
	}
	now := s.now()
	for {
		next := s.next(now)
		if next == nil {
			return
		}
		s.dequeue(next)
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

func (c *class) share(principal string) *share {
	sh := c.shares[principal]
	if sh == nil {
		sh = &share{principal: principal}
		c.shares[principal] = sh
	}
	return sh
}

func (s *scheduler) run(t *turn) {
	c := s.class(t.class)
	c.used++
	sh := c.share(t.principal)
	sh.account(s.now())
	sh.running++
	t.place = inSlot
}

func (s *scheduler) enqueue(t *turn) {
	c := s.class(t.class)
	sh := c.share(t.principal)
	if len(sh.queue) == 0 {
		c.enter(sh, s.now())
	}
	i, _ := sh.find(t)
	sh.queue = slices.Insert(sh.queue, i, t)
	t.place = inQueue
}

func (s *scheduler) dequeue(t *turn) {
	c := s.class(t.class)
	sh := c.share(t.principal)
	if i, found := sh.find(t); found {
		sh.queue = slices.Delete(sh.queue, i, i+1)
	}
	if len(sh.queue) == 0 {
		c.leave(sh, s.now())
	}
	t.place = atRest
}

// enter lets a principal that wants slots again in among those that do. If it has
// used less it starts level with the least of them, since time not used is not saved
// up; but one that was away only between two jobs keeps what it was owed.
func (c *class) enter(sh *share, now time.Time) {
	sh.account(now)
	if now.Sub(sh.left) > lookBack {
		sh.owed = 0
	}
	if least, ok := c.least(now); ok {
		sh.used = min(max(sh.used, least-sh.owed), least+lookBack)
	}
	c.wanting = append(c.wanting, sh)
}

// leave takes a principal out that wants no more slots for now.
func (c *class) leave(sh *share, now time.Time) {
	i := slices.Index(c.wanting, sh)
	c.wanting = slices.Delete(c.wanting, i, i+1)
	sh.left, sh.owed = now, 0
	if least, ok := c.least(now); ok {
		sh.owed = min(max(least-sh.usage(now), 0), lookBack)
	}
}

// least is the least that any principal has used of those that want more.
func (c *class) least(now time.Time) (least time.Duration, ok bool) {
	for i, sh := range c.wanting {
		if used := sh.usage(now); i == 0 || used < least {
			least = used
		}
	}
	return least, len(c.wanting) > 0
}

// usage is the slot time used, with that of running jobs up to now.
func (sh *share) usage(now time.Time) time.Duration {
	return sh.used + time.Duration(sh.running)*max(now.Sub(sh.at), 0)
}

func (sh *share) account(now time.Time) { sh.used, sh.at = sh.usage(now), now }

// before orders the principals that want slots.
func (sh *share) before(o *share, now time.Time) bool {
	return cmp.Or(cmp.Compare(sh.usage(now), o.usage(now)), sh.queue[0].rank.compare(o.queue[0].rank)) < 0
}

// find returns where a job is in the queue, or would be.
func (sh *share) find(t *turn) (int, bool) {
	return slices.BinarySearchFunc(sh.queue, t.rank, func(q *turn, r rank) int { return q.rank.compare(r) })
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

// expected says what a job that is not known would wait for if it were added now.
func (s *scheduler) expected(t turn) *jobs.WaitingFor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason(&t)
}

func (s *scheduler) reason(t *turn) *jobs.WaitingFor {
	if s.paused {
		return &jobs.WaitingFor{Kind: jobs.WaitPaused, Position: s.position(t)}
	}
	return &jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: t.class, Position: s.position(t)}
}

// position is a job's place among those that wait for a slot of its class, if the
// principals that want one take turns in the order of what they have used: so many
// jobs, itself included, start until it has. One that has its slot already is next.
func (s *scheduler) position(t *turn) int {
	c := s.classes[t.class]
	if t.place == inSlot && !t.again || c == nil {
		return 1
	}
	now := s.now()
	mine := c.shares[t.principal]
	if mine == nil {
		mine = &share{}
	}
	i, _ := mine.find(t)
	round := i + 1
	position := round
	for _, sh := range c.wanting {
		switch {
		case sh == mine:
		case len(mine.queue) == 0 || sh.before(mine, now):
			position += min(len(sh.queue), round)
		default:
			position += min(len(sh.queue), round-1)
		}
	}
	return position
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
