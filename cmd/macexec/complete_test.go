package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	address := answeringDaemon(t)
	for _, c := range []struct {
		args, want, not string
	}{
		{"call x --on-lock ", "wait\nrefuse", ""},
		{"call x --purpose ", "production", ""},
		{"call x --key ", ":4", "doc.go"}, // 4: no file names
		{"call x --download ", ":16", ""}, // 16: folders
		{"call x --context ", ":0", ""},   // 0: file names
		{"jobs list --state ", "awaiting_approval", ""},
		{"jobs usage --by ", "run\nprincipal\ntool", ""},
		{"jobs resolve J --as ", "completed\nfailed\ncancelled", "queued"},
		{"jobs approve ", "listed-awaiting_approval\tawaiting_approval", "listed-failed"},
		{"jobs show listed-f", "listed-failed", "listed-awaiting_approval"},
		{"jobs show J ", ":4", "listed"},
		{"jobs wait J ", "listed-awaiting_approval", ""},
		{"-o ", "json\nwide\ntable", ""},
	} {
		args := append([]string{"__complete", "--address", address}, strings.Split(c.args, " ")...)
		code, out, errs := execute(t, nil, args...)
		if code != exitOK || !strings.Contains(out, c.want) || (c.not != "" && strings.Contains(out, c.not)) {
			t.Errorf("%s: exit %d, got:\n%s%s\nwant %q and not %q", c.args, code, out, errs, c.want, c.not)
		}
	}
	// A daemon that is not there offers nothing, and says nothing about it.
	code, out, _ := execute(t, nil, "__complete", "--address", "unix:"+t.TempDir()+"/s", "jobs", "show", "")
	if code != exitOK || out != ":4\n" {
		t.Errorf("without a daemon: exit %d, %q", code, out)
	}
}

// A flag that takes a value says what a shell may offer for it: words, folders, or
// nothing. Those that really take a file are few, and are named here.
func TestFlagsSayWhatTheyTake(t *testing.T) {
	t.Parallel()
	files := map[string]bool{"args": true, "context": true}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			_, said := cmd.GetFlagCompletionFunc(f.Name)
			if f.Value.Type() != "bool" && said == files[f.Name] {
				t.Errorf("%s --%s: file names are offered: %v", cmd.CommandPath(), f.Name, !said)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	root := (&app{stdio: stdio{Getenv: os.LookupEnv}}).root(nil)
	for _, name := range []string{"call", "check", "jobs", "host"} {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		walk(cmd)
	}
}
