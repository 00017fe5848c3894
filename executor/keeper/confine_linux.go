package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock is used by its three system calls: the launcher has to restrict only
// the thread that calls exec, and has to know exactly what is enforced.

const (
	readFileRights = unix.LANDLOCK_ACCESS_FS_READ_FILE
	readRights     = readFileRights | unix.LANDLOCK_ACCESS_FS_READ_DIR
	execRights     = readRights | unix.LANDLOCK_ACCESS_FS_EXECUTE
	deviceRights   = readFileRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// fileRights are those that may be given on something that is not a folder.
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	// writeRights leave out devices and execution: what a tool wrote it may not
	// run, and it makes no device nodes.
	writeRights = readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// landlockVersion is the kernel's ABI version, 0 if there is none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// rulesetFor is what a kernel of this ABI version can handle, and what the call
// wants handled. Rights that the kernel does not know must not be named to it.
func rulesetFor(version int, c Confine) unix.LandlockRulesetAttr {
	var a unix.LandlockRulesetAttr
	if version < 1 {
		return a
	}
	a.Handled_access_fs = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	if version >= 2 {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 4 && !c.Network {
		a.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 5 {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= 6 {
		a.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
		if !c.Network {
			a.Scoped |= unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
		}
	}
	if version >= 9 && !c.Network {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	}
	if version >= 10 && !c.Network {
		a.Handled_access_net |= unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP
	}
	return a
}

// ConfinementOn is what this host enforces.
func ConfinementOn(c Confine) Confinement {
	version := landlockVersion()
	a := rulesetFor(version, c)
	out := Confinement{Kind: "none", NoNewPrivileges: true}
	if version > 0 {
		out.Kind, out.Version = "landlock", version
	}
	out.Files = a.Handled_access_fs != 0
	out.Network = !c.Network && canFilter()
	out.Signals = a.Scoped&unix.LANDLOCK_SCOPE_SIGNAL != 0
	return out
}

// confine restricts the calling thread for ever.
func confine(exe string, c Confine) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	version := landlockVersion()
	if err := restrictFiles(exe, c, rulesetFor(version, c)); err != nil {
		return err
	}
	if c.Network || !canFilter() {
		return nil
	}
	return refuseSockets(version >= unixSocketsConfined)
}

// restrictFiles enforces the ruleset on the calling thread; without Landlock there
// is nothing to enforce.
func restrictFiles(exe string, c Confine, attr unix.LandlockRulesetAttr) error {
	if attr.Handled_access_fs == 0 {
		return nil
	}
	// An older kernel accepts the longer structure, as what it does not know is zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	ruleset := int(fd)
	defer unix.Close(ruleset)
	allow := func(path string, rights uint64, mayMiss bool) error {
		err := allowBeneath(ruleset, path, rights&attr.Handled_access_fs)
		if mayMiss && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("allow %q: %w", path, err)
		}
		return nil
	}
	system := []string{"/usr", "/bin", "/sbin", "/etc", "/opt"}
	libraries, err := filepath.Glob("/lib*")
	if err != nil {
		return err
	}
	for _, path := range append(system, libraries...) {
		if err := allow(path, execRights, true); err != nil {
			return err
		}
	}
	if err := allow("/proc", readRights, true); err != nil {
		return err
	}
	for _, path := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		if err := allow(path, deviceRights, true); err != nil {
			return err
		}
	}
	// A missing executable is better told by exec.
	if err := allow(exe, execRights, true); err != nil {
		return err
	}
	for _, path := range c.Read {
		if err := allow(path, readRights, false); err != nil {
			return err
		}
	}
	for _, path := range c.Write {
		if err := allow(path, writeRights, false); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
		return fmt.Errorf("landlock restrict: %w", errno)
	}
	return nil
}

func allowBeneath(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset),
		unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// wrapped leaves the arguments as they are: the thread itself is confined.
func wrapped(exe string, argv []string, _ Confine) (string, []string) { return exe, argv }

// closeOthers keeps every descriptor but the three from the tool, whatever a
// parent may have left open.
func closeOthers() error {
	return unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
