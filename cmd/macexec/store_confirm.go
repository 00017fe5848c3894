package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const storeConfirmHelp = `Say that what a restored store may have forgotten is dealt with: which keys were used
since the copy was taken, and what their jobs did. Calls of tools with outside effects,
which waited for that, start from now on.`

func (a *app) storeConfirmCommand() *cobra.Command {
	var reason string
	cmd := a.talk("confirm", "Let calls with outside effects start again after a restore", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		if strings.TrimSpace(reason) == "" {
			return usagef("macexec store confirm --reason TEXT", "say how it was dealt with; the journal keeps it")
		}
		resp, err := c.Store.ConfirmRestore(ctx, &macexecv1.ConfirmRestoreRequest{Reason: reason})
		if err != nil {
			f := explain(err)
			if f.code == exitAnswerLost {
				f.try = "macexec host show tells whether they still wait; confirming again is safe"
			}
			return f
		}
		return a.print(resp, "", func(w io.Writer) error {
			text := "there was nothing to confirm: the store was not restored, or that was confirmed before\n"
			if r := resp.GetRestore(); r != nil {
				text = "confirmed: " + restoredText(r) + "\n"
			}
			_, err := io.WriteString(w, text)
			return err
		})
	})
	cmd.Long = storeConfirmHelp
	cmd.Flags().StringVar(&reason, "reason", "", "how what was forgotten is dealt with; the journal keeps it")
	nothing(cmd, "reason")
	return cmd
}

// restoredText says when and why a store was restored.
func restoredText(r *macexecv1.StoreRestore) string {
	return strings.TrimSpace(moment(r.GetAt()) + " by " + orElse(r.GetBy(), "somebody") + ": " + r.GetReason())
}
