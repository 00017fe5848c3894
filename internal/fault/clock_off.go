//go:build !faults

package fault

import "time"

// Now is the time by the wall clock, which a test may set.
func Now() time.Time { return time.Now() }
