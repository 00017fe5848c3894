package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Options is what the demo needs to know.
type Options struct {
	Binary string // the macexec to show
	Out    io.Writer
	Colour bool
	// Progress paints a line over and over; nil: nobody looks.
	Progress func(text string)
	// Media returns an embedded file by its name.
	Media func(name string) ([]byte, error)
	// Names of the embedded files.
	Photo, Clip, Speech string
}

// MissingError says which programs the shipped tools need and are not here.
type MissingError struct{ Programs []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("these programs are missing: %v", e.Programs)
}

// FalseError is a claim that did not hold.
type FalseError struct{ Claim string }

func (e *FalseError) Error() string { return "this should be true and is not: " + e.Claim }

// Run runs every step and returns the first error.
func Run(ctx context.Context, o Options) error {
	// The demo itself makes longer videos with it.
	if _, err := exec.LookPath("ffmpeg"); err != nil {
		return &MissingError{[]string{"ffmpeg"}}
	}
	// Not in TMPDIR, which may be too long for the path of a socket.
	dir, err := os.MkdirTemp("/tmp", "macexec-demo-")
	if err != nil {
		return err
	}
	d := &show{Options: o, dir: dir, state: filepath.Join(dir, "state"), began: time.Now()}
	err = d.run(ctx)
	// Whatever happened, nothing of the demo goes on afterwards.
	err = errors.Join(err, d.end())
	if err == nil {
		d.sayf("\nEverything above was checked, in %.1f seconds. The demo's folder is removed.", time.Since(d.began).Seconds())
		return os.RemoveAll(dir)
	}
	if _, ok := errors.AsType[*MissingError](err); ok {
		return errors.Join(err, os.RemoveAll(dir))
	}
	d.sayf("\nThe demo's folder is kept, to look at: %s", dir)
	return err
}

// show is one run of the demo.
type show struct {
	Options
	dir    string // everything that the demo makes
	state  string // the daemon's state folder
	files  string // the daemon's default project
	daemon *daemon
	began  time.Time
	step   int
	// exported is the first export, whose key later steps use again.
	exported job
}

func (d *show) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.start, d.inspect, d.convert, d.export, d.repeat, d.conflict, d.wrongCall, d.approval, d.crash, d.journal,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// title begins a step.
func (d *show) title(text string) {
	d.step++
	line := fmt.Sprintf("%d. %s", d.step, text)
	if d.Colour {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	d.sayf("\n%s", line)
}

func (d *show) sayf(format string, args ...any) {
	fmt.Fprintf(d.Out, format+"\n", args...)
}

// provedf says what a step has shown, once it is checked.
func (d *show) provedf(format string, args ...any) {
	mark := "   ok: "
	if d.Colour {
		mark = "   \x1b[32mok:\x1b[0m "
	}
	d.sayf(mark+format, args...)
}

// claimf returns an error unless the claim is true.
func claimf(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return &FalseError{fmt.Sprintf(format, args...)}
}

// place writes an embedded file into the demo's folder and returns its path.
func (d *show) place(name, path string) (string, error) {
	content, err := d.Media(name)
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, content, 0o600)
}
