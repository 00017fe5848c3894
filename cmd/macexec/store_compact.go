package main

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/store"
)

const storeCompactHelp = `Write the store of a stopped daemon anew, without the pages that are free in it. The
new file takes the old one's place when it is whole and the same, row by row; a
compaction that is cut short leaves the store as it was.`

// compactionDocument is what store compact prints; schemas/store_compaction.schema.json.
type compactionDocument struct {
	Path   string `json:"path"`
	Before int64  `json:"size_before"`
	After  int64  `json:"size_after"`
}

func (a *app) storeCompactCommand() *cobra.Command {
	cmd := command("compact", "Give free room in the store of a stopped daemon back to the disk", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		path, err := a.storePath()
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return usagef("--state DIR", "there is no store at %s", path)
		}
		won, err := store.Compact(cmd.Context(), path)
		if err != nil {
			return heldStore(err, "mend what the message says, then run the command again; the store was not changed")
		}
		d := compactionDocument{Path: path, Before: won.Before, After: won.After}
		switch {
		case a.format == formatJSON:
			return a.printValue(d)
		case a.quiet:
			return a.printLine(strconv.FormatInt(d.After, 10))
		}
		var f fields
		f.add("store", d.Path)
		f.add("size before", show.Size(d.Before))
		f.add("size", show.Size(d.After))
		if err := f.table.Write(a.Out, false); err != nil {
			return unwritable(err)
		}
		return nil
	})
	cmd.Long = storeCompactHelp
	return cmd
}
