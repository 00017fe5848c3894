package main

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) journalCommand() *cobra.Command {
	return group("journal", "Read the record of everything that was asked, decided and done",
		a.journalTailCommand(), a.journalExportCommand(), a.journalVerifyCommand())
}

func (a *app) journalTailCommand() *cobra.Command {
	var follow bool
	var lines int
	cmd := a.talk("tail", "Print the newest entries", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		if lines < 0 {
			return usagef("-n 20", "the number of entries is negative")
		}
		if err := reached(ctx, c); err != nil {
			return err
		}
		var last []*macexecv1.Entry
		var head uint64
		err := c.ReadJournal(ctx, &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
			head = e.GetSeq()
			if last = append(last, e); len(last) > lines {
				last = last[1:]
			}
			return nil
		})
		if err != nil {
			return streamed(ctx, err)
		}
		for _, e := range last {
			if err := a.printEntry(e); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		return streamed(ctx, c.ReadJournal(ctx, &macexecv1.ReadJournalRequest{After: head, Follow: true}, a.printEntry))
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new entries")
	cmd.Flags().IntVarP(&lines, "lines", "n", 20, "how many entries")
	return cmd
}

func (a *app) printEntry(e *macexecv1.Entry) error {
	return a.print(e, strconv.FormatUint(e.GetSeq(), 10), func(w io.Writer) error {
		_, err := io.WriteString(w, show.Line(entryLine(e))+"\n")
		return err
	})
}

func (a *app) journalExportCommand() *cobra.Command {
	var after uint64
	cmd := a.talk("export", "Print all entries as JSON documents, one per line", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		if err := reached(ctx, c); err != nil {
			return err
		}
		return beforehand(c.ReadJournal(ctx, &macexecv1.ReadJournalRequest{After: after}, func(e *macexecv1.Entry) error {
			return a.printDocument(e)
		}))
	})
	cmd.Flags().Uint64Var(&after, "after", 0, "only what comes after this entry")
	return cmd
}

func (a *app) journalVerifyCommand() *cobra.Command {
	return a.talk("verify", "Walk the hash chain; exit code 1 if it is broken", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		resp, err := c.Journal.VerifyJournal(ctx, &macexecv1.VerifyJournalRequest{})
		if err != nil {
			return beforehand(err)
		}
		report := resp.GetReport()
		if err := a.print(report, strconv.FormatUint(report.GetGood(), 10), func(w io.Writer) error {
			var f fields
			if report.GetOk() {
				f.addStyled("journal", "ok", show.Green)
			} else {
				f.addStyled("journal", "broken", show.Red)
			}
			f.add("good entries", strconv.FormatUint(report.GetGood(), 10))
			f.add("message", report.GetMessage())
			return f.table.Write(w, a.OutTerminal && a.colour())
		}); err != nil {
			return err
		}
		return ended(exitOfInspection(report.GetOk()))
	})
}
