package house_test

import (
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// command is one command line that a page shows.
type command struct {
	at    string
	path  []string // the command and its subcommands
	flags []string
}

// TestDocumentedCommandsExist asks the real program for the help of every command
// line in the pages, and looks for the flags in it.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "macexec")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/macexec")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	commands := documentedCommands(t)
	if len(commands) == 0 {
		t.Fatal("no page shows a command")
	}
	help := map[string]string{}
	for _, c := range commands {
		name := strings.Join(c.path, " ")
		if _, asked := help[name]; !asked {
			out, err := exec.CommandContext(t.Context(), binary, append(c.path, "--help")...).CombinedOutput()
			if err != nil {
				out = fmt.Appendf(nil, "%v: %s", err, out)
			}
			help[name] = string(out)
		}
		if !strings.Contains(help[name]+"\n", "macexec "+name) {
			t.Errorf("%s: there is no command %q", c.at, name)
			continue
		}
		for _, flag := range c.flags {
			if !regexp.MustCompile(`(^|\s)` + regexp.QuoteMeta(flag) + `\b`).MatchString(help[name]) {
				t.Errorf("%s: macexec %s has no flag %s", c.at, name, flag)
			}
		}
	}
}

// documentedCommands finds the command lines in shell blocks and in code spans.
func documentedCommands(t *testing.T) []command {
	t.Helper()
	word := regexp.MustCompile(`^[a-z][a-z-]*$`)
	flag := regexp.MustCompile(`^--?[a-z][a-z-]*`)
	span := regexp.MustCompile("`macexec ([^`]+)`")
	var found []command
	add := func(at, line string) {
		c := command{at: at}
		line, _, _ = strings.Cut(line, " #")
		for token := range strings.FieldsSeq(line) {
			switch {
			case strings.ContainsAny(token, "|&<>;"):
				if len(c.path) > 0 {
					found = append(found, c)
				}
				return
			case flag.MatchString(token):
				c.flags = append(c.flags, flag.FindString(token))
			case word.MatchString(token) && len(c.path) < 2 && len(c.flags) == 0:
				c.path = append(c.path, token)
			}
		}
		if len(c.path) > 0 {
			found = append(found, c)
		}
	}
	err := walk(func(name string, data []byte) error {
		if path.Ext(name) != ".md" {
			return nil
		}
		shell := false
		for i, line := range strings.Split(string(data), "\n") {
			at := fmt.Sprintf("%s:%d", name, i+1)
			switch {
			case strings.HasPrefix(line, "```"):
				shell = line == "```sh"
			case shell:
				if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "macexec "); ok {
					add(at, rest)
				}
			default:
				for _, m := range span.FindAllStringSubmatch(line, -1) {
					add(at, m[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
