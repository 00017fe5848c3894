package endtoend

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Flags of TestChaos.
//
//nolint:gochecknoglobals // flags of the tests
var (
	chaosFor  = flag.Duration("chaos", 15*time.Second, "how long TestChaos makes calls and kills")
	chaosSeed = flag.Uint64("seed", 0, "what TestChaos decides by; 0: another one each time")
)

// TestChaos: many callers make, repeat, fence and cancel calls over connections that
// break, while daemon, keepers and tools are killed, the disk fills up and the clock is
// set. Afterwards each key's history is one that the model allows (G2, G15), and what is
// told agrees with what the tools and the disk say (G3, G4, G5, G6, G7).
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("the same decisions again: -run '^TestChaos$' -chaos %s -seed %d", *chaosFor, seed)
	config := []string{"slots: {ledger: 6}", "log: {level: error}"}
	var d *daemon
	clock := newWallClock(t)
	disk, small := tryDisk(t, "1g")
	if small {
		d = startDaemonAt(t, needFaulty(t), clock.environment(), disk, config...)
	} else {
		t.Log("NOT TESTED: a disk that fills up; this host gives no small one")
		d = startDaemonOf(t, needFaulty(t), clock.environment(), config...)
	}
	l := newLedgers(t)
	p := &proxy{refuse: sometimes(20), before: cut(40), after: cut(40)}
	d.startProxy(p)
	c := &chaos{daemon: d, history: newHistory(), l: l, clock: clock, small: small, done: map[string]int{}, dues: map[time.Time]due{}}
	ctx, stop := context.WithTimeout(t.Context(), *chaosFor)
	defer stop()
	var all sync.WaitGroup
	const callers = 8
	for n := range callers {
		who := &chaosCaller{chaos: c, n: n, random: rand.New(rand.NewPCG(seed, uint64(n))), client: p.dial(t, patience)}
		all.Go(func() { who.callUntil(ctx) })
	}
	c.harmUntil(ctx, rand.New(rand.NewPCG(seed, callers)))
	all.Wait()
	c.settle()
	answers := c.check(t)
	states := c.checkJobs()
	_, cuts := p.counted()
	t.Logf("%d keys, %d answers, %d cuts; done: %v; jobs: %v, %d with a start_by", len(c.keys), answers, cuts, c.done, states, c.held)
	d.checkEverything()
	d.end(syscall.SIGTERM)
	if code, output := d.macexec("store", "check"); code != 0 {
		t.Errorf("store check exits with %d: %s", code, output)
	}
}

// chaos is one run of TestChaos.
type chaos struct {
	*daemon
	*history

	l     *ledgers
	clock *wallClock
	small bool           // its disk can be filled up
	done  map[string]int // harm of each kind
	held  int            // jobs that were held to their start_by

	mu  sync.Mutex
	all []string // the keys that were used
	ids []string // the jobs that callers were told of
	// dues are what is known of each start_by. Two that are the same do not happen.
	dues map[time.Time]due
}

// chaosCaller is one of its callers.
type chaosCaller struct {
	*chaos

	n      int
	random *rand.Rand
	client *client.Client
}

// chance says yes so many times in a hundred.
func (c *chaosCaller) chance(percent int) bool { return c.random.IntN(100) < percent }

func (c *chaosCaller) callUntil(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		key, first := c.pick(i)
		switch n := c.random.IntN(100); {
		case first && n < 95, n < 75:
			c.submit(key)
		case n < 85:
			c.ask(keyInput{verb: verbFence, key: key}, func() keyOutput {
				return c.with(c.deadline(), func(ctx context.Context) keyOutput {
					record, _, err := c.client.Fence(ctx, key, "chaos")
					return c.saysOf(record, err)
				})
			})
		case n < 93:
			c.lookup(c.client, key)
		default:
			c.cancelOne()
		}
	}
}

// pick chooses a new key, or one that is used already, by anybody.
func (c *chaosCaller) pick(i int) (key string, first bool) {
	again := c.chance(40)
	c.chaos.mu.Lock()
	defer c.chaos.mu.Unlock()
	if again && len(c.all) > 0 {
		recent := c.all[max(0, len(c.all)-200):]
		return recent[c.random.IntN(len(recent))], false
	}
	key = fmt.Sprintf("%c-%d-%d", "nsx"[c.random.IntN(3)], c.n, i)
	c.all = append(c.all, key)
	return key, true
}

// chaosCall is what is called under a key: nearly always the same, and sometimes another
// call.
func (c *chaos) chaosCall(key, variant string) *macexecv1.SubmitJobRequest {
	script := []string{"when", "print:" + variant, fmt.Sprintf("pause:%d", len(key)*37%200)}
	switch key[0] {
	case 's':
		return call(key, "ledger_"+staged, c.l.args(key, append(script, fmt.Sprintf("write:%d", sizeOf(key)))...).with("output", key+".txt"))
	case 'x':
		return call(key, "ledger_"+external, c.l.args(key, script...))
	default:
		return call(key, "ledger_"+none, c.l.args(key, script...))
	}
}

// sizeOf is the size of what the call of a key makes.
func sizeOf(key string) int {
	n := 1000
	for _, b := range []byte(key) {
		n = (n*31 + int(b)) % 100_000
	}
	return n
}

func (c *chaosCaller) submit(key string) {
	variant := "usual"
	if c.chance(5) {
		variant = "other"
	}
	options, promise := c.options()
	var job *macexecv1.Job
	out := c.ask(keyInput{verb: verbSubmit, key: key, call: variant}, func() keyOutput {
		return c.with(c.deadline(), func(ctx context.Context) keyOutput {
			var err error
			req := c.chaosCall(key, variant)
			req.Options = options
			if job, err = c.client.Submit(ctx, req); err == nil {
				promise()
				return keyOutput{saysJob, job.GetId()}
			}
			return c.saysOf(nil, err)
		})
	})
	switch out.says { //nolint:exhaustive // nothing is to be done after the others
	case saysJob:
		c.chaos.mu.Lock()
		c.ids = append(c.ids, out.id)
		c.chaos.mu.Unlock()
		if job.GetState() == awaiting && c.chance(90) {
			c.with(patience, func(ctx context.Context) keyOutput {
				// The answer may be lost, or somebody else's may have been first.
				_, _ = c.client.Jobs.ApproveJob(ctx, &macexecv1.ApproveJobRequest{Id: out.id, BindingDigest: job.GetApproval().GetBinding().GetDigest(), Reason: "chaos"})
				return keyOutput{}
			})
		}
		if out.id != "" && options.GetStartBy() == nil && c.chance(60) { // else more would be called than can be run
			c.with(10*time.Second, func(ctx context.Context) keyOutput {
				_, _ = c.client.Wait(ctx, out.id)
				return keyOutput{}
			})
		}
	case saysNothing:
		<-time.After(20 * time.Millisecond) // there is no daemon just now
	}
}

func (c *chaosCaller) cancelOne() {
	c.chaos.mu.Lock()
	var id string
	if n := len(c.ids); n > 0 {
		id = c.ids[max(0, n-1-c.random.IntN(20))]
	}
	c.chaos.mu.Unlock()
	if id == "" {
		return
	}
	c.with(patience, func(ctx context.Context) keyOutput {
		_, _ = c.client.Jobs.CancelJob(ctx, &macexecv1.CancelJobRequest{Id: id, Reason: "chaos"}) // it may have ended
		return keyOutput{}
	})
}

func (c *chaos) lookup(through *client.Client, key string) {
	c.ask(keyInput{verb: verbLookup, key: key}, func() keyOutput {
		return c.with(patience, func(ctx context.Context) keyOutput {
			resp, err := through.Jobs.LookupKey(ctx, &macexecv1.LookupKeyRequest{Key: key})
			return c.saysOf(resp.GetRecord(), err)
		})
	})
}

// deadline is how long a caller waits: some have no patience at all.
func (c *chaosCaller) deadline() time.Duration {
	if c.chance(10) {
		return time.Duration(1+c.random.IntN(50)) * time.Millisecond
	}
	return patience
}

func (c *chaos) with(limit time.Duration, request func(context.Context) keyOutput) keyOutput {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return request(ctx)
}

// saysOf tells what a key's record, or an error instead of it, says.
func (c *chaos) saysOf(record *macexecv1.KeyRecord, err error) keyOutput {
	if err == nil {
		if record.GetKind() == macexecv1.KeyKind_KEY_KIND_FENCE {
			return keyOutput{says: saysFenced}
		}
		return keyOutput{saysJob, record.GetJobId()}
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		c.t.Errorf("not an error of the client: %v", err)
		return keyOutput{says: saysLost}
	}
	switch e.Code() {
	case "IDEMPOTENCY_KEY_CONFLICT":
		return keyOutput{saysConflict, e.JobID()}
	case "KEY_FENCED":
		return keyOutput{says: saysFenced}
	case "JOB_NOT_FOUND":
		return keyOutput{says: saysFree}
	case client.CodeNotReached, "DISK_FULL", "START_BY_PASSED":
		return keyOutput{says: saysNothing}
	case client.CodeAnswerLost, "DEADLINE_EXCEEDED", "CALLER_GONE":
		return keyOutput{says: saysLost}
	default:
		c.t.Errorf("no caller should hear of this: %v", e)
		return keyOutput{says: saysLost}
	}
}

// harmUntil kills the daemon, a keeper or a tool, fills the disk for a moment, or sets the
// clock, again and again.
func (c *chaos) harmUntil(ctx context.Context, random *rand.Rand) {
	moment := func() <-chan time.Time { return time.After(time.Duration(20+random.IntN(250)) * time.Millisecond) }
	kinds := []string{"clock set"}
	for range 3 {
		kinds = append(kinds, "daemon killed", "keeper killed", "tool killed", "keeper and tool killed")
	}
	if c.small {
		kinds = append(kinds, "disk filled")
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-moment():
		}
		kind := kinds[random.IntN(len(kinds))]
		switch kind {
		case "daemon killed":
			c.daemon.kill()
			c.start()
		case "clock set":
			c.setClock(random)
		case "disk filled":
			c.fill()
			if random.IntN(3) == 0 {
				c.daemon.kill()
				c.start()
				c.done["daemon killed"]++
			}
			<-moment()
			c.empty()
		default:
			if !c.killOne(random, kind) {
				continue
			}
		}
		c.done[kind]++
	}
}

// killOne kills of one attempt what the kind of harm says, if any attempt is alive.
func (c *chaos) killOne(random *rand.Rand, kind string) bool {
	alive := c.alive()
	if len(alive) == 0 {
		return false
	}
	victim := alive[random.IntN(len(alive))]
	var err error
	if strings.HasPrefix(kind, "keeper") {
		err = victim.Keeper().Signal(syscall.SIGKILL)
	}
	if strings.HasSuffix(kind, "tool killed") {
		err = errors.Join(err, victim.Tool().Signal(syscall.SIGKILL))
	}
	return err == nil // else it was quicker
}

// alive returns the newest attempts that have started and not ended.
func (c *chaos) alive() (list []keeper.Started) {
	c.mu.Lock()
	recent := slices.Clone(c.ids[max(0, len(c.ids)-100):])
	c.mu.Unlock()
	for _, id := range recent {
		for n := 1; ; n++ {
			dir := c.attempt(id, n)
			if _, err := os.Stat(string(dir)); err != nil {
				break
			}
			s, err := keeper.ReadStarted(dir)
			if _, ended := keeper.ReadExit(dir); err == nil && ended != nil && s.Tool().Alive() {
				list = append(list, s)
			}
		}
	}
	return list
}

// settle lets every job come to its end, or to where nobody knows.
func (c *chaos) settle() {
	c.t.Helper()
	c.clock.set(0)
	for _, job := range c.jobs() {
		if job.GetState() == awaiting && job.GetCall().GetOptions().GetStartBy() == nil {
			c.approve(job)
		}
	}
	for _, job := range c.jobs() {
		if job.GetState() == awaiting { // its start_by may pass meanwhile
			_, err := c.Jobs.ApproveJob(c.context(), &macexecv1.ApproveJobRequest{Id: job.GetId(), BindingDigest: job.GetApproval().GetBinding().GetDigest(), Reason: "chaos"})
			if err != nil && c.get(job.GetId()).GetState() == awaiting {
				c.t.Fatalf("approve: %v", err)
			}
		}
	}
	for _, job := range c.jobs() {
		if _, err := c.Wait(c.context(), job.GetId()); err != nil {
			c.t.Fatalf("wait for %s, which is %s: %v", job.GetId(), job.GetState(), err)
		}
	}
	for _, key := range c.all {
		c.lookup(c.Client, key)
	}
}

func (c *chaos) jobs() (list []*macexecv1.Job) {
	c.t.Helper()
	damaged, err := c.ListJobs(c.context(), &macexecv1.ListJobsRequest{PageSize: 1000}, func(job *macexecv1.Job) error {
		list = append(list, job)
		return nil
	})
	if err != nil || len(damaged) > 0 {
		c.t.Fatalf("list the jobs: %v, damaged %v", err, damaged)
	}
	return list
}

// checkJobs holds what is told of each job against its ledger and what is on disk, and
// counts the jobs by state.
func (c *chaos) checkJobs() (states map[string]int) {
	states = map[string]int{}
	list := map[string]*macexecv1.Job{} // by key
	ids := map[string]bool{}
	for _, job := range c.jobs() {
		if list[job.GetKey()] != nil {
			c.t.Errorf("the key %s has the jobs %s and %s", job.GetKey(), list[job.GetKey()].GetId(), job.GetId())
		}
		list[job.GetKey()], ids[job.GetId()] = job, true
		states[strings.ToLower(strings.TrimPrefix(job.GetState().String(), "JOB_STATE_"))]++
	}
	for _, id := range c.ids {
		if !ids[id] {
			c.t.Errorf("a caller was told of job %s, and there is none", id)
		}
	}
	known := map[string]bool{}
	for _, key := range c.all {
		known[key] = true
		c.checkJob(key, list[key])
	}
	for key := range maps.Keys(list) {
		if !known[key] {
			c.t.Errorf("nobody used the key %s of job %s", key, list[key].GetId())
		}
	}
	return states
}

// checkJob checks one key's job; nil: it has none.
func (c *chaos) checkJob(key string, job *macexecv1.Job) {
	c.checkTimes(key, job)
	starts := c.l.starts(key)
	attempts := len(job.GetAttempts())
	switch most := attempts; {
	case key[0] == 'x' && starts > 1, starts > most:
		c.t.Errorf("the tool of %s was started %d times; job %v", key, starts, job)
	case job.GetState() == completed && starts == 0:
		c.t.Errorf("job %s is completed, and its tool was never started", job.GetId())
	}
	output := filepath.Join(c.project, key+".txt")
	switch content, err := os.ReadFile(output); {
	case key[0] == 's' && job.GetState() == completed:
		if err != nil || string(content) != strings.Repeat("s", sizeOf(key)) {
			c.t.Errorf("job %s is completed, and %s has %d bytes (%v), want %d", job.GetId(), output, len(content), err, sizeOf(key))
		}
	case err == nil:
		c.t.Errorf("job %s is %s, and there is %s", job.GetId(), job.GetState(), output)
	}
	if job.GetState() != unknown {
		return
	}
	// Unknown is only what the records cannot tell: something started that touches the
	// outside, and nothing says how it ended.
	dir := c.attempt(job.GetId(), attempts)
	_, startedErr := keeper.ReadStarted(dir)
	_, exitErr := keeper.ReadExit(dir)
	if key[0] != 'x' || startedErr != nil || exitErr == nil {
		c.t.Errorf("job %s of %s is unknown (%s); its start: %v, its end: %v", job.GetId(), key, job.GetMessage(), startedErr, exitErr)
	}
}
