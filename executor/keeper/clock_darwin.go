package keeper

import "golang.org/x/sys/unix"

// bootClock goes on while the Mac sleeps, unlike CLOCK_UPTIME_RAW, by which Go measures.
const bootClock = unix.CLOCK_MONOTONIC
