package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/macexec/macexec/schemas"
	"github.com/macexec/macexec/testdata/media"
)

// built holds the real binaries, for every test of this package that starts them.
var built string //nolint:gochecknoglobals // set once by TestMain, before any test

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "mx")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, command := range []string{".", "../macexec-keeper"} {
		build := exec.Command("go", "build", "-o", dir+"/", command)
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build %s: %v\n%s", command, err, out)
			return 1
		}
	}
	built = dir
	return m.Run()
}

// The scripts drive the real binaries: a daemon of their own, and the command line
// as everybody uses it. Commands of the scripts:
//
//	daemon start | stop | kill   start and wait until it is ready; SIGTERM; SIGKILL
//	macexec ARGS…                must exit with 0
//	exits CODE ARGS…             must exit with CODE
//	json PATH [VALUE]            a field of the last document on stdout; ! json: it is absent
//	keep NAME PATH               put such a field into a variable
//	nowhere TEXT                 no file of the state folder holds TEXT
//
// What commands print with -o json is held against schemas/ each time.
func TestScripts(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		WorkdirRoot:         root,
		RequireExplicitExec: true,
		Deadline:            time.Now().Add(stuck),
		Setup:               setUpScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":  daemonCommand,
			"macexec": func(ts *testscript.TestScript, neg bool, args []string) { exits(ts, neg, exitOK, args) },
			"exits":   exitsCommand,
			"json":    jsonCommand,
			"keep":    keepCommand,
			"nowhere": nowhereCommand,
		},
	})
}

// stuck is when a test that hangs is ended, so that it can be looked at.
const stuck = 3 * time.Minute

type daemonKey struct{}

// scriptDaemon is the daemon of one script.
type scriptDaemon struct {
	cmd  *exec.Cmd
	gone chan error
}

func setUpScript(env *testscript.Env) error {
	state := filepath.Join(env.WorkDir, "state")
	env.Setenv("PATH", built+string(filepath.ListSeparator)+env.Getenv("PATH"))
	env.Setenv("MACEXEC_STATE", state)
	env.Setenv("MACEXEC_ADDRESS", "")
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("FILES", filepath.Join(state, "projects", "default"))
	daemon := &scriptDaemon{}
	env.Values[daemonKey{}] = daemon
	env.Defer(func() {
		if daemon.cmd != nil {
			_ = daemon.cmd.Process.Signal(syscall.SIGTERM)
			<-daemon.gone
		}
	})
	for _, name := range []string{media.Photo, media.Clip, media.Speech} {
		content, err := media.Files.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(env.WorkDir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func daemonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: daemon start | stop | kill")
	}
	daemon, ok := ts.Value(daemonKey{}).(*scriptDaemon)
	if !ok {
		ts.Fatalf("the script has no daemon")
	}
	switch args[0] {
	case "start":
		ts.Check(daemon.start(ts.MkAbs("."), "PATH="+ts.Getenv("PATH"), "HOME="+ts.Getenv("HOME"), "MACEXEC_STATE="+ts.Getenv("MACEXEC_STATE")))
	case "stop":
		ts.Check(daemon.end(syscall.SIGTERM))
	case "kill":
		_ = daemon.end(syscall.SIGKILL) // it does not end well, as it should be
	default:
		ts.Fatalf("usage: daemon start | stop | kill")
	}
}

// start starts the daemon and waits until it takes calls.
func (d *scriptDaemon) start(dir string, env ...string) error {
	cmd := exec.Command(filepath.Join(built, "macexec"), "serve")
	cmd.Dir, cmd.Env = dir, env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready, gone := make(chan struct{}), make(chan error, 1)
	var log bytes.Buffer
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(&log, lines.Text())
			if strings.HasPrefix(lines.Text(), "ready: ") {
				close(ready)
			}
		}
		gone <- cmd.Wait()
	}()
	select {
	case <-ready:
		d.cmd, d.gone = cmd, gone
		return nil
	case err := <-gone:
		return fmt.Errorf("the daemon did not start: %w\n%s", err, log.String())
	}
}

func (d *scriptDaemon) end(s os.Signal) error {
	if d.cmd == nil {
		return errors.New("the daemon does not run")
	}
	err := d.cmd.Process.Signal(s)
	err = errors.Join(err, <-d.gone)
	d.cmd = nil
	return err
}

func exitsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE ARGS…")
	}
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	exits(ts, neg, exitCode(code), args[1:])
}

func exits(ts *testscript.TestScript, neg bool, want exitCode, args []string) {
	if neg {
		ts.Fatalf("say which exit code is expected: exits CODE ARGS…")
	}
	code := exitOK
	if err := ts.Exec("macexec", args...); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exitCode(failed.ExitCode())
	}
	if code != want {
		ts.Fatalf("macexec exited with %d, want %d", code, want)
	}
	if i := slices.Index(args, "-o"); i >= 0 && i+1 < len(args) && args[i+1] == formatJSON {
		holdDocuments(ts, args)
	}
}

// holdDocuments holds every line on stdout against its schema.
func holdDocuments(ts *testscript.TestScript, args []string) {
	name := documentOf(args)
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		var probe map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &probe); err != nil {
			ts.Fatalf("this line of stdout is no JSON document: %v\n%s", err, line)
		}
		kind := name
		if _, isError := probe["user_action"]; isError {
			kind = "error"
		}
		schema, ok := schemas.Document(kind)
		if !ok {
			ts.Fatalf("there is no schema %q", kind)
		}
		for _, f := range schema.Validate([]byte(line)) {
			ts.Fatalf("this is no %s document: %s: %s\n%s", kind, f.Pointer, f.Message, line)
		}
	}
}

// documentOf names what a command prints.
func documentOf(args []string) string {
	sub := ""
	if len(args) > 1 {
		sub = args[1]
	}
	switch args[0] {
	case "call":
		return "job"
	case "jobs":
		switch {
		case sub == "watch":
			return "event"
		case sub == "logs":
			return "log"
		case sub == "artifacts":
			return "file"
		case sub == "usage":
			return "usage_row"
		case sub == "cancel" && slices.Contains(args, "--run"):
			return "run_cancellation"
		case slices.Contains(args, "--key") && sub == "show":
			return "key"
		}
		return "job"
	case "tools":
		if sub == "lint" {
			return "lint"
		}
		return "tool"
	case "config":
		if sub == "lint" {
			return "lint"
		}
		return "configuration"
	case "files":
		return "file"
	case "projects":
		return "project"
	case "journal":
		if sub == "verify" {
			return "verify"
		}
		return "journal_entry"
	case "store":
		switch sub {
		case "backup":
			return "store_copy"
		case "adopt", "restore":
			return "store_adoption"
		case "confirm":
			return "store_confirmation"
		case "compact":
			return "store_compaction"
		case "df":
			return "store_use"
		case "prune":
			return "store_pruning"
		}
		return "store"
	default:
		return args[0] // check, host, whoami, version
	}
}

// field finds a place in the last document on stdout: names and numbers with dots
// between them, "len" for the length of a list.
func field(ts *testscript.TestScript, path string) (string, bool) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n")
	decoder := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	decoder.UseNumber()
	var value any
	ts.Check(decoder.Decode(&value))
	for name := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			next, ok := v[name]
			if !ok {
				return "", false
			}
			value = next
		case []any:
			if name == "len" {
				value = json.Number(strconv.Itoa(len(v)))
				continue
			}
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(v) {
				return "", false
			}
			value = v[i]
		default:
			return "", false
		}
	}
	if text, ok := value.(string); ok {
		return text, true
	}
	b, err := json.Marshal(value)
	ts.Check(err)
	return string(b), true
}

func jsonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || len(args) > 2 || (neg && len(args) != 1) {
		ts.Fatalf("usage: json PATH [VALUE], ! json PATH")
	}
	got, ok := field(ts, args[0])
	switch {
	case neg && ok:
		ts.Fatalf("%s is there: %s", args[0], got)
	case !neg && !ok:
		ts.Fatalf("%s is not there", args[0])
	case len(args) == 2 && got != args[1]:
		ts.Fatalf("%s is %s, want %s", args[0], got, args[1])
	}
}

func keepCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME PATH")
	}
	got, ok := field(ts, args[1])
	if !ok {
		ts.Fatalf("%s is not there", args[1])
	}
	ts.Setenv(args[0], got)
}

func nowhereCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nowhere TEXT")
	}
	ts.Check(filepath.WalkDir(ts.Getenv("MACEXEC_STATE"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && bytes.Contains(content, []byte(args[0])) {
			err = fmt.Errorf("%s holds %q", path, args[0])
		}
		return err
	}))
}
