//go:build faults

package fault

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Now is the time by the wall clock, which a test may set.
func Now() time.Time {
	now := time.Now()
	dir := os.Getenv(variable)
	if dir == "" {
		return now
	}
	text, err := os.ReadFile(filepath.Join(dir, "clock"))
	if err != nil {
		return now // nobody has set it
	}
	ahead, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		panic(err) // the test's own mistake
	}
	return setAhead(now, ahead)
}

// setAhead moves the wall reading of a time and not its monotonic one, as setting the
// clock does; Add moves both. Of a time that has both, the first word begins with a flag
// and then has 33 bits of seconds and 30 of nanoseconds.
func setAhead(t time.Time, seconds int64) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(seconds) << 30
	return t
}
