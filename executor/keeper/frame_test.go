package keeper

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sampleLog() []byte {
	at := time.Unix(1, 2)
	log := appendFrame(nil, byte(Stdout), at, []byte("one\xff\x00"))
	log = appendGap(log, Stdout, at, 77)
	log = appendFrame(log, byte(Stderr), at, nil)
	return appendFrame(log, byte(Stderr), at, []byte("two"))
}

func readAll(log []byte) (frames []Frame, err error) {
	r := NewLogReader(bytes.NewReader(log), 0)
	for {
		f, err := r.Next()
		if err != nil {
			return frames, err
		}
		frames = append(frames, f)
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	log := sampleLog()
	got, err := readAll(log)
	at := time.Unix(1, 2)
	want := []Frame{
		{Stream: Stdout, Time: at, Data: []byte("one\xff\x00"), Next: 25},
		{Stream: Stdout, Time: at, Gap: 77, Next: 53},
		{Stream: Stderr, Time: at, Data: []byte{}, Next: 73},
		{Stream: Stderr, Time: at, Data: []byte("two"), Next: 96},
	}
	if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, io.EOF) {
		t.Errorf("%v; frames (-want +got):\n%s", err, diff)
	}
	// A cursor is the Next of any frame.
	r := NewLogReader(bytes.NewReader(log), want[1].Next)
	if f, size, err := r.Skip(); err != nil || size != 0 || f.Next != 73 {
		t.Errorf("skip: %+v, %d, %v", f, size, err)
	}
	if f, size, err := r.Skip(); err != nil || size != 3 || f.Next != 96 {
		t.Errorf("skip: %+v, %d, %v", f, size, err)
	}
	// Cut anywhere: the frames before stand, and the rest is read once it is there.
	ends := map[int]bool{0: true, 25: true, 53: true, 73: true, 96: true}
	for cut := range log {
		r := NewLogReader(bytes.NewReader(log[:cut]), 0)
		n := 0
		for {
			_, err := r.Next()
			if err == nil {
				n++
				continue
			}
			if want := map[bool]error{true: io.EOF, false: ErrIncomplete}[ends[cut]]; !errors.Is(err, want) {
				t.Errorf("cut at %d: %v, want %v", cut, err, want)
			}
			break
		}
		r.src = bytes.NewReader(log)
		for ; ; n++ {
			if _, err := r.Next(); err != nil {
				break
			}
		}
		if n != len(want) {
			t.Errorf("cut at %d: %d frames", cut, n)
		}
	}
	// One flipped bit is damage, never another content.
	for i := range log {
		bad := bytes.Clone(log)
		bad[i] ^= 0x10
		frames, err := readAll(bad)
		if errors.Is(err, io.EOF) || len(frames) >= len(want) {
			t.Errorf("bit flipped at %d: %d frames, %v", i, len(frames), err)
		}
	}
}

func FuzzLogReader(f *testing.F) {
	f.Add(sampleLog())
	f.Add(make([]byte, 64))
	f.Add(appendFrame(nil, Stdout.gap(), time.Unix(0, 0), []byte("short")))
	f.Fuzz(func(t *testing.T, log []byte) {
		r := NewLogReader(bytes.NewReader(log), 0)
		for {
			before := r.Offset()
			frame, err := r.Next()
			if err != nil {
				if r.Offset() != before {
					t.Error("an error moved the reader")
				}
				return
			}
			if frame.Next <= before || frame.Next > int64(len(log)) || len(frame.Data) > maxFrameBody || frame.Gap < 0 {
				t.Errorf("frame %+v at %d", frame, before)
			}
		}
	})
}

func TestLogFileTakesBackWhatWasCutShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := &logFile{file: f, limit: 1 << 20}
	if l.append(Stdout, []byte("kept")) != 4 {
		t.Fatal("not written")
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no device that is always full")
	}
	defer full.Close()
	l.file = full
	if l.append(Stdout, []byte("lost")) != 0 || !l.diskFull {
		t.Errorf("disk full was not seen: %+v", l)
	}
	l.file = f
	if l.append(Stdout, []byte("later")) != 5 {
		t.Fatal("not written after there was room again")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := readAll(data)
	if len(frames) != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("%d frames, %v", len(frames), err)
	}
}

// G12: how much of the beginning is kept does not depend on the size of the reads.
func TestLogKeepsItsBeginningWhateverTheReads(t *testing.T) {
	t.Parallel()
	said := bytes.Repeat([]byte("0123456789abcdef"), 20<<10) // 320 KiB
	const limit = 64 << 10
	for _, reads := range [][]int{{maxFrameBody}, {588, maxFrameBody}, {limit - frameHeader}, {limit - frameHeader - 1, 2, maxFrameBody}, {4096}} {
		path := filepath.Join(t.TempDir(), "log")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		c := newCapture(Stdout, nil)
		c.log = &logFile{file: f, limit: limit}
		for rest, i := said, 0; len(rest) > 0; i++ {
			n := min(reads[min(i, len(reads)-1)], len(rest))
			c.take(rest[:n])
			rest = rest[n:]
		}
		c.finish()
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		frames, err := readAll(log)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		var beginning, end []byte
		var gap int64
		for _, frame := range frames {
			gap += frame.Gap
			if gap == 0 {
				beginning = append(beginning, frame.Data...)
			} else {
				end = append(end, frame.Data...)
			}
		}
		if len(beginning) < limit-limit/64 || !bytes.HasPrefix(said, beginning) {
			t.Errorf("reads of %v: %d bytes of the beginning are kept, of a limit of %d", reads, len(beginning), limit)
		}
		if len(end) != tailBytes || !bytes.HasSuffix(said, end) || int64(len(beginning)+len(end))+gap != int64(len(said)) {
			t.Errorf("reads of %v: %d bytes at the end and a gap of %d after %d", reads, len(end), gap, len(beginning))
		}
	}
}

func TestExitRecordHasItsRoom(t *testing.T) {
	t.Parallel()
	d := Dir(t.TempDir())
	if err := os.Mkdir(d.Keeper(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := reserve(d.Reserve()); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(d.Reserve(), &st); err != nil || int64(st.Blocks)*512 < reserveBytes {
		t.Errorf("reserved %d blocks, %v", st.Blocks, err)
	}
	worst := Exit{Error: string(bytes.Repeat([]byte{1}, maxErrorText)), Escaped: make([]Process, maxListed)}
	for i := range worst.Escaped {
		worst.Escaped[i] = Process{1 << 30, "18446744073709551615"}
	}
	if err := writeReserved(d.Reserve(), d.Exit(), worst); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(d.Exit())
	if err != nil || fi.Size() > reserveBytes {
		t.Errorf("the largest record has %d bytes, %v", fi.Size(), err)
	}
	got, err := ReadExit(d)
	if diff := cmp.Diff(worst, got); diff != "" || err != nil {
		t.Errorf("%v; (-want +got):\n%s", err, diff)
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"pid":2,"start_time":"7","keeper_pid":3,"keeper_start_time":"8"}`))
	f.Add([]byte(`{"code":1,"signal":9,"escaped":[{"pid":4,"start_time":"x"}],"at":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"argv":"YQBi","pid":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := Dir(t.TempDir())
		if err := os.Mkdir(d.Keeper(), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{d.Started(), d.Exit(), d.StopRequest(), d.Lock()} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := ReadStarted(d); err == nil {
			if s.Pid <= 1 || s.KeeperPid <= 1 || s.StartTime == "" {
				t.Errorf("believed %+v", s)
			}
		} else if !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
		if p, err := ReadHolder(d); err == nil && p.Pid <= 1 {
			t.Errorf("believed %+v", p)
		}
		if _, err := ReadExit(d); err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
		if _, err := ReadStopRequest(d); err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
		if s, err := readSpec(bytes.NewReader(data)); err == nil && s.Launch.Argv[0][0] != '/' {
			t.Errorf("believed %+v", s)
		}
	})
}
