package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// containsWords compares without regard to how lines are broken.
func containsWords(text, words string) bool {
	return strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(words), " "))
}

func environment(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := pairs[name]
		return value, ok
	}
}

// execute runs one command line in this process.
func execute(t *testing.T, env map[string]string, args ...string) (code exitCode, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, stdio{
		In: strings.NewReader(""), Out: &out, Err: &err, Getenv: environment(env), Width: func() int { return 0 },
	})
	return code, out.String(), err.String()
}

func TestAddress(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	known, err := (&app{stdio: stdio{Getenv: environment(map[string]string{"HOME": home})}}).places()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(known.systemSocket); err == nil {
		t.Skip("a system daemon runs here")
	}
	for _, c := range []struct {
		name string
		app  app
		env  map[string]string
		want string
	}{
		{"flag first", app{address: "unix:/a", state: "/s"}, map[string]string{"MACEXEC_ADDRESS": "unix:/b", "MACEXEC_STATE": "/c"}, "unix:/a"},
		{"then the variable", app{state: "/s"}, map[string]string{"MACEXEC_ADDRESS": "unix:/b"}, "unix:/b"},
		{"then the state folder", app{state: "/s"}, map[string]string{"MACEXEC_STATE": "/c", "MACEXEC_ADDRESS": ""}, "unix:/s/macexec.sock"},
		{"then its variable", app{}, map[string]string{"MACEXEC_STATE": "/c"}, "unix:/c/macexec.sock"},
		{"relative to here", app{state: "s"}, nil, "unix:" + filepath.Join(here, "s", "macexec.sock")},
		{"then the user's", app{}, map[string]string{"HOME": home}, "unix:" + filepath.Join(known.userState, "macexec.sock")},
	} {
		c.app.Getenv = environment(c.env)
		if got, err := c.app.resolveAddress(); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	homeless := app{stdio: stdio{Getenv: environment(nil)}}
	if _, err := homeless.resolveAddress(); exitOf(err) != exitUsage {
		t.Errorf("without HOME: got %v, want a usage error", err)
	}
	if _, err := homeless.resolveState(); exitOf(err) != exitUsage {
		t.Errorf("without HOME: got %v, want a usage error", err)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		try  string
	}{
		{nil, "macexec --help"},
		{[]string{"cal"}, "Try: macexec call"},
		{[]string{"jobs"}, "macexec jobs --help"},
		{[]string{"jobs", "lst"}, "Try: macexec jobs list"},
		{[]string{"jobs", "show"}, "macexec jobs show --key K"},
		{[]string{"jobs", "show", "J", "--key", "K"}, "macexec jobs show --key K"},
		{[]string{"jobs", "list", "--state", "done"}, "--state awaiting_approval"},
		{[]string{"jobs", "list", "--since", "yesterday"}, "a duration such as 10m"},
		{[]string{"jobs", "list", "--label", "x"}, "--label name=value"},
		{[]string{"jobs", "list", "--until", "tomorrow"}, "a duration such as 10m"},
		{[]string{"jobs", "watch", "--state", "done"}, "--state awaiting_approval"},
		{[]string{"jobs", "watch", "J", "--snapshot"}, "macexec jobs watch --snapshot"},
		{[]string{"jobs", "watch", "--after", "3", "--snapshot"}, "macexec jobs watch --snapshot"},
		{[]string{"jobs", "cancel"}, "macexec jobs cancel --run R"},
		{[]string{"jobs", "cancel", "J", "--run", "R"}, "macexec jobs cancel --run R"},
		{[]string{"jobs", "rerun"}, "macexec jobs rerun --help"},
		{[]string{"jobs", "rerun", "J", "--start-by", "soon"}, "a duration such as 10m"},
		{[]string{"jobs", "rerun", "J", "--detach", "--wait", "1s"}, "macexec jobs wait"},
		{[]string{"jobs", "usage", "--by", "day"}, "--by run"},
		{[]string{"jobs", "usage", "--since", "ever"}, "a duration such as 10m"},
		{[]string{"jobs", "wait", "J", "--wait", "-1s"}, "--wait 30s"},
		{[]string{"host", "pause", "--wait"}, "macexec host pause --help"},
		{[]string{"call", "x", "--on-lock", "hope"}, "--on-lock wait"},
		{[]string{"call", "x", "--serial-context"}, "add --context-id"},
		{[]string{"call", "x", "--wait", "-1s"}, "--wait 30s"},
		{[]string{"jobs", "resolve", "J", "--as", "done", "--reason", "r"}, "--as completed"},
		{[]string{"jobs", "resolve", "J", "--as", "failed"}, "--reason TEXT"},
		{[]string{"call"}, "macexec call --help"},
		{[]string{"call", "a", "b"}, "macexec call --help"},
		{[]string{"call", "x", "--bogus"}, "macexec call --help"},
		{[]string{"call", "x", "-o", "yaml"}, "-o json"},
		{[]string{"call", "x", "--purpose", "fun"}, "--purpose production"},
		{[]string{"call", "x", "--start-by", "soon"}, "a duration such as 10m"},
		{[]string{"call", "x", "--timeout", "-1s"}, "--timeout"},
		{[]string{"call", "x", "--label", "=v"}, "--label name=value"},
		{[]string{"call", "x", "--context", "/not/there"}, "check the path"},
		{[]string{"call", "x", "--key", "k\xff"}, "give --key as UTF-8"},
		{[]string{"call", "x", "--run-id", "\xff"}, "give --run-id as UTF-8"},
		{[]string{"jobs", "list", "--label", "a=b", "--label", "k=\xff"}, "give --label as UTF-8"},
		{[]string{"call", "x", "--args", "/not/there"}, "check the path"},
		{[]string{"call", "x", "--args", "-", "-a", "a=1"}, "all with --args"},
		{[]string{"call", "x", "--detach", "--wait", "1s"}, "macexec jobs wait"},
		{[]string{"call", "x", "--detach", "--download", "d"}, "macexec jobs artifacts"},
		{[]string{"call", "x", "--key", ""}, "leave out --key"},
		{[]string{"call", "x", "-a", "password"}, "name=value"},
		{[]string{"whoami", "--address", "nowhere"}, "unix:/path"},
		{[]string{"store", "check", "--state", "/not/there"}, "--state DIR"},
	} {
		code, stdout, stderr := execute(t, map[string]string{"HOME": t.TempDir()}, c.args...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(last(stderr, 2), "Error: ") || !strings.Contains(stderr, c.try) {
			t.Errorf("macexec %q: exit %d, stdout %q, stderr:\n%s", c.args, code, stdout, stderr)
		}
	}
}

// last returns the last lines of a text.
func last(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

func TestErrorsAreDocumentsWithJSON(t *testing.T) {
	t.Parallel()
	env := map[string]string{"HOME": t.TempDir()}
	for _, args := range [][]string{
		{"call", "x", "--bogus", "-o", "json"},
		{"call", "-o", "json"},
		{"-ojson", "jobs", "lst"},
		{"--output=json", "whoami", "--nope"},
		{"call", "x", "--key", "k1", "--run-id", "r1", "--tool-call-id", "c1", "--trace-id", "t1", "-o", "json"},
	} {
		code, stdout, stderr := execute(t, env, args...)
		var document struct {
			Class, Code, Message, Key string
			RunID                     string `json:"run_id"`
			ToolCallID                string `json:"tool_call_id"`
			TraceID                   string `json:"trace_id"`
		}
		decoder := json.NewDecoder(strings.NewReader(stdout))
		if err := decoder.Decode(&document); err != nil || decoder.More() || document.Message == "" {
			t.Errorf("macexec %q: stdout is not one error document: %s", args, stdout)
		}
		if code == exitOK || !strings.Contains(stderr, "Error: ") {
			t.Errorf("macexec %q: exit %d, stderr %q", args, code, stderr)
		}
		if code == exitNotReached && (document.Code != "DAEMON_NOT_REACHED" || document.Key != "k1" || document.RunID != "r1" || document.ToolCallID != "c1" || document.TraceID != "t1") {
			t.Errorf("G14: the error of a call lost its ids: %s", stdout)
		}
	}
}

// The key is on stderr before anything is sent, so before the daemon is missed.
func TestKeyIsPrintedFirst(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"call", "x"}, {"call", "x", "-a", "a=1"}} {
		code, _, stderr := execute(t, map[string]string{"HOME": t.TempDir()}, args...)
		if code != exitNotReached || !strings.HasPrefix(stderr, "key: mx-") {
			t.Errorf("macexec %q: exit %d, stderr %q", args, code, stderr)
		}
	}
	if _, _, stderr := execute(t, map[string]string{"HOME": t.TempDir()}, "call", "x", "--key", "mine"); strings.Contains(stderr, "key: ") {
		t.Errorf("the caller's own key is repeated: %q", stderr)
	}
}

func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no short help", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	root := (&app{}).root(nil)
	walk(root)
	want := []string{"call", "check", "config", "demo", "dial-stdio", "files", "host", "jobs", "journal", "projects", "serve", "store", "tools", "version", "whoami"}
	if got := names(root); !slices.Equal(got, want) {
		t.Errorf("commands are %v, want %v", got, want)
	}
}

// A signal before anything was accepted ends the command, and says so.
func TestInterruptedCall(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// A daemon that takes connections and never answers.
	listener, err := net.Listen("unix", filepath.Join(dir, "macexec.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	connected := make(chan struct{})
	go func() {
		if conn, err := listener.Accept(); err == nil {
			close(connected)
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-connected
		cancel()
	}()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"call", "x", "-a", "a=1", "--state", dir}, stdio{
		In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: environment(nil), Width: func() int { return 0 },
	})
	if code != exitNotReached || out.Len() > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}
