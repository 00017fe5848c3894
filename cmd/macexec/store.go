package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// storeName is the store's file in the state folder.
const storeName = "store.db"

func (a *app) storeCommand() *cobra.Command {
	return group("store", "Look after the store of a daemon that is stopped",
		command("check", "Read the whole store of a stopped daemon; exit code 1 if something is wrong", cobra.NoArgs, func(*cobra.Command, []string) error {
			state, err := a.resolveState()
			if err != nil {
				return err
			}
			path := filepath.Join(state, storeName)
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				return usagef("--state DIR", "there is no store at %s", path)
			}
			problems, err := store.Check(path)
			if err != nil {
				// Also the word that a daemon holds it.
				return failed(exitRefused, jobs.CodeOf(err), explain(err).Error(), "stop the daemon first, or ask it: macexec journal verify")
			}
			return a.printStoreCheck(storeDocument{Path: path, OK: len(problems) == 0, Problems: append([]string{}, problems...)})
		}))
}

// storeDocument is what store check found.
type storeDocument struct {
	Path     string   `json:"path"`
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

func (a *app) printStoreCheck(d storeDocument) error {
	switch {
	case a.format == formatJSON:
		if err := a.printValue(d); err != nil {
			return err
		}
	case a.quiet:
		for _, problem := range d.Problems {
			if err := a.printLine(show.Line(problem)); err != nil {
				return err
			}
		}
	default:
		var f fields
		f.add("store", d.Path)
		if d.OK {
			f.addStyled("state", "ok", show.Green)
		} else {
			f.addStyled("state", count(len(d.Problems), "problem"), show.Red)
		}
		for _, problem := range d.Problems {
			f.add("problem", strings.TrimSpace(problem))
		}
		if err := f.table.Write(a.Out, a.OutTerminal && a.colour()); err != nil {
			return unwritable(err)
		}
	}
	return ended(exitOfInspection(d.OK))
}
