package endtoend

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// probedTool is a tool with outside effects whose probe reads its ledger.
const probedTool = `
tool: ledger_probed
version: "2026-11-01"
title: Write a ledger that can be looked at
description: Writes down that it was started, and does what the script says. It is for tests.
effects: external
purposes: [production]
input:
  type: object
  additionalProperties: false
  required: [folder, ledger, script]
  properties:
    folder: {type: string, maxLength: 256, description: where the ledger is}
    ledger: {type: string, maxLength: 64, description: the name of the ledger}
    script: {type: array, maxItems: 16, items: {type: string, maxLength: 256}, description: what to do}
output: {type: object, additionalProperties: false, properties: {ok: {type: boolean}}}
run:
  - platforms: [linux, darwin]
    programs: {testtool: {}, cat: {}}
    command:
      program: testtool
      argv: [{cel: args.folder}, {cel: args.ledger}, {cel: args.script}]
    timeout: 5m
    slot: ledger
    paths: {write: ["LEDGERS"]}
probe:
  program: cat
  argv: [{cel: "args.folder + '/' + args.ledger + '.ledger'"}]
  parser: {kind: text}
  happened: "steps.probe.contains('\\nend ')"
  not_happened: "!steps.probe.contains('\\nend ')"
result: "{'ok': true}"
`

// An unknown job's probe, asked by macexec itself and by an operator, before and after a
// restart: it settles the job as soon as it can prove something, and the exit code tells.
func TestG5_AProbeSettlesAnUnknownJob(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.end(syscall.SIGTERM)
	d.write(filepath.Join(d.state, "tools", "ledger_probed.yaml"), strings.Replace(probedTool, "LEDGERS", built.ledgers, 1))
	d.start()
	probe := func(id string, want int, says string) {
		t.Helper()
		if code, output := d.macexec("jobs", "probe", id); code != want || !strings.Contains(output, says) {
			t.Errorf("macexec jobs probe exits with %d, want %d and %q:\n%s", code, want, says, output)
		}
	}

	// It outlives its keeper, and ends well.
	open := l.gate("lives")
	lives := d.submitRun(call("lives", "ledger_probed", l.args("lives", "gate"))).GetId()
	l.await("lives", "begin", 1)
	kill9(t, d.started(lives, 1).Keeper())
	d.wait(lives, unknown)
	for range 2 {
		probe(lives, 6, "may still live")
		d.kill()
		d.start()
	}
	open()
	job := d.awaitState(lives, func(job *macexecv1.Job) bool { return job.GetState() == completed })
	var kinds []macexecv1.EvidenceKind
	for _, e := range job.GetEvidence() {
		kinds = append(kinds, e.GetKind())
	}
	for _, kind := range []macexecv1.EvidenceKind{macexecv1.EvidenceKind_EVIDENCE_KIND_TOOL_ENDED, macexecv1.EvidenceKind_EVIDENCE_KIND_PROBE} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("the evidence is %v", kinds)
		}
	}
	probe(lives, 10, "is completed")
	l.wantStarts("lives", 1)

	// It was killed, and what the probe looks at is out of reach for a while.
	l.gate("gone")
	gone := d.submitRun(call("gone", "ledger_probed", l.args("gone", "gate"))).GetId()
	l.await("gone", "begin", 1)
	was := d.started(gone, 1)
	ledger := filepath.Join(l.dir, "gone.ledger")
	if err := os.Rename(ledger, ledger+".away"); err != nil {
		t.Fatal(err)
	}
	d.kill()
	kill9(t, was.Keeper())
	kill9(t, was.Tool())
	d.start()
	d.wait(gone, unknown)
	probe(gone, 6, "no answer")
	if err := os.Rename(ledger+".away", ledger); err != nil {
		t.Fatal(err)
	}
	probe(gone, 0, "did not happen")
	d.wait(gone, failed)
	l.wantStarts("gone", 1)
}
