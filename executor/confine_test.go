package executor_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

// confined skips a test, loudly, where the host cannot confine.
func confined(t *testing.T) keeper.Confinement {
	t.Helper()
	c := keeper.ConfinementOn(keeper.Confine{})
	if !c.Files {
		t.Skipf("THIS HOST CANNOT CONFINE A TOOL (%+v): the promise is not tested here", c)
	}
	return c
}

func TestToolCannotReachItsRecords(t *testing.T) {
	t.Parallel()
	confined(t)
	b := setup(t)
	a, err := b.x.Prepare("j", 1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.x.Prepare("other", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if err := os.WriteFile(filepath.Join(a.Work(), "mine"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := a.Start(command("attack", a.Dir().Keeper(), other.Dir().Keeper(), other.Work()))
	if err != nil {
		t.Fatal(err)
	}
	if e := b.exited(r); e.Code != 0 {
		t.Fatalf("exit: %+v", e)
	}
	lines := strings.Split(strings.TrimSpace(string(b.output("j", executor.Stdout))), "\n")
	if len(lines) != 21 {
		t.Errorf("%d attacks were tried", len(lines))
	}
	for _, l := range lines {
		// A move between folders may also be refused as one between devices; the
		// other attempt has no records yet, and that a name is missing may be seen.
		refused := strings.Fields(l)[2] == "true" || strings.Contains(l, "cross-device")
		missing := strings.Contains(l, "/other/") && strings.Contains(l, "no such file")
		if !refused && !missing {
			t.Errorf("not refused: %s", l)
		}
	}
	if _, err := keeper.ReadStarted(r.Dir()); err != nil {
		t.Error(err)
	}
}

func TestFilesOutsideAreRefused(t *testing.T) {
	t.Parallel()
	c := confined(t)
	b := setup(t)
	file := func(name string) string {
		path := filepath.Join(b.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret, given, single := file("secret/file"), file("given/file"), file("single/file")
	beside, open := file("single/beside"), file("open/file")
	cmd := command("read", secret, given, single, beside, open, "/dev/null")
	cmd.Confine = executor.Confine{Read: []string{filepath.Dir(given), single}, Write: []string{filepath.Dir(open)}}
	r := b.start("read", cmd)
	if s := b.started(r); s.Confinement != c {
		t.Errorf("the record says %+v, the host enforces %+v", s.Confinement, c)
	}
	b.exited(r)
	got := string(b.output("read", executor.Stdout))
	for path, want := range map[string]string{secret: "permission denied", beside: "permission denied", given: `"text" <nil>`, single: `"text" <nil>`, open: `"text" <nil>`, "/dev/null": `"" <nil>`} {
		if !strings.Contains(got, path+" "+want) && !(strings.Contains(got, path+` "" open`) && strings.Contains(want, "denied") && strings.Contains(got, path+": "+want)) {
			t.Errorf("%s: want %s in\n%s", path, want, got)
		}
	}
	cmd.Argv = command("write", secret, given, single, open, filepath.Join(filepath.Dir(open), "new"), "inside", "/dev/null").Argv
	b.run("write", cmd)
	lines := strings.Split(strings.TrimSpace(string(b.output("write", executor.Stdout))), "\n")
	for i, refused := range []bool{true, true, true, false, false, false, false} {
		if got := strings.Fields(lines[i])[2] == "true"; got != refused || (!refused && !strings.HasSuffix(lines[i], "<nil>")) {
			t.Errorf("refused should be %v: %s", refused, lines[i])
		}
	}
}

func TestNetworkIsRefused(t *testing.T) {
	t.Parallel()
	if !confined(t).Network {
		t.Skip("THIS HOST CANNOT REFUSE THE NETWORK: the promise is not tested here")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := setup(t)
	for _, allowed := range []bool{false, true} {
		job := "network-" + strconv.FormatBool(allowed)
		cmd := command("dial", l.Addr().String())
		cmd.Confine.Network = allowed
		b.run(job, cmd)
		got := string(b.output(job, executor.Stdout))
		if strings.Count(got, "<nil>") != map[bool]int{false: 0, true: 3}[allowed] {
			t.Errorf("allowed %v: %s", allowed, got)
		}
	}
}

func TestToolCannotSignalOthers(t *testing.T) {
	t.Parallel()
	if !confined(t).Signals {
		t.Skip("THIS HOST CANNOT REFUSE SIGNALS: the promise is not tested here")
	}
	b := setup(t)
	victim := b.start("victim", command("block"))
	b.ready("victim", 1)
	s := b.started(victim)
	for i, pid := range []int{s.Pid, s.KeeperPid, os.Getpid()} {
		job := "j" + strconv.Itoa(i)
		b.run(job, command("kill", strconv.Itoa(pid)))
		if got := string(b.output(job, executor.Stdout)); !strings.Contains(got, "true") {
			t.Errorf("kill %d: %s", pid, got)
		}
	}
	if err := victim.Stop(""); err != nil {
		t.Fatal(err)
	}
	b.exited(victim)
}

// No descriptor is left for the rules: rather no tool than one less confined than
// the record says.
func TestToolThatCannotBeConfinedDoesNotStart(t *testing.T) {
	t.Parallel()
	if confined(t).Kind != "landlock" {
		t.Skip("confinement needs no descriptor of the launcher here")
	}
	b := setup(t)
	cmd := command("exit", "0")
	cmd.Limits.OpenFiles = 3
	e := b.run("j", cmd)
	if !e.NotStarted || !strings.Contains(e.Error, "landlock") {
		t.Errorf("exit: %+v", e)
	}
}
