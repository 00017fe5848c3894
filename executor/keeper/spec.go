package keeper

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

// Defaults for what a Spec leaves at zero.
const (
	DefaultGrace        = 5 * time.Second
	DefaultLogBytes     = 64 << 20
	DefaultCaptureBytes = 16 << 20

	// TagVariable is the environment variable that marks every process of an
	// attempt, so that one which left its session can still be found.
	TagVariable = "MACEXEC_ATTEMPT"

	maxSpecBytes = 16 << 20
)

// Spec is everything a keeper is told. It travels over a pipe and never touches
// the disk, because the environment in it may hold secrets.
type Spec struct {
	Token       string        `json:"token"`
	BootSession string        `json:"boot_session"`
	Launch      Launch        `json:"launch"`
	Timeout     time.Duration `json:"timeout,omitzero"`
	Grace       time.Duration `json:"grace,omitzero"`
	StopSignal  int           `json:"stop_signal,omitzero"`

	// CaptureStdout sends standard output to its own file instead of the log.
	CaptureStdout bool  `json:"capture_stdout,omitzero"`
	LogBytes      int64 `json:"log_bytes,omitzero"`
	CaptureBytes  int64 `json:"capture_bytes,omitzero"`
}

// Launch is what the launcher is told: how to become the tool.
type Launch struct {
	// Argv starts with the absolute path of the executable.
	Argv Strings `json:"argv"`
	// Env is the tool's whole environment.
	Env     Strings `json:"env"`
	Dir     Path    `json:"dir"`
	Limits  Limits  `json:"limits,omitzero"`
	Confine Confine `json:"confine"`
	// StartBy is the last moment at which the tool may be executed, and StartUntil the same
	// by SinceBoot, which nobody sets. Zero is none.
	StartBy    time.Time     `json:"start_by,omitzero"`
	StartUntil time.Duration `json:"start_until,omitzero"`
}

// late reports whether either clock says that the tool may not be executed any more.
func (l *Launch) late() bool {
	return !l.StartBy.IsZero() && fault.Now().After(l.StartBy) || l.StartUntil != 0 && SinceBoot() > l.StartUntil
}

// SinceBoot is a clock that nobody sets and that goes on while the host sleeps. It is the
// same for every process of a boot session.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		panic("the clock of this boot session cannot be read: " + err.Error()) // the kernel has it since long
	}
	return time.Duration(ts.Nano())
}

// errTooLate: start_by had passed when the tool was to be executed.
var errTooLate = errors.New("start_by had passed when it was to be executed")

// Limits are the resource limits of each process of the tool; zero is none.
type Limits struct {
	Memory    int64  `json:"memory,omitzero"`
	FileSize  int64  `json:"file_size,omitzero"`
	OpenFiles uint64 `json:"open_files,omitzero"`
}

// Confine says what the tool may touch besides the system's own folders.
type Confine struct {
	Read  Strings `json:"read,omitzero"`
	Write Strings `json:"write,omitzero"`
	// Deny is refused whatever the rest says, where the platform confines by
	// exclusion (macOS). Under Landlock everything that is not named is refused.
	Deny    Strings `json:"deny,omitzero"`
	Network bool    `json:"network,omitzero"`
	// Metadata lets the tool change modes, owners, times and extended attributes
	// by path, wherever its user may. Seatbelt needs no such leave: it takes them
	// for writing.
	Metadata bool `json:"metadata,omitzero"`
}

// Confinement says what the host enforces on a tool; it is kept in the started
// record, so that nobody has to believe more than was true.
type Confinement struct {
	// Kind is "landlock", "seatbelt" or "none".
	Kind string `json:"kind"`
	// Version is Landlock's ABI version.
	Version int `json:"version,omitzero"`
	// Files: files outside the allowed folders are refused.
	Files bool `json:"files"`
	// Network: sockets to the network are refused, of every protocol.
	Network bool `json:"network"`
	// Signals: the tool cannot signal a process that is not its own.
	Signals bool `json:"signals"`
	// NoNewPrivileges: set-uid executables give no rights.
	NoNewPrivileges bool `json:"no_new_privileges"`
}

func (s *Spec) check() error {
	switch {
	case s.Token == "" || strings.ContainsRune(s.Token, 0):
		return errors.New("spec: no usable token")
	case s.Timeout < 0 || s.Grace < 0 || s.LogBytes < 0 || s.CaptureBytes < 0:
		return errors.New("spec: negative limit")
	}
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.StopSignal == 0 {
		s.StopSignal = int(syscall.SIGTERM)
	}
	if s.LogBytes == 0 {
		s.LogBytes = DefaultLogBytes
	}
	if s.CaptureBytes == 0 {
		s.CaptureBytes = DefaultCaptureBytes
	}
	return s.Launch.check()
}

func (l *Launch) check() error {
	switch {
	case len(l.Argv) == 0 || !strings.HasPrefix(l.Argv[0], "/"):
		return errors.New("spec: the executable is not an absolute path")
	case !strings.HasPrefix(string(l.Dir), "/"):
		return errors.New("spec: the working folder is not an absolute path")
	case l.Limits.Memory < 0 || l.Limits.FileSize < 0:
		return errors.New("spec: negative limit")
	}
	return nil
}

// errNoOrders: the attempt was given up before it was started.
var errNoOrders = errors.New("no orders")

func readSpec(r io.Reader) (*Spec, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSpecBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSpecBytes {
		return nil, errors.New("spec: too large")
	}
	if len(data) == 0 {
		return nil, errNoOrders
	}
	var s Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	return &s, s.check()
}

// Strings is a list of byte strings. JSON knows only Unicode, while arguments
// and paths are any bytes but NUL, so the list is written as base64 of the
// elements, each ended by NUL.
type Strings []string

// MarshalText implements encoding.TextMarshaler.
func (s Strings) MarshalText() ([]byte, error) {
	var b bytes.Buffer
	for _, e := range s {
		if strings.IndexByte(e, 0) >= 0 {
			return nil, errors.New("a NUL byte in an argument, path or variable")
		}
		b.WriteString(e)
		b.WriteByte(0)
	}
	return base64.StdEncoding.AppendEncode(nil, b.Bytes()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Strings) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return err
	}
	*s = nil
	for len(data) > 0 {
		e, rest, ok := bytes.Cut(data, []byte{0})
		if !ok {
			return errors.New("list of strings is cut short")
		}
		*s, data = append(*s, string(e)), rest
	}
	return nil
}

// Path is one path of any bytes, written as base64.
type Path string

// MarshalText implements encoding.TextMarshaler.
func (p Path) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(p)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Path) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.AppendDecode(nil, text)
	*p = Path(data)
	return err
}
