package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/executor"
)

// calls makes system calls from a confined tool and gives what it reports of each.
func (b *bench) calls(job string, network, metadata bool, texts ...string) []string {
	b.t.Helper()
	cmd := command("calls", texts...)
	cmd.Confine.Network, cmd.Confine.Metadata = network, metadata
	if e := b.run(job, cmd); e.Code != 0 {
		b.t.Fatalf("exit: %+v; %s", e, b.output(job, executor.Stderr))
	}
	lines := strings.Split(strings.TrimSpace(string(b.output(job, executor.Stdout))), "\n")
	if len(lines) != len(texts) {
		b.t.Fatalf("%d answers to %d calls: %q", len(lines), len(texts), lines)
	}
	return lines
}

func filtered(t *testing.T) {
	t.Helper()
	confined(t)
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("NO FILTER FOR THIS ARCHITECTURE: the promise is not tested here")
	}
}

// A tool may set its own limits and scheduling, and nobody else's.
func TestToolCannotSetOtherProcesses(t *testing.T) {
	t.Parallel()
	filtered(t)
	b := setup(t)
	victim := b.start("victim", command("block"))
	b.ready("victim", 1)
	s := b.started(victim)
	for i, network := range []bool{false, true} {
		for j, pid := range []int{s.Pid, s.KeeperPid, os.Getpid()} {
			for _, l := range b.calls(fmt.Sprintf("others-%d-%d", i, j), network, true,
				fmt.Sprintf("prlimit64 %d %d %d & 0", unix.SYS_PRLIMIT64, pid, unix.RLIMIT_FSIZE),
				fmt.Sprintf("setpriority %d %d %d 19", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, pid),
				fmt.Sprintf("setpriority %d %d 0 19", unix.SYS_SETPRIORITY, unix.PRIO_USER),
				fmt.Sprintf("sched_setaffinity %d %d 8 &", unix.SYS_SCHED_SETAFFINITY, pid),
				fmt.Sprintf("sched_setscheduler %d %d %d &", unix.SYS_SCHED_SETSCHEDULER, pid, unix.SCHED_IDLE),
				fmt.Sprintf("sched_setparam %d %d &", unix.SYS_SCHED_SETPARAM, pid),
				fmt.Sprintf("sched_setattr %d %d & 0", unix.SYS_SCHED_SETATTR, pid),
				fmt.Sprintf("ioprio_set %d 1 %d 24576", unix.SYS_IOPRIO_SET, pid),
				fmt.Sprintf("ioprio_set %d 3 0 24576", unix.SYS_IOPRIO_SET),
			) {
				if !strings.HasSuffix(l, "true operation not permitted") {
					t.Errorf("network %v, pid %d: %s", network, pid, l)
				}
			}
		}
		for _, l := range b.calls(fmt.Sprintf("self-%d", i), network, false,
			fmt.Sprintf("prlimit64 %d 0 %d 0 &", unix.SYS_PRLIMIT64, unix.RLIMIT_FSIZE),
			fmt.Sprintf("setpriority %d %d 0 19", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS),
			fmt.Sprintf("sched_setscheduler %d 0 %d &", unix.SYS_SCHED_SETSCHEDULER, unix.SCHED_BATCH),
			fmt.Sprintf("ioprio_set %d 1 0 24576", unix.SYS_IOPRIO_SET),
		) {
			if !strings.HasSuffix(l, "false <nil>") {
				t.Errorf("network %v: %s", network, l)
			}
		}
	}
	if err := victim.Stop(""); err != nil {
		t.Fatal(err)
	}
	b.exited(victim)
}

func TestMetadataByPathIsRefused(t *testing.T) {
	t.Parallel()
	filtered(t)
	b := setup(t)
	path := filepath.Join(b.root, "outside")
	then := time.Unix(1e9, 0)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
	at := int64(unix.AT_FDCWD)
	uid, gid := os.Getuid(), os.Getgid()
	calls := append(oldMetadataCalls(path),
		fmt.Sprintf("fchmodat %d %d @%s 0", unix.SYS_FCHMODAT, at, path),
		fmt.Sprintf("fchmodat2 %d %d @%s 0 0", unix.SYS_FCHMODAT2, at, path),
		fmt.Sprintf("fchownat %d %d @%s %d %d 0", unix.SYS_FCHOWNAT, at, path, uid, gid),
		fmt.Sprintf("utimensat %d %d @%s & 0", unix.SYS_UTIMENSAT, at, path),
		fmt.Sprintf("setxattr %d @%s @user.a & 1 0", unix.SYS_SETXATTR, path),
		fmt.Sprintf("lsetxattr %d @%s @user.a & 1 0", unix.SYS_LSETXATTR, path),
		fmt.Sprintf("setxattrat %d %d @%s 0 @user.a & 16", unix.SYS_SETXATTRAT, at, path),
		fmt.Sprintf("removexattr %d @%s @user.a", unix.SYS_REMOVEXATTR, path),
		fmt.Sprintf("lremovexattr %d @%s @user.a", unix.SYS_LREMOVEXATTR, path),
		fmt.Sprintf("removexattrat %d %d @%s 0 @user.a", unix.SYS_REMOVEXATTRAT, at, path),
		fmt.Sprintf("file_setattr %d %d @%s & 24 0", unix.SYS_FILE_SETATTR, at, path),
	)
	for _, network := range []bool{false, true} {
		for _, l := range b.calls(fmt.Sprintf("refused-%v", network), network, false, calls...) {
			if !strings.HasSuffix(l, "true operation not permitted") {
				t.Errorf("network %v: %s", network, l)
			}
		}
		// It sets attributes without a call.
		l := b.calls(fmt.Sprintf("uring-%v", network), network, false, fmt.Sprintf("io_uring_setup %d 1 &", unix.SYS_IO_URING_SETUP))
		if !strings.HasSuffix(l[0], "true permission denied") {
			t.Errorf("network %v: %s", network, l[0])
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o644 || !st.ModTime().Equal(then) {
		t.Errorf("%v, %v", st, err)
	}
	l := b.calls("allowed", false, true, fmt.Sprintf("fchmodat %d %d @%s 0", unix.SYS_FCHMODAT, at, path))
	if st, err := os.Stat(path); err != nil || st.Mode() != 0 {
		t.Errorf("a tool that may: %v, %v, %v", l, st, err)
	}
}

// What a tool does in its own folder by descriptors is left to it.
func TestMetadataByDescriptorWorks(t *testing.T) {
	t.Parallel()
	filtered(t)
	b := setup(t)
	script := "set -e; echo text >a; cp a b; cp -p a c; mkdir -p d/e; mv b d/e; touch a; ln -s a l; nice -n 1 true; " +
		"tar cf t.tar a d; tar cf f.tar a; mkdir x; cd x; tar xf ../f.tar; tar xmf ../t.tar --no-same-owner --no-same-permissions; cat d/e/b"
	cmd := command("exit", "0")
	cmd.Argv = []string{"/bin/sh", "-c", script}
	e := b.run("j", cmd)
	if got := string(b.output("j", executor.Stdout)); e.Code != 0 || got != "text\n" {
		t.Errorf("exit %+v, output %q, complaints %q", e, got, b.output("j", executor.Stderr))
	}
	b.run("descriptor", command("chmod", "new"))
	if got := string(b.output("descriptor", executor.Stdout)); got != "chmod new false <nil>\n" {
		t.Error(got)
	}
}
