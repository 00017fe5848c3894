package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

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
			info, err := a.upload(ctx, c, path)
			if err != nil {
				return err
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
	var replace bool
	cmd := a.talk("get REFERENCE [FILE]", "Download sha256:<hex> or job:<id>/<artifact> to FILE (- is stdout, of a folder as a tar; its own name, here)", cobra.RangeArgs(1, 2), func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) > 1 && args[1] == "" {
			return usagef("leave FILE out for its own name", "the name of the file is empty")
		}
		info, err := c.Stat(ctx, args[0])
		if err != nil {
			return beforehand(err)
		}
		path := plainName(info.GetName(), info.GetSha256())
		if len(args) > 1 {
			path = args[1]
		}
		if path == "-" {
			_, err := c.Fetch(ctx, args[0], a.Out)
			return incoming(err)
		}
		if at, err := os.Stat(path); err == nil && at.IsDir() {
			return usagef("name the file: "+filepath.Join(path, "NAME"), "%s is a folder", path)
		}
		var options []client.TransferOption
		if replace {
			options = append(options, client.Replace())
		}
		if err := a.fetch(ctx, c, info, path, options...); err != nil {
			return err
		}
		a.remarkf("downloaded %s (%s)", path, show.Size(info.GetTransferSize()))
		return a.printFiles([]*macexecv1.FileInfo{info})
	})
	cmd.Flags().BoolVar(&replace, "replace", false, "replace FILE if it is there")
	return cmd
}

// upload stores a local file on the host. One that was cut off goes on where it was.
func (a *app) upload(ctx context.Context, c *client.Client, path string) (*macexecv1.FileInfo, error) {
	status := a.status()
	defer status.Clear()
	info, err := c.Upload(ctx, path, client.OnProgress(moved(status, path)))
	if err != nil {
		return nil, beforehand(err)
	}
	return info, nil
}

// fetch downloads one file or folder to a path where nothing is. One that was cut off
// goes on where it was.
func (a *app) fetch(ctx context.Context, c *client.Client, info *macexecv1.FileInfo, path string, options ...client.TransferOption) error {
	status := a.status()
	defer status.Clear()
	download := c.Download
	if info.GetFolder() {
		download = c.DownloadFolder
	}
	_, err := download(ctx, info.GetReference(), path, append(options, client.OnProgress(moved(status, path)))...)
	if errors.Is(err, fs.ErrExist) {
		return unwritable(fmt.Errorf("%s exists and is not replaced", path))
	}
	return incoming(err)
}

// moved shows how much of a file has gone over.
func moved(status *show.Status, path string) func(done, total int64) {
	return func(done, total int64) {
		line := filepath.Base(path) + "  " + show.Size(done) + " of " + show.Size(total)
		if total > 0 {
			line = filepath.Base(path) + "  " + show.Bar(100*float64(done)/float64(total)) + "  " + show.Size(done) + " of " + show.Size(total)
		}
		status.Set(line)
	}
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
