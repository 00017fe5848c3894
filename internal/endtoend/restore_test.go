package endtoend

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func restored(job *macexecv1.Job) bool {
	return job.GetState() == macexecv1.JobState_JOB_STATE_QUEUED &&
		job.GetWaitingFor().GetKind() == macexecv1.WaitKind_WAIT_KIND_HOST_RESTORED
}

// G4: a restored copy has forgotten keys that were used and starts that were made. What
// it finds queued and what is called again waits for an operator's word, over restarts,
// while what leaves nothing behind goes on; what it knows it answers. After the word a
// job whose folder shows a start that the copy does not know is unknown, and not
// started; only what nothing tells of is done anew, as the operator said.
func TestG4_ARestoredStoreStartsNothingTwice(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	external := func(name string) *macexecv1.SubmitJobRequest { return call(name, "ledger_external", l.args(name)) }
	before := d.submitRun(external("before")).GetId()
	d.wait(before, completed)
	d.setMode(macexecv1.HostMode_HOST_MODE_PAUSED)
	queued := d.submitRun(external("queued")).GetId()
	backup := filepath.Join(d.state, "backup.db")
	if code, output := d.macexec("store", "backup", backup); code != 0 {
		t.Fatalf("backup: exit code %d: %s", code, output)
	}
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN)
	d.wait(queued, completed)
	after := d.submitRun(external("after")).GetId()
	d.wait(after, completed)
	if code, output := d.macexec("store", "restore", backup); code != 10 {
		t.Fatalf("a store in use is restored: exit code %d: %s", code, output)
	}
	d.kill()

	code, output := d.macexec("store", "restore", backup, "-o", "json")
	var adopted struct {
		Kept      string   `json:"kept"`
		Forgotten []string `json:"forgotten"`
	}
	if err := json.Unmarshal([]byte(output), &adopted); err != nil || code != 0 || !slices.Equal(adopted.Forgotten, []string{after}) {
		t.Fatalf("restore: exit code %d, %v: %s", code, err, output)
	}
	if _, err := os.Stat(adopted.Kept); err != nil {
		t.Errorf("the store from before is not kept: %v", err)
	}
	d.start()
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN) // it was paused when the copy was taken
	again := d.submitRun(external("after")).GetId()
	if again == after {
		t.Error("the copy knows a job of after it was taken")
	}
	if job := d.submit(external("before")); job.GetId() != before || job.GetState() != completed {
		t.Errorf("a key that the copy knows is answered with job %s, which is %s", job.GetId(), job.GetState())
	}
	for range 2 {
		for _, id := range []string{queued, again} {
			d.awaitState(id, restored)
		}
		reading := d.submit(call("", "ledger_none", l.args("reading"))).GetId()
		d.wait(reading, completed)
		d.kill()
		d.start()
	}
	for name, want := range map[string]int{"before": 1, "queued": 1, "after": 1} {
		l.wantStarts(name, want)
	}
	for _, more := range []string{"--dry-run=false", "--dry-run"} {
		if code, output := d.macexec("store", "prune", "--older-than", "1ns", more); code != 0 || !strings.Contains(output, "nothing is removed until") {
			t.Errorf("prune %s of a restored store: exit code %d: %s", more, code, output)
		}
	}
	if code, output := d.macexec("store", "confirm"); code != 2 {
		t.Errorf("without a word: exit code %d: %s", code, output)
	}
	if code, output := d.macexec("store", "confirm", "--reason", "looked at what job "+after+" did, and undid it"); code != 0 {
		t.Fatalf("confirm: exit code %d: %s", code, output)
	}
	d.wait(again, completed)
	d.wait(queued, unknown)
	for name, want := range map[string]int{"before": 1, "queued": 1, "after": 2} {
		l.wantStarts(name, want)
	}
	if code, output := d.macexec("store", "confirm", "--reason", "again"); code != 0 {
		t.Errorf("a second time: exit code %d: %s", code, output)
	}
}

// G13: a restore that is killed at any moment leaves a store in its place, the old one
// or the new one, and can be made again. A copy in which something is wrong changes
// nothing.
func TestG13_KilledRestoreLosesNothing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	first := d.submit(call("first", "ledger_none", l.args("first"))).GetId()
	d.wait(first, completed)
	backup := filepath.Join(d.state, "backup.db")
	if code, output := d.macexec("store", "backup", backup); code != 0 {
		t.Fatalf("backup: exit code %d: %s", code, output)
	}
	second := d.submit(call("second", "ledger_none", l.args("second"))).GetId()
	d.wait(second, completed)
	d.end(syscall.SIGTERM)
	path := filepath.Join(d.state, "store.db")
	whole := readFile(t, path)

	good := readFile(t, backup)
	d.write(backup, string(good[:len(good)/2]))
	if code, output := d.macexec("store", "restore", backup); code != 10 {
		t.Errorf("a copy that was cut short: exit code %d: %s", code, output)
	}
	wantFile(t, path, string(whole))
	d.write(backup, string(good))
	for n := range 12 {
		d.killAfterFiles(n, "store", "restore", backup)
		if code, output := d.macexec("store", "check"); code != 0 {
			t.Fatalf("killed after %d changes: exit code %d: %s", n, code, output)
		}
	}
	if code, output := d.macexec("store", "restore", backup); code != 0 {
		t.Fatalf("exit code %d: %s", code, output)
	}
	d.start()
	d.get(first)
	if _, err := d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: second}); err == nil {
		t.Error("the copy knows a job of after it was taken")
	}
	if left, err := filepath.Glob(filepath.Join(d.state, ".store.db.*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// G13, B09: a store that is compacted is smaller and has everything. A compaction that
// is killed at any moment leaves it as it was, and nothing behind once another is done.
func TestB09_KilledCompactionLosesNothing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	id := d.submit(call("k", "ledger_none", l.args("a"))).GetId()
	d.wait(id, completed)
	d.end(syscall.SIGTERM)
	path := filepath.Join(d.state, "store.db")
	rows := func(change func(b *bbolt.Bucket, key, text []byte) error, every int) {
		t.Helper()
		d.editStore("manifests", func(b *bbolt.Bucket) error {
			for n := 0; n < 4000; n += every {
				text := fmt.Appendf(nil, "%08192d", n)
				if err := change(b, fmt.Appendf(nil, "%x", sha256.Sum256(text)), text); err != nil {
					return err
				}
			}
			return nil
		})
	}
	rows(func(b *bbolt.Bucket, key, text []byte) error { return b.Put(key, text) }, 1)
	rows(func(b *bbolt.Bucket, key, _ []byte) error { return b.Delete(key) }, 2)
	before := len(readFile(t, path))
	killed := 0
	for n := 0; ; n += 1 + n/3 {
		if d.killAfterFiles(n, "store", "compact") {
			break
		}
		killed++
		if code, output := d.macexec("store", "check"); code != 0 {
			t.Fatalf("killed after %d changes: exit code %d: %s", n, code, output)
		}
	}
	code, output := d.macexec("store", "compact")
	if after := len(readFile(t, path)); code != 0 || after > before*2/3 {
		t.Errorf("exit code %d, from %d bytes to %d: %s", code, before, after, output)
	}
	if left, err := filepath.Glob(filepath.Join(d.state, ".store.db.*")); err != nil || len(left) > 0 || killed == 0 {
		t.Errorf("left behind after %d kills: %v, %v", killed, left, err)
	}
	d.editStore("manifests", func(b *bbolt.Bucket) error {
		for n := range 4000 {
			if value := b.Get(fmt.Appendf(nil, "%x", sha256.Sum256(fmt.Appendf(nil, "%08192d", n)))); (len(value) == 8<<10) != (n%2 == 1) {
				t.Errorf("row %d has %d bytes", n, len(value))
			}
		}
		return nil
	})
	d.start()
	d.get(id)
}

// readFile returns what is in a file.
func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// killAfterFiles runs the command line, and kills it once the state folder has looked n
// different ways meanwhile. It reports whether the command had ended before.
func (d *daemon) killAfterFiles(n int, args ...string) (ended bool) {
	d.t.Helper()
	cmd := exec.Command(filepath.Join(built.bin, "macexec"), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + d.state, "MACEXEC_STATE=" + d.state}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait()
	}()
	for last, changes := "", 0; changes <= n; {
		select {
		case <-gone:
			return true
		default:
		}
		if now := d.looks(); now != last {
			last = now
			changes++
		}
	}
	_ = cmd.Process.Kill()
	<-gone
	return false
}

// looks describes the files of the state folder.
func (d *daemon) looks() string {
	var b strings.Builder
	entries, err := os.ReadDir(d.state)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			fmt.Fprintln(&b, e.Name(), info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}
