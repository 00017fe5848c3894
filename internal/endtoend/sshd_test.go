package endtoend

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sshServer is a real sshd of this user, on a port of 127.0.0.1, with keys and a
// configuration of its own; and an ssh that is configured for it. Each connection
// has an sshd of its own, so the port is chosen by the listener and never another's.
type sshServer struct {
	t    *testing.T
	dir  string
	port int
	log  *logWatch
	sshd string

	mu      sync.Mutex
	conns   []*exec.Cmd
	running sync.WaitGroup
}

func startSSH(t *testing.T) *sshServer {
	t.Helper()
	sshd := findSSHD(t)
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // short, like the sockets of ssh
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &sshServer{t: t, dir: dir, log: &logWatch{ready: make(chan struct{})}, sshd: sshd}
	for _, key := range []string{"host", "user", "stranger"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.path(key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = lis.Addr().(*net.TCPAddr).Port
	hostKey, err := os.ReadFile(s.path("host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	userKey, err := os.ReadFile(s.path("user.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // sshd's own need; a system with a running sshd has it
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.write("authorized", string(userKey))
	s.write("known", fmt.Sprintf("[127.0.0.1]:%d %s", s.port, hostKey))
	s.serverConfig(built.bin + ":/usr/bin:/bin")
	s.clientConfig("user", "known")
	s.write("ssh", fmt.Sprintf("#!/bin/sh\necho $$ >> %s\nexec %s -F %s \"$@\"\n", s.path("pids"), lookSSH(t), s.path("ssh_config")))
	if err := os.Chmod(s.path("ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.running.Go(func() { s.accept(lis) })
	t.Cleanup(func() {
		_ = lis.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Process.Kill()
		}
		s.mu.Unlock()
		s.running.Wait()
		if t.Failed() {
			t.Logf("sshd said:\n%s", s.log)
		}
	})
	return s
}

func findSSHD(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skip("SKIPPED, NOT TESTED: sshd is not installed")
	return ""
}

func lookSSH(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: ssh is not installed")
	}
	return path
}

func (s *sshServer) path(name string) string { return filepath.Join(s.dir, name) }

func (s *sshServer) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// serverConfig lets in who has the key; what they start has that PATH.
func (s *sshServer) serverConfig(path string) {
	s.t.Helper()
	s.write("sshd_config", fmt.Sprintf(`
HostKey %s
AuthorizedKeysFile %s
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv PATH=%s
`, s.path("host"), s.path("authorized"), path))
}

// clientConfig is the user's own: the host has a name in it.
func (s *sshServer) clientConfig(key, known string, more ...string) {
	s.t.Helper()
	s.write("ssh_config", fmt.Sprintf(`
Host mini
  HostName 127.0.0.1
  Port %d
Host *
  IdentityFile %s
  IdentitiesOnly yes
  UserKnownHostsFile %s
  GlobalKnownHostsFile none
  %s
`, s.port, s.path(key), s.path(known), strings.Join(more, "\n  ")))
}

// accept starts one sshd for each connection, as inetd does.
func (s *sshServer) accept(lis net.Listener) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		file, err := conn.(*net.TCPConn).File()
		_ = conn.Close()
		if err != nil {
			s.t.Errorf("accept: %v", err)
			return
		}
		cmd := exec.Command(s.sshd, "-i", "-e", "-f", s.path("sshd_config"))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, s.log
		cmd.WaitDelay = time.Second // what it started may keep stderr open for a moment
		s.mu.Lock()
		err = cmd.Start()
		if err == nil {
			s.conns = append(s.conns, cmd)
		}
		s.mu.Unlock()
		_ = file.Close()
		if err != nil {
			s.t.Errorf("start sshd: %v", err)
			return
		}
		s.running.Go(func() { _ = cmd.Wait() })
	}
}

// clients lists the ssh that were started so far, oldest first.
func (s *sshServer) clients() []int {
	s.t.Helper()
	text, err := os.ReadFile(s.path("pids"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	var pids []int
	for line := range strings.Lines(string(text)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			s.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// killClient kills the newest ssh.
func (s *sshServer) killClient() {
	s.t.Helper()
	pids := s.clients()
	if len(pids) == 0 {
		s.t.Fatal("no ssh was started")
	}
	if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
}

// command is a command line of another machine: all that it knows of the daemon is
// the address.
func (s *sshServer) command(d *daemon, address string, args ...string) *exec.Cmd {
	d.t.Helper()
	cmd := exec.CommandContext(d.context(), filepath.Join(built.bin, "macexec"), args...)
	cmd.Env = []string{"PATH=" + s.dir + ":/usr/bin:/bin", "HOME=" + s.dir, "TMPDIR=" + s.dir, "MACEXEC_ADDRESS=" + address}
	return cmd
}

// run runs such a command line to its end.
func (s *sshServer) run(d *daemon, address string, args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	cmd := s.command(d, address, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed.ExitCode(), out.String(), said.String()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return 0, out.String(), said.String()
}

// ok is run for a command that must succeed.
func (s *sshServer) ok(d *daemon, address string, args ...string) string {
	d.t.Helper()
	code, stdout, stderr := s.run(d, address, args...)
	if code != 0 {
		d.t.Fatalf("macexec %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}
