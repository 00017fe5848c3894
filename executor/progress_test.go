package executor_test

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
)

const recorded = `frame=0
fps=0.00
out_time_us=N/A
out_time_ms=N/A
out_time=N/A
speed=N/A
progress=continue
frame=50
fps=25.5
out_time_us=-21333
out_time_ms=2000000
out_time=00:00:02.000000
speed=   2x
progress=continue
frame=40
fps=inf
out_time_us=1000000
speed=nan
progress=continue
frame=250
fps=30
out_time_us=12000000
speed=1.5x
progress=end
`

func TestParseProgress(t *testing.T) {
	t.Parallel()
	first, rest, _ := strings.Cut(recorded, "frame=50")
	p := executor.ParseProgress([]byte(first), 10*time.Second)
	if p.Percent != nil || p.Speed != nil || p.OutTime != nil || p.ETA != nil || p.Done || p.Frame == nil {
		t.Errorf("first block: %+v", p)
	}
	two, _, _ := strings.Cut("frame=50"+rest, "frame=40")
	p = executor.ParseProgress([]byte(first+two), 10*time.Second)
	if p.Percent == nil || *p.Percent != 20 || *p.OutTime != 2*time.Second || *p.ETA != 4*time.Second || *p.Frame != 50 || *p.FPS != 25.5 {
		t.Errorf("second block: %+v", p)
	}
	three, _, _ := strings.Cut(recorded, "frame=250")
	p = executor.ParseProgress([]byte(three), 10*time.Second)
	if *p.OutTime != 2*time.Second || *p.Frame != 50 || p.FPS != nil || p.Speed != nil {
		t.Errorf("third block went back: %+v", p)
	}
	// Longer than announced, and the end.
	long := strings.Replace(recorded, "progress=end", "progress=continue", 1)
	if p = executor.ParseProgress([]byte(long), 10*time.Second); *p.Percent >= 100 || p.Done || *p.ETA != 0 {
		t.Errorf("longer than announced: %+v", p)
	}
	if p = executor.ParseProgress([]byte(recorded), 0); *p.Percent != 100 || !p.Done {
		t.Errorf("end: %+v", p)
	}
	if p = executor.ParseProgress([]byte(long), 0); p.Percent != nil {
		t.Errorf("length unknown: %+v", p)
	}
	// Cut at every byte.
	last := -1.0
	for i := range len(recorded) {
		p := executor.ParseProgress([]byte(recorded[:i]), 10*time.Second)
		if p.Percent != nil {
			if *p.Percent < last {
				t.Errorf("cut at %d: back to %v from %v", i, *p.Percent, last)
			}
			last = *p.Percent
		}
	}
}

func FuzzParseProgress(f *testing.F) {
	f.Add([]byte(recorded), int64(10*time.Second))
	f.Add([]byte("out_time_us=9223372036854775807\nspeed=1e-300x\nprogress=continue\n"), int64(math.MaxInt64))
	f.Add([]byte("out_time_us=9223372036854775808\nframe=9223372036854775808\nfps=1e309\nspeed=-0x\nprogress=continue\n"), int64(1))
	f.Add([]byte("out_time_us=0\nspeed=5e-324x\nprogress=continue\nprogress=end\nout_time_us=1\nprogress=continue\n"), int64(2))
	f.Add([]byte("progress"), int64(-1))
	f.Fuzz(func(t *testing.T, data []byte, total int64) {
		p := executor.ParseProgress(data, time.Duration(total))
		for _, v := range []*float64{p.Percent, p.FPS, p.Speed} {
			if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0) || *v < 0) {
				t.Errorf("not a finite number: %v", *v)
			}
		}
		if p.Percent != nil && (*p.Percent > 100 || (*p.Percent == 100) != p.Done) {
			t.Errorf("percent %v, done %v", *p.Percent, p.Done)
		}
		if p.ETA != nil && *p.ETA < 0 || p.OutTime != nil && *p.OutTime < 0 || p.Frame != nil && *p.Frame < 0 {
			t.Errorf("negative: %+v", p)
		}
		if p.Done && p.Percent == nil {
			t.Error("done without a percentage")
		}
		// What was said when half of the lines were there is not taken back.
		half := bytes.LastIndexByte(data[:len(data)/2], '\n') + 1
		before := executor.ParseProgress(data[:half], time.Duration(total))
		if before.Done && !p.Done || back(before.Percent, p.Percent) || back(before.Frame, p.Frame) || back(before.OutTime, p.OutTime) {
			t.Errorf("%+v went back to %+v", before, p)
		}
	})
}

func back[T cmp.Ordered](before, after *T) bool {
	return before != nil && (after == nil || *after < *before)
}
