package keeper

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"time"
)

// The log is one file of frames, only ever appended to. A frame is a header of
// 20 bytes and a body:
//
//	0  1  kind: 'o' stdout, 'e' stderr, 'O' gap in stdout, 'E' gap in stderr
//	1  3  length of the body, big endian, at most 64 KiB
//	4  8  Unix time in nanoseconds, big endian
//	12 4  CRC-32 (IEEE) of the body
//	16 4  CRC-32 (IEEE) of the first 16 bytes
//
// The body of stdout and stderr is the tool's bytes, unchanged. The body of a gap
// is the number of bytes that were dropped there, 8 bytes, big endian. A last
// frame that is cut short, because its writer died, is no damage.
const (
	frameHeader  = 20
	maxFrameBody = 64 << 10
)

// Stream names one of the tool's outputs.
type Stream byte

// The two outputs of a tool.
const (
	Stdout Stream = 'o'
	Stderr Stream = 'e'
)

// String gives the stream's usual name.
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	default:
		return "unknown"
	}
}

func (s Stream) gap() byte { return byte(s) - 'a' + 'A' }

// Frame is one piece of the log.
type Frame struct {
	Stream Stream
	Time   time.Time
	Data   []byte
	// Gap is the number of bytes dropped here; then there is no Data.
	Gap int64
	// Next is the offset of the frame after this one.
	Next int64
}

// ErrIncomplete says that the log ends within a frame: its writer is still
// writing, or died.
var ErrIncomplete = errors.New("the log ends within a frame")

func appendFrame(b []byte, kind byte, at time.Time, body []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(kind)<<24|uint32(len(body)))
	b = binary.BigEndian.AppendUint64(b, uint64(at.UnixNano()))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(body))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[start:]))
	return append(b, body...)
}

func appendGap(b []byte, s Stream, at time.Time, lost int64) []byte {
	return appendFrame(b, s.gap(), at, binary.BigEndian.AppendUint64(nil, uint64(lost)))
}

// LogReader reads the frames of a log that may still be written.
type LogReader struct {
	src    io.ReaderAt
	offset int64
	header [frameHeader]byte
}

// NewLogReader reads from an offset that is 0 or a Frame's Next.
func NewLogReader(src io.ReaderAt, offset int64) *LogReader {
	return &LogReader{src: src, offset: max(offset, 0)}
}

// Offset is where the next frame begins.
func (r *LogReader) Offset() int64 { return r.offset }

// Next reads one frame. It answers io.EOF at the end of the log, ErrIncomplete
// when the log ends within a frame, and ErrDamaged when the bytes are no frame;
// after each of them it may be called again, and begins at the same place.
func (r *LogReader) Next() (Frame, error) { return r.next(true) }

// Skip is Next without reading the body; Data is nil and Size tells its length.
func (r *LogReader) Skip() (f Frame, size int64, err error) {
	start := r.offset
	f, err = r.next(false)
	if err != nil || f.Gap > 0 {
		return f, 0, err
	}
	return f, f.Next - start - frameHeader, nil
}

func (r *LogReader) next(withBody bool) (Frame, error) {
	switch n, err := r.src.ReadAt(r.header[:], r.offset); {
	case n == 0 && errors.Is(err, io.EOF):
		return Frame{}, io.EOF
	case n < frameHeader && errors.Is(err, io.EOF):
		return Frame{}, ErrIncomplete
	case n < frameHeader:
		return Frame{}, err
	}
	h := r.header[:]
	length := int(binary.BigEndian.Uint32(h) & 0xffffff)
	if binary.BigEndian.Uint32(h[16:]) != crc32.ChecksumIEEE(h[:16]) || length > maxFrameBody {
		return Frame{}, ErrDamaged
	}
	f := Frame{
		Time: time.Unix(0, int64(binary.BigEndian.Uint64(h[4:]))),
		Next: r.offset + frameHeader + int64(length),
	}
	gap := false
	switch kind := h[0]; kind {
	case byte(Stdout), byte(Stderr):
		f.Stream = Stream(kind)
	case Stdout.gap(), Stderr.gap():
		f.Stream, gap = Stream(kind-'A'+'a'), true
		if length != 8 {
			return Frame{}, ErrDamaged
		}
	default:
		return Frame{}, ErrDamaged
	}
	if !withBody && !gap {
		r.offset = f.Next
		return f, nil
	}
	body := make([]byte, length)
	switch n, err := r.src.ReadAt(body, r.offset+frameHeader); {
	case n < length && errors.Is(err, io.EOF):
		return Frame{}, ErrIncomplete
	case n < length:
		return Frame{}, err
	}
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(h[12:]) {
		return Frame{}, ErrDamaged
	}
	if gap {
		f.Gap = int64(binary.BigEndian.Uint64(body))
		if f.Gap <= 0 {
			return Frame{}, ErrDamaged
		}
	} else {
		f.Data = body
	}
	r.offset = f.Next
	return f, nil
}
