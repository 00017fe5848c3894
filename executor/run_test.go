package executor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

func TestExitCodesAndSignals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, code := range []int{0, 1, 3, 126, 127, 255} {
		e := b.run("code"+strconv.Itoa(code), command("exit", strconv.Itoa(code)))
		if e.Code != code || e.Signal != 0 || e.NotStarted || e.StoppedFor != "" || e.Error != "" {
			t.Errorf("exit %d: %+v", code, e)
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		e := b.run("signal"+strconv.Itoa(int(sig)), command("die", strconv.Itoa(int(sig))))
		if e.Signal != int(sig) || e.NotStarted || e.StoppedFor != "" {
			t.Errorf("signal %d: %+v", sig, e)
		}
	}
}

// A command that cannot be executed did not run, which an exit code of 127 does
// not say.
func TestExecFailureIsNotAnExitCode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	plain := filepath.Join(b.root, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for job, cmd := range map[string]executor.Command{
		"missing":  {Argv: []string{"/nonexistent/tool"}},
		"format":   {Argv: []string{plain}},
		"folder":   {Argv: []string{"/usr"}},
		"no-dir":   {Argv: []string{"/bin/sh"}, Dir: "/nonexistent"},
		"no-input": {Argv: []string{"/bin/sh"}, Confine: executor.Confine{Read: []string{"/nonexistent/in"}}},
	} {
		if runtime.GOOS != "linux" && job != "missing" && job != "no-dir" {
			continue
		}
		e := b.run(job, cmd)
		if !e.NotStarted || e.Error == "" || e.Code != 0 || e.Signal != 0 {
			t.Errorf("%s: %+v, want not started", job, e)
		}
	}
	a, err := b.x.Prepare("relative", 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Start(executor.Command{Argv: []string{"tool"}})
	if err != nil {
		t.Fatal(err)
	}
	if o := b.wait(r); o.Kind != executor.NeverStarted || !strings.Contains(o.Complaint, "absolute") {
		t.Errorf("relative program: %+v", o)
	}
	var not *executor.NotStartedError
	if _, err := a.Start(command("exit", "0")); !errors.As(err, &not) {
		t.Errorf("second start of an attempt: %v", err)
	}
}

func TestStartNeedsAKeeper(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := executor.New(executor.Options{Root: b.root, Keeper: []string{"/nonexistent/keeper"}, BootSession: boot})
	if err != nil {
		t.Fatal(err)
	}
	a, err := x.Prepare("j", 1)
	if err != nil {
		t.Fatal(err)
	}
	var not *executor.NotStartedError
	if _, err := a.Start(command("exit", "0")); !errors.As(err, &not) {
		t.Fatalf("start: %v", err)
	}
	if f, err := x.Inspect("j", 1); err != nil || f.Kind != executor.NeverStarted {
		t.Errorf("inspect: %+v, %v", f, err)
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("say", "out", "err"))
	s := b.started(r)
	e := b.exited(r)
	if s.BootSession != boot || s.Token == "" || s.Pid <= 1 || s.KeeperPid <= 1 || s.At.IsZero() {
		t.Errorf("started record: %+v", s)
	}
	want := keeper.Exit{Stdout: keeper.StreamCount{Bytes: 3}, Stderr: keeper.StreamCount{Bytes: 3}}
	if diff := cmp.Diff(want, e, cmp.FilterPath(func(p cmp.Path) bool {
		return slices.Contains([]string{"Usage", "At", "Wall"}, p.Last().String()[1:])
	}, cmp.Ignore())); diff != "" {
		t.Errorf("exit record (-want +got):\n%s", diff)
	}
	if e.Usage.MaxRSS <= 0 || e.Usage.UserCPU+e.Usage.SystemCPU <= 0 || e.Wall <= 0 || e.At.Before(s.At) {
		t.Errorf("usage: %+v wall %v at %v", e.Usage, e.Wall, e.At)
	}
	if _, err := os.Lstat(r.Dir().Reserve()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the reserve became the exit record, but is there: %v", err)
	}
	b.gone(s.Tool(), s.Keeper())
	if _, err := keeper.StartTime(s.Pid); !errors.Is(err, keeper.ErrNoProcess) {
		t.Errorf("a zombie was left: %v", err)
	}
	if err := r.Stop("late"); !errors.Is(err, executor.ErrEnded) {
		t.Errorf("stop after the end: %v", err)
	}
	if f, err := b.x.Inspect("j", 1); err != nil || f.Kind != executor.Exited || f.Exit.StoppedFor != "" {
		t.Errorf("inspect: %+v, %v", f, err)
	}
}

func TestToolSurroundings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("environment")
	cmd.Env = []string{"A=1", "UMLAUT=ü\xff", "MACEXEC_ATTEMPT=forged"}
	r := b.start("env", cmd)
	s := b.started(r)
	b.exited(r)
	want := []string{"A=1", "UMLAUT=ü\xff", "MACEXEC_ATTEMPT=" + s.Token}
	if diff := cmp.Diff(want, strings.Split(string(b.output("env", executor.Stdout)), "\n")); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}

	b.run("fds", command("descriptors"))
	lines := strings.Split(strings.TrimSpace(string(b.output("fds", executor.Stdout))), "\n")
	for _, l := range lines {
		fd, target, _ := strings.Cut(l, " ")
		switch fd {
		case "0":
			if target != "/dev/null" {
				t.Errorf("stdin is %s", target)
			}
		case "1", "2":
			if !strings.HasPrefix(target, "pipe:") && runtime.GOOS == "linux" {
				t.Errorf("output %s is %s", fd, target)
			}
		default:
			t.Errorf("the tool inherited descriptor %s: %s", fd, target)
		}
	}
	if len(lines) < 3 && runtime.GOOS == "linux" {
		t.Errorf("descriptors: %q", lines)
	}

	b.run("stdin", command("stdin"))
	if got := string(b.output("stdin", executor.Stdout)); got != "0 <nil>\n" {
		t.Errorf("stdin: %q", got)
	}
}

func TestTimeoutEndsAStubbornTree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("stubborn", "2")
	cmd.Timeout, cmd.Grace = 2*time.Second, 50*time.Millisecond
	e := b.run("j", cmd)
	if e.StoppedFor != keeper.StoppedForTimeout || e.Signal == 0 || len(e.Escaped) > 0 {
		t.Errorf("exit: %+v", e)
	}
	pids := strings.Fields(strings.ReplaceAll(string(b.output("j", executor.Stdout)), "ready", ""))
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keeper.StartTime(pid); !errors.Is(err, keeper.ErrNoProcess) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
	t.Logf("%d processes were ended", len(pids))
}

func TestStop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("polite", command("polite"))
	procs := b.ready("polite", 1)
	if err := r.Stop("asked"); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop("asked again"); err != nil && !errors.Is(err, executor.ErrEnded) {
		t.Fatal(err)
	}
	e := b.exited(r)
	if e.StoppedFor != keeper.StoppedForRequest || e.Code != 5 || e.Signal != 0 {
		t.Errorf("exit: %+v", e)
	}
	b.gone(procs...)
	if s, err := keeper.ReadStopRequest(r.Dir()); err != nil || s.Reason != "asked" {
		t.Errorf("stop request: %+v, %v", s, err)
	}

	// By another signal, and a tree that does not listen.
	cmd := command("stubborn", "1")
	cmd.Grace, cmd.StopSignal = 20*time.Millisecond, syscall.SIGTERM
	r = b.start("stubborn", cmd)
	procs = b.ready("stubborn", 2)
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.StoppedFor != keeper.StoppedForRequest || e.Signal != int(syscall.SIGKILL) {
		t.Errorf("exit: %+v", e)
	}
	b.gone(procs...)
}

// A stop at any moment is obeyed: the tool never ran, or it ran and was stopped.
func TestStopRaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	never := 0
	for i := range 20 {
		job := "j" + strconv.Itoa(i)
		a, err := b.x.Prepare(job, 1)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // certainly before
			if err := keeper.WriteStopRequest(a.Dir(), keeper.StopRequest{At: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}
		r, err := a.Start(command("block"))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			b.started(r)
		}
		if err := r.Stop("race"); err != nil {
			t.Fatal(err)
		}
		e := b.exited(r)
		if e.StoppedFor != keeper.StoppedForRequest {
			t.Errorf("%s: %+v", job, e)
		}
		if e.NotStarted {
			never++
			if out := b.output(job, 0); len(out) > 0 {
				t.Errorf("%s did not start, but said %q", job, out)
			}
		}
		if i == 0 && !e.NotStarted {
			t.Errorf("stopped before the start, but ran: %+v", e)
		}
	}
	t.Logf("%d of 20 never started", never)
}

func TestGrandchildrenNeitherHangNorEscape(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for job, args := range map[string][]string{
		"group":    {"group", "block"},
		"stubborn": {"group", "stubborn", "1"},
		"detached": {"detached", "block"},
	} {
		r := b.start(job, command("leave-ready", args...))
		e := b.exited(r)
		if e.Code != 0 || e.Signal != 0 || e.Leftover < 1 || len(e.Escaped) > 0 || e.StoppedFor != "" {
			t.Errorf("%s: %+v", job, e)
		}
		out := strings.Fields(string(b.output(job, executor.Stdout)))
		if len(out) < 2 {
			t.Fatalf("%s: output %q", job, out)
		}
		pid, err := strconv.Atoi(out[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keeper.StartTime(pid); !errors.Is(err, keeper.ErrNoProcess) {
			t.Errorf("%s: grandchild %d is still there: %v", job, pid, err)
		}
	}
	// A child that was started in the last moment and holds the pipes.
	if e := b.run("late", command("leave", "group", "block")); e.Code != 0 || len(e.Escaped) > 0 {
		t.Errorf("late: %+v", e)
	}
	// A detached one when the tool is stopped.
	r := b.start("stopped", command("with", "detached", "stubborn", "0"))
	procs := b.ready("stopped", 2)
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.StoppedFor != keeper.StoppedForRequest || len(e.Escaped) > 0 {
		t.Errorf("stopped: %+v", e)
	}
	b.gone(procs...)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := executor.Command{Argv: []string{"/bin/sh", "-c", "ulimit -c; ulimit -n; ulimit -f; umask; exec dd if=/dev/zero of=tmp/big bs=4096 count=1000"}}
	cmd.Limits = executor.Limits{OpenFiles: 77, FileSize: 1 << 20}
	e := b.run("j", cmd)
	if got := string(b.output("j", executor.Stdout)); got != "0\n77\n2048\n0077\n" {
		t.Errorf("limits: %q", got)
	}
	if e.Code == 0 && e.Signal == 0 {
		t.Errorf("wrote beyond the limit: %+v", e)
	}
	st, err := os.Stat(filepath.Join(b.x.AttemptDir("j", 1).Tmp(), "big"))
	if err != nil || st.Size() != 1<<20 {
		t.Errorf("big file: %v, %v", st, err)
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("macOS does not enforce a limit on the address space")
	}
	if raceDetector {
		t.Skip("the race detector's own memory does not fit into the limit")
	}
	b := setup(t)
	cmd := executor.Command{Argv: []string{"/bin/sh", "-c", "ulimit -v"}, Env: []string{strings.Repeat("x", 100_000) + "=1"}}
	cmd.Limits.Memory = 64 << 20
	if e := b.run("j", cmd); e.Code != 0 || e.NotStarted {
		t.Errorf("exit: %+v", e)
	}
	if got := string(b.output("j", executor.Stdout)); got != "65536\n" {
		t.Errorf("limit: %q", got)
	}
}

// G3/G4: the tool runs only once per attempt, and a long argument vector arrives.
func TestLongArguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := strings.Repeat("x", 100_000)
	cmd := command("say", long, "\xff\xfe")
	cmd.Argv = append(cmd.Argv, long, long)
	b.run("j", cmd)
	if got := string(b.output("j", executor.Stdout)); got != long {
		t.Errorf("got %d bytes", len(got))
	}
	if got := string(b.output("j", executor.Stderr)); got != "\xff\xfe" {
		t.Errorf("got %q", got)
	}
}

func TestCapture(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("bytes", "1000000")
	cmd.CaptureStdout = true
	e := b.run("whole", cmd)
	out, err := b.x.Stdout("whole", 1)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out)
	if want := string(b.output("whole", executor.Stderr)); hex.EncodeToString(sum[:]) != want || e.CaptureOverflow {
		t.Errorf("captured %d bytes, %+v", len(out), e)
	}
	if len(b.output("whole", executor.Stdout)) != 0 {
		t.Error("captured output is in the log, too")
	}
	cmd.Limits.CaptureBytes = 1000
	e = b.run("cut", cmd)
	cut, err := b.x.Stdout("cut", 1)
	if err != nil {
		t.Fatal(err)
	}
	if !e.CaptureOverflow || !bytes.Equal(cut, out[:1000]) || e.Stdout.Dropped != e.Stdout.Bytes-1000 {
		t.Errorf("cut: %d bytes, %+v", len(cut), e)
	}
	if _, err := b.x.Stdout("none", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no output: %v", err)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r, err := b.x.Probe(t.Context(), command("say", "yes", "but"))
	if err != nil || r.Code != 0 || string(r.Stdout) != "yes" || string(r.Stderr) != "but" {
		t.Errorf("probe: %+v, %v", r, err)
	}
	r, err = b.x.Probe(t.Context(), command("exit", "7"))
	if err != nil || r.Code != 7 {
		t.Errorf("probe: %+v, %v", r, err)
	}
	var not *executor.NotStartedError
	if _, err := b.x.Probe(t.Context(), executor.Command{Argv: []string{"/nonexistent"}}); !errors.As(err, &not) {
		t.Errorf("missing program: %v", err)
	}
	cmd := command("with", "detached", "stubborn", "1")
	cmd.Timeout = time.Second
	r, err = b.x.Probe(t.Context(), cmd)
	if err != nil || !r.TimedOut || r.Signal != syscall.SIGKILL {
		t.Errorf("timeout: %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	cancel(mine)
	if _, err := b.x.Probe(ctx, command("block")); !errors.Is(err, mine) && !errors.As(err, &not) {
		t.Errorf("cancelled: %v", err)
	}
	r, err = b.x.Probe(t.Context(), command("flood", "100"))
	if err != nil || !r.Truncated || len(r.Stdout) != 1<<20 || !strings.HasSuffix(string(r.Stderr), "the end") {
		t.Errorf("flood: %d %d %v", len(r.Stdout), len(r.Stderr), err)
	}
}
