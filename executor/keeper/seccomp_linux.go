package keeper

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock refuses TCP only: UDP, MPTCP and other protocols pass it, and before
// ABI 9 so do unix sockets with a path, behind which a service may do anything for
// the tool. So a tool without network also gets a filter on the system calls that
// make a socket. socketpair stays, as it leads nowhere else.

// unixSocketsConfined is the Landlock version that confines unix sockets by path.
const unixSocketsConfined = 9

// foreignCall is the first call number of the x32 interface of amd64.
const foreignCall = 0x40000000

func nativeArch() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	default:
		return 0
	}
}

// canFilter reports whether the kernel can refuse a system call.
func canFilter() bool {
	const getActionAvail = 2
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, getActionAvail, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0 && nativeArch() != 0
}

// socketFilter refuses every socket, or every one but unix sockets. Calls in
// another architecture's numbers are refused whole, and so is io_uring, which can
// make sockets without a call.
func socketFilter(allowUnix bool) []unix.SockFilter {
	// Offsets in struct seccomp_data; both architectures are little endian.
	const number, arch, firstArgument = 0, 4, 16
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(test uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	domain := uint32(unix.AF_UNIX)
	if !allowUnix {
		domain = ^uint32(0) // no domain at all
	}
	return []unix.SockFilter{
		load(arch),
		jump(unix.BPF_JEQ, nativeArch(), 0, 7),
		load(number),
		jump(unix.BPF_JGE, foreignCall, 5, 0),
		jump(unix.BPF_JEQ, unix.SYS_IO_URING_SETUP, 4, 0),
		jump(unix.BPF_JEQ, unix.SYS_SOCKET, 0, 2),
		load(firstArgument),
		jump(unix.BPF_JEQ, domain, 0, 1),
		answer(unix.SECCOMP_RET_ALLOW),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)),
	}
}

// refuseSockets filters the calling thread for ever. It needs no_new_privs.
func refuseSockets(allowUnix bool) error {
	filter := socketFilter(allowUnix)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const setModeFilter = 1
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
