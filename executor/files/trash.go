package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/macexec/macexec/internal/fault"
)

const infoSuffix = ".json"

// trashInfo lies beside a step's folder in the trash, as <name of the folder>.json.
// It is written before the file moves.
type trashInfo struct {
	Path   string    `json:"path"` // where the file was, inside the project
	Job    string    `json:"job"`
	Verb   Verb      `json:"verb"`
	SHA256 string    `json:"sha256"`
	At     time.Time `json:"at"`
}

// trashReachable says, before anything is changed, whether a file of the
// destination's folder can move to the trash in one step.
func (c *carrier) trashReachable() error {
	from, err := FactsOf(c.dir.f)
	if err != nil {
		return explain(c.step.Path, err)
	}
	at := c.root
	if bin, err := c.root.sub(TrashFolder); err == nil {
		defer bin.Close()
		at = bin
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the trash cannot be used: %w", err)
	}
	to, err := FactsOf(at.f)
	if err != nil {
		return explain(TrashFolder, err)
	}
	if from.Device != to.Device {
		return fmt.Errorf("%q: %w", c.step.Path, ErrCrossDevice)
	}
	return nil
}

// openTrash opens the step's own folder in the trash; false if it is not there or
// not ready.
func (c *carrier) openTrash() (folder, bool, error) {
	bin, err := c.root.sub(TrashFolder)
	if err == nil {
		defer bin.Close()
		if _, ok, err := bin.lstat(c.trash + infoSuffix); err != nil || !ok {
			return folder{}, false, err
		}
		var in folder
		if in, err = bin.sub(c.trash); err == nil {
			return in, true, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return folder{}, false, nil
	}
	return folder{}, false, fmt.Errorf("the trash cannot be used: %w", err)
}

// readyTrash makes the step's folder and its note, durably; false if they were
// there. The note comes last, so a folder with a note is a folder that is ready.
func (c *carrier) readyTrash() (made bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the trash cannot be used: %w", explain(c.step.Trash, err))
		}
		if errors.Is(err, fs.ErrNotExist) {
			// Another step's Undo has just removed the empty trash: look again.
			made, err = true, nil
		}
	}()
	if in, ok, err := c.openTrash(); err != nil {
		return false, err
	} else if ok {
		in.Close()
		return false, nil
	}
	if err := c.root.mkdir(TrashFolder); err != nil {
		return false, err
	}
	bin, err := c.root.sub(TrashFolder)
	if err != nil {
		return false, err
	}
	defer bin.Close()
	if err := bin.mkdir(c.trash); err != nil {
		return false, err
	}
	in, err := bin.sub(c.trash)
	if err != nil {
		return false, err
	}
	defer in.Close()
	if err := c.giveToOwner(bin, in); err != nil {
		return false, err
	}
	note, err := json.MarshalIndent(trashInfo{
		Path: c.path, Job: c.step.Job, Verb: c.step.Verb, SHA256: c.step.OldSHA256, At: fault.Now().UTC(),
	}, "", "  ")
	if err != nil {
		return false, err
	}
	temp := c.trash + ".tmp"
	f, err := bin.open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if _, err := f.Write(append(note, '\n')); err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil {
		return false, err
	}
	if err := fault.Err("publish.note"); err != nil {
		return false, err
	}
	if err := bin.rename(temp, bin, c.trash+infoSuffix); err != nil {
		return false, err
	}
	fault.Point("publish.noted")
	return true, errors.Join(bin.sync(), c.root.sync())
}

// giveToOwner lets the owner of the project at the trash when macexec runs as root.
func (c *carrier) giveToOwner(folders ...folder) error {
	if os.Geteuid() != 0 {
		return nil
	}
	owner, err := FactsOf(c.root.f)
	if err != nil {
		return err
	}
	for _, d := range folders {
		if err := d.f.Chown(int(owner.UID), int(owner.GID)); err != nil && !errors.Is(err, fs.ErrPermission) && !unsupported(err) {
			return err
		}
	}
	return nil
}

// dropTrash removes the step's folder and note if no file was moved there.
func (c *carrier) dropTrash() error {
	if c.step.Verb == Create {
		return nil
	}
	bin, err := c.root.sub(TrashFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer bin.Close()
	err = bin.rmdir(c.trash)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%q: a file of this step is in the trash", c.step.Path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(c.step.Trash, err)
	}
	for _, name := range []string{c.trash + infoSuffix, c.trash + ".tmp"} {
		if err := bin.unlink(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return explain(c.step.Trash, err)
		}
	}
	// The whole trash goes too if this was all it held, and another step may have been
	// faster.
	err = c.root.rmdir(TrashFolder)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return explain(c.step.Trash, err)
}

// crossDevice names the one reason for a failed move to the trash that a person can
// do something about.
func crossDevice(p string, err error) error {
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%q: %w", p, ErrCrossDevice)
	}
	return explain(p, err)
}
