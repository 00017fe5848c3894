package main

import (
	"bufio"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe that nobody writes to does not keep the command from the first signal.
func TestSignalEndsAWaitForAPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(built, "macexec"), "--state", t.TempDir(), "call", "x", "--args", pipe)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "key: ") {
		t.Errorf("it says %q", lines.Text())
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Error:") && !strings.Contains(lines.Text(), "interrupted before anything was accepted") {
			t.Error(lines.Text())
		}
	}
	ended, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if !ok || exitCode(ended.ExitCode()) != exitNotReached {
		t.Errorf("it ends with %v", ended)
	}
}
