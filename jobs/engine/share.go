package engine

import (
	"cmp"
	"slices"
	"time"
)

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

// lookBack is how much slot time "of late" is. A principal that comes with new work is
// at most so far behind the others: nobody pays for long for what it used while nobody
// else wanted it. What it is owed, it is owed for so long.
const lookBack = 10 * time.Minute

func (c *class) share(principal string) *share {
	sh := c.shares[principal]
	if sh == nil {
		sh = &share{principal: principal}
		c.shares[principal] = sh
	}
	return sh
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
func (sh *share) find(t *turn) (int, bool) { return findTurn(sh.queue, t.rank) }

// inLine is a job's place among those that wait for a slot of a class, if the
// principals that want one take turns in the order of what they have used: so many
// jobs, itself included, start until it has.
func (c *class) inLine(t *turn, now time.Time) int {
	mine := c.shares[t.principal]
	if mine == nil {
		mine = &share{}
	}
	i, _ := mine.find(t)
	round := i + 1
	place := round
	for _, sh := range c.wanting {
		switch {
		case sh == mine:
		case len(mine.queue) == 0 || sh.before(mine, now):
			place += min(len(sh.queue), round)
		default:
			place += min(len(sh.queue), round-1)
		}
	}
	return place
}
