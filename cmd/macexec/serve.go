package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// serveOptions is what the command line decides about a daemon.
type serveOptions struct {
	State   string // the state folder, absolute; made if it is not there
	Version string // of this binary
	// Ready is called once, when calls are taken, with the address to reach it at.
	Ready func(address string)
	// Reload tells the daemon to read its configuration again.
	Reload <-chan os.Signal
}

func (a *app) serveCommand() *cobra.Command {
	return command("serve", "Run the daemon in the foreground", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		if a.address != "" {
			return usagef("macexec serve --state DIR", "the daemon listens at the socket in its state folder, so --address says nothing here")
		}
		state, err := a.resolveState()
		if err != nil {
			return err
		}
		// From the first moment on: its default effect would be the daemon's end.
		hangUps := make(chan os.Signal, 1)
		signal.Notify(hangUps, syscall.SIGHUP)
		defer signal.Stop(hangUps)
		return serve(cmd.Context(), serveOptions{
			State: state, Reload: hangUps, Version: buildVersion().Version,
			Ready: func(address string) { a.remarkf("ready: %s", address) },
		}, a.stdio)
	})
}
