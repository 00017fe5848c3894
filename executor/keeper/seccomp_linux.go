package keeper

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Landlock refuses TCP only: UDP, MPTCP and other protocols pass it, and before
// ABI 9 so do unix sockets with a path, behind which a service may do anything for
// the tool. So a tool without network also gets a filter on the system calls that
// make a socket. socketpair stays, as it leads nowhere else.

// nativeArch is nil where there may be other ways to make a socket than the ones
// that socketFilter knows.
func nativeArch() *arch.Info {
	switch runtime.GOARCH {
	case "amd64":
		return arch.X86_64
	case "arm64":
		return arch.AARCH64
	default:
		return nil
	}
}

// canFilter reports whether the kernel can refuse a system call.
func canFilter() bool { return nativeArch() != nil && seccomp.Supported() }

// socketFilter refuses every socket, or every one but unix sockets. Calls in
// another architecture's numbers are refused whole, and so is io_uring, which can
// make sockets without a call.
func socketFilter(allowUnix bool) ([]bpf.RawInstruction, error) {
	const refuse = seccomp.ActionErrno | seccomp.Action(unix.EACCES)
	native := nativeArch()
	refused := seccomp.SyscallGroup{Names: []string{"io_uring_setup"}, Action: refuse}
	if allowUnix {
		refused.NamesWithCondtions = []seccomp.NameWithConditions{{
			Name:       "socket",
			Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_UNIX}},
		}}
	} else {
		refused.Names = append(refused.Names, "socket")
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{refused}}
	program, err := policy.Assemble()
	if err != nil {
		return nil, err
	}
	// The library gives calls in another architecture's numbers its default
	// action, which must allow here: int 0x80 would open every socket. Hence this
	// test of our own before its program, and our own loading of the whole.
	const archOffset = 4 // in struct seccomp_data
	return bpf.Assemble(slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(native.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(refuse)},
	}, program))
}

// refuseSockets filters the calling thread for ever. It needs no_new_privs.
func refuseSockets(allowUnix bool) error {
	filter, err := socketFilter(allowUnix)
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	instructions := make([]unix.SockFilter, len(filter))
	for i, in := range filter {
		instructions[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(instructions)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
