package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/macexec/macexec/jobs"
)

// A wall clock can be set, so it judges nobody alone. Beside it the engine has a steady one:
// what the wall clock would show if nobody had set it since the first start of a daemon in
// this boot session. It is that moment, which the store keeps, and what went by since by a
// clock that goes on while the host sleeps. The rules:
//
//   - A job knows by how much the wall clock was ahead of the steady one when the job was
//     accepted; a deadline, which is of the wall clock of then, has passed when the steady one
//     is past it. So a step of the wall clock ends no waiting and prolongs none, also if
//     another daemon goes on. Over a start of the host the wall clock counts.
//   - Nothing starts after its start_by by either of the two clocks (promise G15); the last
//     to ask them is the process that executes the tool. A job is cancelled for that only by
//     the second; else it waits on.
//   - Who was suspended (the host slept, the daemon was stopped) first looks: until some
//     seconds after it noticed that, nothing expires, so that what came meanwhile, a person's
//     yes for one, is taken first.
//   - What is removed for its age is as old as that clock says which shows less, counted from
//     when it ended by the steady one.
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
	first   atomic.Pointer[jobs.Moment]

	mu    sync.Mutex
	beat  time.Duration // of the last beat
	quiet time.Duration // until then nothing expires
}

func newDeadlines(wall func() time.Time, elapsed func() time.Duration, boot string) *deadlines {
	// A time with a monotonic reading is compared by that, which no step shows in.
	c := &deadlines{
		wall: func() time.Time { return wall().Round(0) }, elapsed: elapsed,
		grace: 2 * defaultRetryDelay, beat: elapsed(),
	}
	c.first.Store(&jobs.Moment{BootSession: boot, SinceBoot: c.beat, At: c.wall()})
	return c
}

// steady is what the wall clock would show if nobody had set it.
func (c *deadlines) steady() time.Time {
	first := c.first.Load()
	return first.At.Add(c.elapsed() - first.SinceBoot)
}

// ahead is by how much the wall clock is ahead of the steady one.
func (c *deadlines) ahead() time.Duration { return c.wall().Sub(c.steady()) }

// takeUpClock goes on with the steady clock of an earlier engine of this boot session. If
// the store cannot say, that clock begins now.
func (e *Engine) takeUpClock(ctx context.Context) {
	first, err := e.store.FirstMoment(ctx, *e.deadlines.first.Load())
	if err != nil {
		e.log.Warn("the moment that deadlines are counted from cannot be kept; the clock of now counts", "error", err)
		return
	}
	first.At = first.At.Round(0)
	e.deadlines.first.Store(&first)
}

// left is the time until a job's deadline, and negative after it.
func (c *deadlines) left(job *jobs.Job, by time.Time) time.Duration {
	return by.Round(0).Add(-job.Clock.Accepted).Sub(c.steady())
}

// passed reports whether a job's deadline has passed and may be acted on.
func (c *deadlines) passed(job *jobs.Job, by time.Time) bool {
	return c.left(job, by) < 0 && !c.justWoke()
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

// least is the time that at least it is, by either clock.
func (c *deadlines) least() time.Time {
	now, steady := c.wall(), c.steady()
	if steady.Before(now) {
		return steady
	}
	return now
}

// most is the time that at most it is, by either clock.
func (c *deadlines) most() time.Time {
	now, steady := c.wall(), c.steady()
	if steady.After(now) {
		return steady
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
