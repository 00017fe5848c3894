package endtoend

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// submissions is how many calls TestG2_LostAnswersAreOneJobEach makes.
var submissions = flag.Int("submissions", 2000, "how many calls are made through a proxy that loses answers") //nolint:gochecknoglobals // a flag of the tests

// Calls through a proxy that cuts connections at random, before and after the request
// went through: with the client's own repeats each is one job, and each tool that is
// run is started once.
func TestG2_LostAnswersAreOneJobEach(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	l := newLedgers(t)
	p := &proxy{refuse: sometimes(20), before: cut(30), after: cut(30)}
	d.startProxy(p)
	const connections, each = 4, 4
	// Most calls wait for a person, so that what counts is how many jobs there are;
	// some run, so that it can be counted how often.
	started := min(60, *submissions/10)
	name := func(i int) (key, tool string) {
		if i < started {
			return fmt.Sprintf("run-%d", i), "ledger_" + staged
		}
		return fmt.Sprintf("held-%d", i), "ledger_" + external
	}
	got := make([]string, *submissions) // the jobs' ids
	var next atomic.Int64
	var work sync.WaitGroup
	for range connections {
		c := p.dial(t, patience)
		for range each {
			work.Go(func() {
				for i := int(next.Add(1)) - 1; i < len(got); i = int(next.Add(1)) - 1 {
					key, tool := name(i)
					job, err := c.Submit(d.context(), call(key, tool, l.args(key)))
					if e, ok := errors.AsType[*client.Error](err); ok && e.NotReached() {
						// Nothing was ever sent, so it is for the caller to begin again.
						job, err = d.Submit(d.context(), call(key, tool, l.args(key)))
					}
					if err != nil {
						t.Errorf("submit %s: %v", key, err)
						return
					}
					got[i] = job.GetId()
				}
			})
		}
	}
	work.Wait()
	through, cuts := p.counted()
	t.Logf("%d calls, %d connections, %d cuts", len(got), through, cuts)
	if t.Failed() {
		return
	}
	if cuts < len(got)/200 {
		t.Errorf("the proxy made only %d cuts", cuts)
	}

	jobs := map[string]string{} // key → id
	damaged, err := d.ListJobs(d.context(), &macexecv1.ListJobsRequest{PageSize: 1000}, func(job *macexecv1.Job) error {
		if other, twice := jobs[job.GetKey()]; twice {
			t.Errorf("the key %s has the jobs %s and %s", job.GetKey(), other, job.GetId())
		}
		jobs[job.GetKey()] = job.GetId()
		return nil
	})
	if err != nil || len(damaged) > 0 || len(jobs) != len(got) {
		t.Fatalf("%d jobs for %d calls, %v %v", len(jobs), len(got), damaged, err)
	}
	for i, id := range got {
		if key, _ := name(i); jobs[key] != id {
			t.Errorf("the call under %s was answered with job %s, and the key has %s", key, id, jobs[key])
		}
	}
	submitted := 0
	err = d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if e.GetKind() == "job.submitted" {
			submitted++
		}
		return nil
	})
	if err != nil || submitted != len(got) {
		t.Errorf("the journal tells of %d submissions, %v", submitted, err)
	}
	for i := range started {
		key, _ := name(i)
		d.wait(got[i], macexecv1.JobState_JOB_STATE_COMPLETED)
		l.wantStarts(key, 1)
	}
}

// Whether a call was never sent, or sent and its answer lost, is never confused: after
// NotReached (exit code 8) the key is free for ever, whatever the proxy did, and a call
// that did get through is never NotReached.
func TestG2_NotReachedIsNeverSent(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	l := newLedgers(t)
	p := &proxy{refuse: sometimes(2), before: cut(6), after: cut(6)}
	d.startProxy(p)
	ends := map[string]string{} // key → what the error said
	counts := map[string]int{}
	for i := range 400 {
		key := fmt.Sprintf("k-%d", i)
		// One try only, and now and then a client without a connection yet.
		c := p.dial(t, time.Nanosecond)
		for range 2 {
			_, err := c.Submit(d.context(), call(key, "ledger_"+external, l.args(key)))
			e, ok := errors.AsType[*client.Error](err)
			switch {
			case err == nil:
				ends[key] = "accepted"
			case ok && e.NotReached():
				ends[key] = "not reached"
			case ok && e.AnswerLost():
				ends[key] = "answer lost"
			default:
				t.Fatalf("%s: %v", key, err)
			}
			counts[ends[key]]++
			key += "-again"
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v", counts)
	for _, end := range []string{"accepted", "not reached", "answer lost"} {
		if counts[end] == 0 {
			t.Errorf("no call was %s", end)
		}
	}
	d.end(syscall.SIGTERM) // what was still on its way has arrived, or never will
	d.start()
	lost := map[bool]int{}
	for key, end := range ends {
		_, err := d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: key})
		if err != nil {
			wantCode(t, err, "JOB_NOT_FOUND")
		}
		switch {
		case end == "accepted" && err != nil:
			t.Errorf("%s was accepted, and its key is free", key)
		case end == "not reached" && err == nil:
			t.Errorf("%s was not reached, and its key has a job", key)
		case end == "answer lost":
			lost[err == nil]++
		}
	}
	// Both happen, so nothing less than "perhaps" would be true.
	if lost[true] == 0 || lost[false] == 0 {
		t.Errorf("of the calls whose answer was lost %d had arrived and %d had not", lost[true], lost[false])
	}
}

// The exit codes of the command line itself: 8 where a proxy refuses, with the key
// still free; and when the call has gone through and no answer ever comes back, 11,
// with the key that finds the job.
func TestG2_ExitCodesOfLostCalls(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	l := newLedgers(t)
	callBy := func(p *proxy, key string) (code int, output string) {
		file := filepath.Join(d.state, key+".json")
		d.write(file, fmt.Sprintf(`{"folder": %q, "ledger": %q}`, l.dir, key))
		return d.macexec("--address", "unix:"+p.path, "call", "ledger_"+external, "--key", key, "--args", file, "--detach")
	}
	refusing := &proxy{refuse: func() bool { return true }, before: pass, after: pass}
	d.startProxy(refusing)
	if code, output := callBy(refusing, "refused"); code != 8 || !strings.Contains(output, "nothing was sent") {
		t.Errorf("refused: exit %d\n%s", code, output)
	}
	if code, output := d.macexec("jobs", "show", "--key", "refused"); code != 10 {
		t.Errorf("the key of a call that was never sent: exit %d\n%s", code, output)
	}
	var sent atomic.Bool
	losing := &proxy{refuse: never, before: func(piece []byte) bool {
		if bytes.Contains(piece, []byte("ledger_"+external)) { // the call; before it its key was looked up
			sent.Store(true) // from here on nothing comes back
		}
		return false
	}, after: func([]byte) bool { return sent.Load() }}
	d.startProxy(losing)
	if code, output := callBy(losing, "key-of-the-lost"); code != 11 || !strings.Contains(output, "--key key-of-the-lost") {
		t.Errorf("lost: exit %d\n%s", code, output)
	}
	if code, output := d.macexec("jobs", "show", "--key", "key-of-the-lost", "-q"); code != 0 {
		t.Errorf("the key of a call whose answer was lost: exit %d\n%s", code, output)
	}
}

// A watch over many broken connections, some cut in the middle of an event, misses
// nothing and doubles nothing.
func TestG12_WatchOverBrokenConnections(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	l := newLedgers(t)
	const broken, runs = 20, 60
	p := &proxy{refuse: never, before: pass, after: cut(4)}
	d.startProxy(p)
	ctx, cancel := context.WithCancel(d.context())
	defer cancel()
	var seen []uint64
	watched := make(chan error, 1)
	enough := errors.New("enough")
	// The journal is read directly at the end; until then there is no last event.
	var last atomic.Uint64
	go func() {
		watched <- p.dial(t, patience).Watch(ctx, &macexecv1.WatchJobsRequest{}, func(e *macexecv1.Event) error {
			if e.GetEntry() != nil {
				seen = append(seen, e.GetCursor())
			}
			if end := last.Load(); end > 0 && e.GetCursor() >= end {
				return enough
			}
			return nil
		})
	}()
	for i := 0; ; i++ {
		key := fmt.Sprintf("w-%d", i)
		job := d.submit(call(key, "ledger_"+staged, l.args(key)))
		d.wait(job.GetId(), macexecv1.JobState_JOB_STATE_COMPLETED)
		if connections, _ := p.counted(); i >= runs || connections > broken+5 {
			break
		}
	}
	var want []uint64
	err := d.ReadJournal(ctx, &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if strings.HasPrefix(e.GetKind(), "job.") {
			want = append(want, e.GetSeq())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	last.Store(want[len(want)-1])
	// The watch may have seen the last event before it knew that it is the last one.
	closing := d.submit(call("closing", "ledger_"+external, l.args("closing")))
	if err := <-watched; !errors.Is(err, enough) {
		t.Fatalf("the watch ended with %v", err)
	}
	if len(seen) == len(want)+1 {
		seen = seen[:len(want)] // without the closing event
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("job %s; (-journal +watch):\n%s", closing.GetId(), diff)
	}
	if connections, _ := p.counted(); connections <= broken {
		t.Errorf("the watch had only %d connections", connections)
	}
}
