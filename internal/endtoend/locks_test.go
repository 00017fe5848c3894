package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// manySlots lets the tools of the tests run beside each other.
const manySlots = "slots: {ledger: 8}"

// wantWait holds what a job says that it waits for, but for its position.
func (d *daemon) wantWait(id string, kind macexecv1.WaitKind, detail, holder string, state macexecv1.JobState) {
	d.t.Helper()
	w := d.get(id).GetWaitingFor()
	if w.GetKind() != kind || w.GetDetail() != detail || w.GetJobId() != holder || w.GetJobState() != state || w.GetPosition() < 1 {
		d.t.Errorf("job %s waits for %v, want %v %q of %s, which is %v", id, w, kind, detail, holder, state)
	}
}

const (
	waitLock = macexecv1.WaitKind_WAIT_KIND_LOCK
	runs     = macexecv1.JobState_JOB_STATE_RUNNING
)

// TestWritersOfOnePathTakeTurns: however a path is written, two jobs that write it are
// never at work at the same time, and a job that has nothing to do with it goes on.
func TestWritersOfOnePathTakeTurns(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, manySlots)
	l := newLedgers(t)
	for _, dir := range []string{"clips", "other"} {
		if err := os.Mkdir(filepath.Join(d.project, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	open := l.gate("writer")
	paths := []string{"clips/a.txt", "./clips/a.txt", "clips//a.txt", "clips/A.txt", "clips/a.txt"}
	var ids []string
	for i, path := range paths {
		job := d.submit(call(fmt.Sprint("writer ", i), "ledger_staged", l.args("writer", "gate", "write:9").with("output", path)))
		ids = append(ids, job.GetId())
		if i == 0 {
			l.await("writer", "begin", 1)
			continue
		}
		d.wantWait(job.GetId(), waitLock, path, ids[0], runs)
		if at := d.get(job.GetId()).GetWaitingFor().GetPosition(); int(at) != i {
			t.Errorf("writer %d has place %d", i, at)
		}
	}
	d.wait(d.submit(call("bystander", "ledger_staged", l.args("other", "write:9").with("output", "other/a.txt"))).GetId(), completed)
	for range ids {
		open()
	}
	d.wait(ids[0], completed)
	for _, id := range ids[1:] {
		// What the first has made is there now, under this name or, on some file systems,
		// under another one.
		if job, err := d.Follow(d.context(), id, nil); err != nil || job.GetState() != completed && job.GetEndReason() != macexecv1.EndReason_END_REASON_DESTINATION_TAKEN {
			t.Errorf("%v: %v", job, err)
		}
	}
	l.wantTurns("writer", len(ids))
}

// wantTurns holds that n tools wrote into a ledger one after the other.
func (l *ledgers) wantTurns(name string, n int) {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(l.dir, name+".ledger"))
	if err != nil {
		l.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 2*n {
		l.t.Fatalf("the ledger of %s has %d lines, want %d", name, len(lines), 2*n)
	}
	for i := 0; i < len(lines); i += 2 {
		begin, ok := strings.CutPrefix(lines[i], "begin ")
		if end, ok2 := strings.CutPrefix(lines[i+1], "end "); !ok || !ok2 || begin != end {
			l.t.Errorf("tools of %s ran beside each other:\n%s", name, text)
			return
		}
	}
}

// TestReadersShareAPath: jobs that read one file run beside each other, and a job that
// writes it, by another name, waits for all of them; a job that comes after that one
// waits behind it.
func TestReadersShareAPath(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, manySlots)
	l := newLedgers(t)
	d.put("a.txt", "content")
	if err := os.Link(filepath.Join(d.project, "a.txt"), filepath.Join(d.project, "b.txt")); err != nil {
		t.Fatal(err)
	}
	open := l.gate("reader")
	read := func(key string) *macexecv1.SubmitJobRequest {
		return call(key, "ledger_none", l.args("reader", "gate").with("input", "a.txt"))
	}
	first := d.submit(read("1")).GetId()
	second := d.submit(read("2")).GetId()
	l.await("reader", "begin", 2)
	replace := call("r", "ledger_staged", l.args("writer", "write:9").with("output", "b.txt"))
	replace.Options = &macexecv1.Options{Replace: true}
	writer := d.submitRun(replace).GetId()
	if w := d.get(writer).GetWaitingFor(); w.GetKind() != waitLock || w.GetDetail() != "b.txt" || (w.GetJobId() != first && w.GetJobId() != second) {
		t.Errorf("the writer waits for %v", w)
	}
	late := d.submit(read("3")).GetId()
	d.wantWait(late, waitLock, "a.txt", writer, macexecv1.JobState_JOB_STATE_QUEUED)
	l.wantStarts("reader", 2)
	for range 3 {
		open()
	}
	for _, id := range []string{first, second, writer, late} {
		d.wait(id, completed)
	}
}

// TestG5UnknownJobKeepsItsLocks: what an unknown job may still touch stays out of
// reach, over restarts too, until somebody says how it ended.
func TestG5UnknownJobKeepsItsLocks(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, manySlots)
	l := newLedgers(t)
	d.put("a.txt", "content")
	s := &scene{daemon: d, l: l, open: l.gate("lost")}
	lose := call("lost", "ledger_external", l.args("lost", "gate").with("input", "a.txt"))
	lose.Context = &macexecv1.CallContext{ContextId: "talk"}
	lose.Options = &macexecv1.Options{SerialContext: true}
	s.id = d.submitRun(lose).GetId()
	l.await("lost", "begin", 1)
	s.was = d.started(s.id, 1)
	// A reader does not disturb a reader.
	d.wait(d.submit(call("read", "ledger_none", l.args("reader").with("input", "a.txt"))).GetId(), completed)
	write := call("w", "ledger_staged", l.args("writer", "write:9").with("output", "a.txt"))
	write.Options = &macexecv1.Options{Replace: true}
	writer := d.submitRun(write).GetId()
	d.wantWait(writer, waitLock, "a.txt", s.id, runs)
	s.killAll()
	d.start()
	d.wait(s.id, unknown)
	for range 2 {
		d.wantWait(writer, waitLock, "a.txt", s.id, unknown)
		talk := call("talk", "ledger_none", l.args("talk"))
		talk.Context, talk.Options = lose.GetContext(), &macexecv1.Options{SerialContext: true, OnLock: macexecv1.OnLock_ON_LOCK_REFUSE}
		_, err := d.Submit(d.context(), talk)
		if e := wantCode(t, err, "LOCK_HELD"); e.JobID() != s.id || !strings.Contains(e.Error(), "talk") || !strings.Contains(e.Error(), "unknown") {
			t.Errorf("%+v", e)
		}
		d.kill()
		d.start()
	}
	l.wantStarts("writer", 0)
	if _, err := d.Jobs.ResolveJob(d.context(), &macexecv1.ResolveJobRequest{Id: s.id, State: failed, Reason: "it is dead"}); err != nil {
		t.Fatal(err)
	}
	d.wait(writer, completed)
}

// TestOnLockRefuse: a call that does not wait has its locks from its acceptance on, or
// is refused and its key stays free.
func TestOnLockRefuse(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "slots: {ledger: 1}")
	l := newLedgers(t)
	open := l.gate("busy")
	busy := d.submit(call("busy", "ledger_none", l.args("busy", "gate"))).GetId()
	l.await("busy", "begin", 1)
	write := func(key string) *macexecv1.SubmitJobRequest {
		req := call(key, "ledger_staged", l.args("writer", "write:9").with("output", "a.txt"))
		req.Options = &macexecv1.Options{OnLock: macexecv1.OnLock_ON_LOCK_REFUSE}
		return req
	}
	first := d.submit(write("first")) // waits for a slot, and has its lock
	check := func(req *macexecv1.SubmitJobRequest) (*macexecv1.CheckCallResponse, error) {
		return d.Tools.CheckCall(d.context(), &macexecv1.CheckCallRequest{Tool: req.GetTool(), Arguments: req.GetArguments(), Purpose: req.GetPurpose(), Options: req.GetOptions()})
	}
	for range 2 {
		d.wantWait(first.GetId(), macexecv1.WaitKind_WAIT_KIND_SLOT, "ledger", "", 0)
		_, err := d.Submit(d.context(), write("second"))
		if e := wantCode(t, err, "LOCK_HELD"); e.JobID() != first.GetId() || !strings.Contains(e.Error(), "a.txt") {
			t.Errorf("%+v", e)
		}
		if _, err := check(write("second")); err == nil {
			t.Error("the check finds nothing in the way")
		} else if e := wantCode(t, err, "LOCK_HELD"); e.JobID() != first.GetId() {
			t.Errorf("%+v", e)
		}
		if again := d.submit(write("first")); again.GetId() != first.GetId() || !again.GetReplayed() {
			t.Errorf("the same call again is %v", again)
		}
		waits := write("second")
		waits.Options = nil
		if resp, err := check(waits); err != nil || !strings.Contains(strings.Join(resp.GetCheck().GetWarnings(), " "), first.GetId()) {
			t.Errorf("a call that waits: %v, %v", resp, err)
		}
		d.kill()
		d.start()
	}
	open()
	d.wait(busy, completed)
	d.wait(first.GetId(), completed)
	second := write("second")
	second.Options.Replace = true
	d.wait(d.submitRun(second).GetId(), completed)
}

// TestSerialContext: of the jobs of one context that ask for it one is in flight at a
// time; the others do not care.
func TestSerialContext(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, manySlots)
	l := newLedgers(t)
	in := func(key, context string, serial bool) *macexecv1.SubmitJobRequest {
		name := "free"
		if serial {
			name = context
		}
		req := call(key, "ledger_none", l.args(name, "gate"))
		req.Context = &macexecv1.CallContext{ContextId: context}
		req.Options = &macexecv1.Options{SerialContext: serial}
		return req
	}
	openOne, openTwo, openFree := l.gate("one"), l.gate("two"), l.gate("free")
	_, err := d.Submit(d.context(), in("k", "", true))
	wantCode(t, err, "REQUEST_INVALID")
	var ids []string
	for i := range 4 {
		job := d.submit(in(fmt.Sprint(i), "one", true))
		ids = append(ids, job.GetId())
		if i == 0 {
			l.await("one", "begin", 1)
			continue
		}
		d.wantWait(job.GetId(), waitLock, "one", ids[0], runs)
	}
	ids = append(ids, d.submit(in("two", "two", true)).GetId(), d.submit(in("free", "one", false)).GetId())
	l.await("two", "begin", 1)
	l.await("free", "begin", 1)
	l.wantStarts("one", 1)
	openTwo()
	openFree()
	for range 4 {
		openOne()
	}
	for _, id := range ids {
		d.wait(id, completed)
	}
	l.wantTurns("one", 4)
}

// TestPriorityBounds: a priority outside of its bounds is refused, and said.
func TestPriorityBounds(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	l := newLedgers(t)
	for priority, taken := range map[int32]bool{-11: false, -10: true, 10: true, 11: false} {
		req := call(fmt.Sprint(priority), "ledger_none", l.args("a"))
		req.Options = &macexecv1.Options{Priority: priority}
		job, err := d.Submit(d.context(), req)
		switch {
		case !taken:
			if e := wantCode(t, err, "REQUEST_INVALID"); !strings.Contains(e.Error(), "-10 to 10") {
				t.Error(e.Error())
			}
		case err != nil:
			t.Error(err)
		default:
			d.wait(job.GetId(), completed)
		}
	}
}
