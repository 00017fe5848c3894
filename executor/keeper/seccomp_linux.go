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

// What Landlock does not hold, a filter on system calls does. Every tool gets one.
//
//   - Other processes: to set their limits (a file size of nought ends them) or
//     their scheduling needs no right but their user's.
//   - Metadata: modes, owners, times and attributes of any file of the user can be
//     changed by path. Calls on a descriptor stay, as Landlock saw the opening.
//   - Network: Landlock refuses TCP only. UDP, MPTCP and other protocols pass it,
//     and before ABI 9 so do unix sockets with a path, behind which a service may
//     do anything for the tool. So the making of sockets is refused; socketpair
//     stays, as it leads nowhere else.

// nativeArch is nil where there may be other ways to do these things than the ones
// that filterFor knows.
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

// metadataCalls change metadata by path; not every architecture has all of them.
// The calls with an "at" may name a descriptor instead, but also one of O_PATH,
// which Landlock lets everybody open.
//
// Programs that set them by path in their own folder fail too, since a filter sees
// no paths: chmod, install, tar and cp -p over folders, shutil.copy of Python. Not
// so cp, cp -p of files, mv, mkdir, touch, sed, gzip, tar of files, zip, nor the
// media tools.
func metadataCalls() []string {
	return []string{
		"chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat",
		"utime", "utimes", "futimesat",
		"setxattr", "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat",
	}
}

// refusedCalls are what the filter for c refuses: with EPERM the calls on other
// processes and on metadata, with EACCES the network.
func refusedCalls(c Confine, allowUnix bool) []seccomp.SyscallGroup {
	when := func(name string, argument uint32, value uint64) seccomp.NameWithConditions {
		return seccomp.NameWithConditions{Name: name, Conditions: seccomp.ArgumentConditions{
			{Argument: argument, Operation: seccomp.NotEqual, Value: value},
		}}
	}
	// Zero is the caller itself. Its own number and those of its threads are
	// refused too, since a filter cannot tell whose they are; so pinning a thread
	// by pthread_setaffinity_np fails, and programs go on without.
	const ioprioProcess = 1 // linux/ioprio.h
	denied := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM)}
	denied.NamesWithCondtions = []seccomp.NameWithConditions{
		when("prlimit64", 0, 0),
		when("sched_setaffinity", 0, 0), when("sched_setscheduler", 0, 0),
		when("sched_setparam", 0, 0), when("sched_setattr", 0, 0),
		when("setpriority", 0, unix.PRIO_PROCESS), when("setpriority", 1, 0),
		when("ioprio_set", 0, ioprioProcess), when("ioprio_set", 1, 0),
	}
	if !c.Metadata {
		denied.Names = metadataCalls()
		denied.NamesWithCondtions = append(denied.NamesWithCondtions, when("utimensat", 1, 0))
	}
	closed := seccomp.SyscallGroup{Action: refuse}
	if !c.Network || !c.Metadata {
		// It makes sockets and sets attributes without a call.
		closed.Names = append(closed.Names, "io_uring_setup")
	}
	switch {
	case c.Network:
	case allowUnix:
		closed.NamesWithCondtions = []seccomp.NameWithConditions{when("socket", 0, unix.AF_UNIX)}
	default:
		closed.Names = append(closed.Names, "socket")
	}
	return []seccomp.SyscallGroup{denied, closed}
}

const refuse = seccomp.ActionErrno | seccomp.Action(unix.EACCES)

// filterFor is the filter for c; without network, unix sockets may be left to
// Landlock. Calls in another architecture's numbers are refused whole.
func filterFor(c Confine, allowUnix bool) ([]bpf.RawInstruction, error) {
	native := nativeArch()
	groups := refusedCalls(c, allowUnix)
	for i := range groups {
		groups[i].Names = slices.DeleteFunc(groups[i].Names, func(name string) bool {
			_, known := native.SyscallNames[name]
			return !known
		})
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: groups}
	program, err := policy.Assemble()
	if err != nil {
		return nil, err
	}
	// The library gives calls in another architecture's numbers its default
	// action, which must allow here: int 0x80 would open everything. Hence this
	// test of our own before its program, and our own loading of the whole.
	const nrOffset, archOffset = 0, 4 // in struct seccomp_data
	own := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(native.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(refuse)},
	}
	if !c.Metadata {
		// Newer than the library's tables.
		own = append(own,
			bpf.LoadAbsolute{Off: nrOffset, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_FILE_SETATTR, SkipTrue: 1},
			bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.EPERM)},
		)
	}
	return bpf.Assemble(slices.Concat(own, program))
}

// refuseCalls filters the calling thread for ever. It needs no_new_privs.
func refuseCalls(c Confine, allowUnix bool) error {
	filter, err := filterFor(c, allowUnix)
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
