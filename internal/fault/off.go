//go:build !faults

package fault

// On says that this build has fault points.
const On = false

// Point is a place at which a test may stop this process.
func Point(string) {}

// Err is a place at which a test may stop this process, or make the next system call
// fail.
func Err(string) error { return nil }

// Environment is what a child needs to know of the orders: here nothing.
func Environment() []string { return []string{} }
