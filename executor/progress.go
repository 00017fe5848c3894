package executor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// progressWindow is how much of the end of a progress file is read; a block is a
// few hundred bytes.
const progressWindow = 64 << 10

// Progress is how far a tool says it is. It is advice: nil is unknown, every
// number is finite, and it never decides what becomes of a job.
type Progress struct {
	// Percent lies between 0 and 100 and reaches 100 only when the tool said that
	// it was done.
	Percent *float64
	Frame   *int64
	FPS     *float64
	// Speed is a multiple of real time.
	Speed   *float64
	OutTime *time.Duration
	ETA     *time.Duration
	// Done: the tool wrote its last block.
	Done bool
}

// Progress reads a progress file that the tool writes below its work folder; no
// file yet is unknown progress.
func (x *Executor) Progress(job string, n int, name string, total time.Duration) (Progress, error) {
	d, err := x.attemptDir(job, n)
	if err != nil {
		return Progress{}, err
	}
	// The folder is the tool's: a link must not lead out of it, and a pipe must
	// not make us wait.
	root, err := os.OpenRoot(d.Work())
	if err != nil {
		return Progress{}, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Progress{}, nil
	}
	if err != nil {
		return Progress{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Progress{}, err
	}
	if !st.Mode().IsRegular() {
		return Progress{}, errors.New("the progress file is not a regular file")
	}
	from := max(0, st.Size()-progressWindow)
	data, err := io.ReadAll(io.NewSectionReader(f, from, progressWindow))
	if err != nil {
		return Progress{}, err
	}
	if from > 0 { // begin with a whole line
		_, data, _ = bytes.Cut(data, []byte{'\n'})
	}
	return ParseProgress(data, total), nil
}

// ParseProgress reads what ffmpeg writes for -progress: blocks of key=value lines,
// each closed by a progress line. Values go forward only; what cannot be read is
// passed over. total is the length of the whole, zero if it is not known.
//
// Both out_time_us and out_time_ms count microseconds, whatever the latter's name
// says, and any value may be N/A.
func ParseProgress(data []byte, total time.Duration) Progress {
	var p, block Progress
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		key, value, ok := bytes.Cut(line, []byte{'='})
		if !ok {
			continue
		}
		text := string(bytes.TrimSpace(value))
		switch string(bytes.TrimSpace(key)) {
		case "frame":
			if v, err := strconv.ParseInt(text, 10, 64); err == nil && v >= 0 {
				block.Frame = &v
			}
		case "fps":
			block.FPS = positive(text)
		case "speed":
			block.Speed = positive(string(bytes.TrimSuffix([]byte(text), []byte("x"))))
		case "out_time_us", "out_time_ms":
			v, err := strconv.ParseInt(text, 10, 64)
			if err == nil && v >= 0 && v <= math.MaxInt64/int64(time.Microsecond) {
				at := time.Duration(v) * time.Microsecond
				block.OutTime = &at
			}
		case "progress":
			block.Done = text == "end"
			p = p.then(block)
			block = Progress{}
		}
	}
	return p.measured(total)
}

// then is p followed by a newer block: positions never go back.
func (p Progress) then(next Progress) Progress {
	if next.Frame == nil || (p.Frame != nil && *p.Frame > *next.Frame) {
		next.Frame = p.Frame
	}
	if next.OutTime == nil || (p.OutTime != nil && *p.OutTime > *next.OutTime) {
		next.OutTime = p.OutTime
	}
	next.Done = next.Done || p.Done
	return next
}

// measured is p with what follows from the length of the whole.
func (p Progress) measured(total time.Duration) Progress {
	hundred := 100.0
	if p.Done {
		p.Percent = &hundred
		return p
	}
	if total <= 0 || p.OutTime == nil {
		return p
	}
	// Only an end line is an end: a clip longer than announced stays below.
	percent := min(100*float64(*p.OutTime)/float64(total), 99.9)
	p.Percent = &percent
	if p.Speed != nil {
		left := float64(total-min(*p.OutTime, total)) / *p.Speed
		if left <= float64(math.MaxInt64/2) {
			eta := time.Duration(left)
			p.ETA = &eta
		}
	}
	return p
}

func positive(text string) *float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
