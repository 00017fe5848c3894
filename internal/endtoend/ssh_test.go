package endtoend

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Everything that a caller on another machine needs goes through ssh: a call with its
// files, a watch, a download.
func TestACallThroughSSH(t *testing.T) {
	t.Parallel()
	s, d, l := startSSH(t), startDaemon(t), newLedgers(t)
	address := "ssh://mini?state=" + d.state
	s.write("input file", "what the other machine has")
	stdout := s.ok(d, address, "call", "ledger_staged", "--key", "far", "-a", "input=@"+s.path("input file"),
		"-a", "folder="+l.dir, "-a", "ledger=far", "-a", `script:=["write:1000"]`, "--download", s.path("results"), "-o", "json")
	var job struct{ ID, State string }
	if err := json.Unmarshal([]byte(stdout), &job); err != nil || job.State != "completed" {
		t.Fatalf("the job: %s, %v", stdout, err)
	}
	found, err := filepath.Glob(s.path("results") + "/*")
	if err != nil || len(found) != 1 {
		t.Fatalf("downloaded: %v, %v", found, err)
	}
	if content, err := os.ReadFile(found[0]); err != nil || string(content) != strings.Repeat("f", 1000) {
		t.Errorf("the artifact is %q, %v", content, err)
	}
	if got := s.ok(d, address, "jobs", "watch", job.ID, "-o", "json"); !strings.Contains(got, `"state":"completed"`) {
		t.Errorf("watch: %s", got)
	}
	if got := s.ok(d, address, "whoami"); !strings.Contains(got, address) || !strings.Contains(got, fmt.Sprintf("unix uid %d", os.Geteuid())) {
		t.Errorf("whoami: %s", got)
	}
	// The other forms of the same address.
	for _, same := range []string{
		fmt.Sprintf("ssh://127.0.0.1:%d?state=%s", s.port, d.state),
		"ssh://mini" + filepath.Join(d.state, "macexec.sock"),
	} {
		s.ok(d, same, "jobs", "show", job.ID)
	}
}

// A watch whose ssh is killed goes on through another one: nothing is left out, and
// nothing comes twice.
func TestAWatchOutlivesItsSSH(t *testing.T) {
	t.Parallel()
	s, d, l := startSSH(t), startDaemon(t), newLedgers(t)
	open := l.gate("watched")
	job := d.submit(call("watched", "ledger_staged", l.args("watched", "gate")))
	l.await("watched", "begin", 1)
	watch := s.command(d, "ssh://mini?state="+d.state, "jobs", "watch", "--after", "0", "-o", "json")
	stdout, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	type event struct {
		Cursor uint64
		Entry  struct {
			Seq   uint64
			JobID string `json:"job_id"`
			State string
		}
	}
	var last uint64
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for killed := false; lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if e.Entry.Seq <= last {
			t.Errorf("entry %d came after entry %d", e.Entry.Seq, last)
		}
		last = e.Entry.Seq
		if e.Entry.JobID != job.GetId() {
			continue
		}
		if e.Entry.State == "running" && !killed {
			s.killClient()
			open()
			killed = true
		}
		if e.Entry.State == "completed" {
			_ = watch.Process.Signal(os.Interrupt)
			break
		}
	}
	_ = watch.Wait() // it was told to end, or says below that it ended by itself
	if n := len(s.clients()); n < 2 {
		t.Errorf("ssh was started %d times", n)
	}
	if got := d.get(job.GetId()).GetRevision(); last == 0 || got == 0 {
		t.Errorf("the watch ended at entry %d, the job is at revision %d", last, got)
	}
	d.wait(job.GetId(), completed)
}

// A file that is under way when its ssh is killed arrives whole through another one.
func TestFilesOutliveTheirSSH(t *testing.T) {
	t.Parallel()
	s, d := startSSH(t), startDaemon(t)
	address := "ssh://mini?state=" + d.state
	content := make([]byte, 96<<20)
	_, _ = rand.Read(content)
	s.write("large", string(content))
	sum := sha256.Sum256(content)
	reference := "sha256:" + hex.EncodeToString(sum[:])

	s.breakWhile(d, filepath.Join(d.state, "blobs", "incoming", "*"), address, "files", "put", s.path("large"))
	if info, err := d.Stat(d.context(), reference); err != nil || info.GetSize() != int64(len(content)) {
		t.Errorf("uploaded: %v, %v", info, err)
	}
	s.breakWhile(d, s.path("copy*"), address, "files", "get", reference, s.path("copy"))
	if copied, err := os.ReadFile(s.path("copy")); err != nil || !bytes.Equal(copied, content) {
		t.Errorf("downloaded %d bytes, %v", len(copied), err)
	}
}

// breakWhile runs a command that must succeed, and kills its ssh when a file that
// matches the pattern has some bytes.
func (s *sshServer) breakWhile(d *daemon, pattern, address string, args ...string) {
	d.t.Helper()
	const some = 4 << 20
	before := len(s.clients())
	cmd := s.command(d, address, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for reached := false; !reached; {
		select {
		case err := <-ended:
			d.t.Fatalf("macexec %v ended before it was broken: %v\n%s", args, err, said.String())
		case <-time.After(time.Millisecond):
			reached = hasBytes(d.t, pattern, some)
		}
	}
	s.killClient()
	if err := <-ended; err != nil {
		d.t.Fatalf("macexec %v: %v\n%s", args, err, said.String())
	}
	if n := len(s.clients()) - before; n < 2 {
		d.t.Errorf("macexec %v started ssh %d times", args, n)
	}
}

// hasBytes reports whether a file that matches has so many bytes.
func hasBytes(t *testing.T, pattern string, n int64) bool {
	t.Helper()
	matches, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range matches {
		if info, err := os.Stat(match); err == nil && info.Size() >= n {
			return true
		}
	}
	return false
}

// What is wrong on the way is said in words, ssh's own where it has any, and nothing
// was sent: exit code 8.
func TestSSHThatDoesNotGetThereSaysWhy(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.end(15)
	t.Cleanup(d.start) // for the last look at it
	address := "ssh://mini?state=" + d.state
	fake := func(script string) func(*sshServer) {
		return func(s *sshServer) {
			s.write("macexec", "#!/bin/sh\n"+script+"\n")
			if err := os.Chmod(s.path("macexec"), 0o700); err != nil {
				s.t.Fatal(err)
			}
			s.serverConfig(s.dir + ":/usr/bin:/bin")
		}
	}
	for name, c := range map[string]struct {
		prepare func(*sshServer)
		want    []string
	}{
		"no daemon":     {func(*sshServer) {}, []string{"macexec is on mini, but its daemon was not reached", "macexec.sock"}},
		"another's key": {func(s *sshServer) { s.clientConfig("stranger", "known") }, []string{"ssh does not get to mini", "Permission denied"}},
		"unknown host":  {func(s *sshServer) { s.clientConfig("user", "nothing") }, []string{"ssh does not get to mini", "Host key verification failed"}},
		"no macexec":    {func(s *sshServer) { s.serverConfig(s.path("empty") + ":/usr/bin:/bin") }, []string{"no macexec can be started on mini", "not found"}},
		"an old one":    {fake(`echo "Error: there is no command \"dial-stdio\" in macexec" >&2; exit 2`), []string{"may be older", "there is no command"}},
		"a newer one":   {fake(`echo "macexec dial-stdio 2 v9.9.9"; cat`), []string{"another version", "v9.9.9"}},
		"a chatterbox":  {fake(`yes`), []string{"a login script on mini writes too much"}},
		"a sudden end":  {fake(`echo "the disk fell out" >&2; exit 1`), []string{"exit status 1", "the disk fell out"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat("/usr/local/bin/macexec"); name == "no macexec" && err == nil {
				t.Skip("SKIPPED, NOT TESTED: this machine has a macexec for everybody")
			}
			s := startSSH(t)
			c.prepare(s)
			code, stdout, stderr := s.run(d, address, "tools", "list", "-o", "json")
			var document struct {
				Code     string
				Metadata map[string]string
			}
			if err := json.Unmarshal([]byte(stdout), &document); err != nil || document.Code != "DAEMON_NOT_REACHED" || document.Metadata["address"] != address {
				t.Errorf("the error is %s, %v", stdout, err)
			}
			if code != 8 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not in %s", want, stderr)
				}
			}
		})
	}
	t.Run("no ssh", func(t *testing.T) {
		t.Parallel()
		s := startSSH(t)
		cmd := s.command(d, address, "tools", "list")
		cmd.Env = append(cmd.Env, "PATH="+s.path("empty"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "need the program ssh, which is not on this machine's PATH") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// The ways in which people set ssh up.
func TestSSHAsPeopleSetItUp(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	t.Run("a key that can do nothing else", func(t *testing.T) {
		t.Parallel()
		s := startSSH(t)
		key, err := os.ReadFile(s.path("user.pub"))
		if err != nil {
			t.Fatal(err)
		}
		s.write("authorized", fmt.Sprintf("restrict,command=\"macexec dial-stdio --greet --state %s\" %s", d.state, key))
		s.ok(d, "ssh://mini", "tools", "list")
	})
	t.Run("a login script that talks", func(t *testing.T) {
		t.Parallel()
		s := startSSH(t)
		s.write("macexec", fmt.Sprintf("#!/bin/sh\nprintf 'Welcome!\n%%09000d\nno end of line' 0\nprintf '\n'\nexec %s/macexec \"$@\"\n", built.bin))
		if err := os.Chmod(s.path("macexec"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.serverConfig(s.dir + ":/usr/bin:/bin")
		s.ok(d, "ssh://mini?state="+d.state, "tools", "list")
	})
	t.Run("a shared connection", func(t *testing.T) {
		t.Parallel()
		s := startSSH(t)
		s.clientConfig("user", "known", "ControlMaster auto", "ControlPath "+s.path("master"), "ControlPersist 60", "LocalForward "+s.path("forward")+" 127.0.0.1:1")
		for range 2 {
			s.ok(d, "ssh://mini?state="+d.state, "tools", "list")
		}
		if out, err := exec.Command("ssh", "-F", s.path("ssh_config"), "-O", "exit", "mini").CombinedOutput(); err != nil {
			t.Errorf("there is no shared connection: %v\n%s", err, out)
		}
	})
}
