package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// daemon is a real daemon with a state folder of its own. It may be killed and
// started again; the client stays.
type daemon struct {
	*client.Client

	t       *testing.T
	state   string
	project string // the folder of the default project
	process *process
	bin     string   // the folder of its binaries
	env     []string // more of its environment
	wrap    []string // a command in front of it
}

// process is one life of a daemon.
type process struct {
	cmd  *exec.Cmd
	log  *logWatch
	gone chan struct{} // closed when it has ended
}

// logWatch collects what a daemon says, and tells when it says that it is ready.
type logWatch struct {
	mu    sync.Mutex
	text  bytes.Buffer
	ready chan struct{}
	said  bool
}

func (w *logWatch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if !w.said && bytes.Contains(w.text.Bytes(), []byte("ready: ")) {
		w.said = true
		close(w.ready)
	}
	return len(p), nil
}

func (w *logWatch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// startDaemon starts a daemon with a fresh state folder. config is more of its
// config.yaml.
func startDaemon(t *testing.T, config ...string) *daemon {
	t.Helper()
	return startDaemonOf(t, built.bin, nil, config...)
}

// startDaemonOf starts a daemon of these binaries, with more in its environment.
func startDaemonOf(t *testing.T, bin string, env []string, config ...string) *daemon {
	t.Helper()
	state, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	if state, err = filepath.EvalSymlinks(state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	return startDaemonAt(t, bin, env, state, config...)
}

// startDaemonAt is startDaemonOf with an empty folder for the state.
func startDaemonAt(t *testing.T, bin string, env []string, state string, config ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, bin: bin, env: env, state: state, project: filepath.Join(state, "projects", "default")}
	if err := os.Mkdir(filepath.Join(state, "tools"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeManifest(d.manifest(external), "2026-01-01", external); err != nil {
		t.Fatal(err)
	}
	d.configure(built.tools, config...)
	var err error
	if d.Client, err = client.Dial(filepath.Join(state, "macexec.sock"), client.Patience(patience)); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(func() {
		if d.process == nil && !t.Failed() {
			d.start()
		}
		if d.process != nil {
			if !t.Failed() {
				d.checkEverything()
			}
			d.end(syscall.SIGTERM)
		}
		_ = d.Close()
		d.killTools()
	})
	return d
}

// configure writes config.yaml. The tools of the tests are looked for in the folder.
func (d *daemon) configure(tools string, more ...string) {
	d.t.Helper()
	toolPath := fmt.Sprintf("tool_path: [%q, /opt/homebrew/bin, /usr/local/bin, /usr/bin, /bin]", tools)
	d.write(filepath.Join(d.state, "config.yaml"), strings.Join(append([]string{toolPath}, more...), "\n")+"\n")
}

func (d *daemon) manifest(effects string) string {
	return filepath.Join(d.state, "tools", "ledger_"+effects+".yaml")
}

func (d *daemon) write(path, text string) {
	d.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// start starts the daemon and returns when it takes calls.
func (d *daemon) start() {
	d.t.Helper()
	log := &logWatch{ready: make(chan struct{})}
	command := append(slices.Clone(d.wrap), filepath.Join(d.bin, "macexec"), "serve", "--state", d.state)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + d.state}, d.env...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	p := &process{cmd: cmd, log: log, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.gone)
	}()
	d.t.Cleanup(func() {
		if d.t.Failed() {
			d.t.Logf("daemon %d said:\n%s", cmd.Process.Pid, log)
		}
	})
	select {
	case <-log.ready:
		d.process = p
	case <-p.gone:
		d.t.Fatalf("the daemon did not start:\n%s", log)
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		d.t.Fatalf("the daemon does not get ready:\n%s", log)
	}
}

// end sends the daemon a signal and waits for its end.
func (d *daemon) end(signal syscall.Signal) {
	d.t.Helper()
	d.signal(signal)
	d.awaitEnd()
}

func (d *daemon) signal(signal syscall.Signal) {
	d.t.Helper()
	if err := d.process.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Fatal(err)
	}
}

// awaitEnd waits until the daemon has ended.
func (d *daemon) awaitEnd() {
	d.t.Helper()
	select {
	case <-d.process.gone:
	case <-time.After(patience):
		_ = d.process.cmd.Process.Kill()
		d.t.Fatalf("the daemon does not end:\n%s", d.process.log)
	}
	if strings.Contains(d.process.log.String(), "DATA RACE") {
		d.t.Errorf("the daemon has a data race:\n%s", d.process.log)
	}
	d.process = nil
}

func (d *daemon) kill() { d.t.Helper(); d.end(syscall.SIGKILL) }

// context bounds one request or wait of a test.
func (d *daemon) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.t.Context()), patience)
	d.t.Cleanup(cancel)
	return ctx
}

// call makes a request of a tool's arguments. Arguments that are text go as they
// are.
func call(key, tool string, args any) *macexecv1.SubmitJobRequest {
	text, ok := args.(string)
	if !ok {
		b, err := json.Marshal(args)
		if err != nil {
			panic(err) // a test's own literal
		}
		text = string(b)
	}
	return &macexecv1.SubmitJobRequest{
		IdempotencyKey: key, Tool: tool, Arguments: []byte(text), Purpose: macexecv1.Purpose_PURPOSE_PRODUCTION,
	}
}

// submit makes a call that must be accepted.
func (d *daemon) submit(req *macexecv1.SubmitJobRequest) *macexecv1.Job {
	d.t.Helper()
	job, err := d.Submit(d.context(), req)
	if err != nil {
		d.t.Fatalf("submit %s: %v %v", req.GetTool(), err, findings(err))
	}
	return job
}

// submitRun is submit, with a person's yes for a call that needs one.
func (d *daemon) submitRun(req *macexecv1.SubmitJobRequest) *macexecv1.Job {
	d.t.Helper()
	job := d.submit(req)
	if job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		d.approve(job)
	}
	return job
}

func (d *daemon) approve(job *macexecv1.Job) {
	d.t.Helper()
	_, err := d.Jobs.ApproveJob(d.context(), &macexecv1.ApproveJobRequest{
		Id: job.GetId(), BindingDigest: job.GetApproval().GetBinding().GetDigest(), Reason: "looked at it",
	})
	if err != nil {
		d.t.Fatalf("approve: %v", err)
	}
}

// get returns a job as it is now.
func (d *daemon) get(id string) *macexecv1.Job {
	d.t.Helper()
	resp, err := d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: id})
	if err != nil {
		d.t.Fatalf("get %s: %v", id, err)
	}
	return resp.GetJob()
}

// wait waits until a job is settled, which must be in the state.
func (d *daemon) wait(id string, want macexecv1.JobState) *macexecv1.Job {
	d.t.Helper()
	job, err := d.Wait(d.context(), id)
	if err != nil {
		d.t.Fatalf("wait for %s, which is %s: %v", id, job.GetState(), err)
	}
	if job.GetState() != want {
		d.t.Fatalf("job %s is %s (%s: %s), want %s\n%v", id, job.GetState(), job.GetEndReason(), job.GetMessage(), want, job.GetLogTail())
	}
	return job
}

// awaitState waits until a job that is not settled is in the state.
func (d *daemon) awaitState(id string, done func(*macexecv1.Job) bool) *macexecv1.Job {
	d.t.Helper()
	var last *macexecv1.Job
	enough := errors.New("enough")
	err := d.Watch(d.context(), &macexecv1.WatchJobsRequest{JobId: id}, func(e *macexecv1.Event) error {
		if e.GetJob() != nil {
			last = e.GetJob()
		}
		if last != nil && done(last) {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		d.t.Fatalf("job %s is %s: %v", id, last.GetState(), err)
	}
	return last
}

// attempt is the folder of an attempt.
func (d *daemon) attempt(id string, n int) keeper.Dir {
	return keeper.Dir(filepath.Join(d.state, "jobs", id, fmt.Sprintf("a%d", n)))
}

// started reads who the tool and the keeper of an attempt are.
func (d *daemon) started(id string, n int) keeper.Started {
	d.t.Helper()
	s, err := keeper.ReadStarted(d.attempt(id, n))
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// killTools ends what a test left running.
func (d *daemon) killTools() {
	records, _ := filepath.Glob(filepath.Join(d.state, "jobs", "*", "a*", "keeper", "started"))
	for _, record := range records {
		s, err := keeper.ReadStarted(keeper.Dir(filepath.Dir(filepath.Dir(record))))
		if err != nil {
			continue
		}
		processes, _ := keeper.Members(s)
		processes = append([]keeper.Process{s.Keeper()}, processes...) // which would write down the end of the others
		for _, p := range processes {
			_ = p.Signal(syscall.SIGKILL)
		}
		for _, p := range processes {
			keeper.AwaitEnd([]keeper.Process{p}, patience)
		}
	}
}

// kill9 kills a process of an attempt and waits for its end.
func kill9(t *testing.T, p keeper.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, keeper.ErrNoProcess) {
		t.Fatal(err)
	}
	awaitDead(t, p)
}

func awaitDead(t *testing.T, p keeper.Process) {
	t.Helper()
	keeper.AwaitEnd([]keeper.Process{p}, patience)
	if p.Alive() {
		t.Fatalf("process %d does not die", p.Pid)
	}
}

// macexec runs the command line against the daemon and returns its exit code.
func (d *daemon) macexec(args ...string) (code int, output string) {
	d.t.Helper()
	cmd := exec.CommandContext(d.context(), filepath.Join(built.bin, "macexec"), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + d.state, "MACEXEC_STATE=" + d.state}
	out, err := cmd.CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed.ExitCode(), string(out)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return 0, string(out)
}

// put writes a file into the default project.
func (d *daemon) put(name, content string) {
	d.t.Helper()
	d.write(filepath.Join(d.project, name), content)
}

// needs skips a test on a host without a program.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("SKIPPED, NOT TESTED: %s is not installed", p)
		}
	}
}

// wantCode holds that a request was refused with a code, and returns the error.
func wantCode(t *testing.T, err error, want string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	return e
}

func findings(err error) (list []string) {
	if e, ok := errors.AsType[*client.Error](err); ok {
		for _, f := range e.Findings() {
			list = append(list, f.GetKeyword()+": "+f.GetMessage())
		}
	}
	return list
}
