package main

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dialStdio runs the command against a socket whose one connection is served by the
// function.
func dialStdio(t *testing.T, in io.Reader, out io.Writer, serve func(*net.UnixConn), flags ...string) (code exitCode, stderr string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, socketName)
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := lis.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		serve(conn.(*net.UnixConn))
	}()
	var said bytes.Buffer
	io := stdio{In: in, Out: out, Err: &said, Getenv: environment(nil), Width: func() int { return 80 }}
	code = run(t.Context(), append([]string{"--state", dir, "dial-stdio"}, flags...), io)
	<-served
	_ = lis.Close()
	return code, said.String()
}

// What goes in comes out at the other side, all of it, each way to its own end.
func TestDialStdioLosesNothing(t *testing.T) {
	t.Parallel()
	sent, answer := make([]byte, 3<<20), make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	_, _ = rand.Read(answer)
	var got []byte
	var out bytes.Buffer
	code, stderr := dialStdio(t, bytes.NewReader(sent), &out, func(conn *net.UnixConn) {
		// The answer begins when everything has come, and its end: the half that is closed.
		got, _ = io.ReadAll(conn)
		_, _ = conn.Write(answer)
	})
	if code != exitOK || stderr != "" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if !bytes.Equal(got, sent) || !bytes.Equal(out.Bytes(), answer) {
		t.Errorf("%d of %d bytes went, %d of %d came", len(got), len(sent), out.Len(), len(answer))
	}
}

// It ends when the daemon does, although its stdin stays open, and greets only when
// it is asked to.
func TestDialStdioEndsWithTheDaemon(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--greet"}} {
		in, keep, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code, stderr := dialStdio(t, in, &out, func(conn *net.UnixConn) { _, _ = conn.Write([]byte("last words")) }, flags...)
		_, _ = keep.Close(), in.Close()
		greeting, rest, greeted := strings.Cut(out.String(), "\n")
		if !greeted {
			greeting, rest = "", out.String()
		}
		if code != exitOK || rest != "last words" || greeted != (flags != nil) || greeted && !strings.HasPrefix(greeting, "macexec dial-stdio 1 ") {
			t.Errorf("%v: exit code %d, %q, %s", flags, code, out.String(), stderr)
		}
	}
}

func TestDialStdioWithoutADaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, stdout, stderr := execute(t, nil, "--state", dir, "dial-stdio", "--greet")
	if code != exitNotReached || stdout != "" || !strings.Contains(stderr, dir) {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	// What reaches another host from there says nothing about this one.
	code, _, stderr = execute(t, map[string]string{"MACEXEC_ADDRESS": "ssh://elsewhere"}, "--state", dir, "dial-stdio")
	if code != exitNotReached || !strings.Contains(stderr, dir) {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	code, _, stderr = execute(t, nil, "--address", "ssh://elsewhere", "dial-stdio")
	if code != exitUsage || !strings.Contains(stderr, "a socket of this machine") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
