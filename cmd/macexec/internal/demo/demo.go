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
	if missing := missingPrograms(); len(missing) > 0 {
		return &MissingError{missing}
	}
	dir, err := os.MkdirTemp("", "macexec-demo-")
	if err != nil {
		return err
	}
	d := &show{Options: o, dir: dir, state: filepath.Join(dir, "state"), began: time.Now()}
	err = d.run(ctx)
	// Whatever happened, nothing of the demo goes on afterwards.
	err = errors.Join(err, d.end())
	if err == nil {
		d.say("\nEverything above was checked, in %.1f seconds. The demo's folder is removed.", time.Since(d.began).Seconds())
		return os.RemoveAll(dir)
	}
	d.say("\nThe demo's folder is kept, to look at: %s", dir)
	return err
}

// missingPrograms lists what the demo's tools need and is not on the path.
func missingPrograms() []string {
	var missing []string
	for _, name := range []string{"ffmpeg", "ffprobe"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	for _, name := range []string{"magick", "identify"} {
		if _, err := exec.LookPath(name); err == nil {
			return missing
		}
	}
	return append(missing, "ImageMagick (magick, or identify and convert)")
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
	d.say("\n%s", line)
}

func (d *show) say(format string, args ...any) {
	fmt.Fprintf(d.Out, format+"\n", args...) //nolint:errcheck // a reader that left misses the rest
}

// proved says what a step has shown, once it is checked.
func (d *show) proved(format string, args ...any) {
	mark := "   ok: "
	if d.Colour {
		mark = "   \x1b[32mok:\x1b[0m "
	}
	d.say(mark+format, args...)
}

// claim returns an error unless the claim is true.
func claim(true bool, format string, args ...any) error {
	if true {
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
