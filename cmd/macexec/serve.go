package main

import (
	"github.com/spf13/cobra"
)

// serveOptions is what the command line decides about a daemon.
type serveOptions struct {
	State   string // the state folder, absolute; made if it is not there
	Version string // of this binary
	// Ready is called once, when calls are taken, with the address to reach it at.
	Ready func(address string)
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
		return serve(cmd.Context(), serveOptions{
			State: state, Version: buildVersion().Version,
			Ready: func(address string) { a.remarkf("ready: %s", address) },
		}, a.stdio)
	})
}
