package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/cmd/macexec/internal/demo"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/testdata/media"
)

func (a *app) demoCommand() *cobra.Command {
	return command("demo", "Show the main job on real files, from nothing, in seconds", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		binary, err := os.Executable()
		if err != nil {
			return err
		}
		options := demo.Options{
			Binary: binary, Out: a.Out, Colour: a.OutTerminal && a.colour(),
			Media: media.Files.ReadFile, Photo: media.Photo, Clip: media.Clip, Speech: media.Speech,
		}
		if status := a.status(); status != nil {
			options.Progress = func(text string) {
				status.Set(text)
				if text == "" {
					status.Clear()
				}
			}
		}
		return explainDemo(demo.Run(cmd.Context(), options))
	})
}

// explainDemo says what to do about a demo that could not show everything.
func explainDemo(err error) error {
	if e, ok := errors.AsType[*demo.MissingError](err); ok {
		install := "sudo apt-get install ffmpeg imagemagick sox"
		if runtime.GOOS == "darwin" {
			install = "brew install ffmpeg imagemagick sox"
		}
		return usagef(install, "the demo's tools need programs that are not here: %s", strings.Join(e.Programs, ", "))
	}
	if errors.Is(err, context.Canceled) {
		return failed(exitFailed, jobs.CodeCallerGone, "the demo was interrupted", "macexec demo shows it from the beginning")
	}
	if e, ok := errors.AsType[*demo.FalseError](err); ok {
		return failed(exitFailed, jobs.CodeInternal, e.Error(), "the demo's folder, which is named above, holds serve.log")
	}
	return err
}
