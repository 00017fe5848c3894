package endtoend

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const year = 366 * 24 * time.Hour

// wallClock is the wall clock of a daemon with fault points and of its keepers. A test
// may set it; the host's own stays as it is.
type wallClock struct {
	t   *testing.T
	dir string

	mu    sync.Mutex
	ahead time.Duration // of the host's, in whole seconds
	steps int
}

func newWallClock(t *testing.T) *wallClock {
	t.Helper()
	return &wallClock{t: t, dir: t.TempDir()}
}

// environment is what a daemon has to know of the clock.
func (c *wallClock) environment() []string { return []string{"MACEXEC_FAULTS=" + c.dir} }

func (c *wallClock) set(ahead time.Duration) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	path := filepath.Join(c.dir, "clock")
	if err := os.WriteFile(path+".new", []byte(strconv.FormatInt(int64(ahead/time.Second), 10)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		c.t.Fatal(err)
	}
	c.ahead, c.steps = ahead, c.steps+1
}

// read returns by how much the clock is ahead, and how often it was set.
func (c *wallClock) read() (ahead time.Duration, steps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, c.steps
}

// TestG15_SetClockOverRestarts: the clock is set, by a year, and the daemon is killed and
// started again, in either order. Nothing expires and nothing is removed for that, and
// what is too late by the time that went by does not start.
func TestG15_SetClockOverRestarts(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{year, -year} {
		for _, dead := range []bool{true, false} { // while it is set
			name := map[bool]string{true: "ahead", false: "back"}[ahead > 0] + map[bool]string{true: "_while_dead", false: "_while_alive"}[dead]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				setClockOverRestarts(t, ahead, dead)
			})
		}
	}
}

func setClockOverRestarts(t *testing.T, ahead time.Duration, dead bool) {
	clock, l := newWallClock(t), newLedgers(t)
	d := startDaemonOf(t, needFaulty(t), clock.environment(), "slots: {ledger: 1}")
	restart := func(ahead time.Duration) {
		if dead {
			d.kill()
		}
		clock.set(ahead)
		if !dead {
			d.kill()
		}
		d.start()
	}
	until := func(name string, by time.Duration) *macexecv1.SubmitJobRequest {
		now, _ := clock.read()
		req := call(name, "ledger_none", l.args(name))
		req.Options = &macexecv1.Options{StartBy: timestamppb.New(time.Now().Add(now + by))}
		return req
	}
	d.wait(d.submit(call("old", "ledger_none", l.args("old"))).GetId(), completed)
	open := l.gate("holder")
	holder := d.submit(call("holder", "ledger_none", l.args("holder", "gate"))).GetId()
	l.await("holder", "begin", 1)
	far, short := d.submit(until("far", time.Hour)).GetId(), d.submit(until("short", 5*time.Second)).GetId()
	asked := d.submit(call("asked", "ledger_external", l.args("asked")))

	restart(ahead)
	// By the time that goes by alone, whatever the clock shows.
	d.wantCancelled(short, macexecv1.EndReason_END_REASON_TOO_LATE, macexecv1.EvidenceKind_EVIDENCE_KIND_NEVER_STARTED)
	meanwhile := d.submit(until("meanwhile", 5*time.Second)).GetId() // with a deadline by the clock that is wrong
	gone := d.submit(call("gone", "ledger_none", l.args("gone"))).GetId()
	if _, err := d.Jobs.CancelJob(d.context(), &macexecv1.CancelJobRequest{Id: gone, Reason: "not needed"}); err != nil {
		t.Fatal(err)
	}
	d.wait(gone, cancelled)
	d.pruneNothing()

	restart(0)
	d.wantCancelled(meanwhile, macexecv1.EndReason_END_REASON_TOO_LATE, macexecv1.EvidenceKind_EVIDENCE_KIND_NEVER_STARTED)
	d.pruneNothing()
	d.approve(asked)
	open()
	for _, id := range []string{holder, far, asked.GetId()} {
		d.wait(id, completed)
	}
	for name, want := range map[string]int{"old": 1, "holder": 1, "far": 1, "asked": 1, "short": 0, "meanwhile": 0, "gone": 0} {
		l.wantStarts(name, want)
	}
}

// TestG15_SetClockAtTheStart: the clock is set ahead, by a year, between the intent and the
// tool's first instruction. The keeper starts nothing, and when the clock is right again the
// job starts, once: its start_by has not passed.
func TestG15_SetClockAtTheStart(t *testing.T) {
	t.Parallel()
	clock, l := newWallClock(t), newLedgers(t)
	bin, gate := slowBinaries(t, needFaulty(t))
	d := startDaemonOf(t, bin, clock.environment(), "slots: {ledger: 3}")
	ids := intended(d, l, "soon", time.Now().Add(time.Hour))
	if len(ids) == 0 {
		t.Fatal("an hour was too short")
	}
	clock.set(year)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, id := range ids {
		job := d.awaitState(id, func(j *macexecv1.Job) bool { return j.GetState() != running })
		if at := job.GetAttempts(); job.GetState() != queued || len(at) != 1 || at[0].GetIntent() == nil {
			t.Errorf("%s is %s (%s) after %v", name, job.GetState(), job.GetMessage(), at)
		}
		l.wantStarts(name, 0)
	}
	clock.set(0)
	for name, id := range ids {
		d.wait(id, completed)
		l.wantStarts(name, 1)
	}
}

// pruneNothing makes a pass of retention with the ages that are configured, for which
// nothing is old enough.
func (d *daemon) pruneNothing() {
	d.t.Helper()
	resp, err := d.Store.PruneStore(d.context(), &macexecv1.PruneStoreRequest{})
	p := resp.GetPruned()
	if err != nil || p.GetJobs() != 0 || p.GetJournalEntries() != 0 || p.GetFolders() != 0 {
		d.t.Errorf("retention removes %v, %v", resp, err)
	}
}
