package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/store"
)

const storeRestoreHelp = `Put a copy of the store (macexec store backup) in its place. The daemon must be stopped.
The copy is read whole first, and refused if something is wrong in it. The store that was
there is kept beside it.

A copy has forgotten what came after it: keys that were used, jobs that ran. So calls of
tools with outside effects wait, old ones and new ones, until somebody says that this is
dealt with: macexec store confirm --reason TEXT. Jobs that have a folder and no record
any more are listed, and those that the copy finds waiting and the replaced store knew to
be started; these are not started again.`

func (a *app) storeRestoreCommand() *cobra.Command {
	var reason string
	cmd := command("restore FILE", "Put a copy in the place of the store of a stopped daemon", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		state, err := a.resolveState()
		if err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			reason = "restored from " + args[0]
		}
		folders, err := jobFolders(state)
		if err != nil {
			return unreadable(err)
		}
		path := filepath.Join(state, storeName)
		adopted, kept, err := store.Restore(cmd.Context(), args[0], store.AdoptOptions{Path: path, By: ownerName, Reason: reason, Jobs: folders})
		if err != nil {
			return heldStore(err, "mend what the message says, then run the command again; the store was not changed")
		}
		return a.printAdoption(path, kept, adopted)
	})
	cmd.Long = storeRestoreHelp
	cmd.Flags().StringVar(&reason, "reason", "", "why; the journal keeps it (restored from FILE)")
	nothing(cmd, "reason")
	return cmd
}
