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
// daemon who it is and is refused, by itself and from a process that left its session.
func TestG10_AToolIsNoCaller(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	ask := fmt.Sprintf("%s --address unix:%s whoami", filepath.Join(built.bin, "macexec"), filepath.Join(d.state, "macexec.sock"))
	d.write(filepath.Join(d.state, "tools", "caller.yaml"), fmt.Sprintf(`
tool: caller
version: "2026-01-01"
title: Ask the daemon
description: Asks the daemon who it is, for a test.
effects: external
purposes: [production]
input: {type: object, additionalProperties: false, properties: {}}
output: {type: object, additionalProperties: false, required: [said], properties: {said: {type: string}}}
run:
  - platforms: [linux, darwin]
    programs: {sh: {}}
    command:
      program: sh
      argv: ["-c", %q]
      stdout: capture
      parser: {kind: text}
    network: true
    paths: {read: [%q]}
    timeout: 1m
    slot: one
result: "{'said': tool}"
`, "("+ask+"; setsid "+ask+") 2>&1; true", built.bin))
	d.end(syscall.SIGTERM)
	d.start()
	job := d.submitRun(call("ask", "caller", "{}"))
	job, err := d.WaitJob(d.context(), job.GetId(), nil)
	if err != nil || job.GetState() != macexecv1.JobState_JOB_STATE_COMPLETED {
		t.Fatalf("the job is %s (%s), %v", job.GetState(), job.GetMessage(), err)
	}
	if said := string(job.GetResult()); strings.Count(said, "NOT_AUTHENTICATED") != 2 || strings.Contains(said, "principal") {
		t.Errorf("the tool was told %s", said)
	}
}
