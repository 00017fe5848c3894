package executor

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/keeper"
)

// wakeIdent is the identity of the event by which a watch is ended.
const wakeIdent = 1

// queue is a kqueue with an event of its own to wake its reader.
type queue struct {
	fd int
	wg sync.WaitGroup
}

func newQueue() (*queue, error) {
	fd, err := unix.Kqueue()
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fd)
	q := &queue{fd: fd}
	if err := q.change(wakeIdent, unix.EVFILT_USER, unix.EV_ADD|unix.EV_CLEAR, 0); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return q, nil
}

func (q *queue) change(ident, filter, flags int, notes uint32) error {
	var k unix.Kevent_t
	unix.SetKevent(&k, ident, filter, flags)
	k.Fflags = notes
	_, err := unix.Kevent(q.fd, []unix.Kevent_t{k}, nil, nil)
	return err
}

// each calls got for every event until it answers false or the queue is woken.
func (q *queue) each(got func(unix.Kevent_t) bool) {
	events := make([]unix.Kevent_t, 8)
	for {
		n, err := unix.Kevent(q.fd, nil, events, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if e.Filter == unix.EVFILT_USER || !got(e) {
				return
			}
		}
	}
}

func (q *queue) close() {
	_ = q.change(wakeIdent, unix.EVFILT_USER, 0, unix.NOTE_TRIGGER)
	q.wg.Wait()
	unix.Close(q.fd)
}

// endWatch tells of the end of a process that is no child of this one.
type endWatch struct {
	ended chan struct{}
	q     *queue
}

// watchEnd begins to watch this very process: the watch is set first and the
// identity proved after.
func watchEnd(p Proc) (*endWatch, error) {
	q, err := newQueue()
	if err != nil {
		return nil, err
	}
	err = q.change(p.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT, unix.NOTE_EXIT)
	if errors.Is(err, unix.ESRCH) || (err == nil && !p.Alive()) {
		err = keeper.ErrNoProcess
	}
	if err != nil {
		unix.Close(q.fd)
		return nil, err
	}
	w := &endWatch{ended: make(chan struct{}), q: q}
	q.wg.Go(func() {
		q.each(func(unix.Kevent_t) bool {
			close(w.ended)
			return false
		})
	})
	return w, nil
}

func (w *endWatch) close() { w.q.close() }

// folderWatch tells that something has changed in a folder. A kqueue sees the
// folder's names and the log's growth; the clock stands in for the rest, which is
// the silent death of a keeper.
type folderWatch struct {
	events chan struct{}
	stop   chan struct{}
	wg     sync.WaitGroup
	q      *queue
	files  []*os.File
}

func watchFolder(path string) *folderWatch {
	w := &folderWatch{events: make(chan struct{}, 1), stop: make(chan struct{})}
	w.wg.Go(func() { tick(w.events, w.stop) })
	q, err := newQueue()
	if err != nil {
		return w
	}
	w.q = q
	for _, name := range []string{path, filepath.Join(path, "log"), filepath.Join(path, "lock")} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		w.files = append(w.files, f)
		_ = q.change(int(f.Fd()), unix.EVFILT_VNODE, unix.EV_ADD|unix.EV_CLEAR,
			unix.NOTE_WRITE|unix.NOTE_EXTEND|unix.NOTE_DELETE|unix.NOTE_RENAME)
	}
	q.wg.Go(func() {
		q.each(func(unix.Kevent_t) bool {
			notify(w.events)
			return true
		})
	})
	return w
}

func (w *folderWatch) close() {
	close(w.stop)
	w.wg.Wait()
	if w.q != nil {
		w.q.close()
	}
	for _, f := range w.files {
		f.Close()
	}
}
