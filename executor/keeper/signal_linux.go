package keeper

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// resetSignals gives the tool the usual answer to every signal: the keeper, or
// whoever started the daemon, ignores some, and an exec keeps that. The kernel is
// asked directly, because os/signal only returns to what it found.
func resetSignals() {
	type action struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const ignored = 1
	for sig := uintptr(1); sig <= 64; sig++ {
		var now, usual action
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), 8, 0, 0)
		if errno == 0 && now.handler == ignored {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&usual)), 0, 8, 0, 0)
		}
	}
}
