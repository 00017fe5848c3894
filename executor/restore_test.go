package executor_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/macexec/macexec/executor"
)

// asUser runs the rest of a test as a user whom file modes bind. Root is not, so it
// runs the test once more as nobody, from a copy of this program that nobody can
// reach, and reports false.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // t.TempDir is for its owner only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test")
	from, err := os.Open(self())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	c := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return false
}

// A tool that may change metadata closes its records to their owner; the keeper and
// the daemon take them back.
func TestClosedRecordsAreTakenBack(t *testing.T) {
	t.Parallel()
	if !asUser(t) {
		return
	}
	b := setup(t)
	cmd := command("exit", "0")
	cmd.Argv = []string{"/bin/sh", "-c", "echo text; chmod -R 000 ../keeper; chmod 000 .."}
	cmd.Confine.Metadata = true
	r := b.start("j", cmd)
	if e := b.exited(r); e.Code != 0 && confined(t).Kind == "landlock" {
		t.Fatalf("exit: %+v; %s", e, b.output("j", executor.Stderr))
	}
	shut := func() {
		t.Helper()
		for _, path := range []string{r.Dir().Exit(), r.Dir().Started(), r.Dir().Lock(), r.Dir().Log(), r.Dir().Keeper(), string(r.Dir())} {
			if err := os.Chmod(path, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	shut()
	if f := b.inspect(b.fresh(boot), "j"); f.Kind != executor.Exited || f.Started == nil {
		t.Errorf("inspect: %+v", f)
	}
	shut()
	if got := string(b.output("j", executor.Stdout)); got != "text\n" {
		t.Errorf("log %q", got)
	}
	shut()
	if _, err := b.x.Prepare("j", 1); err == nil {
		t.Error("prepared again")
	}
	shut()
	if _, ok, err := b.x.Attach("j", 1); ok || err != nil {
		t.Errorf("attach: %v, %v", ok, err)
	}
	shut()
	if err := b.x.Tidy("j", 1, false); err != nil {
		t.Error(err)
	}
	shut()
	if err := b.x.Remove("j"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(string(r.Dir())); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// A request to stop reaches a keeper whose folder its tool has closed.
func TestStopThroughAClosedFolder(t *testing.T) {
	t.Parallel()
	if !asUser(t) {
		return
	}
	b := setup(t)
	cmd := command("exit", "0")
	cmd.Argv = []string{"/bin/sh", "-c", "chmod 000 ../keeper; echo ready $$; exec sleep 3600"}
	cmd.Confine.Metadata = true
	r := b.start("j", cmd)
	b.ready("j", 1)
	if err := r.Stop("test"); err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.StoppedFor != "request" {
		t.Errorf("exit: %+v", e)
	}
}
