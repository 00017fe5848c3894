package keeper

import (
	"errors"
	"os"
	"testing"

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
func TestSocketFilter(t *testing.T) {
	t.Parallel()
	if nativeArch() == nil {
		t.Skip("no filter for this architecture")
	}
	const x32 = 0x40000000 // on the other architecture it is no call at all
	native := uint32(nativeArch().ID)
	for _, c := range []struct {
		name          string
		arch, nr, arg uint32
		closed, open  bool // allowed without and with unix sockets
	}{
		{"read", native, unix.SYS_READ, 3, true, true},
		{"socket inet", native, unix.SYS_SOCKET, unix.AF_INET, false, false},
		{"socket inet6", native, unix.SYS_SOCKET, unix.AF_INET6, false, false},
		{"socket packet", native, unix.SYS_SOCKET, unix.AF_PACKET, false, false},
		{"socket unix", native, unix.SYS_SOCKET, unix.AF_UNIX, false, true},
		{"socketpair", native, unix.SYS_SOCKETPAIR, unix.AF_UNIX, true, true},
		{"io_uring", native, unix.SYS_IO_URING_SETUP, 1, false, false},
		{"x32", native, x32 + unix.SYS_READ, 3, false, false},
		{"other architecture", unix.AUDIT_ARCH_I386, 3, 3, false, false},
	} {
		for allowUnix, want := range map[bool]bool{false: c.closed, true: c.open} {
			filter, err := socketFilter(allowUnix)
			if err != nil {
				t.Fatal(err)
			}
			if got := interpret(t, filter, c.arch, c.nr, c.arg); got != want {
				t.Errorf("%s, unix allowed %v: allowed %v", c.name, allowUnix, got)
			}
		}
	}
}

func interpret(t *testing.T, program []bpf.RawInstruction, arch, nr, arg uint32) bool {
	t.Helper()
	data := map[uint32]uint32{0: nr, 4: arch, 16: arg, 20: 0}
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
		case unix.BPF_RET | unix.BPF_K:
			return in.K == unix.SECCOMP_RET_ALLOW
		default:
			t.Fatalf("instruction %+v", in)
		}
	}
	t.Fatal("the program does not end")
	return false
}
