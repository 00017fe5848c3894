package keeper

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const sandboxExec = "/usr/bin/sandbox-exec"

func seatbelt() bool {
	return unix.Access(sandboxExec, unix.X_OK) == nil
}

// ConfinementOn is what this host enforces.
func ConfinementOn(c Confine) Confinement {
	if !seatbelt() {
		return Confinement{Kind: "none"}
	}
	return Confinement{Kind: "seatbelt", Files: true, Network: !c.Network, Signals: true}
}

// confine has nothing to do in this process: sandbox-exec confines itself and
// becomes the tool.
func confine(string, Confine) error { return nil }

// wrapped puts sandbox-exec before the tool.
func wrapped(exe string, argv []string, c Confine) (string, []string) {
	if !seatbelt() || unix.Access(exe, unix.X_OK) != nil {
		// A tool that cannot be executed is better told by exec.
		return exe, argv
	}
	profile := seatbeltProfile(realPath(exe), Confine{
		Read: realPaths(c.Read), Write: realPaths(c.Write), Deny: realPaths(c.Deny), Network: c.Network,
	})
	return sandboxExec, append([]string{sandboxExec, "-p", profile}, argv...)
}

// realPath resolves links, because seatbelt compares real paths: /tmp and /var
// are links on macOS.
func realPath(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return filepath.Clean(path)
}

func realPaths(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = realPath(p)
	}
	return out
}

// closeOthers marks every descriptor but the three to be closed by the exec.
func closeOthers() error {
	names, err := os.ReadDir("/dev/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
