package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/schemas"
)

func (a *app) toolsLintCommand() *cobra.Command {
	return command("lint FILE…", "Judge manifests as the daemon would, without one; exit code 1 if one is wrong", cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
		ok := true
		for _, path := range args {
			text, err := a.readFile(cmd.Context(), path)
			if err != nil {
				return err
			}
			report, err := schemas.Lint(text, path)
			if err != nil {
				return err
			}
			ok = ok && report.OK
			if err := a.printLint(report); err != nil {
				return err
			}
		}
		return ended(exitOfInspection(ok))
	})
}

func (a *app) printLint(report schemas.LintReport) error {
	switch {
	case a.format == formatJSON:
		return a.printValue(report)
	case a.quiet:
		if report.OK {
			return nil
		}
		return a.printLine(show.Line(report.File))
	}
	colour := a.OutTerminal && a.colour()
	for _, p := range report.Problems {
		style := show.Yellow
		if p.Severity == "error" {
			style = show.Red
		}
		where := report.File
		if p.Line > 0 {
			where = fmt.Sprintf("%s:%d", where, p.Line)
		}
		if err := a.printLine(fmt.Sprintf("%s: %s: %s (%s)", show.Line(where), style.Paint(p.Severity, colour), show.Line(p.Message), show.Line(p.Rule))); err != nil {
			return err
		}
		if p.Hint != "" {
			if err := a.printLine("    hint: " + show.Line(p.Hint)); err != nil {
				return err
			}
		}
	}
	if !report.OK {
		return nil
	}
	line := show.Line(report.File) + ": " + show.Green.Paint("ok", colour)
	if report.Tool != "" {
		line += ", " + show.Line(report.Tool+" "+report.Version)
	}
	return a.printLine(line)
}
