package engine

import (
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
)

// A wall clock can be set, so it judges nobody alone. The rules:
//
//   - When an engine first sees a deadline, of a new job or of one that an earlier engine
//     left, the wall clock says how long that is from then. This span is measured by a clock
//     that nobody sets and that goes on while the host sleeps; the deadline has passed when
//     the span has. So a step of the wall clock ends no waiting, and prolongs none. From one
//     daemon to the next, and over a start of the host, the wall clock counts.
//   - Nothing starts after its start_by by either of the two clocks (promise G15); the last
//     to ask them is the process that executes the tool. A job that waits is cancelled for
//     that only by the second.
//   - Who was suspended (the host slept, the daemon was stopped) first looks: until some
//     seconds after it noticed that, nothing expires, so that what came meanwhile, a person's
//     yes for one, is taken first.
//   - What is removed for its age is as old as that clock says which shows less.
//
// Order comes from sequence numbers, and the keeper measures how long a tool runs.

const (
	// beatEvery is how often an engine notes that it is awake.
	beatEvery = time.Second
	// asleepAfter is how long after the last beat an engine takes itself for suspended.
	asleepAfter = 5 * time.Second
)

// deadlines measures them.
type deadlines struct {
	wall    func() time.Time
	elapsed func() time.Duration
	grace   time.Duration // after it was suspended
	born    time.Time     // by the wall clock, at elapsed bornAt
	bornAt  time.Duration

	mu    sync.Mutex
	seen  map[deadline]time.Duration // when its span is over
	beat  time.Duration              // of the last beat
	quiet time.Duration              // until then nothing expires
}

type deadline struct {
	job string
	by  int64 // in nanoseconds since 1970
}

func newDeadlines(wall func() time.Time, elapsed func() time.Duration) *deadlines {
	now := elapsed()
	return &deadlines{wall: wall, elapsed: elapsed, grace: 2 * defaultRetryDelay, born: wall(), bornAt: now, seen: map[deadline]time.Duration{}, beat: now}
}

// left is the time until a job's deadline, and negative after it.
func (c *deadlines) left(job string, by time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, now := deadline{job, by.UnixNano()}, c.elapsed()
	due, ok := c.seen[d]
	if !ok {
		due = now + by.Sub(c.wall())
		c.seen[d] = due
	}
	return due - now
}

// passed reports whether a job's deadline has passed and may be acted on.
func (c *deadlines) passed(job string, by time.Time) bool {
	return c.left(job, by) < 0 && !c.justWoke()
}

// forget drops the deadlines of a job that is settled.
func (c *deadlines) forget(job *jobs.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, deadline{job.ID, job.Call.Options.StartBy.UnixNano()})
	if job.Approval != nil {
		delete(c.seen, deadline{job.ID, job.Approval.ExpiresAt.UnixNano()})
	}
}

// justWoke reports whether this process was suspended and has not looked around since.
func (c *deadlines) justWoke() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.elapsed()
	return now-c.beat > asleepAfter || now < c.quiet
}

// tick notes that this process is awake, and reports whether it was suspended before.
func (c *deadlines) tick() (woke bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.elapsed()
	if woke = now-c.beat > asleepAfter; woke {
		c.quiet = now + c.grace
	}
	c.beat = now
	return woke
}

// least is the time that at least it is: what the wall clock shows, or what it would show
// if nobody had set it since the start of the engine.
func (c *deadlines) least() time.Time {
	now, unset := c.wall(), c.born.Add(c.elapsed()-c.bornAt)
	if unset.Before(now) {
		return unset
	}
	return now
}

// keepAwake notes that the engine is awake. After it was suspended it has every job that
// waits for a time looked at anew: timers do not run while a host sleeps.
func (e *Engine) keepAwake() {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-e.stopped.Done():
			return
		case <-beat.C:
		}
		if e.deadlines.tick() {
			e.log.Warn("the daemon was suspended; nothing expires before it has looked again", "for", e.deadlines.grace)
			e.wakeAllIn(e.deadlines.grace)
		}
	}
}
