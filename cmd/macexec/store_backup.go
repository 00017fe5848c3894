package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/store"
)

const storeBackupHelp = `Write a whole, consistent copy of the store to FILE, where nothing may be. A running
daemon goes on meanwhile. If none runs, the store in the state folder is copied. The copy
is read whole before it gets its name, and exit code 1 says that something is wrong in it,
as it then is in the store.

The copy holds the records alone: not the files of jobs, nor uploads, nor secret.key.`

func (a *app) storeBackupCommand() *cobra.Command {
	cmd := command("backup FILE", "Write a copy of the store to FILE, also while the daemon runs", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		made, err := a.backUp(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := a.printBackup(made); err != nil {
			return err
		}
		return ended(exitOfInspection(made.OK))
	})
	cmd.Long = storeBackupHelp
	return cmd
}

// copyDocument is what store backup prints; schemas/store_copy.schema.json.
type copyDocument struct {
	storeDocument

	HostID      string `json:"host_id"`
	JournalHead uint64 `json:"journal_head"`
	Size        int64  `json:"size"`
}

// backUp makes the copy under another name, looks through it, and gives it its name
// when it is whole and on the disk.
func (a *app) backUp(ctx context.Context, path string) (copyDocument, error) {
	made := copyDocument{storeDocument: storeDocument{Path: path}}
	taken := unwritable(fmt.Errorf("%s exists and is not replaced", path))
	if _, err := os.Lstat(path); err == nil {
		return made, taken
	}
	sweepBackups(path)
	temp, err := os.CreateTemp(filepath.Dir(path), backupPrefix(path)+"*")
	if err != nil {
		return made, unwritable(err)
	}
	defer os.Remove(temp.Name()) // it has its name by then, or is of no use
	// Where there are locks this one tells that somebody writes the file.
	_ = unix.Flock(int(temp.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	err = a.copyStore(ctx, temp, &made)
	if err == nil {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return made, incoming(err)
	}
	problems, err := store.Check(temp.Name())
	if err != nil {
		return made, err
	}
	made.Problems, made.OK = append([]string{}, problems...), len(problems) == 0
	switch err := giveName(temp.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		return made, taken
	case err != nil:
		return made, unwritable(err)
	}
	return made, nil
}

func backupPrefix(path string) string { return "." + filepath.Base(path) + ".new-" }

// sweepBackups removes what backups to the same file left that were killed. What cannot be
// removed stays.
func sweepBackups(path string) {
	entries, _ := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), backupPrefix(path)) || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(filepath.Dir(path), e.Name())
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.Remove(name)
		}
		_ = f.Close()
	}
}

// copyStore asks the daemon for the copy, and makes it itself where none runs.
func (a *app) copyStore(ctx context.Context, temp *os.File, made *copyDocument) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the answer is there
	what, err := c.BackupStore(ctx, temp)
	if err == nil {
		made.HostID, made.JournalHead, made.Size = what.GetHostId(), what.GetJournalHead(), what.GetSize()
		return nil
	}
	path, pathErr := a.storePath()
	if e, ok := errors.AsType[*client.Error](err); !ok || !e.NotReached() || pathErr != nil ||
		c.Address() != unixScheme+filepath.Join(filepath.Dir(path), socketName) {
		return err
	}
	if _, statErr := os.Stat(path); statErr != nil {
		return err // there is no store either
	}
	own, err := store.Backup(ctx, path, temp)
	if err != nil {
		return heldStore(err, "macexec store check tells more; a daemon that does not answer may have to be stopped first")
	}
	made.HostID, made.JournalHead, made.Size = own.HostID, own.Head, own.Size
	return nil
}

// giveName renames a file to a path where nothing may be, durably.
func giveName(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		// A file system without hard links, as on many a disk that copies are kept on.
		if _, err := os.Lstat(to); err == nil {
			return fs.ErrExist
		}
		err = os.Rename(from, to)
	}
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(to))
}

func (a *app) printBackup(made copyDocument) error {
	switch {
	case a.format == formatJSON:
		return a.printValue(made)
	case a.quiet:
		return a.printLine(show.Line(made.Path))
	}
	var f fields
	f.add("copy", made.Path)
	f.add("host", made.HostID)
	f.add("newest entry", strconv.FormatUint(made.JournalHead, 10))
	f.add("size", show.Size(made.Size))
	addProblems(&f, made.Problems)
	if err := f.table.Write(a.Out, a.OutTerminal && a.colour()); err != nil {
		return unwritable(err)
	}
	return nil
}
