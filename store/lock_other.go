//go:build !linux

package store

import "os"

// lockHolder cannot ask this kernel who holds a lock of flock; the holder's own
// file is the only source.
func lockHolder(*os.File) (pid int, command string) { return 0, "" }
