package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// A tool is never a caller: one that has the network, and so may connect, asks the
// daemon who it is and is refused, although the daemon's own user runs it.
func TestG10_AToolIsNoCaller(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.runCaller(built.bin, "unix:"+filepath.Join(d.state, "macexec.sock"))
}

// The way that ssh:// addresses take is no other one: dial-stdio, when a tool starts
// it, is a process of the job.
func TestG10_AToolIsNoCallerThroughDialStdio(t *testing.T) {
	t.Parallel()
	// A confined tool may start nothing but itself and what the system has.
	programs, err := os.MkdirTemp("/opt", "mx") //nolint:usetesting // a place of the system
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: this user cannot add a program to the system: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(programs) })
	binary, err := os.ReadFile(filepath.Join(built.bin, "macexec"))
	if err != nil {
		t.Fatal(err)
	}
	// This ssh goes nowhere: it has a shell carry out what the other side would.
	ssh := fmt.Sprintf("#!/bin/sh\nPATH=%s:$PATH\nfor command; do :; done\nexec sh -c \"$command\"\n", programs)
	for name, content := range map[string][]byte{"macexec": binary, "ssh": []byte(ssh)} {
		if err := os.WriteFile(filepath.Join(programs, name), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t)
	d.runCaller(programs, "ssh://here?state="+d.state)
}

// runCaller has a job ask the daemon at an address who it is, with the macexec in a
// folder, and holds that it is refused.
func (d *daemon) runCaller(programs, address string) {
	d.t.Helper()
	d.write(filepath.Join(d.state, "tools", "caller.yaml"), fmt.Sprintf(`
tool: caller
version: "2026-01-01"
title: Ask the daemon
description: Asks the daemon who it is, for a test.
effects: external
purposes: [production]
input: {type: object, additionalProperties: false, properties: {}}
output: {type: object, additionalProperties: false, properties: {ok: {type: boolean}}}
run:
  - platforms: [linux, darwin]
    programs: {macexec: {}}
    command: {program: macexec, argv: [--address, %q, whoami]}
    network: true
    timeout: 1m
    slot: one
result: "{'ok': true}"
`, address))
	d.end(syscall.SIGTERM)
	d.configure(programs)
	d.start()
	job, err := d.Wait(d.context(), d.submitRun(call("ask", "caller", "{}")).GetId())
	if err != nil || job.GetState() != macexecv1.JobState_JOB_STATE_FAILED {
		d.t.Fatalf("the job is %s (%s), %v", job.GetState(), job.GetMessage(), err)
	}
	if said := strings.Join(job.GetLogTail(), "\n"); !strings.Contains(said, "NOT_AUTHENTICATED") {
		d.t.Errorf("the tool was told %q", said)
	}
}
