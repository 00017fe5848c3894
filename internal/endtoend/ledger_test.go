package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for an event; nothing passes or fails by how much of
// it is used.
const patience = 2 * time.Minute

// ledgers is a folder in which the tools of one test write down what they do.
type ledgers struct {
	t      *testing.T
	dir    string
	events *os.File
}

func newLedgers(t *testing.T) *ledgers {
	t.Helper()
	dir, err := os.MkdirTemp(built.ledgers, "t") //nolint:usetesting // the manifests name its parent
	if err != nil {
		t.Fatal(err)
	}
	return &ledgers{t: t, dir: dir, events: openPipe(t, filepath.Join(dir, "events"))}
}

// openPipe makes a named pipe and holds both of its ends, so that nobody who opens
// it has to wait for a partner.
func openPipe(t *testing.T, path string) *os.File {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// gate makes the gate of a ledger. The function it returns lets one tool through.
func (l *ledgers) gate(name string) (open func()) {
	l.t.Helper()
	pipe := openPipe(l.t, filepath.Join(l.dir, name+".gate"))
	return func() {
		l.t.Helper()
		if _, err := pipe.WriteString("x"); err != nil {
			l.t.Fatal(err)
		}
	}
}

// lines returns what follows each line of a ledger that begins with verb.
func (l *ledgers) lines(name, verb string) []string {
	l.t.Helper()
	content, err := os.ReadFile(filepath.Join(l.dir, name+".ledger"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(content)) {
		if first, rest, _ := strings.Cut(strings.TrimSpace(line), " "); first == verb {
			list = append(list, rest)
		}
	}
	return list
}

func (l *ledgers) starts(name string) int { return len(l.lines(name, "begin")) }

// await waits until a ledger has n lines with the verb, and returns the last one.
func (l *ledgers) await(name, verb string, n int) string {
	l.t.Helper()
	deadline := time.Now().Add(patience)
	buffer := make([]byte, 4096)
	for {
		list := l.lines(name, verb)
		if len(list) >= n {
			return list[n-1]
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the ledger %s has %d lines %q, want %d", name, len(list), verb, n)
		}
		// An event may have been read for another ledger, so look again now and then.
		if err := l.events.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			l.t.Fatal(err)
		}
		if _, err := l.events.Read(buffer); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			l.t.Fatal(err)
		}
	}
}

// awaitPid is await for a line that holds a pid.
func (l *ledgers) awaitPid(name, verb string, n int) int {
	l.t.Helper()
	pid, err := strconv.Atoi(l.await(name, verb, n))
	if err != nil {
		l.t.Fatal(err)
	}
	return pid
}

// wantStarts holds how often the tool of a ledger was started.
func (l *ledgers) wantStarts(name string, want int) {
	l.t.Helper()
	if got := l.starts(name); got != want {
		l.t.Errorf("the tool of %s was started %d times, want %d", name, got, want)
	}
}

// arguments of a tool of the tests.
type arguments map[string]any

func (l *ledgers) args(name string, script ...string) arguments {
	return arguments{"folder": l.dir, "ledger": name, "script": append([]string{}, script...)}
}

func (a arguments) with(name string, value any) arguments {
	a[name] = value
	return a
}
