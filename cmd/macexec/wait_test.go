package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/macexec/macexec/testdata/media"
)

// terminal is a stderr that calls seen once it holds a text.
type terminal struct {
	mu   sync.Mutex
	b    bytes.Buffer
	text string
	seen func()
}

func (w *terminal) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.b.Write(p)
	if strings.Contains(w.b.String(), w.text) {
		w.seen()
	}
	return n, err
}

func (w *terminal) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// A signal while a call waits ends the wait and not the job.
func TestInterruptDetaches(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state := filepath.Join(dir, "state")
	var daemon scriptDaemon
	if err := daemon.start(dir, "PATH="+os.Getenv("PATH"), "HOME="+dir, "MACEXEC_STATE="+state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.end(os.Interrupt); err != nil {
			t.Errorf("the daemon did not end well: %v", err)
		}
	})
	photo, err := media.Files.ReadFile(media.Photo)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "projects", "default", "photo.jpg"), photo, 0o600); err != nil {
		t.Fatal(err)
	}

	env := map[string]string{"HOME": dir, "MACEXEC_STATE": state}
	ctx, interrupt := context.WithCancel(t.Context())
	errs := &terminal{text: "waits for approval", seen: interrupt}
	var out bytes.Buffer
	code := run(ctx, []string{"call", "delete_asset", "--key", "k", "-a", "project_id=default", "-a", "asset=photo.jpg", "-o", "json"}, stdio{
		In: strings.NewReader(""), Out: &out, Err: errs, ErrTerminal: true, Getenv: environment(env), Width: func() int { return 80 },
	})
	if code != exitAwaiting || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"state":"awaiting_approval"`) {
		t.Errorf("exit %d, stdout:\n%s", code, out.String())
	}
	for _, want := range []string{"detached", "macexec jobs wait ", "macexec jobs cancel "} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("stderr does not say %q:\n%s", want, errs.String())
		}
	}
	if code, stdout, stderr := execute(t, env, "jobs", "show", "--key", "k", "-o", "json"); code != exitOK || !strings.Contains(stdout, `"state":"awaiting_approval"`) {
		t.Errorf("the job does not go on: exit %d\n%s%s", code, stdout, stderr)
	}
}

// Colour and painted lines are for terminals, and not for those who said NO_COLOR.
func TestColourIsForTerminals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal bool
		env      map[string]string
		want     bool
	}{
		{true, nil, true},
		{true, map[string]string{"NO_COLOR": ""}, false},
		{true, map[string]string{"TERM": "dumb"}, false},
		{false, nil, false},
	} {
		var out, errs bytes.Buffer
		run(t.Context(), []string{"jobs", "lst"}, stdio{
			In: strings.NewReader(""), Out: &out, Err: &errs, OutTerminal: c.terminal, ErrTerminal: c.terminal,
			Getenv: environment(c.env), Width: func() int { return 80 },
		})
		if got := strings.Contains(errs.String(), "\x1b["); got != c.want {
			t.Errorf("%+v: %q", c, errs.String())
		}
	}
}
