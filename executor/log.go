package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor/keeper"
)

// Stream is one output of a tool.
type Stream = keeper.Stream

// The outputs of a tool.
const (
	Stdout = keeper.Stdout
	Stderr = keeper.Stderr
)

// LogOptions select a part of a log.
type LogOptions struct {
	// Stream is the only one wanted; zero is both.
	Stream Stream
	// Cursor is where to begin: zero or the Cursor of an earlier chunk.
	Cursor int64
	// TailBytes begins so late that about this much is left; zero is everything.
	TailBytes int64
	// Follow goes on until the attempt has ended and everything was read.
	Follow bool
}

// LogChunk is one piece of a log: bytes as the tool wrote them, or a gap.
type LogChunk struct {
	Stream Stream
	Time   time.Time
	Data   []byte
	// Gap is how many bytes are missing here. At a damaged or torn end of the log
	// it counts the bytes of the file that cannot be read, and Stream is zero.
	Gap int64
	// Cursor is where the next chunk begins.
	Cursor int64
}

// ReadLog gives a log's chunks to yield, in order, until it answers an error,
// which ReadLog returns. Each reader is on its own: a slow one holds up nobody.
func (x *Executor) ReadLog(ctx context.Context, job string, n int, o LogOptions, yield func(LogChunk) error) error {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return err
	}
	l := &logReading{x: x, dir: d, options: o, seen: map[Stream]int64{}}
	l.yield = func(c LogChunk) error {
		l.seen[c.Stream] += int64(len(c.Data)) + c.Gap
		return yield(c)
	}
	defer l.close()
	var events <-chan struct{}
	if o.Follow {
		err := keeper.Restoring(d, func() error {
			_, err := os.Lstat(d.Keeper())
			return err
		})
		if err != nil {
			return err
		}
		changes := watchFolder(d.Keeper())
		defer changes.close()
		events = changes.events
	}
	for {
		// Asked before reading: what was written before the end is then seen.
		over := !o.Follow || x.hasEnded(d)
		if err := l.read(ctx, over); err != nil {
			return err
		}
		if over {
			return l.missing()
		}
		select {
		case <-events:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type logReading struct {
	x       *Executor
	dir     Dir
	options LogOptions
	yield   func(LogChunk) error
	file    *os.File
	reader  *keeper.LogReader
	seen    map[Stream]int64 // bytes told of: given, or named as a gap
}

func (l *logReading) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// open opens the log, if it is there by now.
func (l *logReading) open() error {
	if l.file != nil {
		return nil
	}
	var f *os.File
	err := keeper.Restoring(l.dir, func() (err error) {
		f, err = os.Open(l.dir.Log())
		return err
	})
	if err != nil {
		return err
	}
	l.file = f
	start := l.options.Cursor
	if l.options.TailBytes > 0 {
		if start, err = tailStart(f, start, l.options); err != nil {
			return err
		}
	}
	l.reader = keeper.NewLogReader(f, start)
	return nil
}

// read gives away everything that is there. final says that nothing more comes.
func (l *logReading) read(ctx context.Context, final bool) error {
	if err := l.open(); err != nil {
		if errors.Is(err, fs.ErrNotExist) && (l.options.Follow || !l.x.isGone(l.dir)) {
			return nil // not written yet, or never will be
		}
		return err
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f, err := l.reader.Next()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, keeper.ErrIncomplete), errors.Is(err, keeper.ErrDamaged):
			if final {
				return l.rest()
			}
			return nil
		default:
			return fmt.Errorf("read the log: %w", err)
		}
		if l.options.Stream != 0 && l.options.Stream != f.Stream {
			continue
		}
		if err := l.yield(LogChunk{f.Stream, f.Time, f.Data, f.Gap, f.Next}); err != nil {
			return err
		}
	}
}

// missing tells a reader of everything what the keeper counted but could not write
// down, as on a full disk (promise G12).
func (l *logReading) missing() error {
	o := l.options
	if o.Cursor != 0 || o.TailBytes > 0 || o.Stream != 0 {
		return nil
	}
	exit, err := keeper.ReadExit(l.dir)
	if err != nil {
		return nil //nolint:nilerr // without an end there is no count to compare with
	}
	counts := map[Stream]int64{Stderr: exit.Stderr.Bytes, Stdout: exit.Stdout.Bytes}
	if _, err := os.Lstat(l.dir.Stdout()); err == nil {
		delete(counts, Stdout) // captured, so not in the log
	}
	for _, stream := range []Stream{Stdout, Stderr} {
		lost := counts[stream] - l.seen[stream]
		if lost <= 0 {
			continue
		}
		if err := l.yield(LogChunk{Stream: stream, Time: exit.At, Gap: lost, Cursor: l.end()}); err != nil {
			return err
		}
	}
	return nil
}

// end is the cursor behind everything that can be read.
func (l *logReading) end() int64 {
	if l.reader == nil {
		return 0
	}
	return l.reader.Offset()
}

// rest tells that the bytes from here on cannot be read.
func (l *logReading) rest() error {
	st, err := l.file.Stat()
	if err != nil {
		return err
	}
	lost := st.Size() - l.reader.Offset()
	if lost <= 0 {
		return nil
	}
	return l.yield(LogChunk{Gap: lost, Cursor: st.Size()})
}

// tailStart finds the first frame after which no more than the wanted bytes come,
// beginning one frame earlier.
func tailStart(f *os.File, from int64, o LogOptions) (int64, error) {
	type mark struct{ offset, before int64 }
	var marks []mark // frames that may still be the start, oldest first
	var total int64
	r := keeper.NewLogReader(f, from)
	for {
		at := r.Offset()
		frame, size, err := r.Skip()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, keeper.ErrIncomplete), errors.Is(err, keeper.ErrDamaged):
			if len(marks) == 0 {
				return at, nil
			}
			return marks[0].offset, nil
		case err != nil:
			return 0, err
		}
		if o.Stream != 0 && o.Stream != frame.Stream {
			continue
		}
		marks = append(marks, mark{at, total})
		total += size
		for len(marks) > 1 && total-marks[1].before >= o.TailBytes {
			marks = marks[1:]
		}
	}
}

// hasEnded reports whether nobody writes to the attempt's folder any more.
func (x *Executor) hasEnded(d Dir) bool {
	if _, err := os.Lstat(d.Exit()); err == nil {
		return true
	}
	if p, err := keeper.ReadHolder(d); err == nil {
		return !p.Alive()
	}
	// Nobody has said a name: it is over unless somebody holds the lock.
	x.locks.Lock()
	defer x.locks.Unlock()
	f, err := os.Open(d.Lock())
	if err != nil {
		return true
	}
	defer freeLock(f)
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}

func (x *Executor) isGone(d Dir) bool {
	_, err := os.Lstat(d.Keeper())
	return err != nil
}
