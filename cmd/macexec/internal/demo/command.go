package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// job is what the demo reads of a job document.
type job struct {
	ID         string            `json:"id"`
	Key        string            `json:"key"`
	State      string            `json:"state"`
	Phase      string            `json:"phase"`
	EndReason  string            `json:"end_reason"`
	Message    string            `json:"message"`
	Replayed   bool              `json:"replayed"`
	Attempts   []json.RawMessage `json:"attempts"`
	Result     map[string]any    `json:"result"`
	SideEffect string            `json:"side_effect"`
	Artifacts  []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
		Path   string `json:"path"`
	} `json:"artifacts"`
}

// refusal is what the demo reads of an error document.
type refusal struct {
	Code     string `json:"code"`
	JobID    string `json:"job_id"`
	Verdicts struct {
		Syntax   bool `json:"syntax_valid"`
		Schema   bool `json:"schema_valid"`
		Business bool `json:"business_valid"`
	} `json:"verdicts"`
	Findings []struct {
		Pointer string `json:"pointer"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	} `json:"findings"`
}

// shown is how a command line is shown to a reader: one that could be typed.
func shown(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if strings.ContainsAny(arg, " \"'{}[]*?$&|;<>()") {
			words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return "macexec " + strings.Join(words, " ")
}

func (d *show) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.Binary, args...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "MACEXEC_STATE="+d.state, "MACEXEC_ADDRESS=")
	return cmd
}

// macexec shows a command line, runs it with -o json, reads its one document into
// out, and checks its exit code.
func (d *show) macexec(ctx context.Context, wantExit int, out any, args ...string) error {
	d.sayf("   $ %s", shown(args))
	return d.quietly(ctx, wantExit, out, args...)
}

// quietly is macexec without showing the command line.
func (d *show) quietly(ctx context.Context, wantExit int, out any, args ...string) error {
	var stdout, stderr bytes.Buffer
	cmd := d.command(ctx, append(args, "-o", "json")...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	exit := 0
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return err
		}
		exit = failed.ExitCode()
	}
	if exit != wantExit {
		d.sayf("%s%s", stderr.String(), stdout.String())
		return claimf(false, "%s ends with exit code %d (it was %d)", shown(args), wantExit, exit)
	}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		return fmt.Errorf("%s did not print one JSON document: %w", shown(args), err)
	}
	return nil
}

// event is what the demo reads of an event document.
type event struct {
	Job      *job `json:"job"`
	Progress *struct {
		Phase   string   `json:"phase"`
		Percent *float64 `json:"percent"`
		Rate    string   `json:"rate"`
	} `json:"progress"`
}

// watch follows a job's events until see returns true or the job is settled.
func (d *show) watch(ctx context.Context, id string, see func(event) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := d.command(ctx, "jobs", "watch", id, "-o", "json")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	events := json.NewDecoder(bufio.NewReader(stdout))
	for {
		var e event
		if err := events.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, cmd.Wait())
		}
		if see(e) {
			cancel()
			_ = cmd.Wait() // it was just killed
			return nil
		}
	}
}

// daemon is a running macexec serve.
type daemon struct {
	cmd   *exec.Cmd
	ready chan string   // gets the address once
	gone  chan struct{} // closed when the process is
	err   error         // how it ended; read it after gone
}

// startDaemon starts the daemon and waits until it takes calls.
func (d *show) startDaemon(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(d.dir, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Not of ctx: the demo ends it itself, gracefully.
	cmd := d.command(context.WithoutCancel(ctx), "serve")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the demo, and the demo the daemon
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	started := &daemon{cmd: cmd, ready: make(chan string, 1), gone: make(chan struct{})}
	go func() {
		defer close(started.gone)
		defer log.Close()
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(log, lines.Text())
			if address, ok := strings.CutPrefix(lines.Text(), "ready: "); ok {
				started.ready <- address
			}
		}
		started.err = cmd.Wait()
	}()
	d.daemon = started
	select {
	case <-started.ready:
		return nil
	case <-started.gone:
		return fmt.Errorf("the daemon did not start (%w); see %s", started.err, log.Name())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal sends a signal to the daemon and waits until it is gone.
func (d *show) signal(s os.Signal) error {
	if err := d.daemon.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.daemon.gone
	return d.daemon.err
}

// end cancels what still runs and stops the daemon.
func (d *show) end() error {
	if d.daemon == nil {
		return nil
	}
	ctx := context.Background()
	select {
	case <-d.daemon.gone:
	default:
		d.cancelOpenJobs(ctx)
	}
	err := d.signal(syscall.SIGTERM)
	d.daemon = nil
	return err
}

// cancelOpenJobs ends what a demo that failed has left running.
func (d *show) cancelOpenJobs(ctx context.Context) {
	ids, err := d.command(ctx, "jobs", "list", "--state", "awaiting_approval,queued,running", "-q").Output()
	if err != nil {
		return
	}
	for id := range strings.FieldsSeq(string(ids)) {
		if d.command(ctx, "jobs", "cancel", id).Run() == nil {
			_ = d.command(ctx, "jobs", "wait", id, "--wait", "10s").Run()
		}
	}
}
