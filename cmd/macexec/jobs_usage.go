package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const usageHelp = `Say what ended jobs cost, summed by run, principal or tool; also of jobs whose records
are gone. --since is cut down to a full hour. Jobs that are unknown count once they are
resolved. Peak memory is the largest of all jobs, everything else is a sum.`

func (a *app) jobsUsageCommand() *cobra.Command {
	var by, since string
	cmd := a.talk("usage", "Say what ended jobs cost, by run, principal or tool", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		over, ok := document.Enum[macexecv1.UsageBy](by)
		if !ok || by == "" {
			return usagef("--by "+strings.Join(document.Words[macexecv1.UsageBy](), ", --by "), "usage cannot be summed by %q", by)
		}
		from, err := pastTime(since, clock())
		if err != nil {
			return err
		}
		var rows []*macexecv1.UsageRow
		for req := (&macexecv1.SumUsageRequest{By: over, Since: from}); ; {
			resp, err := c.Jobs.SumUsage(ctx, req)
			if err != nil {
				return beforehand(err)
			}
			rows = append(rows, resp.GetRows()...)
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				return a.printUsage(rows, by)
			}
		}
	})
	cmd.Long = usageHelp
	cmd.Flags().StringVar(&by, "by", "run", strings.Join(document.Words[macexecv1.UsageBy](), ", "))
	cmd.Flags().StringVar(&since, "since", "", "only of jobs that ended since: RFC 3339, or a duration before now (all that is known)")
	words(cmd, "by", document.Words[macexecv1.UsageBy]())
	nothing(cmd, "since")
	return cmd
}

func (a *app) printUsage(rows []*macexecv1.UsageRow, by string) error {
	table := &show.Table{Head: []string{strings.ToUpper(by), "COMPLETED", "FAILED", "CANCELLED", "WAITING", "RUNNING", "CPU", "PEAK MEMORY"}}
	if a.format == formatWide {
		table.Head = append(table.Head, "STAGING", "PUBLISHING", "CPU USER", "CPU SYSTEM", "COVERS", "IN", "OUT", "SINCE")
	}
	return list(a, rows, (*macexecv1.UsageRow).GetName, table, func(r *macexecv1.UsageRow) []show.Cell {
		u := r.GetUsage()
		texts := []string{
			orElse(r.GetName(), "(none)"), strconv.FormatInt(r.GetCompleted(), 10), strconv.FormatInt(r.GetFailed(), 10), strconv.FormatInt(r.GetCancelled(), 10),
			show.Seconds(u.GetWaitingSeconds()), show.Seconds(u.GetRunningSeconds()),
			show.Seconds(u.GetCpuUserSeconds() + u.GetCpuSystemSeconds()), show.Size(u.GetPeakMemoryBytes()),
		}
		if a.format == formatWide {
			texts = append(texts, show.Seconds(u.GetStagingSeconds()), show.Seconds(u.GetPublishingSeconds()),
				show.Seconds(u.GetCpuUserSeconds()), show.Seconds(u.GetCpuSystemSeconds()), document.Word(u.GetScope()),
				show.Size(u.GetBytesIn()), show.Size(u.GetBytesOut()), moment(r.GetSince()))
		}
		row := make([]show.Cell, len(texts))
		for i, text := range texts {
			row[i].Text = text
		}
		return row
	})
}
