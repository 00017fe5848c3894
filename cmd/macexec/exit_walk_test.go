package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// unanswering is the address of a socket that takes connections and breaks them at
// once, as a proxy without its daemon does.
func unanswering(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return "unix:" + listener.Addr().String()
}

// Every exit code of call and jobs wait, as the design gives them, from a daemon that
// answers so.
func TestEveryExitCode(t *testing.T) {
	t.Parallel()
	daemon := answeringDaemon(t)
	nobody := "unix:" + filepath.Join(t.TempDir(), "s")
	call := func(key string, more ...string) []string {
		return append([]string{"--address", daemon, "call", "x", "--key", key}, more...)
	}
	wait := func(ids ...string) []string {
		return append([]string{"--address", daemon, "jobs", "wait", "--wait", "0s"}, ids...)
	}
	state := func(s jobs.State) string { return string(s) }
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "taken"), 0o700), os.WriteFile(filepath.Join(dir, "taken", hostile), []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	walked := map[exitCode]bool{}
	for _, c := range []struct {
		want exitCode
		args []string
		says string // on stderr
	}{
		{exitOK, call(state(jobs.StateCompleted)), ""},
		{exitFailed, call(state(jobs.StateFailed)), "Error: job failed is failed"},
		{exitUsage, call("k", "--bogus"), "macexec call --help"},
		{exitUsage, call(string(jobs.CodeRequestInvalid)), "--help"},
		{exitRejected, call(string(jobs.CodeArgumentsNotJSON)), "change the arguments"},
		{exitRejected, call(string(jobs.CodeArgumentsSchema)), "change the arguments"},
		{exitRejected, call(string(jobs.CodeArgumentsBusiness)), "change the arguments"},
		{exitDenied, call(string(jobs.CodePolicyDenied)), "ask the person"},
		{exitDenied, call(string(jobs.EndDenied)), "is cancelled (denied)"},
		{exitAwaiting, call(state(jobs.StateAwaitingApproval), "--wait", "0s"), "macexec jobs approve"},
		{exitUnknown, call(state(jobs.StateUnknown)), "macexec jobs resolve"},
		{exitCancelled, call(state(jobs.StateCancelled)), "macexec jobs rerun"},
		{exitNotReached, []string{"--address", nobody, "call", "x", "--key", "k"}, "nothing was sent"},
		{exitNotReached, []string{"--address", unanswering(t), "call", "x", "--key", "k"}, "nothing was sent"},
		{exitKeyConflict, call(string(jobs.CodeKeyConflict)), "another --key"},
		{exitRefused, call(string(jobs.CodeLockHeld)), "--on-lock"},
		{exitRefused, call(string(jobs.CodeRunClosed)), "--run-id"},
		{exitRefused, call(string(jobs.CodeDraining)), "macexec host show"},
		{exitRefused, call(string(jobs.CodeSuperseded)), "macexec jobs show"},
		{exitRefused, call(string(jobs.CodeKeyFenced)), "new --key"},
		{exitAnswerLost, call(losing), "--key " + losing},
		{exitAnswerLost, call(string(jobs.CodeCommitUnknown)), "--key " + string(jobs.CodeCommitUnknown)},
		{exitAnswerLost, call(unlooked), "--key " + unlooked},
		{exitAnswerLost, call(silent, "--wait", "300ms"), "not there yet after --wait 300ms"},
		{exitNotSettled, call(state(jobs.StateQueued), "--wait", "0s"), "macexec jobs cancel queued"},
		{exitNotSettled, call(state(jobs.StateRunning), "--wait", "0s"), "macexec jobs wait running"},
		{exitExpired, call(string(jobs.CodeKeyExpired)), "new --key"},
		{exitFault, call(string(jobs.CodeInternal)), "ask the person"},

		// A call that cannot be made is no refusal of the job that its key has.
		{exitUsage, call("free", "--args", filepath.Join(dir, "gone")), "no such file"},
		{exitKeyConflict, call(taken, "--args", filepath.Join(dir, "gone"), "-o", "json"), "macexec jobs show J"},
		{exitKeyConflict, call(taken, "--context", filepath.Join(dir, "gone"), "-o", "json"), "macexec jobs show J"},
		{exitKeyConflict, call(taken, "--download", filepath.Join(dir, "taken", hostile, "x"), "-o", "json"), "could not be compared"},
		{exitKeyConflict, call(taken, "-a", "x=1", "-o", "json"), "macexec jobs show J"},
		{exitKeyConflict, []string{"--address", daemon, "jobs", "rerun", "J", "--yes", "--key", taken, "--download", filepath.Join(dir, "taken", hostile, "x")}, "macexec jobs show J"},
		{exitExpired, call(pruned, "--args", filepath.Join(dir, "gone")), "no longer kept"},
		{exitRefused, call(fenced, "--args", filepath.Join(dir, "gone")), "is fenced"},

		{exitUsage, []string{"--address", daemon, "jobs", "show", "\xff", "-o", "json"}, "is not UTF-8"},

		// With --detach it counts only that the call is accepted.
		{exitOK, call(state(jobs.StateQueued), "--detach"), ""},
		{exitOK, call(state(jobs.StateAwaitingApproval), "--detach"), "macexec jobs approve"},
		{exitOK, call(state(jobs.StateFailed), "--detach"), ""},
		{exitOK, call(state(jobs.StateUnknown), "--detach"), ""},
		{exitRejected, call(string(jobs.CodeArgumentsSchema), "--detach"), ""},
		{exitAnswerLost, call(losing, "--detach"), "--key " + losing},
		{exitNotReached, []string{"--address", nobody, "call", "x", "--key", "k", "--detach"}, "nothing was sent"},

		// Once there is a job its artifacts may be lost on the way, and the call is not.
		{exitOK, call(arriving, "--download", filepath.Join(dir, "got"), "-o", "json"), "downloaded"},
		{exitOK, call(arriving, "--download", filepath.Join(dir, "got"), "-o", "json"), "is there already"},
		{exitAnswerLost, call(broken, "--download", filepath.Join(dir, "lost"), "-o", "json"), "macexec jobs artifacts " + broken + " --download " + filepath.Join(dir, "lost")},
		{exitAnswerLost, call(arriving, "--download", filepath.Join(dir, "taken"), "-o", "json"), "exists and is not replaced"},
		{exitFailed, call("failed+broken", "--download", filepath.Join(dir, "failed"), "-o", "json"), "macexec jobs artifacts failed+broken"},

		{exitOK, wait(state(jobs.StateCompleted)), ""},
		{exitFailed, wait(state(jobs.StateFailed)), ""},
		{exitDenied, wait(string(jobs.EndDenied)), ""},
		{exitAwaiting, wait(state(jobs.StateAwaitingApproval)), ""},
		{exitUnknown, wait(state(jobs.StateUnknown)), ""},
		{exitCancelled, wait(state(jobs.StateCancelled)), ""},
		{exitNotSettled, wait(state(jobs.StateQueued)), ""},
		{exitNotReached, []string{"--address", nobody, "jobs", "wait", "J"}, ""},

		// Of several the worst counts, wherever it stands.
		{exitNotSettled, wait("completed", "running", "completed"), ""},
		{exitAwaiting, wait("awaiting_approval", "running"), ""},
		{exitCancelled, wait("awaiting_approval", "cancelled", "queued"), ""},
		{exitDenied, wait("cancelled", "denied"), ""},
		{exitFailed, wait("denied", "failed", "awaiting_approval"), ""},
		{exitUnknown, wait("failed", "unknown", "completed"), ""},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), c.args, stdio{
			In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: environment(nil),
			Width: func() int { return 0 }, Patience: 300 * time.Millisecond,
		})
		if code != c.want || !strings.Contains(errs.String(), c.says) {
			t.Errorf("macexec %q: exit %d, want %d; stderr, which should say %q:\n%s", c.args[2:], code, c.want, c.says, errs.String())
		}
		if slices.Contains(c.args, formatJSON) && strings.Count(out.String(), "\n") != 1 {
			t.Errorf("macexec %q: stdout is not one document:\n%s", c.args[2:], out.String())
		}
		walked[code] = true
	}
	all := []exitCode{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 70}
	if got := slices.Sorted(maps.Keys(walked)); !slices.Equal(got, all) {
		t.Errorf("walked %v, want %v", got, all)
	}
}

// An interrupt in the middle of a download detaches, as one in the middle of the wait.
func TestInterruptedDownloadDetaches(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs bytes.Buffer
	code := run(ctx, []string{
		"--address", answeringFiles(t, &hosting{}, interrupt), "call", "x", "--key", endless, "--download", t.TempDir(), "-o", "json",
	}, stdio{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: environment(nil), Width: func() int { return 0 }})
	if code != exitNotSettled || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"state":"completed"`) {
		t.Errorf("exit %d\n%s", code, out.String())
	}
	if !strings.Contains(errs.String(), "detached") || !strings.Contains(errs.String(), "macexec jobs artifacts "+endless) {
		t.Errorf("stderr:\n%s", errs.String())
	}
}

// A job whose document nobody could read is accepted all the same.
func TestUnreadAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	for _, more := range [][]string{nil, {"--detach"}} {
		var errs bytes.Buffer
		code := run(t.Context(), append([]string{"--address", answeringDaemon(t), "call", "x", "--key", "completed"}, more...), stdio{
			In: strings.NewReader(""), Out: closedPipe{}, Err: &errs, Getenv: environment(nil), Width: func() int { return 0 },
		})
		if code != exitAnswerLost || !strings.Contains(errs.String(), "macexec jobs show completed") {
			t.Errorf("exit %d\n%s", code, errs.String())
		}
	}
}

// Output that cannot be written is one error, in every form of output.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	address := answeringDaemon(t)
	for _, args := range [][]string{{"jobs", "list"}, {"jobs", "list", "-o", "json"}, {"jobs", "list", "-q"}, {"jobs", "show", "completed"}, {"files", "get", "r", "-"}} {
		var errs bytes.Buffer
		code := run(t.Context(), append([]string{"--address", address}, args...), stdio{
			In: strings.NewReader(""), Out: closedPipe{}, Err: &errs, Getenv: environment(nil), Width: func() int { return 0 },
		})
		if code != exitRefused || !strings.Contains(errs.String(), "Error: the output could not be written") {
			t.Errorf("macexec %q: exit %d\n%s", args, code, errs.String())
		}
	}
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }
