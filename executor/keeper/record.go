package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/macexec/macexec/internal/fault"
)

// ErrDamaged is wrapped by the error of a record that is there but cannot be
// believed.
var ErrDamaged = errors.New("damaged record")

const (
	maxRecordBytes = 256 << 10
	// reserveBytes is room enough for every exit record: its lists and texts are
	// bounded by maxListed and maxErrorText.
	reserveBytes = 16 << 10
	maxListed    = 64
	maxErrorText = 2 << 10
)

// Holder names the keeper in the lock file. It is written only after the keeper
// has begun to listen for SIGUSR1, so whoever reads it may send that signal.
type Holder struct {
	Process
}

// Started is written before the tool's first instruction, and before the launcher is
// let go: an Exit that says NotStarted tells that the launcher did not become the tool.
type Started struct {
	Pid             int    `json:"pid"`
	StartTime       string `json:"start_time"`
	KeeperPid       int    `json:"keeper_pid"`
	KeeperStartTime string `json:"keeper_start_time"`
	BootSession     string `json:"boot_session"`
	// Token is the value of TagVariable in the environment of every process of
	// the attempt.
	Token       string        `json:"token"`
	At          time.Time     `json:"at"`
	StopSignal  int           `json:"stop_signal"`
	Grace       time.Duration `json:"grace"`
	Confinement Confinement   `json:"confinement"`
}

// Tool is the identity of the tool's first process, which leads its session.
func (s Started) Tool() Process { return Process{s.Pid, s.StartTime} }

// Keeper is the identity of the keeper.
func (s Started) Keeper() Process { return Process{s.KeeperPid, s.KeeperStartTime} }

// StoppedFor says why the keeper stopped a tool.
type StoppedFor string

// The reasons for which a keeper stops a tool.
const (
	StoppedForNothing StoppedFor = ""
	StoppedForRequest StoppedFor = "request"
	StoppedForTimeout StoppedFor = "timeout"
)

// Exit is written when the tool has ended and its tree has been swept.
type Exit struct {
	// NotStarted: not one instruction of the tool ran; Error says why.
	NotStarted bool   `json:"not_started,omitzero"`
	Error      string `json:"error,omitzero"`
	// TooLate: it was not started because start_by had passed.
	TooLate bool `json:"too_late,omitzero"`
	// Code is the exit code when Signal is zero.
	Code       int        `json:"code"`
	Signal     int        `json:"signal,omitzero"`
	CoreDumped bool       `json:"core_dumped,omitzero"`
	StoppedFor StoppedFor `json:"stopped_for,omitzero"`

	// Leftover counts the processes that outlived the tool's first one and were
	// ended; Escaped lists those that could not be.
	Leftover int       `json:"leftover,omitzero"`
	Escaped  []Process `json:"escaped,omitzero"`

	Stdout StreamCount `json:"stdout"`
	Stderr StreamCount `json:"stderr"`
	// CaptureOverflow: the captured standard output is cut at its limit.
	CaptureOverflow bool `json:"capture_overflow,omitzero"`
	// DiskFull: the keeper met the end of the disk, or the tool said that it did.
	DiskFull bool `json:"disk_full,omitzero"`
	// NoRoom: when the tool had exited with 0, the disk of its work folder had no room
	// left. Whether it met the end of it nobody outside can see, so nothing that it
	// wrote there is known to be whole.
	NoRoom bool `json:"no_room,omitzero"`
	// OutOfMemory: the tool failed and said that it could not get memory.
	OutOfMemory bool `json:"out_of_memory,omitzero"`
	// Unflushed: the outputs could not all be brought to the disk.
	Unflushed bool `json:"unflushed,omitzero"`

	Usage Usage         `json:"usage"`
	At    time.Time     `json:"at"`
	Wall  time.Duration `json:"wall"`
}

// StreamCount counts the bytes a stream gave, and those of them that are not
// kept.
type StreamCount struct {
	Bytes   int64 `json:"bytes"`
	Dropped int64 `json:"dropped,omitzero"`
}

// Usage is what the reaped processes used. Its peak has a floor of a few
// megabytes, since the launcher becomes the tool and its own peak stays counted.
type Usage struct {
	UserCPU   time.Duration `json:"user_cpu"`
	SystemCPU time.Duration `json:"system_cpu"`
	// MaxRSS is the peak of the largest process, in bytes.
	MaxRSS    int64 `json:"max_rss"`
	InBlocks  int64 `json:"in_blocks"`
	OutBlocks int64 `json:"out_blocks"`
	// Whole: every process that the tool started was reaped, and so is in the figures.
	Whole bool `json:"whole,omitzero"`
}

// StopRequest is the durable request to stop an attempt.
type StopRequest struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Fence is the durable decision that no keeper may start this attempt any more.
type Fence struct {
	At time.Time `json:"at"`
}

// ReadHolder reads who holds the lock. An empty file (nobody has taken it over
// yet) is an error that wraps os.ErrNotExist.
func ReadHolder(d Dir) (Process, error) {
	var h Holder
	data, err := readBounded(d.Lock())
	if err != nil {
		return Process{}, err
	}
	if len(data) == 0 {
		return Process{}, fmt.Errorf("no holder yet: %w", os.ErrNotExist)
	}
	if err := decode(data, &h); err != nil {
		return Process{}, err
	}
	return h.Process, h.check()
}

// ReadStarted reads the started record; no record is os.ErrNotExist.
func ReadStarted(d Dir) (Started, error) {
	var s Started
	if err := read(d.Started(), &s); err != nil {
		return Started{}, err
	}
	if err := errors.Join(s.Tool().check(), s.Keeper().check()); err != nil {
		return Started{}, err
	}
	return s, nil
}

// ReadExit reads the exit record; no record is os.ErrNotExist.
func ReadExit(d Dir) (Exit, error) {
	var e Exit
	err := read(d.Exit(), &e)
	return e, err
}

// ReadStopRequest reads the stop request; no request is os.ErrNotExist.
func ReadStopRequest(d Dir) (StopRequest, error) {
	var s StopRequest
	err := read(d.StopRequest(), &s)
	return s, err
}

// WriteStopRequest stores a stop request durably. The first one stands. On a full disk it
// is the name alone, which is all that a keeper looks for: it may be its tool that has
// filled the disk.
func WriteStopRequest(d Dir, s StopRequest) error {
	err := writeOnce(d.StopRequest(), s)
	if !isDiskFull(err) {
		return err
	}
	return restoring(d.StopRequest(), func() error {
		f, err := os.OpenFile(d.StopRequest(), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(f.Close(), syncFolder(d.Keeper()))
	})
}

// WriteFence stores the fence durably. The caller holds the attempt's lock.
func WriteFence(d Dir, f Fence) error { return writeOnce(d.Fenced(), f) }

// IsFenced reports whether the attempt is fenced.
func IsFenced(d Dir) (bool, error) { return exists(d.Fenced()) }

func exists(path string) (bool, error) {
	err := restoring(path, func() error {
		_, err := os.Lstat(path)
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func read(path string, into any) error {
	data, err := readBounded(path)
	if err != nil {
		return err
	}
	return decode(data, into)
}

func readBounded(path string) ([]byte, error) {
	var f *os.File
	err := restoring(path, func() (err error) {
		f, err = os.Open(path)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := at(path, "read"); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecordBytes {
		return nil, fmt.Errorf("%w: too large", ErrDamaged)
	}
	return data, nil
}

// decode lets unknown names pass: the record may come from a newer keeper.
func decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

func writeOnce(path string, v any) error {
	switch there, err := exists(path); {
	case err != nil:
		return err
	case there:
		// Perhaps its writer died before it made the name durable.
		return restoring(path, func() error { return syncFolder(filepath.Dir(path)) })
	}
	return write(path, v)
}

// write puts a record in place: whoever sees the name sees the whole record, and
// when write returns the record survives a power cut.
func write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return restoring(path, func() error { return writeData(path, data) })
}

func writeData(path string, data []byte) error {
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = at(path, "write")
	if err == nil {
		_, err = f.Write(data)
	}
	if err != nil {
		f.Close()
		os.Remove(temp)
		return err
	}
	return finish(f, temp, path)
}

// writeReserved is write, in room that was taken before: it works on a full disk.
func writeReserved(reserve, path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return restoring(path, func() error { return writeReservedData(reserve, path, data) })
}

func writeReservedData(reserve, path string, data []byte) error {
	f, err := os.OpenFile(reserve, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = at(path, "write")
	if err == nil {
		_, err = f.WriteAt(data, 0)
	}
	if err != nil {
		f.Close()
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		f.Close()
		return err
	}
	return finish(f, reserve, path)
}

func finish(f *os.File, temp, path string) error {
	if err := syncFile(f, path); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := at(path, "rename"); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	if err := at(path, "names"); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	return at(path, "done")
}

func syncFile(f *os.File, path string) error {
	if err := at(path, "sync"); err != nil {
		return err
	}
	return f.Sync()
}

// at is the fault point before a step of writing or reading a record.
func at(path, step string) error {
	if !fault.On {
		return nil
	}
	return fault.Err("record." + filepath.Base(path) + "." + step)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// writeHolder fills the lock file. It is no durable record: it only names a
// process that lives as long as the lock is held.
func writeHolder(lock *os.File, p Process) error {
	data, err := json.Marshal(Holder{p})
	if err != nil {
		return err
	}
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt(data, 0)
	return err
}
