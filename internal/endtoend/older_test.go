package endtoend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
)

// G4, G13: a store that is older than what was started here, or another host's, is
// refused by the folders of jobs, whatever became of its witness. Adopted, it is served
// and holds external calls back, and what it has forgotten is known from then on.
func TestG4_FoldersOfJobsTellAnOlderStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(d *daemon, old map[string]string, stop func())
		want  string
	}{
		"no witness": {func(d *daemon, old map[string]string, stop func()) {
			stop()
			d.remove("witness.json")
			d.write(filepath.Join(d.state, "store.db"), old["store.db"])
		}, "STORE_OLDER"},
		"with its own old witness": {func(d *daemon, old map[string]string, stop func()) {
			stop()
			for file, content := range old {
				d.write(filepath.Join(d.state, file), content)
			}
		}, "STORE_OLDER"},
		"the witness taken away from a daemon": {func(d *daemon, old map[string]string, stop func()) {
			awaitFile(t, filepath.Join(d.state, "witness.json"))
			d.remove("witness.json")
			stop()
			_ = os.Remove(filepath.Join(d.state, "witness.json")) // it may be written again by now
			d.write(filepath.Join(d.state, "store.db"), old["store.db"])
		}, "STORE_OLDER"},
		"another host's, with its witness": {func(d *daemon, _ map[string]string, stop func()) {
			stop()
			other := startDaemon(d.t)
			other.end(syscall.SIGTERM)
			for _, file := range []string{"store.db", "witness.json"} {
				d.write(filepath.Join(d.state, file), string(readFile(d.t, filepath.Join(other.state, file))))
			}
		}, "STORE_REPLACED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t), newLedgers(t)
			d.end(syscall.SIGTERM)
			old := map[string]string{}
			for _, file := range []string{"store.db", "witness.json"} {
				old[file] = string(readFile(t, filepath.Join(d.state, file)))
			}
			d.start()
			external := call("k", "ledger_external", l.args("k"))
			id := d.submitRun(external).GetId()
			d.wait(id, completed)
			test.spoil(d, old, d.kill)
			refused, output := d.tryStart()
			if !refused || !strings.Contains(output, test.want) || !strings.Contains(output, id) || !strings.Contains(output, "store adopt") {
				t.Fatalf("refused: %v: %s", refused, output)
			}
			var adopted struct {
				Forgotten []string `json:"forgotten"`
			}
			code, output := d.macexec("store", "adopt", "--reason", "it is all we have", "-o", "json")
			if err := json.Unmarshal([]byte(output), &adopted); err != nil || code != 0 || !slices.Equal(adopted.Forgotten, []string{id}) {
				t.Fatalf("adopt: exit code %d, %v: %s", code, err, output)
			}
			d.start()
			again := d.submitRun(external).GetId()
			d.awaitState(again, restored)
			l.wantStarts("k", 1)
			if code, output := d.macexec("jobs", "cancel", again); code != 0 {
				t.Fatalf("cancel: exit code %d: %s", code, output)
			}
			if code, output := d.macexec("store", "confirm", "--reason", "the job was looked at"); code != 0 {
				t.Fatalf("confirm: exit code %d: %s", code, output)
			}
			d.kill()
			d.start() // it is known what it has forgotten
			l.wantStarts("k", 1)
			d.end(syscall.SIGTERM)
			if code, output := d.macexec("store", "check"); code != 0 {
				t.Errorf("check: exit code %d: %s", code, output)
			}
		})
	}
}

// G13: what a crash leaves beside a store, or somebody, is no sign that the store is an
// older one: the folder of a job whose record was pruned, one in which nothing was
// decided, and names that are no job's.
func TestG13_LeftFoldersRefuseNoStore(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	id := d.submitRun(call("k", "ledger_external", l.args("k"))).GetId()
	d.wait(id, completed)
	kept := filepath.Join(d.state, "kept")
	records := d.attempt(id, 1).Keeper()
	if err := os.CopyFS(filepath.Join(kept, "a1", filepath.Base(records)), os.DirFS(records)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.prune(); err != nil {
		t.Fatal(err)
	}
	if left := d.jobFolders(); len(left) > 0 {
		t.Fatalf("not pruned: %v", left)
	}
	d.kill()
	if err := os.Rename(kept, filepath.Join(d.state, "jobs", id)); err != nil { // as before the folder went
		t.Fatal(err)
	}
	_, host, _ := strings.Cut(id, "-")
	for _, name := range []string{"01arz3ndektsv4rrffq69g5fav-" + host, "notes", id + "-copy"} {
		dir := keeper.Dir(filepath.Join(d.state, "jobs", name, "a1"))
		if err := os.MkdirAll(dir.Keeper(), 0o700); err != nil {
			t.Fatal(err)
		}
		d.write(dir.Lock(), "")
		if name == "notes" {
			d.write(dir.Started(), "{}")
		}
	}
	d.start()
	l.wantStarts("k", 1)
}

// G13: a witness that is taken away from a daemon is written again, and a store that is
// taken away takes nothing more: no call is accepted that the next start would not know.
func TestG13_ADaemonWhoseFilesAreTakenAway(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	awaitFile(t, filepath.Join(d.state, "witness.json"))
	d.remove("witness.json")
	awaitFile(t, filepath.Join(d.state, "witness.json"))
	path := filepath.Join(d.state, "store.db")
	for name, take := range map[string]func() error{
		"renamed": func() error { return os.Rename(path, path+".aside") },
		"replaced": func() error {
			if err := os.Rename(path, path+".aside"); err != nil {
				return err
			}
			return os.WriteFile(path, readFile(t, path+".aside"), 0o600)
		},
	} {
		if err := take(); err != nil {
			t.Fatal(err)
		}
		// Without repeats, and by another connection, which may find nobody any more: the
		// daemon leaves meanwhile.
		other, err := client.Dial("unix:" + filepath.Join(d.state, "macexec.sock"))
		if err != nil {
			t.Fatal(err)
		}
		job, err := other.Jobs.SubmitJob(d.context(), call(name, "ledger_none", l.args(name)))
		_ = other.Close()
		if err == nil {
			t.Errorf("%s: job %s was accepted", name, job.GetJob().GetId())
		}
		log := d.process.log
		d.awaitEnd()
		if !strings.Contains(log.String(), "put it back") && !strings.Contains(log.String(), "put the right one back") {
			t.Errorf("%s: the daemon does not say why it ends", name)
		}
		if err := os.Rename(path+".aside", path); err != nil {
			t.Fatal(err)
		}
		l.wantStarts(name, 0)
		d.start()
		d.wait(d.submit(call(name, "ledger_none", l.args(name))).GetId(), completed)
		l.wantStarts(name, 1)
	}
}

func (d *daemon) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.state, name)); err != nil {
		d.t.Fatal(err)
	}
}
