package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/schemas"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Look at the configuration",
		a.talk("show", "Show what is in force, and what config.yaml as it is now would change", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
			resp, err := c.Host.GetConfig(ctx, &macexecv1.GetConfigRequest{})
			if err != nil {
				return beforehand(err)
			}
			config := resp.GetConfig()
			return a.print(config, config.GetPath(), func(w io.Writer) error { return writeConfig(w, config, a.OutTerminal && a.colour()) })
		}),
		command("lint [FILE]", "Judge config.yaml as the daemon would, without one; exit code 1 if it is wrong", cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
			report, err := a.lintConfig(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := a.printLint(report); err != nil {
				return err
			}
			return ended(exitOfInspection(report.OK))
		}),
	)
}

// writeConfig shows every field, and at the end what has to be done for what the file
// says.
func writeConfig(w io.Writer, c *macexecv1.Config, colour bool) error {
	var f fields
	f.add("file", c.GetPath())
	f.add("read", moment(c.GetReadAt()))
	f.addStyled("problem", c.GetProblem(), show.Red)
	table := show.Table{Head: []string{"FIELD", "IN FORCE", "FROM", "THE FILE NOW SAYS"}}
	reload, restart := false, false
	for _, field := range c.GetFields() {
		value, from, says := string(field.GetValue()), "file", ""
		if field.GetIsDefault() {
			from = "default"
		}
		if field.GetDiffers() {
			says = orElse(string(field.GetFileValue()), "nothing")
			if field.GetNeedsRestart() {
				says += " (needs a restart)"
				restart = true
			} else {
				reload = true
			}
		}
		table.Rows = append(table.Rows, []show.Cell{{Text: field.GetPointer()}, {Text: value}, {Text: from}, {Text: says, Style: show.Yellow}})
	}
	if reload {
		f.add("to do", "send the daemon SIGHUP: what the file changed is not in force")
	}
	if restart {
		f.add("to do", "start the daemon anew: a part of what the file changed needs it")
	}
	if err := f.table.Write(w, colour); err != nil {
		return err
	}
	return table.Write(w, colour)
}

// lintConfig judges a file, or the one of the state folder.
func (a *app) lintConfig(ctx context.Context, args []string) (schemas.LintReport, error) {
	if len(args) == 1 {
		raw, err := a.readFile(ctx, args[0])
		if err != nil {
			return schemas.LintReport{}, err
		}
		return judgeFully(raw, args[0])
	}
	state, err := a.resolveState()
	if err != nil {
		return schemas.LintReport{}, err
	}
	path := filepath.Join(state, configName)
	raw, err := readConfigFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		a.remarkf("%s is not there: every field has its default", path)
	} else if err != nil {
		return schemas.LintReport{}, unreadable(err)
	}
	return judgeFully(raw, path)
}

// judgeFully is judgeConfig with warnings about what the text names on this machine.
func judgeFully(raw []byte, path string) (schemas.LintReport, error) {
	c, report, err := judgeConfig(raw, path)
	if err != nil || !report.OK {
		return report, err
	}
	warn := func(pointer, rule, message, hint string) {
		report.Problems = append(report.Problems, schemas.LintProblem{
			Severity: schemas.SeverityWarning, Pointer: pointer, Rule: rule, Message: message, Hint: hint,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Projects)) {
		if info, err := os.Stat(c.Projects[name]); err != nil || !info.IsDir() {
			warn("/projects"+schemas.Pointer(name), "folder", "project "+name+" is left out as long as "+c.Projects[name]+" is no folder", "make the folder, or mount its disk")
		}
	}
	for _, dir := range c.ToolPath {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			warn("/tool_path", "folder", dir+" is no folder, so no program is found there", "")
		}
	}
	return report, nil
}
