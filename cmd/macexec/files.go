package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) filesCommand() *cobra.Command {
	return group("files", "Move files to the host and from it",
		a.filesPutCommand(), a.filesGetCommand(), a.filesStatCommand())
}

func (a *app) filesPutCommand() *cobra.Command {
	return a.talk("put FILE…", "Upload files; prints how arguments name them", cobra.MinimumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		for _, path := range args {
			info, err := c.Upload(ctx, path)
			if err != nil {
				return beforehand(err)
			}
			if err := a.print(info, info.GetReference(), func(w io.Writer) error {
				_, err := io.WriteString(w, show.Line(info.GetReference())+"\n")
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) filesGetCommand() *cobra.Command {
	var to string
	cmd := a.talk("get REFERENCE", "Download a file: sha256:<hex>, or job:<id>/<artifact>", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		info, err := c.Stat(ctx, args[0])
		if err != nil {
			return beforehand(err)
		}
		if to == "-" {
			_, err := c.Fetch(ctx, args[0], a.Out)
			return incoming(err)
		}
		path := to
		if path == "" {
			path = plainName(info.GetName(), info.GetSha256())
		}
		if at, err := os.Stat(path); err == nil && at.IsDir() {
			return usagef("--to "+path+"/NAME", "%s is a folder", path)
		}
		if err := a.fetch(ctx, c, args[0], path); err != nil {
			return err
		}
		a.remarkf("downloaded %s (%s)", path, show.Size(info.GetSize()))
		return a.printFiles([]*macexecv1.FileInfo{info})
	})
	cmd.Flags().StringVar(&to, "to", "", "the file to write, or - for stdout (its own name, here); nothing is replaced")
	return cmd
}

func (a *app) filesStatCommand() *cobra.Command {
	return a.talk("stat REFERENCE…", "Describe files of the host", cobra.MinimumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		var files []*macexecv1.FileInfo
		for _, reference := range args {
			info, err := c.Stat(ctx, reference)
			if err != nil {
				return beforehand(err)
			}
			files = append(files, info)
		}
		return a.printFiles(files)
	})
}

func (a *app) printFiles(files []*macexecv1.FileInfo) error {
	table := &show.Table{Head: []string{"REFERENCE", "NAME", "SIZE", "TYPE"}}
	if a.format == formatWide {
		table.Head = append(table.Head, "SHA256")
	}
	return list(a, files, (*macexecv1.FileInfo).GetReference, table, func(f *macexecv1.FileInfo) []show.Cell {
		row := []show.Cell{{Text: f.GetReference()}, {Text: f.GetName()}, {Text: show.Size(f.GetSize())}, {Text: f.GetMediaType()}}
		if a.format == formatWide {
			row = append(row, show.Cell{Text: f.GetSha256()})
		}
		return row
	})
}
