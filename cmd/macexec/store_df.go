package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const storeDfHelp = `Measure what the records and the files of jobs take. The whole store is read for that,
which takes a while for a large one.`

func (a *app) storeDfCommand() *cobra.Command {
	cmd := a.talk("df", "Say what the records and the files of jobs take", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		resp, err := c.Store.DescribeStore(ctx, &macexecv1.DescribeStoreRequest{})
		if err != nil {
			return explain(err)
		}
		return a.print(resp.GetUse(), "", func(w io.Writer) error { return writeUse(w, resp.GetUse(), a.OutTerminal && a.colour()) })
	})
	cmd.Long = storeDfHelp
	return cmd
}

func writeUse(w io.Writer, u *macexecv1.StoreUse, colour bool) error {
	var f fields
	f.add("store", fmt.Sprintf("%s, of which %s are free", show.Size(u.GetSize()), show.Size(u.GetFree())))
	f.add("job folders", fmt.Sprintf("%d with %s", u.GetJobFolders(), show.Size(u.GetJobBytes())))
	f.add("uploads", fmt.Sprintf("%d with %s", u.GetUploads(), show.Size(u.GetUploadBytes())))
	for _, t := range u.GetTrash() {
		switch {
		case t.GetProblem() != "":
			f.addStyled("trash of "+t.GetProject(), t.GetProblem(), show.Red)
		case t.GetCount() > 0:
			f.add("trash of "+t.GetProject(), fmt.Sprintf("%d with %s", t.GetCount(), show.Size(t.GetBytes())))
		}
	}
	f.add("journal", fmt.Sprintf("entries %d to %d", u.GetJournalOldest(), u.GetJournalHead()))
	for _, n := range u.GetJobs() {
		if n.GetCount() > 0 {
			f.add("jobs "+document.Word(n.GetState()), fmt.Sprint(n.GetCount()))
		}
	}
	f.add("keys of removed jobs", fmt.Sprint(u.GetTombstones()))
	for _, p := range u.GetParts() {
		f.add("  "+p.GetName(), fmt.Sprintf("%s in %d records", show.Size(p.GetBytes()), p.GetRows()))
	}
	return f.table.Write(w, colour)
}
