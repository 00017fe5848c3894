package executor_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

func TestLogKeepsTheBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.run("j", command("bytes", "1048576"))
	sum := sha256.Sum256(b.output("j", executor.Stdout))
	if got, want := hex.EncodeToString(sum[:]), string(b.output("j", executor.Stderr)); got != want {
		t.Errorf("the log's digest is %s, the tool wrote %s", got, want)
	}
	if e.Stdout.Dropped != 0 || e.Stderr.Bytes != 64 {
		t.Errorf("exit: %+v", e)
	}
}

// G12: output beyond the limit never holds the tool up; every gap is told, the
// end is kept, and nothing is missing from the sum.
func TestLogGaps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("flood", "1000") // 64 MiB on each stream
	cmd.Limits.LogBytes = 1 << 20
	r := b.start("j", cmd)

	// A follower that reads one chunk and then no more until the tool has ended.
	released := make(chan struct{})
	slow := make(chan error, 1)
	var followed int64
	go func() {
		slow <- b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{Follow: true}, func(c executor.LogChunk) error {
			<-released
			followed += int64(len(c.Data)) + c.Gap
			return nil
		})
	}()
	e := b.exited(r)
	close(released)
	if err := <-slow; err != nil {
		t.Fatal(err)
	}
	if followed != e.Stdout.Bytes+e.Stderr.Bytes {
		t.Errorf("the follower was told of %d bytes, the tool wrote %d", followed, e.Stdout.Bytes+e.Stderr.Bytes)
	}
	for stream, count := range map[executor.Stream]keeper.StreamCount{executor.Stdout: e.Stdout, executor.Stderr: e.Stderr} {
		var data []byte
		var gap int64
		gaps := 0
		err := b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{Stream: stream}, func(c executor.LogChunk) error {
			data = append(data, c.Data...)
			gap += c.Gap
			if c.Gap > 0 {
				gaps++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(1000*65536 + len("the end")); count.Bytes != want || int64(len(data))+gap != want || gap != count.Dropped {
			t.Errorf("%v: count %+v, %d bytes and %d in %d gaps, want %d", stream, count, len(data), gap, gaps, want)
		}
		if gaps < 1 || !strings.HasSuffix(string(data), "the end") {
			t.Errorf("%v: %d gaps, end %q", stream, gaps, data[max(0, len(data)-10):])
		}
	}
	if st, err := os.Stat(r.Dir().Log()); err != nil || st.Size() > 2<<20 {
		t.Errorf("log file: %v, %v", st.Size(), err)
	}
}

func TestLogCursorTailAndFollow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run("j", command("flood", "20"))
	var whole []byte
	var cursor int64
	// In pieces, each with a fresh reader.
	for {
		read := 0
		err := b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{Stream: executor.Stdout, Cursor: cursor}, func(c executor.LogChunk) error {
			if read > 0 {
				return errSeen
			}
			read++
			whole, cursor = append(whole, c.Data...), c.Cursor
			return nil
		})
		if err != nil && !errors.Is(err, errSeen) {
			t.Fatal(err)
		}
		if read == 0 {
			break
		}
	}
	if want := b.output("j", executor.Stdout); !bytes.Equal(whole, want) || len(want) != 20*65536+7 {
		t.Errorf("read %d bytes by cursor, %d at once", len(whole), len(want))
	}
	var tail []byte
	err := b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{Stream: executor.Stdout, TailBytes: 100}, func(c executor.LogChunk) error {
		tail = append(tail, c.Data...)
		return nil
	})
	if err != nil || len(tail) < 100 || len(tail) > 100+2*65536 || !bytes.HasSuffix(whole, tail) {
		t.Errorf("tail of %d bytes, %v", len(tail), err)
	}
	// A follower ends with the attempt, also if it was there before the start and
	// if the keeper dies without a word.
	a, err := b.x.Prepare("late", 1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- b.x.ReadLog(t.Context(), "late", 1, executor.LogOptions{Follow: true}, func(executor.LogChunk) error { return nil })
	}()
	r, err := a.Start(command("block"))
	if err != nil {
		t.Fatal(err)
	}
	b.ready("late", 1)
	s := b.started(r)
	select {
	case err := <-done:
		t.Fatalf("the follower ended early: %v", err)
	default:
	}
	kill(t, s.Keeper())
	if err := <-done; err != nil {
		t.Errorf("follow: %v", err)
	}
	kill(t, s.Tool())
	b.wait(r)
	if err := b.x.ReadLog(t.Context(), "none", 1, executor.LogOptions{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no attempt: %v", err)
	}
}

// G12: what cannot be read is a gap, too.
func TestLogDamagedEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("say", "out", ""))
	b.exited(r)
	f, err := os.OpenFile(r.Dir().Log(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 33)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, follow := range []bool{false, true} {
		var out string
		var gap int64
		err := b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{Follow: follow}, func(c executor.LogChunk) error {
			out += string(c.Data)
			gap += c.Gap
			return nil
		})
		if err != nil || out != "out" || gap != 33 {
			t.Errorf("follow %v: %q, gap %d, %v", follow, out, gap, err)
		}
	}
}

// G12: what the keeper counted but could not write down is a gap, too.
func TestLogThatCouldNotBeWritten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.start("j", command("say", "out", "err!"))
	b.exited(r)
	if err := os.Truncate(r.Dir().Log(), 0); err != nil {
		t.Fatal(err)
	}
	gaps := map[executor.Stream]int64{}
	err := b.x.ReadLog(t.Context(), "j", 1, executor.LogOptions{}, func(c executor.LogChunk) error {
		gaps[c.Stream] += c.Gap
		return nil
	})
	if err != nil || gaps[executor.Stdout] != 3 || gaps[executor.Stderr] != 4 {
		t.Errorf("gaps %v, %v", gaps, err)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("write", "progress")
	r := b.start("j", cmd)
	b.exited(r)
	write := func(text string) {
		if err := os.WriteFile(r.Dir().Work()+"/progress", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := b.x.Progress("j", 1, "none", time.Second); err != nil || p.Percent != nil {
		t.Errorf("no file: %+v, %v", p, err)
	}
	write(strings.Repeat("frame=1\nout_time_us=100\nprogress=continue\n", 10_000) + "out_time_us=5000000\nspeed=2.0x\nprogress=continue\n")
	p, err := b.x.Progress("j", 1, "progress", 10*time.Second)
	if err != nil || p.Percent == nil || *p.Percent != 50 || p.ETA == nil || *p.ETA != 2500*time.Millisecond {
		t.Errorf("progress: %+v, %v", p, err)
	}
	if _, err := b.x.Progress("j", 1, "../keeper/log", time.Second); err == nil {
		t.Error("read outside the work folder")
	}
	if err := os.Symlink("/etc/passwd", r.Dir().Work()+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.x.Progress("j", 1, "link", time.Second); err == nil {
		t.Error("followed a link out of the work folder")
	}
}
