package keeper

import (
	"os"
	"os/signal"
	"syscall"
)

// resetSignals gives the tool the usual answer to the signals that the keeper, or
// whoever started the daemon, ignores: an exec keeps what is ignored, and resets
// what is caught.
func resetSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP,
		syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
}
