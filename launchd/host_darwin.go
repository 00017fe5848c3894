package launchd

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// BootSession is random for each boot and constant until the next one, over sleep
// too (kern.bootsessionuuid, set once by IOPMrootDomain). kern.boottime is not
// used: it moves when the wall clock is stepped.
func BootSession() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

// OSVersion names the system, its version and its build.
func OSVersion() string {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return "macOS"
	}
	build, err := unix.Sysctl("kern.osversion")
	if err != nil {
		return "macOS " + version
	}
	return "macOS " + version + " (" + build + ")"
}

// MemoryBytes is the machine's memory, 0 if it cannot be told (hw.memsize).
func MemoryBytes() int64 {
	b, err := unix.SysctlRaw("hw.memsize")
	if err != nil || len(b) < 8 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b))
}
