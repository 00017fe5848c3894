package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

func (b *bench) inspect(x *executor.Executor, job string) executor.Found {
	b.t.Helper()
	f, err := x.Inspect(job, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

func (b *bench) fenced(job string, want bool) {
	b.t.Helper()
	if got, err := keeper.IsFenced(b.x.AttemptDir(job, 1)); err != nil || got != want {
		b.t.Errorf("fenced: %v, %v; want %v", got, err, want)
	}
}

// kill ends a process and waits until it is gone.
func kill(t *testing.T, procs ...executor.Proc) {
	t.Helper()
	for _, p := range procs {
		if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, keeper.ErrNoProcess) {
			t.Fatal(err)
		}
	}
	keeper.AwaitEnd(procs, time.Minute)
}

// G7: the daemon's memory of an attempt is dropped, and another daemon takes up
// watching and stopping.
func TestAttachFromAFreshDaemon(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.start("j", command("polite"))
	first.Detach()
	b.ready("j", 1)
	x := b.fresh(boot)
	if f := b.inspect(x, "j"); f.Kind != executor.Held {
		t.Fatalf("inspect: %+v", f)
	}
	b.fenced("j", false)
	r, ok, err := x.Attach("j", 1)
	if err != nil || !ok {
		t.Fatalf("attach: %v, %v", ok, err)
	}
	if s := b.started(r); !s.Tool().Alive() {
		t.Error("the tool does not live")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if err := r.Stop("by another daemon"); err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.StoppedFor != keeper.StoppedForRequest || e.Code != 5 {
		t.Errorf("exit: %+v", e)
	}
	if e := b.exited(first); e.Code != 5 {
		t.Errorf("exit: %+v", e)
	}
	if _, ok, err := x.Attach("j", 1); ok || err != nil {
		t.Errorf("attach after the end: %v, %v", ok, err)
	}
}

// G7: the keeper's own collector does not lose the lock.
func TestLockOutlivesCollections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := executor.New(executor.Options{
		Root: b.root, BootSession: boot,
		Keeper: []string{"/usr/bin/env", "GOGC=1", noRest, self(), "keeper"},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.x = x
	r := b.start("j", command("flood-block", "300"))
	b.ready("j", 1)
	if f := b.inspect(b.x, "j"); f.Kind != executor.Held {
		t.Errorf("inspect: %+v", f)
	}
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	b.exited(r)
}

// An attach in the first moments waits for the keeper's name.
func TestAttachAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start("j", command("polite"))
	r, ok, err := b.fresh(boot).Attach("j", 1)
	if err != nil || !ok {
		t.Fatalf("attach: %v, %v", ok, err)
	}
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.StoppedFor != keeper.StoppedForRequest {
		t.Errorf("exit: %+v", e)
	}
}

func TestKeeperKilledWhileTheToolLives(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("with", "group", "stubborn", "0"))
	procs := b.ready("j", 2)
	s := b.started(r)
	kill(t, s.Keeper())
	o := b.wait(r)
	if o.Kind != executor.Unwatched || o.Exit != nil || len(o.Alive) != 2 {
		t.Fatalf("outcome: %+v", o)
	}
	for _, p := range o.Alive {
		if p != procs[0] && p != procs[1] {
			t.Errorf("%v is not of the tool %v", p, procs)
		}
	}
	b.fenced("j", true)
	if f := b.inspect(b.fresh(boot), "j"); f.Kind != executor.Unwatched || len(f.Alive) != 2 {
		t.Errorf("a fresh daemon finds %+v", f)
	}
	o.Started.Grace = 50 * time.Millisecond
	if err := b.x.StopTree(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b.gone(procs...)
	if f := b.inspect(b.x, "j"); f.Kind != executor.Lost {
		t.Errorf("after the stop: %+v", f)
	}
	if err := b.x.StopTree(t.Context(), o); err != nil {
		t.Errorf("stop again: %v", err)
	}
}

// The leader is gone as well; what escaped its session is found by its tag.
func TestEscapedProcessIsFoundByItsTag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("with", "detached", "block"))
	procs := b.ready("j", 2)
	s := b.started(r)
	kill(t, s.Keeper())
	kill(t, s.Tool())
	o := b.wait(r)
	if o.Kind != executor.Unwatched || len(o.Alive) != 1 || o.Alive[0] == s.Tool() {
		t.Fatalf("outcome: %+v, processes %v", o, procs)
	}
	if err := b.x.StopTree(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b.gone(procs...)
}

func TestStopTreeObeysItsContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("stubborn", "0"))
	procs := b.ready("j", 1)
	kill(t, b.started(r).Keeper())
	o := b.wait(r)
	o.Started.Grace = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.x.StopTree(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("stop: %v", err)
	}
	kill(t, procs...)
}

func TestKeeperAndToolKilled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("block"))
	b.ready("j", 1)
	s := b.started(r)
	kill(t, s.Keeper())
	kill(t, s.Tool())
	if o := b.wait(r); o.Kind != executor.Lost || o.Exit != nil || len(o.Alive) > 0 || o.Started == nil {
		t.Errorf("outcome: %+v", o)
	}
	b.fenced("j", true)
	if f := b.inspect(b.fresh("boot-2"), "j"); f.Kind != executor.Rebooted || f.Started == nil {
		t.Errorf("in another boot session: %+v", f)
	}
}

func TestFolderGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if f := b.inspect(b.x, "never"); f.Kind != executor.FolderGone {
		t.Errorf("no folder: %+v", f)
	}
	b.run("j", command("exit", "0"))
	if err := os.RemoveAll(string(b.x.AttemptDir("j", 1))); err != nil {
		t.Fatal(err)
	}
	if f := b.inspect(b.x, "j"); f.Kind != executor.FolderGone {
		t.Errorf("folder removed: %+v", f)
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a, err := b.x.Prepare("j", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.fresh(boot).Prepare("j", 1); !errors.Is(err, executor.ErrHeld) {
		t.Errorf("prepare what is held: %v", err)
	}
	if err := os.WriteFile(filepath.Join(a.In(), "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The daemon dies between Prepare and Start: the same attempt is made anew.
	a.Release()
	if a, err = b.fresh(boot).Prepare("j", 1); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(a.In()); err != nil || len(names) > 0 {
		t.Errorf("the old inputs are there: %v, %v", names, err)
	}
	for _, path := range []string{string(a.Dir()), a.Work(), a.In(), a.Out(), a.Tmp(), a.Dir().Keeper()} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	a.Release()
	// Once fenced, it is not to be prepared again.
	if f := b.inspect(b.x, "j"); f.Kind != executor.NeverStarted {
		t.Errorf("inspect: %+v", f)
	}
	if _, err := b.x.Prepare("j", 1); !errors.Is(err, executor.ErrSpent) {
		t.Errorf("prepare what is fenced: %v", err)
	}
	// Nor one after which there was another.
	later, err := b.x.Prepare("k", 12)
	if err != nil {
		t.Fatal(err)
	}
	later.Release()
	if _, err := b.x.Prepare("k", 3); !errors.Is(err, executor.ErrSpent) {
		t.Errorf("prepare an earlier one: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../j", "a\x00"} {
		if _, err := b.x.Prepare(name, 1); !errors.Is(err, executor.ErrName) {
			t.Errorf("prepare %q: %v", name, err)
		}
	}
}

// late starts a keeper by hand with a lock of the test's choice.
func (b *bench) late(job string, lock *os.File) string {
	b.t.Helper()
	d := b.x.AttemptDir(job, 1)
	cmd := command("write", filepath.Join(d.Work(), "ran"))
	spec, err := json.Marshal(keeper.Spec{
		Token: "token", BootSession: boot,
		Launch: keeper.Launch{
			Argv: cmd.Argv, Env: cmd.Env, Dir: keeper.Path(d.Work()),
			Confine: keeper.Confine{Write: []string{d.Work()}},
		},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	c := exec.CommandContext(b.t.Context(), self(), "keeper", "hold", string(d))
	c.Stdin = strings.NewReader(string(spec))
	c.ExtraFiles = []*os.File{lock}
	out, err := c.CombinedOutput()
	if err == nil {
		b.t.Errorf("the keeper was content: %s", out)
	}
	if _, err := os.Lstat(filepath.Join(d.Work(), "ran")); err == nil {
		b.t.Error("the tool ran")
	}
	if _, err := keeper.ReadStarted(d); err == nil && job != "twice" {
		b.t.Error("there is a started record")
	}
	return string(out)
}

func (b *bench) lock(job string) *os.File {
	b.t.Helper()
	f, err := os.OpenFile(b.x.AttemptDir(job, 1).Lock(), os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		b.t.Fatal(err)
	}
	return f
}

// G4: a keeper that comes late starts nothing.
func TestLateKeeper(t *testing.T) { //nolint:tparallel // its cases share one executor
	t.Parallel()
	b := setup(t)
	prepare := func(job string) {
		a, err := b.x.Prepare(job, 1)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	t.Run("fenced", func(t *testing.T) {
		prepare("fenced")
		if f := b.inspect(b.x, "fenced"); f.Kind != executor.NeverStarted {
			t.Fatalf("inspect: %+v", f)
		}
		if out := b.late("fenced", b.lock("fenced")); !strings.Contains(out, "fenced") {
			t.Errorf("the keeper says %q", out)
		}
	})
	t.Run("twice", func(t *testing.T) {
		b.run("twice", command("exit", "0"))
		if out := b.late("twice", b.lock("twice")); !strings.Contains(out, "started") {
			t.Errorf("the keeper says %q", out)
		}
	})
	t.Run("lock of another", func(t *testing.T) {
		prepare("mine")
		prepare("other")
		if out := b.late("mine", b.lock("other")); !strings.Contains(out, "not this attempt's") {
			t.Errorf("the keeper says %q", out)
		}
	})
	t.Run("folder made anew", func(t *testing.T) {
		prepare("anew")
		old := b.lock("anew")
		if err := os.RemoveAll(string(b.x.AttemptDir("anew", 1))); err != nil {
			t.Fatal(err)
		}
		prepare("anew")
		b.late("anew", old)
	})
	t.Run("not held", func(t *testing.T) {
		prepare("free")
		held := b.lock("free")
		f, err := os.OpenFile(held.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if out := b.late("free", f); !strings.Contains(out, "not held") {
			t.Errorf("the keeper says %q", out)
		}
	})
	t.Run("spec cut short", func(t *testing.T) {
		prepare("cut")
		c := exec.CommandContext(t.Context(), self(), "keeper", "hold", string(b.x.AttemptDir("cut", 1)))
		c.Stdin = strings.NewReader(`{"token":"t","launch":{"argv":"`)
		c.ExtraFiles = []*os.File{b.lock("cut")}
		if out, err := c.CombinedOutput(); err == nil {
			t.Errorf("the keeper was content: %s", out)
		}
	})
}

// G13: a record that cannot be believed is said, and never read as "did not run".
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run("exit", command("exit", "0"))
	b.run("started", command("exit", "0"))
	d := b.x.AttemptDir("exit", 1)
	if err := os.WriteFile(d.Exit(), []byte(`{"code":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := b.inspect(b.x, "exit"); f.Kind != executor.Lost || f.Damaged == nil || f.Exit != nil {
		t.Errorf("damaged exit: %+v", f)
	}
	d = b.x.AttemptDir("started", 1)
	if err := os.Remove(d.Exit()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{}", `{"pid":1,"start_time":"5"}`, strings.Repeat(" ", 1<<20)} {
		if err := os.WriteFile(d.Started(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if f := b.inspect(b.x, "started"); f.Kind != executor.Lost || f.Damaged == nil || f.Started != nil {
			t.Errorf("damaged started: %+v", f)
		}
	}
}

// A pid proves nothing: what has another start time is never signalled.
func TestPidReuse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	victim := exec.CommandContext(t.Context(), self(), "tool", "block")
	victim.Stdout = nil
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
	}()
	living, err := keeper.Identify(victim.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stale := executor.Proc{Pid: living.Pid, StartTime: living.StartTime + "1"}
	if err := stale.Signal(syscall.SIGKILL); !errors.Is(err, keeper.ErrNoProcess) {
		t.Errorf("signal: %v", err)
	}
	// An attempt whose tool had this pid once.
	r := b.start("j", command("block"))
	b.ready("j", 1)
	s := b.started(r)
	kill(t, s.Keeper())
	kill(t, s.Tool())
	b.wait(r)
	s.Pid, s.StartTime = stale.Pid, stale.StartTime
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Dir().Started(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	f := b.inspect(b.x, "j")
	if f.Kind != executor.Lost {
		t.Errorf("inspect: %+v", f)
	}
	f.Alive = []executor.Proc{stale}
	if err := b.x.StopTree(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if !living.Alive() {
		t.Error("another process was killed for its pid")
	}
	for _, p := range []executor.Proc{{Pid: 1, StartTime: "x"}, {Pid: 0, StartTime: "x"}, {Pid: -1, StartTime: "x"}} {
		if err := p.Signal(syscall.SIGTERM); !errors.Is(err, keeper.ErrNoProcess) {
			t.Errorf("signal %d: %v", p.Pid, err)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("polite"))
	b.ready("j", 1)
	if err := b.x.Remove("j"); !errors.Is(err, executor.ErrHeld) {
		t.Errorf("remove a running job: %v", err)
	}
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	b.exited(r)
	deep := filepath.Join(r.Dir().Work(), "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(deep, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(deep), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.x.Remove("j"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.x.JobDir("j")); err == nil {
		t.Error("the folder is there")
	}
	if err := b.x.Remove("j"); err != nil {
		t.Errorf("remove again: %v", err)
	}
	if err := b.x.Remove("../x"); !errors.Is(err, executor.ErrName) {
		t.Errorf("remove outside: %v", err)
	}
}
