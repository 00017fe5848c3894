package executor_test

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// oldMetadataCalls are those that newer architectures do without.
func oldMetadataCalls(path string) []string {
	return []string{
		fmt.Sprintf("chmod %d @%s 0", unix.SYS_CHMOD, path),
		fmt.Sprintf("chown %d @%s %d %d", unix.SYS_CHOWN, path, os.Getuid(), os.Getgid()),
		fmt.Sprintf("lchown %d @%s %d %d", unix.SYS_LCHOWN, path, os.Getuid(), os.Getgid()),
		fmt.Sprintf("utime %d @%s &", unix.SYS_UTIME, path),
		fmt.Sprintf("utimes %d @%s &", unix.SYS_UTIMES, path),
		fmt.Sprintf("futimesat %d %d @%s &", unix.SYS_FUTIMESAT, unix.AT_FDCWD, path),
	}
}
