package keeper

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const (
	readFileRights = llsyscall.AccessFSReadFile
	readRights     = readFileRights | llsyscall.AccessFSReadDir
	execRights     = readRights | llsyscall.AccessFSExecute
	deviceRights   = readFileRights | llsyscall.AccessFSWriteFile | llsyscall.AccessFSTruncate
	// fileRights are those that may be given on something that is not a folder.
	fileRights = llsyscall.AccessFSExecute | llsyscall.AccessFSWriteFile |
		llsyscall.AccessFSReadFile | llsyscall.AccessFSTruncate |
		llsyscall.AccessFSIoctlDev | llsyscall.AccessFSResolveUnix
	// writeRights leave out devices and execution: what a tool wrote it may not
	// run, and it makes no device nodes.
	writeRights = readRights | llsyscall.AccessFSWriteFile | llsyscall.AccessFSTruncate |
		llsyscall.AccessFSRemoveDir | llsyscall.AccessFSRemoveFile |
		llsyscall.AccessFSMakeDir | llsyscall.AccessFSMakeReg |
		llsyscall.AccessFSMakeSock | llsyscall.AccessFSMakeFifo |
		llsyscall.AccessFSMakeSym | llsyscall.AccessFSRefer |
		llsyscall.AccessFSResolveUnix
)

// landlockVersion is the ABI version to be enforced, 0 if there is none. It counts
// as the library does, which refuses the scopes of a kernel that still lets a
// thread signal out of them.
func landlockVersion() int {
	version, err := llsyscall.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	const scopes, scopesMended = 6, 0x2
	if errata, err := llsyscall.LandlockGetErrata(); version >= scopes && (err != nil || errata&scopesMended == 0) {
		version = scopes - 1
	}
	return min(version, len(landlockVersions())-1)
}

// landlockVersions is all that each version can handle.
func landlockVersions() []landlock.Config {
	return []landlock.Config{
		{},
		landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6,
		landlock.V7, landlock.V8, landlock.V9, landlock.V10, landlock.V11,
	}
}

// rulesetFor is what the call wants handled of what the version can. It is never
// enforced at best effort, which could silently be nothing at all.
func rulesetFor(version int, c Confine) landlock.Config {
	config := landlockVersions()[version]
	if c.Network {
		config.HandledAccessNet = 0
		config.HandledAccessFS &^= llsyscall.AccessFSResolveUnix
		config.Scoped &^= llsyscall.ScopeAbstractUnixSocket
	}
	return config
}

// ConfinementOn is what this host enforces.
func ConfinementOn(c Confine) Confinement {
	version := landlockVersion()
	config := rulesetFor(version, c)
	out := Confinement{Kind: "none", NoNewPrivileges: true}
	if version > 0 {
		out.Kind, out.Version = "landlock", version
	}
	out.Files = config.HandledAccessFS != 0
	out.Network = !c.Network && canFilter()
	out.Signals = config.Scoped&llsyscall.ScopeSignal != 0
	return out
}

// confine restricts the calling thread for ever.
func confine(exe string, c Confine) error {
	if err := seccomp.SetNoNewPrivs(); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	config := rulesetFor(landlockVersion(), c)
	if err := restrictFiles(exe, c, config); err != nil {
		return err
	}
	if !canFilter() {
		return nil
	}
	return refuseCalls(c, config.HandledAccessFS&llsyscall.AccessFSResolveUnix != 0)
}

// restrictFiles enforces the ruleset on the calling thread; without Landlock there
// is nothing to enforce. Only this thread matters, as exec ends the others, so
// nothing has to be brought to all of them.
func restrictFiles(exe string, c Confine, config landlock.Config) error {
	rules, err := rulesFor(exe, c, config)
	if err != nil {
		return err
	}
	ruleset, flags, err := config.NewRulesetFD(rules...)
	if err != nil {
		return fmt.Errorf("landlock ruleset: %w", err)
	}
	if ruleset < 0 {
		return nil
	}
	defer unix.Close(ruleset)
	if err := llsyscall.LandlockRestrictSelf(ruleset, flags); err != nil {
		return fmt.Errorf("landlock restrict: %w", err)
	}
	return nil
}

// rulesFor is everything the tool may reach.
func rulesFor(exe string, c Confine, config landlock.Config) ([]landlock.Rule, error) {
	allow := func(path string, rights landlock.AccessFSSet) landlock.FSRule {
		if st, err := os.Stat(path); err == nil && !st.IsDir() {
			rights &= fileRights
		}
		return landlock.PathAccess(rights&config.HandledAccessFS, path)
	}
	libraries, err := filepath.Glob("/lib*")
	if err != nil {
		return nil, err
	}
	var rules []landlock.Rule
	// A missing executable is better told by exec.
	for _, path := range append(libraries, "/usr", "/bin", "/sbin", "/etc", "/opt", exe) {
		rules = append(rules, allow(path, execRights).IgnoreIfMissing())
	}
	rules = append(rules, allow("/proc", readRights).IgnoreIfMissing())
	for _, path := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		rules = append(rules, allow(path, deviceRights).IgnoreIfMissing())
	}
	for _, path := range c.Read {
		rules = append(rules, allow(path, readRights))
	}
	for _, path := range c.Write {
		rules = append(rules, allow(path, writeRights))
	}
	return rules, nil
}

// wrapped leaves the arguments as they are: the thread itself is confined.
func wrapped(exe string, argv []string, _ Confine) (string, []string) { return exe, argv }

// closeOthers keeps every descriptor but the three from the tool, whatever a
// parent may have left open.
func closeOthers() error {
	return unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
