package endtoend

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G4: what a copy finds queued and the store that it replaces knew to be done is not
// started again after the operator's word, though its record was pruned and its folder is
// gone. What that store knew to be queued still starts, once.
func TestG4_WhatTheReplacedStoreKnewIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	external := func(name string) *macexecv1.SubmitJobRequest { return call(name, "ledger_external", l.args(name)) }
	d.setMode(macexecv1.HostMode_HOST_MODE_PAUSED)
	done, stopped := d.submitRun(external("done")).GetId(), d.submitRun(external("stopped")).GetId()
	asked := d.submit(external("asked"))
	backup := filepath.Join(d.state, "backup.db")
	if code, output := d.macexec("store", "backup", backup); code != 0 {
		t.Fatalf("backup: exit code %d: %s", code, output)
	}
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN)
	known := []string{done, stopped}
	for _, id := range known {
		d.wait(id, completed)
	}
	if _, err := d.prune(); err != nil {
		t.Fatal(err)
	}
	if folders := d.jobFolders(); slices.Contains(folders, done) || slices.Contains(folders, stopped) {
		t.Fatal("a folder is still there")
	}
	d.end(syscall.SIGTERM)
	code, output := d.macexec("store", "restore", backup, "-o", "json")
	var adopted struct {
		Overtaken []string `json:"overtaken"`
		Unread    string   `json:"unread"`
	}
	if err := json.Unmarshal([]byte(output), &adopted); err != nil || code != 0 || !slices.Equal(slices.Sorted(slices.Values(adopted.Overtaken)), slices.Sorted(slices.Values(known))) || adopted.Unread != "" {
		t.Fatalf("restore: exit code %d, %v: %s", code, err, output)
	}
	d.start()
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN)
	d.awaitState(done, restored)
	// That it had not started is not so, though it waits.
	gone, err := d.Jobs.CancelJob(d.context(), &macexecv1.CancelJobRequest{Id: stopped, Reason: "not needed"})
	if err != nil || gone.GetJob().GetState() != unknown || gone.GetJob().GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE {
		t.Errorf("cancelled it is %v, %v", gone, err)
	}
	if code, output := d.macexec("store", "confirm", "--reason", "looked"); code != 0 {
		t.Fatalf("confirm: exit code %d: %s", code, output)
	}
	d.wait(done, unknown)
	d.approve(asked)
	d.wait(asked.GetId(), completed)
	l.wantStarts("done", 1)
	l.wantStarts("stopped", 1)
	l.wantStarts("asked", 1)
}
