package endtoend

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// B08: somebody else has the store's lock. Whatever is started returns, with an error
// that names the process which has it.
func TestB08_HeldByAnotherProcess(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	id := d.submit(call("k", "ledger_none", l.args("a"))).GetId()
	d.wait(id, completed)
	copied := filepath.Join(d.state, "copy.db")
	if code, output := d.macexec("store", "backup", copied); code != 0 {
		t.Fatalf("exit code %d: %s", code, output)
	}
	d.end(syscall.SIGTERM)
	path := filepath.Join(d.state, "store.db")
	before := readFile(t, path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, line := range []string{
		"serve", "jobs list", "jobs show " + id, "jobs wait " + id, "call ledger_none --key k2", "tools list", "host show", "journal tail",
		"store check", "store compact", "store adopt --reason r", "store restore " + copied, "store confirm --reason r",
		"store backup " + filepath.Join(d.state, "other.db"),
	} {
		all.Go(func() {
			code, output := d.macexec(strings.Fields(line)...)
			// Only Linux tells who has a lock; elsewhere a daemon says it of itself.
			named := runtime.GOOS != "linux" || strings.Contains(output, strconv.Itoa(os.Getpid())) && strings.Contains(output, filepath.Base(os.Args[0]))
			if code == 0 || !named {
				t.Errorf("macexec %s: exit code %d: %s", line, code, output)
			}
		})
	}
	all.Wait()
	wantFile(t, path, string(before))
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	d.start()
	d.get(id)
}

// B08: a daemon whose socket is gone, and one that hangs, keep their folder. A second one
// returns, names the first, and touches neither its socket nor its jobs.
func TestB08_ASecondDaemonTouchesNothing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	id := d.submit(call("k", "ledger_none", l.args("a", "gate"))).GetId()
	l.await("a", "begin", 1)
	first := d.process.cmd.Process
	second := func(when string) {
		t.Helper()
		code, output := d.macexec("serve")
		if code == 0 || !strings.Contains(output, strconv.Itoa(first.Pid)) || !strings.Contains(output, "macexec serve --state") {
			t.Errorf("%s: exit code %d: %s", when, code, output)
		}
	}
	second("while it runs")
	d.get(id) // its socket is still its own
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second("while it hangs")
	if code, output := d.macexec("store", "check"); code == 0 || !strings.Contains(output, strconv.Itoa(first.Pid)) {
		t.Errorf("a store of a daemon that hangs is checked: exit code %d: %s", code, output)
	}
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.get(id)
	if err := os.Remove(filepath.Join(d.state, "macexec.sock")); err != nil {
		t.Fatal(err)
	}
	second("after its socket was removed")
	if code, output := d.macexec("jobs", "list"); code != 8 || !strings.Contains(output, strconv.Itoa(first.Pid)) {
		t.Errorf("jobs list: exit code %d: %s", code, output)
	}
	open()
	l.await("a", "end", 1)
	d.end(syscall.SIGTERM)
	d.start()
	d.wait(id, completed)
	l.wantStarts("a", 1)
}
