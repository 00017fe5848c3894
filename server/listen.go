package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// maxSocketPath is how long the path of a socket may be: macOS holds 104 bytes with
// the zero at the end, and a state folder may move between hosts.
const maxSocketPath = 103

// ListenUnix listens on a socket that only this user can reach: its folder is made
// with mode 0700, or must have it, and the socket gets 0600. The caller holds the
// lock of the state folder, so a socket of ours that is there already belongs to a
// dead daemon and is replaced; unless somebody answers on it. Anything else in its
// place (a file, a link, another user's socket) is refused and left as it is.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of the socket has %d bytes, and %d are the most that macOS takes; choose a shorter state folder: %s",
			len(path), maxSocketPath, path)
	}
	if err := privateFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := clearSocket(path); err != nil {
		return nil, err
	}
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the socket: %w", err)
	}
	// Nobody else can have come by in between: the folder is closed to them.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket to other users: %w", err), lis.Close())
	}
	return lis, nil
}

func privateFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the socket's folder: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("the socket's folder: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s, where the socket belongs, is no folder", dir)
	case !ours(info):
		return fmt.Errorf("the folder %s of the socket belongs to another user", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("the folder %s of the socket has mode %#o, which lets other users in; run: chmod 700 %s", dir, info.Mode().Perm(), dir)
	}
	return nil
}

// clearSocket removes a dead socket of ours.
func clearSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket || !ours(info):
		return fmt.Errorf("%s is in the way and is no socket of this user (%s); it is left as it is", path, info.Mode())
	}
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process already answers on %s", path), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("whether %s is in use cannot be told: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the dead socket: %w", err)
	}
	return nil
}

func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
