package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/macexec/macexec/internal/fault"
)

// Outcome is what became of a step.
type Outcome string

// The outcomes. All but Unfinished and Unproven are final and proved.
const (
	// Done: the change is made and durable.
	Done Outcome = "done"
	// Taken (create): something else is at the destination; nothing was changed.
	Taken Outcome = "taken"
	// Changed (replace, remove): the file is not the one that was agreed on, or is
	// gone. It is where it was; if the result names a Trash path, it could not be put
	// back, since its name had been taken meanwhile, and lies there unharmed.
	Changed Outcome = "changed"
	// Refused: the system would not do it; nothing was changed.
	Refused Outcome = "refused"
	// Unfinished: an error or the context came in between. Call Carry again: it goes
	// on from wherever the step stands.
	Unfinished Outcome = "unfinished"
	// Unproven: somebody else moved things so that it cannot be told whether the
	// change was made.
	Unproven Outcome = "unproven"
)

// Result is how a step stands after Carry.
type Result struct {
	Outcome Outcome
	Err     error  // why it is not Done
	Trash   string // where the old file is, inside the project, if it was moved there
}

// maxMoves bounds how often a step looks again. Each look makes one change, and the
// longest way has six; more means that somebody else is changing the same names.
const maxMoves = 16

// Carry makes a placed step's change. It decides by what is there (the hidden name,
// the destination and the trash, known by device, inode and digest), so that after
// a crash at any point it finishes what was begun and never does it twice.
func Carry(ctx context.Context, step Step) Result {
	if step.Device == 0 && step.Inode == 0 {
		return Result{Outcome: Refused, Err: fmt.Errorf("%q: the step was not placed", step.Path)}
	}
	c, err := open(step)
	switch {
	case errors.Is(err, errStep):
		return Result{Outcome: Refused, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		// The folder went away, and what was placed in it.
		return Result{Outcome: Unproven, Err: err}
	case err != nil:
		return Result{Outcome: Unfinished, Err: err}
	}
	defer c.close()
	for range maxMoves {
		res, err := c.advance(ctx)
		if err != nil {
			return Result{Outcome: Unfinished, Err: err}
		}
		if res.Outcome != "" {
			return res
		}
	}
	return Result{Outcome: Unfinished, Err: fmt.Errorf("%q does not hold still", step.Path)}
}

// advance looks at what is there and makes one change towards the end, or says that
// the end is reached. A crash may come before or after any change. An error that a
// change gave is believed only when the next look shows that it was not made.
func (c *carrier) advance(ctx context.Context) (Result, error) {
	dest, isDest, err := c.dir.lstat(c.dest)
	if err == nil {
		err = fault.Err("publish.look")
	}
	if err != nil {
		return Result{}, err
	}
	if c.step.Verb == Remove {
		return c.advanceRemove(ctx, dest, isDest)
	}
	temp, isTemp, err := c.dir.lstat(c.temp)
	if err != nil {
		return Result{}, err
	}
	if !isTemp {
		return c.afterMove(ctx, isDest)
	}
	tempOurs, err := c.isOurs(ctx, c.dir, c.temp, temp)
	if err != nil {
		return Result{}, err
	}
	destOurs := false
	if isDest {
		if destOurs, err = c.isOurs(ctx, c.dir, c.dest, dest); err != nil {
			return Result{}, err
		}
	}
	switch {
	case tempOurs && destOurs:
		// Two names of one file: the way of file systems without an exclusive rename.
		return Result{}, c.dir.unlink(c.temp)
	case c.step.Verb == Create && tempOurs:
		return c.create(ctx, temp, isDest)
	case c.step.Verb == Replace && tempOurs:
		return c.exchange(ctx, temp, dest, isDest)
	case c.step.Verb == Replace:
		was, err := c.hasDigest(ctx, c.dir, c.temp, c.step.OldSHA256)
		if err != nil {
			return Result{}, err
		}
		// The old file under the hidden name: only the swap can have put it there,
		// whatever became of the destination since.
		if was || destOurs {
			return c.discard(was, destOurs)
		}
	case destOurs:
		return c.done(ctx)
	}
	return Result{Outcome: Unproven, Err: fmt.Errorf("neither %q nor %q is the file that was placed", c.step.Temp, c.step.Path)}, nil
}

// afterMove is the proof of create and replace: the hidden name is gone.
func (c *carrier) afterMove(ctx context.Context, isDest bool) (Result, error) {
	if isDest {
		there, _, err := c.dir.lstat(c.dest)
		if err != nil {
			return Result{}, err
		}
		ours, err := c.isOurs(ctx, c.dir, c.dest, there)
		if err == nil && !ours {
			// Some file systems number a file anew when it is renamed.
			ours, err = c.hasDigest(ctx, c.dir, c.dest, c.step.SHA256)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return Result{}, nil
		}
		if err != nil {
			return Result{}, err
		}
		if ours {
			return c.done(ctx)
		}
	}
	if c.step.Verb == Replace {
		// The old file reaches the trash last. Whoever touched the destination since
		// did so after the replacement.
		if in, ok, err := c.openTrash(); err != nil {
			return Result{}, err
		} else if ok {
			defer in.Close()
			was, err := c.hasDigest(ctx, in, c.old, c.step.OldSHA256)
			if err == nil && was {
				return c.done(ctx)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return Result{}, err
			}
		}
	}
	return Result{Outcome: Unproven, Err: fmt.Errorf("%q is gone, and %q is not the file that was placed", c.step.Temp, c.step.Path)}, nil
}

// done makes the names durable and lets the kept artifact go: its bytes are at the
// destination.
func (c *carrier) done(ctx context.Context) (Result, error) {
	res := Result{Outcome: Done}
	if c.step.Verb != Create {
		in, ok, err := c.openTrash()
		if err != nil {
			return Result{}, err
		}
		if ok {
			defer in.Close()
			if err := in.sync(); err != nil {
				return Result{}, explain(c.step.Trash, err)
			}
			res.Trash = c.step.Trash
		}
	}
	if err := c.syncNames(); err != nil {
		return Result{}, explain(c.step.Path, err)
	}
	if c.step.Verb == Remove {
		return res, nil
	}
	kept, err := openFolder(filepath.Dir(c.step.Source))
	if errors.Is(err, fs.ErrNotExist) {
		return res, nil
	}
	if err != nil {
		return Result{}, err
	}
	defer kept.Close()
	fault.Point("publish.kept")
	if err := gone(c.drop(ctx, kept, filepath.Base(c.step.Source))); err != nil {
		return Result{}, explain(c.step.Source, err)
	}
	return res, nil
}

func (c *carrier) syncNames() error {
	if err := fault.Err("publish.names"); err != nil {
		return err
	}
	return c.dir.sync()
}

// move is one rename of a publish, with a fault point on each side.
func (c *carrier) move(what string, rename func() error) error {
	if err := fault.Err("publish." + what); err != nil {
		return err
	}
	err := rename()
	fault.Point("publish." + what + "d")
	return err
}

// create: the hidden name becomes the destination unless something is there.
func (c *carrier) create(ctx context.Context, temp Facts, isDest bool) (Result, error) {
	taken := Result{Outcome: Taken, Err: fmt.Errorf("%q: %w", c.step.Path, ErrTaken)}
	if isDest {
		return taken, nil
	}
	dir, err := FactsOf(c.dir.f)
	if err != nil {
		return Result{}, err
	}
	if c.failed != nil {
		return refused(c.failed), nil //nolint:nilerr // it is in the result
	}
	if err := c.verify(ctx); err != nil {
		return c.refusedUnless(ctx, err)
	}
	mode := fs.FileMode(0o644)
	if c.step.Folder {
		mode = 0o755
	}
	if dressed, err := c.dress(ctx, temp, mode, dir.UID, dir.GID); dressed || err != nil {
		return c.tried(err)
	}
	err = c.move("create", func() error { return c.dir.move(c.temp, c.dir, c.dest) })
	if !errors.Is(err, fs.ErrExist) {
		c.failed = explain(c.step.Path, err)
	}
	return Result{}, nil
}

// exchange: the hidden name and the destination swap, so that a reader of the
// destination finds the old file or the new one at every moment.
func (c *carrier) exchange(ctx context.Context, temp, dest Facts, isDest bool) (Result, error) {
	if !isDest || !c.fits(dest) {
		return Result{Outcome: Changed, Err: fmt.Errorf("%q: %w: the file to be replaced is gone", c.step.Path, ErrChanged)}, nil
	}
	if res, ok, err := c.mayMove(ctx); !ok {
		return res, err
	}
	if err := c.verify(ctx); err != nil {
		return c.refusedUnless(ctx, err)
	}
	if made, err := c.readyTrash(); made || err != nil {
		return c.tried(err)
	}
	if dressed, err := c.dress(ctx, temp, dest.Mode, dest.UID, dest.GID); dressed || err != nil {
		return c.tried(err)
	}
	err := c.move("replace", func() error { return c.dir.swap(c.temp, c.dest) })
	return c.tried(explain(c.step.Path, err))
}

// tried keeps what a change gave, for after the next look.
func (c *carrier) tried(err error) (Result, error) {
	c.failed = err
	return Result{}, nil
}

func refused(err error) Result { return Result{Outcome: Refused, Err: err} }

// mayMove says whether the file at the destination is to be moved away now; if not,
// what the answer is instead. Nothing has been changed when it is asked.
func (c *carrier) mayMove(ctx context.Context) (Result, bool, error) {
	if c.failed != nil {
		return refused(c.failed), false, nil //nolint:nilerr // it is in the result
	}
	err := c.expectOld(ctx, c.dir, c.dest)
	switch {
	case err == nil:
		return Result{}, true, nil
	case errors.Is(err, ErrChanged):
		return Result{Outcome: Changed, Err: err}, false, nil
	case errors.Is(err, fs.ErrNotExist):
		return Result{}, false, nil // look again
	}
	res, err := c.refusedUnless(ctx, err)
	return res, false, err
}

// verify makes sure, once, that what is about to be shown is the artifact: the
// hidden name may have lain open to others for as long as a crash lasted.
func (c *carrier) verify(ctx context.Context) error {
	if c.verified {
		return nil
	}
	ok, err := c.hasDigest(ctx, c.dir, c.temp, c.step.SHA256)
	if err == nil && !ok {
		err = fmt.Errorf("%q: %w; it was written to after it was kept", c.step.Temp, ErrDigest)
	}
	c.verified = err == nil
	return err
}

// refusedUnless is for errors that come before any change, unless the context is
// what ended.
func (c *carrier) refusedUnless(ctx context.Context, err error) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, err
	}
	return refused(err), nil
}

// discard: what the swap moved out of the way goes to the trash, if it was what was
// agreed on and the trash will have it; else it is put back.
func (c *carrier) discard(was, destOurs bool) (Result, error) {
	switch {
	case was && c.failed == nil:
	case destOurs:
		// The next look finds the file at its own name again.
		return Result{}, explain(c.step.Path, c.dir.swap(c.temp, c.dest))
	default:
		return Result{}, c.failed
	}
	// Both names are durable before the old one moves on.
	if err := c.dir.sync(); err != nil {
		return Result{}, explain(c.step.Path, err)
	}
	in, ok, err := c.openTrash()
	if err != nil {
		return Result{}, err
	}
	if !ok { // somebody emptied the trash in between
		_, err := c.readyTrash()
		return c.tried(err)
	}
	defer in.Close()
	err = c.move("retire", func() error { return c.dir.move(c.temp, in, c.old) })
	return c.tried(crossDevice(c.step.Path, err))
}

// advanceRemove: the file moves to the trash, is checked there, and is put back if
// it is not what was agreed on.
func (c *carrier) advanceRemove(ctx context.Context, dest Facts, isDest bool) (Result, error) {
	in, ready, err := c.openTrash()
	if err != nil {
		return Result{}, err
	}
	if ready {
		defer in.Close()
		if moved, ok, err := in.lstat(c.old); err != nil {
			return Result{}, err
		} else if ok {
			return c.judgeRemoved(ctx, in, isDest && dest.SameFile(moved))
		}
	}
	gone := fmt.Errorf("%q: %w: the file to be removed is gone", c.step.Path, ErrChanged)
	if !isDest {
		if ready {
			// The move had been got ready: it may have been made, and the trash emptied.
			return Result{Outcome: Unproven, Err: gone}, nil
		}
		return Result{Outcome: Changed, Err: gone}, nil
	}
	if !c.fits(dest) || dest.Inode != c.step.Inode {
		return Result{Outcome: Changed, Err: fmt.Errorf("%q: %w: another file has its name", c.step.Path, ErrChanged)}, nil
	}
	if res, ok, err := c.mayMove(ctx); !ok {
		return res, err
	}
	if !ready {
		_, c.failed = c.readyTrash()
		return Result{}, nil
	}
	err = c.move("remove", func() error { return c.dir.move(c.dest, in, c.old) })
	if !errors.Is(err, fs.ErrNotExist) {
		c.failed = crossDevice(c.step.Path, err)
	}
	return Result{}, nil
}

// judgeRemoved looks at the file in the trash. That it has both names is the way of
// file systems without an exclusive rename; one of the two goes.
func (c *carrier) judgeRemoved(ctx context.Context, in folder, both bool) (Result, error) {
	err := c.expectOld(ctx, in, c.old)
	switch {
	case err == nil && both && c.failed == nil:
		c.failed = explain(c.step.Path, c.dir.unlink(c.dest))
		return Result{}, nil
	case err == nil && !both:
		return c.done(ctx)
	case err != nil && !errors.Is(err, ErrChanged):
		return Result{}, err
	case both:
		return Result{}, explain(c.step.Trash, in.unlink(c.old))
	}
	back := in.move(c.old, c.dir, c.dest)
	switch {
	case errors.Is(back, fs.ErrExist):
		return Result{Outcome: Changed, Err: fmt.Errorf("%w; its name is taken again, so it lies at %q", err, c.step.Trash), Trash: c.step.Trash}, nil
	case back != nil:
		return Result{}, explain(c.step.Path, errors.Join(err, back))
	}
	if err := errors.Join(c.dir.sync(), in.sync()); err != nil {
		return Result{}, explain(c.step.Path, err)
	}
	return Result{Outcome: Changed, Err: err}, nil
}
