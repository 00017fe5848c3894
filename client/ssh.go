package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Greeting begins the line that `macexec dial-stdio --greet` writes once it is
// connected to its daemon; the macexec's version follows. Whatever stands before the
// line was written by a login script and is skipped. The number changes when the way
// over stdin and stdout does.
const Greeting = "macexec dial-stdio 1 "

// dialSSH starts one ssh, and returns when the macexec at its other end has reached
// its daemon. Until then nothing has been sent, so every error is one of a daemon
// that was not reached.
func dialSSH(ctx context.Context, program string, a sshAddress) (net.Conn, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("ssh:// addresses need the program ssh, which is not on this machine's PATH: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for ssh: %w", err)
	}
	c := &sshConn{Conn: ours, reader: bufio.NewReader(ours), to: a, said: &lastWords{}, ended: make(chan struct{})}
	// Not bound to ctx: it lives as long as the connection, which outlives the dialling.
	c.cmd = exec.Command(path, a.arguments()...) //nolint:noctx // every part of the address was checked
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = theirs, theirs, c.said
	// In a group of its own, so that Ctrl-C ends what the person sees, and not the
	// connection under it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A shared connection's master may keep stderr open.
	c.cmd.WaitDelay = time.Second
	err = c.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start ssh: %w", err), ours.Close())
	}
	go func() {
		defer close(c.ended)
		c.result = c.cmd.Wait()
	}()
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	err = c.greeted()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("ssh to %s takes too long%s", a.place(), c.said.told())
		}
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// socketPair makes a socket for each side. A socket has deadlines and carries both
// directions, and ssh takes it for its stdin and its stdout.
func socketPair() (net.Conn, *os.File, error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "to ssh"), os.NewFile(uintptr(pair[1]), "of ssh")
	defer mine.Close() // FileConn has a copy of its own
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn, theirs, nil
}

// sshConn is the connection through one ssh.
type sshConn struct {
	net.Conn

	reader *bufio.Reader // over Conn; holds what came right behind the greeting
	to     sshAddress
	cmd    *exec.Cmd
	said   *lastWords
	ended  chan struct{} // closed when ssh has ended
	result error         // how; only after ended

	closing sync.Once
}

// greeted reads up to the end of the greeting.
func (c *sshConn) greeted() error {
	const most = 64 << 10
	for read := 0; read < most; {
		line, err := c.reader.ReadSlice('\n')
		read += len(line)
		if bytes.HasPrefix(line, []byte(Greeting)) {
			return nil
		}
		if bytes.HasPrefix(line, []byte(Greeting[:len(Greeting)-2])) {
			return fmt.Errorf("the macexec on %s has another version of dial-stdio (%q); make both sides the same version", c.to.host, bytes.TrimSpace(line))
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return c.why()
		}
	}
	return fmt.Errorf("a login script on %s writes too much to stdout before macexec can speak", c.to.host)
}

// Read says why ssh ended in place of a bare end of the stream.
func (c *sshConn) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = c.why()
	}
	return n, err
}

// why says why ssh ended, in its own words where it has any.
func (c *sshConn) why() error {
	select {
	case <-c.ended:
	case <-time.After(2 * time.Second):
		return fmt.Errorf("ssh to %s closed its output%s", c.to.place(), c.said.told())
	}
	exit, ok := errors.AsType[*exec.ExitError](c.result)
	if !ok {
		return fmt.Errorf("the connection through ssh to %s ended%s", c.to.place(), c.said.told())
	}
	switch exit.ExitCode() {
	case 255: // ssh's own
		return fmt.Errorf("ssh does not get to %s%s", c.to.place(), c.said.told())
	case 126, 127: // the shell's
		return fmt.Errorf("no macexec can be started on %s; it is looked for in the PATH of a shell that is not interactive, "+
			"/usr/local/bin, /opt/homebrew/bin and ~/bin there%s", c.to.host, c.said.told())
	case 2: // macexec does not know the command
		return fmt.Errorf("the macexec on %s does not take this connection, and may be older than this one%s", c.to.host, c.said.told())
	case 8: // macexec has no daemon
		return fmt.Errorf("macexec is on %s, but its daemon was not reached%s", c.to.host, c.said.told())
	default:
		return fmt.Errorf("ssh to %s ended (%w)%s", c.to.place(), exit, c.said.told())
	}
}

// Close ends ssh, and returns when it has ended.
func (c *sshConn) Close() error {
	err := c.Conn.Close()
	c.closing.Do(func() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.ended:
		case <-time.After(time.Second):
			_ = c.cmd.Process.Kill()
			<-c.ended
		}
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// lastWords keeps the end of what ssh writes to stderr.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

func (w *lastWords) Write(p []byte) (int, error) {
	const most = 4 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = slices.Delete(w.text, 0, max(0, len(w.text)-most))
	return len(p), nil
}

// told returns the last lines as one, behind a colon; nothing if there are none.
func (w *lastWords) told() string {
	const most = 3
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for line := range strings.Lines(string(w.text)) {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "�")); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return ": " + strings.Join(lines[max(0, len(lines)-most):], "; ")
}
