package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// outputSize is how much the tool of TestB62 prints: MACEXEC_OUTPUT_MIB is the size in
// MiB.
func outputSize(t *testing.T) int64 {
	t.Helper()
	text := os.Getenv("MACEXEC_OUTPUT_MIB")
	switch {
	case text == "" && raceBuilt:
		return 16 << 20 // the readers of the test are slow then
	case text == "":
		return 72 << 20 // more than a log keeps
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		t.Fatalf("MACEXEC_OUTPUT_MIB is %q, and must be a number of MiB", text)
	}
	return n << 20
}

// readers of one log. Each kind has ten.
type readers struct {
	*daemon

	job      string
	each     int
	begun    sync.WaitGroup // until every reader has had its first piece
	all      sync.WaitGroup
	ctx      context.Context //nolint:containedctx // of the streams that nobody reads
	stop     context.CancelFunc
	finished chan error // of the normal ones
	size     int64
}

// B62: who does not read holds up neither the tool, nor the daemon, nor those who do.
// The tool prints; of fifty readers ten never read, ten get a byte a second, ten are
// stopped processes, ten are gone without a word, and ten read. These get every byte, or
// are told of each that they do not get; the daemon's memory stays bounded; and how long
// the tool takes with all of them and without is logged.
func TestB62_ReadersHoldUpNobody(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.withoutRace()
	size := outputSize(t)
	run := func(name string, with func(id string)) time.Duration {
		open := l.gate(name)
		id := d.submit(call(name, "ledger_none", l.args(name, "print:begin", "gate", fmt.Sprintf("flood:%d", size)))).GetId()
		l.await(name, "begin", 1)
		if with != nil {
			with(id)
		}
		begun := time.Now()
		open()
		l.await(name, "end", 1)
		took := time.Since(begun)
		d.wait(id, completed)
		return took
	}
	alone := run("alone", nil)
	before := d.memory()
	r := &readers{daemon: d, each: 10, size: size/2 + int64(len("begin\n")), finished: make(chan error, 10)}
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	var peak int64
	crowded := run("crowded", func(id string) {
		r.job = id
		r.start()
		r.begun.Wait()
	})
	for range r.each {
		if err := <-r.finished; err != nil {
			t.Error(err)
		}
	}
	peak = d.memory()
	if before > 0 && peak-before >= 64<<20 {
		t.Errorf("the daemon grew from %d MiB to %d", before>>20, peak>>20)
	}
	t.Logf("%d MiB took %v without a reader and %v with fifty; the daemon grew from %d MiB to %d", size>>20, alone.Round(time.Millisecond), crowded.Round(time.Millisecond), before>>20, peak>>20)
	r.stop()
	r.all.Wait()
}

// withoutRace starts the daemon anew without the race detector, which needs many times
// the memory.
func (d *daemon) withoutRace() {
	d.t.Helper()
	if !raceBuilt {
		return
	}
	dir := d.t.TempDir()
	if out, err := exec.Command("go", "build", "-overlay", built.overlay, "-o", dir+"/", "../../cmd/macexec", "../../cmd/macexec-keeper").CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
	d.end(syscall.SIGTERM)
	d.bin = dir
	d.start()
}

// memory is the most that the daemon ever had resident, in bytes; 0 where it cannot be
// told.
func (d *daemon) memory() int64 { return d.peak() << 20 }

func (r *readers) start() {
	for i := range r.each {
		r.begun.Add(5)
		r.all.Go(func() { r.normal(i == 0) })
		r.all.Go(func() { r.idle(nil) })
		r.all.Go(func() { r.idle(slowly) })
		r.all.Go(func() { r.idle(vanish) })
		r.all.Go(r.stopped)
	}
}

// normal reads everything and checks it: each byte, or where each piece begins and ends.
func (r *readers) normal(each bool) {
	got := map[macexecv1.LogStream]int64{}
	first := sync.OnceFunc(r.begun.Done)
	defer first()
	err := r.ReadLogs(r.ctx, &macexecv1.ReadJobLogsRequest{JobId: r.job, Follow: true}, func(c *macexecv1.LogChunk) error {
		first()
		at := got[c.GetStream()]
		got[c.GetStream()] += int64(len(c.GetData())) + c.GetGapBytes()
		if c.GetStream() == macexecv1.LogStream_LOG_STREAM_STDOUT {
			at -= int64(len("begin\n"))
		}
		if data := c.GetData(); !each && len(data) > 64 {
			return errors.Join(r.check(at, data[:32]), r.check(at+int64(len(data)-32), data[len(data)-32:]))
		}
		return r.check(at, c.GetData())
	})
	for stream, want := range map[macexecv1.LogStream]int64{
		macexecv1.LogStream_LOG_STREAM_STDOUT: r.size, macexecv1.LogStream_LOG_STREAM_STDERR: r.size - int64(len("begin\n")),
	} {
		if err == nil && got[stream] != want {
			err = fmt.Errorf("a normal reader was told of %d bytes of %s, want %d", got[stream], stream, want)
		}
	}
	r.finished <- err
}

// check holds that bytes are those of a place in a stream of numbered lines.
func (r *readers) check(at int64, data []byte) error {
	if at < 0 {
		return nil // the line before
	}
	line := at / 16
	want := make([]byte, 0, len(data)+32)
	for int64(len(want)) < at%16+int64(len(data)) {
		want = fmt.Appendf(want, "%015d\n", line)
		line++
	}
	if !bytes.Equal(want[at%16:][:len(data)], data) {
		return fmt.Errorf("the %d bytes at %d are not those that were printed", len(data), at)
	}
	return nil
}

// idle opens a stream, takes its first piece, and reads no more. harm is what becomes of
// its connection then.
func (r *readers) idle(harm func(context.Context, net.Conn, net.Conn)) {
	first := sync.OnceFunc(r.begun.Done)
	defer first()
	path, now := filepath.Join(r.state, "macexec.sock"), make(chan struct{})
	if harm != nil {
		var err error
		if path, err = r.harmed(path, now, harm); err != nil {
			r.t.Error(err)
			return
		}
	}
	c, err := client.Dial("unix:" + path)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer c.Close()
	stream, err := c.Jobs.ReadJobLogs(r.ctx, &macexecv1.ReadJobLogsRequest{JobId: r.job, Follow: true})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		r.t.Errorf("a reader that is to read no more: %v", err)
		return
	}
	close(now)
	first()
	<-r.ctx.Done()
}

// harmed is a way to the daemon that is whole until now.
func (r *readers) harmed(to string, now <-chan struct{}, harm func(context.Context, net.Conn, net.Conn)) (string, error) {
	dir, err := os.MkdirTemp("/tmp", "mx")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		return "", err
	}
	r.all.Go(func() {
		defer os.RemoveAll(dir)
		defer listener.Close()
		near, err := listener.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.Dial("unix", to)
		if err != nil {
			return
		}
		defer far.Close()
		context.AfterFunc(r.ctx, func() { _, _ = near.Close(), far.Close() })
		r.all.Go(func() { _, _ = io.Copy(far, near) })
		for buf := make([]byte, 4<<10); ; {
			n, err := far.Read(buf)
			if err != nil {
				return
			}
			if _, err := near.Write(buf[:n]); err != nil {
				return
			}
			select {
			case <-now:
				harm(r.ctx, far, near)
				return
			default:
			}
		}
	})
	return path, nil
}

// slowly passes on a byte a second.
func slowly(ctx context.Context, far, near net.Conn) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for one := make([]byte, 1); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := far.Read(one); err != nil {
			return
		}
		if _, err := near.Write(one); err != nil {
			return
		}
	}
}

// vanish passes on nothing, and says nothing.
func vanish(ctx context.Context, _, _ net.Conn) { <-ctx.Done() }

// stopped is a process that follows the log and is stopped.
func (r *readers) stopped() {
	first := sync.OnceFunc(r.begun.Done)
	defer first()
	cmd := exec.CommandContext(r.ctx, filepath.Join(r.bin, "macexec"), "jobs", "logs", r.job, "--follow")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + r.state, "MACEXEC_STATE=" + r.state}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Error(err)
		return
	}
	if _, err = out.Read(make([]byte, 1)); err == nil {
		err = cmd.Process.Signal(syscall.SIGSTOP)
	}
	if err != nil {
		r.t.Errorf("a process that is to be stopped: %v", err)
	}
	first()
	if err := cmd.Wait(); r.ctx.Err() == nil || !errors.As(err, new(*exec.ExitError)) {
		r.t.Errorf("a stopped process ended by itself: %v", err)
	}
}
