package endtoend

import (
	"fmt"
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
`, "unix:"+filepath.Join(d.state, "macexec.sock")))
	d.end(syscall.SIGTERM)
	d.configure(built.bin)
	d.start()
	job, err := d.Follow(d.context(), d.submitRun(call("ask", "caller", "{}")).GetId(), nil)
	if err != nil || job.GetState() != macexecv1.JobState_JOB_STATE_FAILED {
		t.Fatalf("the job is %s (%s), %v", job.GetState(), job.GetMessage(), err)
	}
	if said := strings.Join(job.GetLogTail(), "\n"); !strings.Contains(said, "NOT_AUTHENTICATED") {
		t.Errorf("the tool was told %q", said)
	}
}
