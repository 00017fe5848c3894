package store

import (
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystemOf says what kind of file system a folder lies on, and whether it is this
// host's own. One of another process may claim to be local.
func fileSystemOf(dir string) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false, err
	}
	name = unix.ByteSliceToString(st.Fstypename[:])
	return name, st.Flags&unix.MNT_LOCAL != 0 && !strings.Contains(name, "fuse"), nil
}
