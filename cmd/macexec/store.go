package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// storeName is the store's file in the state folder.
const storeName = "store.db"

// jobsName is the folder of the folders of jobs in the state folder.
const jobsName = "jobs"

func (a *app) storeCommand() *cobra.Command {
	return group("store", "Look after the store", a.storeCheckCommand(), a.storeBackupCommand(), a.storeDfCommand(), a.storePruneCommand(), a.storeRestoreCommand(),
		a.storeAdoptCommand(), a.storeConfirmCommand(), a.storeCompactCommand())
}

const storeCheckHelp = `Read the whole store of a stopped daemon, or the copy in FILE, and list what is wrong.
Nothing is changed. The exit code is 1 if something is wrong.`

func (a *app) storeCheckCommand() *cobra.Command {
	cmd := command("check [FILE]", "Read a whole store or a copy of one; exit code 1 if something is wrong", cobra.MaximumNArgs(1), func(_ *cobra.Command, args []string) error {
		path, err := a.storePath()
		if len(args) > 0 {
			path, err = args[0], nil
		}
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return usagef("--state DIR", "there is no store at %s", path)
		}
		problems, err := store.Check(path)
		if err != nil {
			return heldStore(err, "stop the daemon first, or ask it: macexec journal verify")
		}
		return a.printStoreCheck(storeDocument{Path: path, OK: len(problems) == 0, Problems: append([]string{}, problems...)})
	})
	cmd.Long = storeCheckHelp
	return cmd
}

// storePath is where the store of the state folder lies.
func (a *app) storePath() (string, error) {
	state, err := a.resolveState()
	return filepath.Join(state, storeName), err
}

// heldStore is the error of a command that looked at a store itself; also the word
// that a daemon holds it.
func heldStore(err error, try string) error {
	f := failed(exitRefused, jobs.CodeOf(err), explain(err).Error(), try)
	if e, ok := errors.AsType[*jobs.Error](err); ok {
		f.document.Metadata = e.Metadata
	}
	return f
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
		addProblems(&f, d.Problems)
		if err := f.table.Write(a.Out, a.OutTerminal && a.colour()); err != nil {
			return unwritable(err)
		}
	}
	return ended(exitOfInspection(d.OK))
}

func addProblems(f *fields, problems []string) {
	if len(problems) == 0 {
		f.addStyled("state", "ok", show.Green)
		return
	}
	f.addStyled("state", count(len(problems), "problem"), show.Red)
	for _, problem := range problems {
		f.add("problem", strings.TrimSpace(problem))
	}
}

// namingHolder adds to the word that a daemon was not reached which process has the
// store of the folder that was meant: a daemon that hangs, or whose socket is gone.
func (a *app) namingHolder(f *failure) *failure {
	path, err := a.storePath()
	if f.document.GetCode() != string(jobs.CodeNotReached) || a.address != "" || err != nil {
		return f
	}
	pid, command, held := store.Holder(path)
	if !held {
		return f
	}
	named := *f
	named.document = proto.CloneOf(f.document)
	if named.document.Metadata == nil {
		named.document.Metadata = map[string]string{}
	}
	named.try = "a process that cannot be told has the store " + path + ", and does not answer; end it, then start macexec serve again"
	if pid != 0 {
		named.document.Metadata["pid"], named.document.Metadata["command"] = strconv.Itoa(pid), command
		named.try = fmt.Sprintf("process %d (%s) has the store %s, and does not answer; end it, then start macexec serve again", pid, command, path)
	}
	return &named
}
