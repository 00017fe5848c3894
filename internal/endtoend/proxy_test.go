package endtoend

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
)

// proxy stands between clients and a daemon and does them harm. What passes through
// it is HTTP/2, so what it cuts are pieces of a connection that many requests share.
type proxy struct {
	path   string // of its socket
	daemon string // of the daemon's

	// refuse says whether a connection is closed before anything passes; before and
	// after, whether it is broken instead of passing on a piece from the client, or
	// from the daemon: the request does not get through, or the answer does not.
	refuse        func() bool
	before, after func(piece []byte) bool

	listener net.Listener
	lives    sync.WaitGroup

	mu          sync.Mutex
	open        map[net.Conn]bool
	connections int // that were let through
	cuts        int // pieces that were not passed on
}

func never() bool { return false }

func pass([]byte) bool { return false }

// startProxy starts a proxy before the daemon.
func (d *daemon) startProxy(p *proxy) {
	d.t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mx")
	if err != nil {
		d.t.Fatal(err)
	}
	p.path, p.daemon, p.open = filepath.Join(dir, "s"), filepath.Join(d.state, "macexec.sock"), map[net.Conn]bool{}
	if p.listener, err = net.Listen("unix", p.path); err != nil {
		d.t.Fatal(err)
	}
	p.lives.Go(p.accept)
	d.t.Cleanup(func() {
		_ = p.listener.Close()
		p.mu.Lock()
		for conn := range p.open {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.lives.Wait()
		_ = os.RemoveAll(dir)
	})
}

// dial makes a client that goes through the proxy.
func (p *proxy) dial(t *testing.T, patience time.Duration) *client.Client {
	t.Helper()
	c, err := client.Dial("unix:"+p.path, client.Patience(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (p *proxy) counted() (connections, cuts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections, p.cuts
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refuse() {
			_ = near.Close()
			continue
		}
		far, err := net.Dial("unix", p.daemon)
		if err != nil {
			_ = near.Close()
			continue
		}
		p.mu.Lock()
		p.connections++
		p.open[near], p.open[far] = true, true
		p.mu.Unlock()
		p.lives.Go(func() { p.pass(near, far, p.before) })
		p.lives.Go(func() { p.pass(far, near, p.after) })
	}
}

// pass passes on what comes, until an end or a cut.
func (p *proxy) pass(from, to net.Conn, cut func([]byte) bool) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.open, from)
		delete(p.open, to)
		p.mu.Unlock()
	}()
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 && cut(piece[:n]) {
			p.mu.Lock()
			p.cuts++
			p.mu.Unlock()
			_, _ = to.Write(piece[:rand.IntN(n)]) // a part of a message does not count as one
			return
		}
		if n > 0 {
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sometimes says yes with a probability of one in n.
func sometimes(n int) func() bool {
	return func() bool { return rand.IntN(n) == 0 }
}

func cut(n int) func([]byte) bool {
	yes := sometimes(n)
	return func([]byte) bool { return yes() }
}
