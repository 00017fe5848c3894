package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// manifests are the operator's tools that the measuring needs.
func manifests() map[string]string {
	head := func(name, effects string) string {
		return "tool: " + name + `
version: "2026-11-01"
title: For measuring
description: Made for measuring macexec; it does nothing that anybody needs.
effects: ` + effects + `
purposes: [production]
`
	}
	const (
		noInput = `input: {type: object, additionalProperties: false, properties: {}}
output: {type: object, additionalProperties: false, required: [done], properties: {done: {type: boolean}}}
result: '{"done": true}'
`
		nothing = `run:
  - platforms: [linux, darwin]
    programs: {"true": {}}
    command: {program: "true", argv: []}
    slot: bench
    timeout: 1h
`
	)
	return map[string]string{
		"bench_held.yaml":    head("bench_held", "external") + noInput + nothing,
		"bench_nothing.yaml": head("bench_nothing", "none") + noInput + nothing,
		"bench_input.yaml": head("bench_input", "none") + `input:
  type: object
  additionalProperties: false
  required: [input]
  properties:
    input: {type: string, maxLength: 1024, description: any file, x-macexec: {path: input}}
output: {type: object, additionalProperties: false, required: [done], properties: {done: {type: boolean}}}
result: '{"done": true}'
` + nothing,
		"bench_log.yaml": head("bench_log", "none") + `input:
  type: object
  additionalProperties: false
  required: [bytes]
  properties:
    bytes: {type: integer, minimum: 1}
output: {type: object, additionalProperties: false, required: [done], properties: {done: {type: boolean}}}
result: '{"done": true}'
run:
  - platforms: [linux, darwin]
    programs: {head: {}}
    command: {program: head, argv: [-c, {cel: string(args.bytes)}, /dev/zero]}
    slot: bench
    timeout: 1h
`,
	}
}

// config lets a job's log be as long as the one that is measured.
const config = "limits: {log_bytes: 1073741824}\n"

// daemon is a running macexec serve.
type daemon struct {
	*client.Client
	state string
	cmd   *exec.Cmd
	lines chan struct{} // closed when its stderr has ended
	took  time.Duration // from exec to ready
}

// start starts a daemon over a state folder, which it makes, and waits until it is
// ready. more is added to its configuration.
func (b *bench) start(ctx context.Context, name, more string) (*daemon, error) {
	state := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Join(state, "tools"), 0o700); err != nil {
		return nil, err
	}
	for file, text := range manifests() {
		if err := os.WriteFile(filepath.Join(state, "tools", file), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(state, "config.yaml"), []byte(config+more), 0o600); err != nil {
		return nil, err
	}
	d := &daemon{state: state, lines: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, filepath.Join(b.bin, "macexec"), "serve", "--state", state)
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan time.Duration, 1)
	go func() {
		defer close(d.lines)
		scan := bufio.NewScanner(stderr)
		for scan.Scan() {
			if strings.Contains(scan.Text(), "ready:") {
				ready <- time.Since(begun)
			} else {
				fmt.Fprintln(os.Stderr, "daemon:", scan.Text())
			}
		}
		_, _ = io.Copy(io.Discard, stderr)
	}()
	select {
	case d.took = <-ready:
	case <-d.lines:
		return nil, errors.Join(errors.New("the daemon did not start"), d.cmd.Wait())
	}
	if d.Client, err = client.Dial("unix:" + filepath.Join(state, "macexec.sock")); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// stop ends the daemon and waits for its end.
func (d *daemon) stop() error {
	if d.Client != nil {
		_ = d.Client.Close()
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	<-d.lines
	return d.cmd.Wait()
}

// with runs f while a daemon runs.
func (b *bench) with(ctx context.Context, name string, f func(*daemon) error) error {
	return b.withConfig(ctx, name, "", f)
}

func (b *bench) withConfig(ctx context.Context, name, more string, f func(*daemon) error) error {
	d, err := b.start(ctx, name, more)
	if err != nil {
		return err
	}
	return errors.Join(f(d), d.stop())
}

// nothing is a call that does nothing. key and in may be empty.
func nothing(key string, in *macexecv1.CallContext) *macexecv1.SubmitJobRequest {
	return &macexecv1.SubmitJobRequest{IdempotencyKey: key, Tool: "bench_nothing", Arguments: []byte("{}"), Context: in}
}

// finish makes a call and waits for its end as a client does, by watching.
func (d *daemon) finish(ctx context.Context, req *macexecv1.SubmitJobRequest) (*macexecv1.Job, error) {
	job, err := d.Submit(ctx, req)
	if err != nil {
		return nil, err
	}
	if job, err = d.Follow(ctx, job.GetId(), nil); err != nil {
		return nil, err
	}
	if job.GetState() != macexecv1.JobState_JOB_STATE_COMPLETED {
		return nil, fmt.Errorf("job %s is %v: %s %s", job.GetId(), job.GetState(), job.GetMessage(), job.GetCause())
	}
	return job, nil
}

// anonymous is the daemon's own memory in bytes: what is not a file's page that the
// system may drop. Zero: this system does not tell.
func (d *daemon) anonymous() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, nil // there is no /proc
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("the system does not tell RssAnon")
}

// cpu is what the daemon and everything that ended under it has used: keepers,
// tools, and the programs that looked at files. The system counts in hundredths of a
// second. Zero: this system does not tell.
func (d *daemon) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, nil //nolint:nilerr // there is no /proc
	}
	// The second field is the program's name in brackets; utime is the 14th.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
