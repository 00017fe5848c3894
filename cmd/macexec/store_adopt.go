package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

const storeAdoptHelp = `Say that the store in the state folder is the one to use, though it is not the one that
was there last, or an earlier state of it. The daemon must be stopped. With --empty an
empty store is made where there is none.

Such a store may have forgotten keys that were used and jobs that ran. So calls of tools
with outside effects wait, old ones and new ones, until somebody says that this is dealt
with: macexec store confirm --reason TEXT.`

// ownerName is the principal that the user of a state folder is.
const ownerName = "owner"

func (a *app) storeAdoptCommand() *cobra.Command {
	var reason string
	var empty bool
	cmd := command("adopt", "Decide that the store is to be used, though it is not the one that was here", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		state, err := a.resolveState()
		if err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return usagef("macexec store adopt --reason TEXT", "say why; the journal keeps it")
		}
		folders, err := jobFolders(state)
		if err != nil {
			return unreadable(err)
		}
		adopted, err := store.Adopt(cmd.Context(), store.AdoptOptions{
			Path: filepath.Join(state, storeName), By: ownerName, Reason: reason, Empty: empty, Jobs: folders,
		})
		if err != nil {
			return heldStore(err, adoptAdvice(err))
		}
		return a.printAdoption(filepath.Join(state, storeName), "", adopted)
	})
	cmd.Long = storeAdoptHelp
	cmd.Flags().StringVar(&reason, "reason", "", "why; the journal keeps it")
	cmd.Flags().BoolVar(&empty, "empty", false, "begin with an empty store, where there is none")
	nothing(cmd, "reason")
	return cmd
}

func adoptAdvice(err error) string {
	if jobs.CodeOf(err) == jobs.CodeStoreMissing {
		return "macexec store restore FILE, or with no copy left: macexec store adopt --empty --reason TEXT"
	}
	return "mend what the message says, then run the command again; nothing was changed"
}

// jobFolders lists the jobs that have a folder in a state folder.
func jobFolders(state string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(state, jobsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// adoptionDocument is what store adopt and store restore print;
// schemas/store_adoption.schema.json.
type adoptionDocument struct {
	Path        string   `json:"path"`
	HostID      string   `json:"host_id"`
	JournalHead uint64   `json:"journal_head"`
	KnownHostID string   `json:"known_host_id"`
	KnownHead   uint64   `json:"known_head"`
	Forgotten   []string `json:"forgotten"`
	Overtaken   []string `json:"overtaken"`
	Unread      string   `json:"unread"`
	Kept        string   `json:"kept"`
}

func (a *app) printAdoption(path, kept string, adopted store.Adoption) error {
	d := adoptionDocument{
		Path: path, HostID: adopted.HostID, JournalHead: adopted.Head, Kept: kept,
		KnownHostID: adopted.Known.HostID, KnownHead: adopted.Known.Head, Forgotten: append([]string{}, adopted.Forgotten...),
		Overtaken: append([]string{}, adopted.Overtaken...), Unread: adopted.Unread,
	}
	switch {
	case a.format == formatJSON:
		return a.printValue(d)
	case a.quiet:
		for _, id := range slices.Concat(d.Forgotten, d.Overtaken) {
			if err := a.printLine(show.Line(id)); err != nil {
				return err
			}
		}
		return nil
	}
	var f fields
	f.add("store", d.Path)
	f.add("host", d.HostID)
	f.add("newest entry", strconv.FormatUint(d.JournalHead, 10))
	if d.KnownHostID != "" {
		f.add("known before", "entry "+strconv.FormatUint(d.KnownHead, 10)+" of host "+d.KnownHostID)
	}
	f.add("kept", d.Kept)
	for _, id := range d.Forgotten {
		f.addStyled("forgotten job", id, show.Yellow)
	}
	for _, id := range d.Overtaken {
		f.addStyled("forgotten start", id, show.Yellow)
	}
	if d.Unread != "" {
		f.addStyled("replaced store", "cannot be read whole, so a queued job may have been started: "+d.Unread, show.Red)
	}
	f.addStyled("external calls", "wait for macexec store confirm --reason TEXT", show.Yellow)
	if err := f.table.Write(a.Out, a.OutTerminal && a.colour()); err != nil {
		return unwritable(err)
	}
	return nil
}
