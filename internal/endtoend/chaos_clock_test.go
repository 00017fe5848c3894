package endtoend

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const (
	// farAway is a start_by that no run of TestChaos comes to.
	farAway = 24 * time.Hour
	// longRun is a time limit that no tool of TestChaos comes to.
	longRun = 5 * time.Minute
	// begins is how long a tool may take from its exec to the line that it writes, on a
	// host that is much too busy.
	begins = 10 * time.Second
)

// due is a start_by that was asked for, by a clock that nobody sets.
type due struct {
	at  time.Time
	far bool
}

// setClock sets the clock ahead or back, by seconds, hours or a year, or right again.
func (c *chaos) setClock(random *rand.Rand) {
	unit := []time.Duration{time.Second, time.Hour, year}[random.IntN(3)]
	by := time.Duration(random.IntN(121)-60) * unit
	switch {
	case random.IntN(4) == 0:
		by = 0
	case unit == year:
		by = []time.Duration{year, -year}[random.IntN(2)]
	}
	c.clock.set(by)
	if random.IntN(4) == 0 {
		// Nothing is as old as that. The daemon may be busy or the disk full, and others
		// look whether something is gone.
		c.with(patience, func(ctx context.Context) keyOutput {
			_, _ = c.Store.PruneStore(ctx, &macexecv1.PruneStoreRequest{})
			return keyOutput{}
		})
	}
}

// options are those of a new call: some may not run for long, and some may not start
// late. promise is to be called when the call has its job.
func (c *chaosCaller) options() (o *macexecv1.Options, promise func()) {
	o, promise = &macexecv1.Options{}, func() {}
	if c.chance(30) {
		o.TimeoutSeconds = longRun.Seconds()
	}
	ahead, steps := c.clock.read()
	var d due
	switch now := time.Now(); {
	case c.chance(20):
		d = due{at: now.Add(time.Duration(c.random.IntN(2000)) * time.Millisecond)}
	case ahead == 0 && c.chance(20): // else it may wait until the clock is as wrong again
		d = due{at: now.Add(farAway), far: true}
	default:
		return o, promise
	}
	startBy := timestamppb.New(d.at.Add(ahead))
	o.StartBy = startBy
	return o, func() {
		// What it means is known if the clock stayed as it was until the daemon had seen it.
		if _, now := c.clock.read(); now == steps {
			c.chaos.mu.Lock()
			defer c.chaos.mu.Unlock()
			c.dues[startBy.AsTime()] = d
		}
	}
}

// checkTimes holds that what a job waited for came by the time that went by, and by no
// step of the clock (G15).
func (c *chaos) checkTimes(key string, job *macexecv1.Job) {
	switch job.GetEndReason() { //nolint:exhaustive // nothing is to be said of the others
	case macexecv1.EndReason_END_REASON_APPROVAL_EXPIRED, macexecv1.EndReason_END_REASON_TIMEOUT:
		c.t.Errorf("job %s has ended by %s: %s", job.GetId(), job.GetEndReason(), job.GetMessage())
	}
	d, known := c.dues[job.GetCall().GetOptions().GetStartBy().AsTime()]
	if job.GetCall().GetOptions().GetStartBy() == nil || !known {
		return
	}
	c.held++
	for _, line := range c.l.lines(key, "when") {
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			c.t.Fatal(err)
		}
		if late := time.Unix(0, n).Sub(d.at); late > begins {
			c.t.Errorf("the tool of job %s began %s after its start_by", job.GetId(), late)
		}
	}
	if !d.far || job.GetEndReason() != macexecv1.EndReason_END_REASON_TOO_LATE {
		return
	}
	c.t.Errorf("a job is too late, long before its start_by, which was %s for who asked: %s", d.at.UTC(), protojson.Format(job))
}
