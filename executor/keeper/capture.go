package keeper

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/macexec/macexec/internal/fault"
)

const (
	// tailBytes of each stream are kept beyond the log's limit.
	tailBytes = 64 << 10
	// gapStep is how many bytes are lost before a live reader is told again.
	gapStep = 16 << 20
	// hintBytes of the end of stderr are searched for the reason of a failure.
	hintBytes = 4 << 10
)

// logFile is the framed log, shared by the two streams.
type logFile struct {
	mu       sync.Mutex
	file     *os.File
	size     int64
	limit    int64
	diskFull bool
	buf      []byte
}

// append writes a frame of as much of data as the limit leaves room for, and says
// how much that was. A large read at the limit is cut there: the beginning that is
// kept must not depend on how fast the tool wrote it.
func (l *logFile) append(s Stream, data []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	data = data[:max(0, min(int64(len(data)), l.limit-l.size-frameHeader))]
	if len(data) == 0 || !l.write(byte(s), data) {
		return 0
	}
	return len(data)
}

// force writes a frame even beyond the limit. Such frames are few and small.
func (l *logFile) force(kind byte, body []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(kind, body)
}

// write writes one frame, or nothing at all: what a full disk cut short is taken
// back. The caller holds the lock.
func (l *logFile) write(kind byte, body []byte) bool {
	l.buf = appendFrame(l.buf[:0], kind, fault.Now(), body)
	if _, err := l.file.WriteAt(l.buf, l.size); err != nil {
		l.diskFull = l.diskFull || isDiskFull(err)
		_ = l.file.Truncate(l.size)
		return false
	}
	l.size += int64(len(l.buf))
	return true
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func (l *logFile) gap(s Stream, lost int64) bool {
	frame := appendGap(nil, s, time.Time{}, lost)
	return l.force(s.gap(), frame[frameHeader:])
}

// capture drains one output of the tool. It always reads on, so the tool never
// waits for a reader, a limit or a full disk.
type capture struct {
	stream Stream
	pipe   *os.File
	log    *logFile
	// file, if any, takes the stream instead of the log, up to fileLimit bytes.
	file      *os.File
	fileLimit int64
	fileBroke bool // a write to it failed, so nothing more may follow

	done     chan struct{}
	count    StreamCount
	overflow bool
	diskFull bool
	full     bool   // the log's limit was met: the rest goes through ring
	ring     []byte // the last bytes since then, oldest first
	lost     int64  // bytes that fell out of the ring and that no gap tells yet
	told     bool
	hint     []byte
}

func newCapture(s Stream, pipe *os.File) *capture {
	return &capture{stream: s, pipe: pipe, done: make(chan struct{})}
}

// run reads until the end of the stream or the pipe's deadline.
func (c *capture) run() {
	defer close(c.done)
	buf := make([]byte, maxFrameBody)
	for {
		n, err := c.pipe.Read(buf)
		if n > 0 {
			c.take(buf[:n])
		}
		if err != nil {
			break
		}
	}
	c.finish()
}

func (c *capture) take(data []byte) {
	c.count.Bytes += int64(len(data))
	if c.stream == Stderr {
		c.hint = append(c.hint, data[max(0, len(data)-hintBytes):]...)
		c.hint = c.hint[max(0, len(c.hint)-hintBytes):]
	}
	if c.file != nil {
		c.takeFile(data)
		return
	}
	if !c.full {
		if data = data[c.log.append(c.stream, data):]; len(data) == 0 {
			return
		}
	}
	// From here on order forbids going back to the log before the end.
	c.full = true
	c.ring = append(c.ring, data...)
	if over := len(c.ring) - tailBytes; over > 0 {
		c.lost += int64(over)
		c.count.Dropped += int64(over)
		c.ring = append(c.ring[:0], c.ring[over:]...)
	}
	if c.lost > 0 && (!c.told || c.lost >= gapStep) && c.log.gap(c.stream, c.lost) {
		c.told, c.lost = true, 0
	}
}

func (c *capture) takeFile(data []byte) {
	keep := data
	if room := c.fileLimit - (c.count.Bytes - int64(len(data)) - c.count.Dropped); int64(len(keep)) > room {
		keep, c.overflow = keep[:max(room, 0)], true
	}
	if c.fileBroke {
		keep = nil
	}
	n, err := c.file.Write(keep)
	if err != nil {
		// A hole in the middle would be worse than an end that is missing.
		c.fileBroke, c.overflow = true, true
		c.diskFull = c.diskFull || isDiskFull(err)
	}
	c.count.Dropped += int64(len(data) - n)
}

// finish writes what was kept beyond the limit: the gap, then the tail.
func (c *capture) finish() {
	if c.lost > 0 && c.log.gap(c.stream, c.lost) {
		c.lost = 0
	}
	for tail := c.ring; len(tail) > 0; {
		part := tail[:min(len(tail), maxFrameBody)]
		if !c.log.force(byte(c.stream), part) {
			c.count.Dropped += int64(len(tail))
			c.log.gap(c.stream, int64(len(tail)))
			break
		}
		tail = tail[len(part):]
	}
	c.ring = nil
}

func (c *capture) says(texts ...string) bool {
	for _, t := range texts {
		if bytes.Contains(c.hint, []byte(t)) {
			return true
		}
	}
	return false
}
