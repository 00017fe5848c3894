package endtoend

import (
	"path/filepath"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G4, G5: a restored store has forgotten how jobs ended that it finds queued or running.
// One that may have published is not run again, and no end is claimed for it that its own
// work makes look true (the destination is taken, the file to replace another). What the
// folder proves is its end, and what leaves nothing behind is done anew.
func TestG5_ARestoredStoreClaimsNoEndOfWhatItForgot(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.put("old.txt", "old")
	d.put("unwanted.txt", "unwanted")
	write := func(name, output string) *macexecv1.SubmitJobRequest {
		return call(name, "ledger_staged", l.args(name, "gate", "write:100").with("output", output))
	}
	replace := write("replace", "old.txt")
	replace.Options = &macexecv1.Options{Replace: true}
	type kind struct {
		req    *macexecv1.SubmitJobRequest
		before macexecv1.JobState // the restore
		after  macexecv1.JobState
		reason macexecv1.EndReason
		effect macexecv1.SideEffect
		starts int
		id     string
	}
	const possible, nothing = macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE, macexecv1.SideEffect_SIDE_EFFECT_NONE
	open := macexecv1.EndReason_END_REASON_UNSPECIFIED
	kinds := map[string]*kind{
		"running": {req: write("running", "running.txt"), before: completed, after: unknown, reason: open, effect: possible, starts: 1},
		"create":  {req: write("create", "create.txt"), before: completed, after: unknown, reason: open, effect: possible, starts: 1},
		"replace": {req: replace, before: completed, after: unknown, reason: open, effect: possible, starts: 1},
		"remove":  {req: call("remove", "delete_asset", `{"project_id":"default","asset":"unwanted.txt"}`), before: completed, after: unknown, reason: open, effect: possible},
		"failed": {
			req:    call("failed", "ledger_staged", l.args("failed", "gate", "exit:3").with("output", "never.txt")),
			before: failed, after: failed, reason: macexecv1.EndReason_END_REASON_EXIT_CODE, effect: nothing, starts: 1,
		},
		"keeps": {
			req:    call("keeps", "ledger_staged", l.args("keeps", "gate", "write:100")),
			before: completed, after: completed, reason: macexecv1.EndReason_END_REASON_OK, effect: nothing, starts: 2,
		},
	}
	gates := map[string]func(){}
	for name := range kinds {
		gates[name] = l.gate(name)
	}
	submit := func(name string) {
		k := kinds[name]
		job := d.submit(k.req)
		if job.GetState() == awaiting {
			d.approve(job)
		}
		k.id = job.GetId()
	}
	submit("running")
	l.await("running", "begin", 1)
	d.setMode(macexecv1.HostMode_HOST_MODE_PAUSED)
	for name := range kinds {
		if name != "running" {
			submit(name)
		}
	}
	backup := filepath.Join(d.state, "backup.db")
	if code, output := d.macexec("store", "backup", backup); code != 0 {
		t.Fatalf("backup: exit code %d: %s", code, output)
	}
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN)
	for _, letThrough := range gates {
		letThrough()
	}
	for _, k := range kinds {
		d.wait(k.id, k.before)
	}
	d.kill()
	if code, output := d.macexec("store", "restore", backup); code != 0 {
		t.Fatalf("restore: exit code %d: %s", code, output)
	}
	gates["keeps"]() // it runs again
	d.start()
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN) // it was paused when the copy was taken
	for name, k := range kinds {
		job := d.wait(k.id, k.after)
		if job.GetEndReason() != k.reason || job.GetSideEffect() != k.effect {
			t.Errorf("%s: it ended by %s with side effect %s: %s", name, job.GetEndReason(), job.GetSideEffect(), job.GetMessage())
		}
		if name != "remove" {
			l.wantStarts(name, k.starts)
		}
		if k.after == failed && job.GetAttempts()[0].GetExit().GetCode() != 3 {
			t.Errorf("%s: its exit record is not in its record: %v", name, job.GetAttempts())
		}
	}
	d.wantNothingHidden()
}
