package endtoend

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// line is a bad line between clients and a daemon: it counts what goes over, is cut
// again and again, and can be held.
type line struct {
	path   string // where clients connect
	target string
	lis    net.Listener
	every  int64 // it is cut after that many more bytes, either way
	all    sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]net.Conn
	total int64 // bytes that went over, both ways
	next  int64 // when it is cut
	cuts  int
	hold  int64 // where it stops; 0: nowhere
	held  chan struct{}
	goOn  chan struct{}
}

// badLine makes a line to the daemon.
func (d *daemon) badLine(every int64) *line {
	d.t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx")
	if err != nil {
		d.t.Fatal(err)
	}
	l := &line{path: filepath.Join(dir, "s"), target: filepath.Join(d.state, "macexec.sock"), every: every, open: map[net.Conn]net.Conn{}}
	if l.lis, err = net.Listen("unix", l.path); err != nil {
		d.t.Fatal(err)
	}
	l.all.Go(l.serve)
	d.t.Cleanup(func() {
		_ = l.lis.Close()
		l.cut()
		l.all.Wait()
		_ = os.RemoveAll(dir)
	})
	l.reset()
	return l
}

// reset begins to count anew.
func (l *line) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total, l.cuts, l.next = 0, 0, l.every
}

// holdAt makes the line stop once n bytes have gone over. The channel says that it
// has; release lets it go on.
func (l *line) holdAt(n int64) (held <-chan struct{}, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold, l.held, l.goOn = n, make(chan struct{}), make(chan struct{})
	return l.held, sync.OnceFunc(func() { close(l.goOn) })
}

func (l *line) serve() {
	for {
		c, err := l.lis.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("unix", l.target)
		if err != nil {
			_ = c.Close()
			continue // the daemon is not there
		}
		l.mu.Lock()
		l.open[c] = d
		l.mu.Unlock()
		l.all.Go(func() { l.carry(c, d) })
		l.all.Go(func() { l.carry(d, c) })
	}
}

func (l *line) carry(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if l.pass(int64(n)) {
				l.cut() // and what was just read is lost
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.cut()
			}
			return
		}
	}
}

// pass counts bytes and says whether they are the ones that break the line.
func (l *line) pass(n int64) (breaks bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += n
	if l.hold > 0 && l.total >= l.hold {
		l.hold = 0
		close(l.held)
		goOn := l.goOn
		l.mu.Unlock()
		<-goOn
		l.mu.Lock()
	}
	if l.total < l.next {
		return false
	}
	l.next = l.total + l.every
	l.cuts++
	return true
}

// cut breaks every connection.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, d := range l.open {
		_, _ = c.Close(), d.Close()
	}
	clear(l.open)
}

func (l *line) count() (bytes int64, cuts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.cuts
}

// await waits for the line to be held.
func await(t *testing.T, held <-chan struct{}, ended <-chan error) {
	t.Helper()
	select {
	case <-held:
	case err := <-ended:
		t.Fatalf("the client ended before: %v", err)
	}
}
