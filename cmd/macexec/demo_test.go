package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The demo proves its claims itself; here it must find them all true.
func TestDemo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stuck)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(built, "macexec"), "demo")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its daemon
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("macexec demo: %v\n%s", err, out)
	}
}

func TestDemoSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), filepath.Join(built, "macexec"), "demo")
	cmd.Env = []string{"PATH=" + t.TempDir(), "HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	failed, ok := errors.AsType[*exec.ExitError](err)
	if !ok || failed.ExitCode() != int(exitUsage) || !strings.Contains(string(out), "install") {
		t.Errorf("got %v\n%s", err, out)
	}
}
