package main

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is one run of the command line: what it talks to, and the global flags.
type app struct {
	stdio
	address string
	state   string
	format  string
	quiet   bool
}

// The output formats.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
)

// root is the whole tree of commands; args are what it is about to be given.
func (a *app) root(args []string) *cobra.Command {
	root := group("macexec", "Run tools on this Mac once, and always know what is known about it",
		a.serveCommand(),
		a.callCommand(),
		a.checkCommand(),
		a.toolsCommand(),
		a.jobsCommand(),
		a.filesCommand(),
		a.projectsCommand(),
		a.configCommand(),
		a.journalCommand(),
		a.hostCommand(),
		a.storeCommand(),
		a.whoamiCommand(),
		a.versionCommand(),
		a.dialStdioCommand(),
		a.demoCommand(),
	)
	root.Long = `macexec runs tools for agents and workflows: it decides whether a call may run,
runs it once, and can always say what it knows about it.

The daemon is looked for at --address, else MACEXEC_ADDRESS, else at the socket of
--state (MACEXEC_STATE), else at the system daemon's socket, else at the user's.

Exit codes of call and jobs wait: 0 completed (with --detach: accepted), 1 failed,
2 usage, 3 rejected by a verdict, 4 denied, 5 awaiting approval, 6 unknown,
7 cancelled, 8 daemon not reached, 9 key conflict, 10 other refusal, 11 answer
lost: repeat with the printed key, 12 still queued or running, 13 seen, result
expired, 70 a fault in macexec itself.`
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDescriptions = false
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// The flags after the bad one were not read.
		if asksForJSON(args) {
			a.format = formatJSON
		}
		return usagef(cmd.CommandPath()+" --help", "%s", err.Error())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", "", "where the daemon is, unix:/path or ssh://user@host (MACEXEC_ADDRESS)")
	flags.StringVar(&a.state, "state", "", "the daemon's state folder (MACEXEC_STATE)")
	flags.StringVarP(&a.format, "output", "o", formatTable, "json, wide or table")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print ids only")
	words(root, "output", []string{formatJSON, formatWide, formatTable})
	nothing(root, "address")
	folders(root, "state")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		formats := []string{formatTable, formatWide, formatJSON}
		if !slices.Contains(formats, a.format) {
			format := a.format
			a.format = formatTable
			return usagef("-o json, -o wide or -o table", "there is no output format %q", format)
		}
		return readable(cmd)
	}
	return root
}

// readable refuses texts that no message can carry, and says which flag has one. The
// flags left out name files of this machine, or are for the syntax verdict.
func readable(cmd *cobra.Command) (err error) {
	local := []string{"address", "state", "args", "arg", "context", "download"}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if err == nil && !slices.Contains(local, f.Name) && !utf8.ValidString(strings.Join(values, "")) {
			err = usagef("give --"+f.Name+" as UTF-8 text", "the value of --%s is not UTF-8", f.Name)
		}
	})
	return err
}

// asksForJSON reports whether args hold -o json in one of its spellings.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == formatJSON {
				return true
			}
		}
	}
	return false
}

// group is a command that only has commands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: cobra.ArbitraryArgs, // RunE says better what is wrong
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd.CommandPath()+" --help", "%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
			}
			if near := nearest(cmd, args[0]); near != "" {
				return usagef(cmd.CommandPath()+" "+near, "there is no command %q in %s", args[0], cmd.CommandPath())
			}
			return usagef(cmd.CommandPath()+" --help", "there is no command %q in %s", args[0], cmd.CommandPath())
		},
	}
	cmd.AddCommand(subs...)
	return cmd
}

// command is a leaf of the tree. Its arguments are counted by want.
func command(use, short string, want cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, RunE: run,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := want(cmd, args); err != nil {
				return usagef(cmd.CommandPath()+" --help", "the command is %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return nil
		},
	}
}

// names lists a group's commands.
func names(cmd *cobra.Command) []string {
	var list []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			list = append(list, sub.Name())
		}
	}
	return list
}

// nearest is the command that was probably meant, or "".
func nearest(cmd *cobra.Command, typed string) string {
	cmd.SuggestionsMinimumDistance = 2
	for _, near := range cmd.SuggestionsFor(typed) {
		return near
	}
	return ""
}
