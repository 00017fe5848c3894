package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const storePruneHelp = `Remove now what is kept for longer than the configuration says: the records and folders of
jobs that ended, the old end of the journal, and folders without a record. The daemon also
does that by itself. Keys stay used for ever, and what was published stays.

With --dry-run nothing is removed; the journal is not looked at.`

func (a *app) storePruneCommand() *cobra.Command {
	var dry bool
	var age time.Duration
	cmd := a.talk("prune", "Remove now what is kept for too long", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		req := &macexecv1.PruneStoreRequest{DryRun: dry}
		switch {
		case age < 0:
			return usagef("macexec store prune --older-than 720h", "an age is not negative")
		case age > 0:
			req.OlderThan = durationpb.New(age)
		}
		resp, err := c.Store.PruneStore(ctx, req)
		if err != nil {
			f := explain(err)
			if f.code == exitAnswerLost {
				f.try = "pruning again is safe"
			}
			return f
		}
		return a.print(resp, "", func(w io.Writer) error {
			word, p := "removed", resp.GetPruned()
			if resp.GetDryRun() {
				word = "would remove"
			}
			_, err := fmt.Fprintf(w, "%s %s and %s without a record, with %s of files", word, count(int(p.GetJobs()), "job"), count(int(p.GetFolders()), "folder"), show.Size(p.GetBytes()))
			if err == nil && !resp.GetDryRun() {
				_, err = fmt.Fprintf(w, ", and %d entries of the journal", p.GetJournalEntries())
			}
			if err == nil {
				_, err = io.WriteString(w, "\n")
			}
			return err
		})
	})
	cmd.Long = storePruneHelp
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	cmd.Flags().DurationVar(&age, "older-than", 0, "remove jobs that ended that long ago, such as 720h, whatever is configured")
	nothing(cmd, "older-than")
	return cmd
}
