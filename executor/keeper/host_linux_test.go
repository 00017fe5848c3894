package keeper

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " S 10 20 30 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 999"
	for _, name := range []string{"sh", "a b", "x) Z (y", ")))", ""} {
		s, err := parseStat([]byte("7 (" + name + ")" + rest))
		if err != nil || s.ppid != 10 || s.pgid != 20 || s.sid != 30 || s.start != "12345" || s.zombie {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	if s, err := parseStat([]byte("7 (x) Z 1 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345")); err != nil || !s.zombie {
		t.Errorf("zombie: %+v, %v", s, err)
	}
	for _, bad := range []string{"", "7 x", "7 (x)", "7 (x) S 1 2"} {
		if _, err := parseStat([]byte(bad)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (x) S 10 20 30 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 999"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseStat(data); err == nil && s.start == "" {
			t.Error("no start time")
		}
	})
}

func TestOwnIdentity(t *testing.T) {
	t.Parallel()
	p, err := Identify(os.Getpid())
	if err != nil || !p.Alive() {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := StartTime(1 << 30); !errors.Is(err, ErrNoProcess) {
		t.Errorf("no such pid: %v", err)
	}
	if (Process{p.Pid, p.StartTime + "0"}).Alive() {
		t.Error("another start time is alive")
	}
}

// No kernel is told of rights that it does not know, and none is forgotten that it
// does.
func TestRulesetByVersion(t *testing.T) {
	t.Parallel()
	for version := range landlockVersions() {
		for _, network := range []bool{false, true} {
			a := rulesetFor(version, Confine{Network: network})
			fs := func(right landlock.AccessFSSet) bool { return a.HandledAccessFS&right != 0 }
			net := func(right landlock.AccessNetSet) bool { return a.HandledAccessNet&right != 0 }
			scoped := func(scope landlock.ScopedSet) bool { return a.Scoped&scope != 0 }
			for _, c := range []struct {
				name  string
				from  int
				given bool
				want  bool
			}{
				{"files", 1, fs(unix.LANDLOCK_ACCESS_FS_READ_FILE), true},
				{"refer", 2, fs(unix.LANDLOCK_ACCESS_FS_REFER), true},
				{"truncate", 3, fs(unix.LANDLOCK_ACCESS_FS_TRUNCATE), true},
				{"tcp", 4, net(unix.LANDLOCK_ACCESS_NET_CONNECT_TCP), !network},
				{"ioctl", 5, fs(unix.LANDLOCK_ACCESS_FS_IOCTL_DEV), true},
				{"signal", 6, scoped(unix.LANDLOCK_SCOPE_SIGNAL), true},
				{"abstract", 6, scoped(unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET), !network},
				{"unix", 9, fs(unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX), !network},
				{"udp", 10, net(unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP), !network},
			} {
				if want := version >= c.from && c.want; c.given != want {
					t.Errorf("version %d, network %v: %s is %v", version, network, c.name, c.given)
				}
			}
		}
	}
}

// The filter, run by hand over what the kernel would show it.
func TestFilter(t *testing.T) {
	t.Parallel()
	if nativeArch() == nil {
		t.Skip("no filter for this architecture")
	}
	const x32 = 0x40000000 // on the other architecture it is no call at all
	native := uint32(nativeArch().ID)
	always := func(Confine, bool) bool { return true }
	never := func(Confine, bool) bool { return false }
	metadata := func(c Confine, _ bool) bool { return c.Metadata }
	network := func(c Confine, _ bool) bool { return c.Network }
	for _, c := range []struct {
		name     string
		arch, nr uint32
		args     [2]uint64
		want     func(c Confine, allowUnix bool) bool
	}{
		{"read", native, unix.SYS_READ, [2]uint64{3}, always},
		{"socket inet", native, unix.SYS_SOCKET, [2]uint64{unix.AF_INET}, network},
		{"socket inet6", native, unix.SYS_SOCKET, [2]uint64{unix.AF_INET6}, network},
		{"socket packet", native, unix.SYS_SOCKET, [2]uint64{unix.AF_PACKET}, network},
		{"socket unix", native, unix.SYS_SOCKET, [2]uint64{unix.AF_UNIX}, func(c Confine, allowUnix bool) bool { return c.Network || allowUnix }},
		{"socketpair", native, unix.SYS_SOCKETPAIR, [2]uint64{unix.AF_UNIX}, always},
		{"io_uring", native, unix.SYS_IO_URING_SETUP, [2]uint64{1}, func(c Confine, _ bool) bool { return c.Network && c.Metadata }},
		{"x32", native, x32 + unix.SYS_READ, [2]uint64{3}, never},
		{"other architecture", unix.AUDIT_ARCH_I386, 3, [2]uint64{3}, never},
		{"own limits", native, unix.SYS_PRLIMIT64, [2]uint64{0, unix.RLIMIT_FSIZE}, always},
		{"other limits", native, unix.SYS_PRLIMIT64, [2]uint64{7, unix.RLIMIT_FSIZE}, never},
		{"own priority", native, unix.SYS_SETPRIORITY, [2]uint64{unix.PRIO_PROCESS, 0}, always},
		{"other priority", native, unix.SYS_SETPRIORITY, [2]uint64{unix.PRIO_PROCESS, 7}, never},
		{"group priority", native, unix.SYS_SETPRIORITY, [2]uint64{unix.PRIO_PGRP, 0}, never},
		{"own affinity", native, unix.SYS_SCHED_SETAFFINITY, [2]uint64{0, 8}, always},
		{"other affinity", native, unix.SYS_SCHED_SETAFFINITY, [2]uint64{7, 8}, never},
		{"other affinity, high half", native, unix.SYS_SCHED_SETAFFINITY, [2]uint64{7 << 32, 8}, never},
		{"own input priority", native, unix.SYS_IOPRIO_SET, [2]uint64{1, 0}, always},
		{"user input priority", native, unix.SYS_IOPRIO_SET, [2]uint64{3, 0}, never},
		{"fchmod", native, unix.SYS_FCHMOD, [2]uint64{3, 0}, always},
		{"fchmodat", native, unix.SYS_FCHMODAT, [2]uint64{3, 4096}, metadata},
		{"fchownat", native, unix.SYS_FCHOWNAT, [2]uint64{3, 4096}, metadata},
		{"futimens", native, unix.SYS_UTIMENSAT, [2]uint64{3, 0}, always},
		{"utimensat", native, unix.SYS_UTIMENSAT, [2]uint64{3, 4096}, metadata},
		{"utimensat, high half", native, unix.SYS_UTIMENSAT, [2]uint64{3, 1 << 32}, metadata},
		{"file_setattr", native, unix.SYS_FILE_SETATTR, [2]uint64{3, 4096}, metadata},
	} {
		for i := range 8 {
			confine, allowUnix := Confine{Network: i&1 != 0, Metadata: i&2 != 0}, i&4 != 0
			filter, err := filterFor(confine, allowUnix)
			if err != nil {
				t.Fatal(err)
			}
			if got := interpret(t, filter, c.arch, c.nr, c.args); got != c.want(confine, allowUnix) {
				t.Errorf("%s, %+v, unix allowed %v: allowed %v", c.name, confine, allowUnix, got)
			}
		}
	}
}

// Both tables know all of the names but those of calls that newer architectures do
// without; a name that neither knows would be refused nowhere.
func TestFilterNames(t *testing.T) {
	t.Parallel()
	old := []string{"chmod", "chown", "lchown", "utime", "utimes", "futimesat"}
	for _, group := range refusedCalls(Confine{}, false) {
		names := group.Names
		for _, n := range group.NamesWithCondtions {
			names = append(names, n.Name)
		}
		for _, name := range names {
			_, amd64 := arch.X86_64.SyscallNames[name]
			_, arm64 := arch.AARCH64.SyscallNames[name]
			if !amd64 || arm64 == slices.Contains(old, name) {
				t.Errorf("%s: amd64 %v, arm64 %v", name, amd64, arm64)
			}
		}
	}
}

func interpret(t *testing.T, program []bpf.RawInstruction, arch, nr uint32, args [2]uint64) bool {
	t.Helper()
	data := map[uint32]uint32{
		0: nr, 4: arch,
		16: uint32(args[0]), 20: uint32(args[0] >> 32), 24: uint32(args[1]), 28: uint32(args[1] >> 32),
	}
	var acc uint32
	for pc := 0; pc < len(program); pc++ {
		in := program[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Op {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = data[in.K]
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= in.K)
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_RET | unix.BPF_K:
			return in.K == unix.SECCOMP_RET_ALLOW
		default:
			t.Fatalf("instruction %+v", in)
		}
	}
	t.Fatal("the program does not end")
	return false
}
