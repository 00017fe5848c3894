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
jobs that ended, the old end of the journal, folders without a record, what lies in the
trash of projects, and manifests and keepers that no job needs. The daemon also does that
by itself. Keys stay used for ever, and what was published stays.

With --dry-run nothing is removed.`

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
			if held := resp.GetHeld(); held != "" {
				_, err := fmt.Fprintf(w, "nothing is removed until macexec store confirm: %s\n", show.Line(held))
				return err
			}
			p := resp.GetPruned()
			word := "removed"
			if resp.GetDryRun() {
				word = "would remove"
			}
			_, err := fmt.Fprintf(w, "%s %s and %s without a record, with %s of files, and %d entries of the journal\n", word,
				count(int(p.GetJobs()), "job"), count(int(p.GetFolders()), "folder"), show.Size(p.GetBytes()), p.GetJournalEntries())
			if n := p.GetTrash(); err == nil && n > 0 {
				_, err = fmt.Fprintf(w, "%s %d with %s from the trash of projects\n", word, n, show.Size(p.GetTrashBytes()))
			}
			if n := p.GetManifests() + p.GetKeepers(); err == nil && n > 0 {
				_, err = fmt.Fprintf(w, "%s %s and %s that no job needs, with %s\n", word,
					count(int(p.GetManifests()), "manifest"), count(int(p.GetKeepers()), "keeper"), show.Size(p.GetUnusedBytes()))
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
