package launchd

import (
	"bufio"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// BootSession is random for each boot and constant until the next one
// (/proc/sys/kernel/random/boot_id, proc(5)).
func BootSession() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// OSVersion names the system and its version as it calls itself (os-release(5)).
func OSVersion() string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

// MemoryBytes is the machine's memory, 0 if it cannot be told.
func MemoryBytes() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
