package endtoend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// orders are the fault points of one daemon and its keepers.
type orders struct {
	t       *testing.T
	dir     string
	met     chan struct{} // some point was met
	release *os.File      // each byte lets one process go on that is held
}

// newOrders makes the folder that package fault looks into.
func newOrders(t *testing.T) *orders {
	t.Helper()
	o := &orders{t: t, dir: t.TempDir(), met: make(chan struct{}, 1)}
	pipe := openPipe(t, filepath.Join(o.dir, "met"))
	o.release = openPipe(t, filepath.Join(o.dir, "go"))
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = pipe.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for buffer := make([]byte, 64); ; {
			if _, err := pipe.Read(buffer); err != nil {
				return
			}
			select {
			case o.met <- struct{}{}:
			default: // it looks anyway
			}
		}
	}()
	return o
}

func (o *orders) arm(point, order string) {
	o.t.Helper()
	armed := filepath.Join(o.dir, point)
	if err := os.WriteFile(armed+".new", []byte(order), 0o600); err != nil {
		o.t.Fatal(err)
	}
	if err := os.Rename(armed+".new", armed); err != nil {
		o.t.Fatal(err)
	}
}

// metBy returns the pid of the process that met a point.
func (o *orders) metBy(point string) (pid int, met bool) {
	text, err := os.ReadFile(filepath.Join(o.dir, point+".met"))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(string(text))
	return pid, err == nil
}

// goOn lets one process that is held go on.
func (o *orders) goOn() {
	o.t.Helper()
	if _, err := o.release.WriteString("x"); err != nil {
		o.t.Fatal(err)
	}
}

// errno reports whether a fault is an error of a system call.
func errno(fault string) bool { return fault == "EIO" || fault == "ENOSPC" }

// ofTool reports whether a point is one of the tool's own.
func ofTool(point string) bool { return strings.HasPrefix(point, "tool.") }

// ofCall reports whether a point is where a call stands, and its fault what a person or
// the caller does then (see deeds_test.go).
func ofCall(point string) bool { return strings.HasPrefix(point, "call.") }

// ofKeeper reports whether it is the keeper that comes to a point.
func ofKeeper(point string) bool {
	return strings.HasPrefix(point, "keeper.") || strings.HasPrefix(point, "record.started.") || strings.HasPrefix(point, "record.exit.")
}

// walker takes one cell through its faults.
type walker struct {
	*daemon

	c        cell
	l        *ledgers
	orders   *orders
	req      *macexecv1.SubmitJobRequest
	answered chan answer
	answer   *answer
	others   []answer // those that came before it
	deed     step     // what is done with the call, if it is not let run
	pass     func()   // lets the tools through their gate, once
	stranger keeper.Process
	// late is a keeper that goes on only when the job is over.
	late keeper.Process
}

// answer is what the caller of a request was told in the end.
type answer struct {
	req *macexecv1.SubmitJobRequest
	job *macexecv1.Job
	err error
}

const (
	ledgerName = "a"
	madeBytes  = 1000
	oldContent = "old"
)

// walk goes through one cell and returns how many processes were started.
func walk(t *testing.T, c cell) int {
	t.Helper()
	if c.steps[0].point == "tool.forges" && !keeper.ConfinementOn(keeper.Confine{}).Files {
		t.Skip("SKIPPED, NOT TESTED: this host cannot confine a tool to its own folder (no Landlock, no seatbelt)")
	}
	w := &walker{c: c, l: newLedgers(t), orders: newOrders(t), answered: make(chan answer, 2)}
	open := w.l.gate(ledgerName)
	w.pass = func() {
		for range 4 {
			open()
		}
		w.pass = func() {}
	}
	waits := false // the tool waits for its fault
	for _, s := range c.steps {
		waits = waits || ofTool(s.point) || s.point == "keeper.released"
	}
	if ofCall(c.steps[0].point) {
		w.deed, w.c.steps = c.steps[0], c.steps[1:]
	}
	w.orders.arm("copy.clone", "EOPNOTSUPP") // so that files are copied byte by byte on every file system
	w.arm(0)
	w.daemon = startDaemonOf(t, needFaulty(t), []string{"MACEXEC_FAULTS=" + w.orders.dir}, "limits: {approval_expires_seconds: "+w.expiry()+"}")
	w.prepare()
	if !waits {
		w.pass()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for _, req := range w.requests() {
		go func() { w.answered <- w.call(ctx, req) }()
	}
	for i, s := range w.c.steps {
		w.await(s)
		w.arm(i + 1)
		w.happen(s)
	}
	// A tool that is lost or stopped stays where it is, so that it is found alive.
	if c.want.state != "unknown" && c.want.state != "cancelled" && c.want.starts < 2 {
		w.pass()
	}
	w.awaitAnswer()
	w.check()
	return w.l.starts(ledgerName)
}

// arm gives the orders for a step. Those for a later one are given when the one before
// it is met, so that nobody comes to its point before.
func (w *walker) arm(i int) {
	w.orders.t.Helper()
	if i >= len(w.c.steps) {
		return
	}
	switch s := w.c.steps[i]; {
	case errno(s.fault):
		w.orders.arm(s.point, s.fault)
	case !ofTool(s.point):
		w.orders.arm(s.point, "hold")
	}
}

// prepare makes the call and the project that it is about.
func (w *walker) prepare() {
	w.t.Helper()
	script := []string{"others", "gate"}
	if w.c.steps[0].point == "tool.forges" {
		script = []string{"others", "forge", "gate", "exit:3"}
		if w.c.want.state == "completed" {
			script = script[:3]
		}
	}
	input := func(a arguments) arguments { return a }
	if w.takesInput() {
		w.put("in.txt", oldInput)
		input = func(a arguments) arguments { return a.with("input", "in.txt") }
	}
	switch w.c.effects {
	case "remove":
		w.put("out.txt", oldContent)
		w.req = call("k", "delete_asset", `{"project_id":"default","asset":"out.txt"}`)
	case "replace":
		w.put("out.txt", oldContent)
		script = append(script, fmt.Sprintf("write:%d", madeBytes))
		w.req = call("k", "ledger_staged", input(w.l.args(ledgerName, script...)).with("output", "out.txt"))
		w.req.Options = &macexecv1.Options{Replace: true}
	case staged:
		script = append(script, fmt.Sprintf("write:%d", madeBytes))
		w.req = call("k", "ledger_staged", input(w.l.args(ledgerName, script...)).with("output", "out.txt"))
	default:
		w.req = call("k", "ledger_"+w.c.effects, input(w.l.args(ledgerName, script...)))
	}
	w.makeWait()
}

// call is the caller: it repeats itself until it knows the end.
func (w *walker) call(ctx context.Context, req *macexecv1.SubmitJobRequest) answer {
	for wait := soon; ; {
		job, err := w.Submit(ctx, req)
		if err == nil {
			err = w.decide(ctx, job)
		}
		if err == nil {
			job, err = w.Wait(ctx, job.GetId())
		}
		if err == nil {
			return answer{req, job, nil}
		}
		if e, ok := errors.AsType[*client.Error](err); ok {
			switch e.Code() {
			case "START_BY_PASSED":
				wait *= 2
				w.startSoon(req, wait)
			case keyConflict:
				return answer{req, nil, err}
			}
		}
		// An approval whose answer was lost may be in place, and a full disk may have
		// room again: what there is now says the next try.
		select {
		case <-ctx.Done():
			return answer{req, nil, err}
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// afterTheEnd bounds the wait for a point that comes after the job's end.
const afterTheEnd = 20 * time.Second

// await waits until a point is met, and lets a daemon that ends begin anew.
func (w *walker) await(s step) {
	w.t.Helper()
	if ofTool(s.point) {
		verb := "looked"
		if s.point == "tool.forges" {
			verb = "tried"
		}
		w.l.await(ledgerName, verb, 1)
		return
	}
	patient := time.After(patience)
	for {
		if _, met := w.orders.metBy(s.point); met {
			break
		}
		select {
		case <-w.orders.met:
		case <-w.process.gone:
			w.awaitEnd()
			w.start()
		case a := <-w.answered:
			// Only what comes after the job's end can still be met.
			w.answeredBy(a)
			if w.answer != nil {
				patient = time.After(afterTheEnd)
			}
		case <-patient:
			if w.answer != nil {
				w.t.Fatalf("the call ended as %s, %v, and nobody came to %s", w.answer.job.GetState(), w.answer.err, s.point)
			}
			w.t.Fatalf("nobody came to %s", s.point)
		}
	}
	if s.point == "keeper.released" {
		w.l.await(ledgerName, "looked", 1)
	}
}

// attemptOne is the folder of the job's first attempt, if there is one by now.
func (w *walker) attemptOne() keeper.Dir {
	w.t.Helper()
	list, err := filepath.Glob(filepath.Join(w.state, "jobs", "*", "a1"))
	if err != nil || len(list) > 1 {
		w.t.Fatalf("attempts %v: %v", list, err)
	}
	return keeper.Dir(append(list, "")[0])
}

// keeperAt is the keeper: the process that is held, or the one whose name is in the lock.
func (w *walker) keeperAt(point string) keeper.Process {
	w.t.Helper()
	if pid, met := w.orders.metBy(point); met && ofKeeper(point) {
		p, err := keeper.Identify(pid)
		if err != nil {
			w.t.Fatal(err)
		}
		return p
	}
	p, err := keeper.ReadHolder(w.attemptOne())
	if err != nil {
		return keeper.Process{} // it has no orders, and ends with its daemon
	}
	return p
}

// happen lets a fault happen while a process stands still at its point.
func (w *walker) happen(s step) {
	w.t.Helper()
	switch s.fault {
	case "nothing":
	case "EIO", "ENOSPC":
		return // it has happened
	case "daemon":
		w.kill()
		w.start()
	case "keeper":
		kill9(w.t, w.keeperAt(s.point))
	case "tool":
		kill9(w.t, w.toolAt())
	case "all", "reboot", "reused":
		w.killEverything(s)
		w.start()
	case "cancel":
		w.cancel()
	case "gone", "late":
		w.takeAway(s)
	case "upgrade":
		w.kill()
		w.upgrade()
		w.start()
	default:
		w.t.Fatalf("no such fault: %s", s.fault)
	}
	dies := s.fault == "all" || s.fault == "reboot" || s.fault == "reused" ||
		s.fault == "keeper" && ofKeeper(s.point) || !ofKeeper(s.point) && slices.Contains([]string{"daemon", "upgrade", "gone", "late"}, s.fault)
	if !ofTool(s.point) && !dies && w.late.Pid == 0 {
		w.orders.goOn()
	}
}

func (w *walker) toolAt() keeper.Process {
	w.t.Helper()
	s, err := keeper.ReadStarted(w.attemptOne())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Tool()
}

// killEverything ends daemon, keeper and tool, in this order, so that nobody writes
// down the end of the next.
func (w *walker) killEverything(s step) {
	w.t.Helper()
	w.kill()
	if dir := w.attemptOne(); dir != "" {
		if p := w.keeperAt(s.point); p.Pid != 0 {
			kill9(w.t, p)
		}
		started, err := keeper.ReadStarted(dir)
		if err != nil {
			return
		}
		kill9(w.t, started.Tool())
		switch s.fault {
		case "reboot":
			changeBoot(w.t, dir)
		case "reused":
			w.stranger = w.startStranger()
			changeStarted(w.t, dir, "pid", w.stranger.Pid)
		}
	}
}

// startStranger starts a process that has nothing to do with any job.
func (w *walker) startStranger() keeper.Process {
	w.t.Helper()
	w.l.gate("stranger")
	cmd := exec.Command(filepath.Join(built.tools, "testtool"), w.l.dir, "stranger", "gate")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	w.l.await("stranger", "begin", 1)
	p, err := keeper.Identify(cmd.Process.Pid)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// cancel asks for a stop, as long as it takes until there is an answer.
func (w *walker) cancel() {
	w.t.Helper()
	id := filepath.Base(filepath.Dir(string(w.attemptOne())))
	ctx := w.context()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for {
			_, err := w.Jobs.CancelJob(ctx, &macexecv1.CancelJobRequest{Id: id})
			if e, ok := errors.AsType[*client.Error](err); !ok || !e.NotReached() && !e.AnswerLost() {
				return
			}
		}
	}()
	w.t.Cleanup(func() { <-asked })
	if last := w.c.steps[len(w.c.steps)-1].point; last == "executor.prepared" || last == "copy.more" {
		<-asked // else who is held keeps the answer back
	}
}

// takeAway lets the next daemon judge the attempt without the keeper's lock.
func (w *walker) takeAway(s step) {
	w.t.Helper()
	dir := w.attemptOne()
	if !ofKeeper(s.point) {
		w.killEverything(s)
	} else {
		w.late = w.keeperAt(s.point)
		w.kill()
	}
	if s.fault == "gone" {
		if err := os.RemoveAll(string(dir)); err != nil {
			w.t.Fatal(err)
		}
	} else {
		if err := os.WriteFile(dir.Lock()+".new", nil, 0o600); err != nil {
			w.t.Fatal(err)
		}
		if err := os.Rename(dir.Lock()+".new", dir.Lock()); err != nil {
			w.t.Fatal(err)
		}
	}
	w.start()
}

// upgrade gives the next daemon another build of the keeper.
func (w *walker) upgrade() {
	w.t.Helper()
	bin := w.t.TempDir()
	if err := os.Link(filepath.Join(w.bin, "macexec"), filepath.Join(bin, "macexec")); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Link(filepath.Join(w.bin, otherBuild, "macexec-keeper"), filepath.Join(bin, "macexec-keeper")); err != nil {
		w.t.Fatal(err)
	}
	w.bin = bin
}

// awaitAnswer waits for what the caller is told, and lets a late keeper go on then.
func (w *walker) awaitAnswer() {
	w.t.Helper()
	for w.answer == nil {
		select {
		case a := <-w.answered:
			w.answeredBy(a)
		case <-w.process.gone:
			w.awaitEnd()
			w.start()
		case <-time.After(20 * time.Millisecond):
			if len(w.l.lines(ledgerName, "looked")) == 2 {
				w.pass() // the second one has looked for the first
			}
		}
	}
	if w.answer.err != nil {
		w.t.Fatalf("the caller is told nothing but %v", w.answer.err)
	}
	if w.late.Pid != 0 {
		w.orders.goOn()
		awaitDead(w.t, w.late)
	}
}

// check compares with what the table says.
func (w *walker) check() {
	w.t.Helper()
	for _, s := range w.c.steps {
		if _, met := w.orders.metBy(s.point); !met && !ofTool(s.point) {
			w.t.Errorf("nobody came to %s", s.point)
		}
	}
	if got := w.result(w.answer.job); got != w.c.want {
		w.t.Errorf("the job is %s: %s\n%s", w.answer.job.GetId(), w.answer.job.GetMessage(), cmp.Diff(w.c.want, got, cmp.AllowUnexported(result{})))
	}
	if alive := w.l.lines(ledgerName, "alive"); len(alive) > 0 {
		w.t.Errorf("a second process began while the first one, %v, still lived", alive)
	}
	if forged := w.l.lines(ledgerName, "forged"); len(forged) > 0 {
		w.t.Errorf("the tool could %v", forged)
	}
	if w.stranger.Pid != 0 && !w.stranger.Alive() {
		w.t.Error("a process that has the tool's pid was killed for it")
	}
	if w.answer.job.GetState() == unknown {
		// It stays so, whatever is looked at again.
		w.kill()
		w.start()
	} else {
		w.awaitTidy()
	}
	again := w.submit(w.req)
	if again.GetId() != w.answer.job.GetId() || !again.GetReplayed() {
		w.t.Errorf("the same call again is job %s, want %s", again.GetId(), w.answer.job.GetId())
	}
	if got := w.result(again); got != w.c.want {
		w.t.Errorf("asked again:\n%s", cmp.Diff(w.c.want, got, cmp.AllowUnexported(result{})))
	}
}

// awaitTidy waits until no hidden file is left: they go after the end is stored.
func (w *walker) awaitTidy() {
	w.t.Helper()
	for late := time.After(afterTheEnd); ; {
		hidden, err := filepath.Glob(filepath.Join(w.project, ".macexec-*.tmp"))
		if err != nil {
			w.t.Fatal(err)
		}
		if len(hidden) == 0 {
			w.wantNothingHidden()
			return
		}
		select {
		case <-late:
			w.t.Fatalf("%v stay in the project", hidden)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// result is what there is now.
func (w *walker) result(job *macexecv1.Job) result {
	w.t.Helper()
	word := func(enum, prefix string) string {
		if s := strings.ToLower(strings.TrimPrefix(enum, prefix)); s != "unspecified" {
			return s
		}
		return "-"
	}
	r := result{
		state:      word(job.GetState().String(), "JOB_STATE_"),
		reason:     word(job.GetEndReason().String(), "END_REASON_"),
		sideEffect: word(job.GetSideEffect().String(), "SIDE_EFFECT_"),
		starts:     w.l.starts(ledgerName), destination: "-", trash: "-",
	}
	r.destination = w.holds(filepath.Join(w.project, "out.txt"))
	trash, err := filepath.Glob(filepath.Join(w.project, ".macexec-trash", "*", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, path := range trash {
		r.trash = w.holds(path)
	}
	if len(trash) > 1 {
		r.trash = fmt.Sprintf("%d files", len(trash))
	}
	return r
}

// holds says what a file holds, in the words of the table.
func (w *walker) holds(path string) string {
	w.t.Helper()
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "-"
	case err != nil:
		return err.Error()
	case string(text) == oldContent:
		return "old"
	case string(text) == otherContent:
		return "other"
	case string(text) == strings.Repeat(ledgerName, madeBytes):
		return "new"
	default:
		return fmt.Sprintf("%d bytes of something else", len(text))
	}
}
