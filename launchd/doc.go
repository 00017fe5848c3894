// Package launchd holds what macexec must know of the system that starts and
// surrounds it: the boot session and the facts of the host. Where macOS and Linux
// differ, the difference is in the files named after them.
//
// It knows nothing of jobs; only cmd/macexec uses it, and hands on what it says.
package launchd
