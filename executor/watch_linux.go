package executor

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/keeper"
)

// endWatch tells of the end of a process that is no child of this one.
type endWatch struct {
	ended chan struct{}
	file  *os.File
	wg    sync.WaitGroup
}

// watchEnd begins to watch this very process: the pidfd is opened first and the
// identity proved after.
func watchEnd(p Proc) (*endWatch, error) {
	fd, err := unix.PidfdOpen(p.Pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, keeper.ErrNoProcess
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	if !p.Alive() {
		file.Close()
		return nil, keeper.ErrNoProcess
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	w := &endWatch{ended: make(chan struct{}), file: file}
	w.wg.Go(func() {
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
		})
		if err == nil {
			close(w.ended)
		}
		file.Close()
	})
	return w, nil
}

func (w *endWatch) close() {
	w.file.Close()
	w.wg.Wait()
}

// folderWatch tells that something has changed in a folder.
type folderWatch struct {
	events chan struct{}
	file   *os.File
	stop   chan struct{}
	wg     sync.WaitGroup
}

// watchFolder begins to watch a folder. Where the system gives no more watches,
// time stands in for the events.
func watchFolder(path string) *folderWatch {
	w := &folderWatch{events: make(chan struct{}, 1), stop: make(chan struct{})}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.wg.Go(func() { tick(w.events, w.stop) })
		return w
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	// The end of a keeper closes its lock file, and that is an event, too.
	const mask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_DELETE_SELF
	if _, err := unix.InotifyAddWatch(fd, path, mask); err != nil {
		w.file.Close()
		w.file = nil
		w.wg.Go(func() { tick(w.events, w.stop) })
		return w
	}
	w.wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			if _, err := w.file.Read(buf); err != nil {
				return
			}
			notify(w.events)
		}
	})
	return w
}

func (w *folderWatch) close() {
	close(w.stop)
	if w.file != nil {
		w.file.Close()
	}
	w.wg.Wait()
}
