package client

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSSHAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]sshAddress{
		"ssh://mini":                       {host: "mini"},
		"ssh://ci@mini.example.com:2222":   {user: "ci", host: "mini.example.com", port: "2222"},
		"ssh://ci@10.0.0.7":                {user: "ci", host: "10.0.0.7"},
		"ssh://[::1]:22":                   {host: "::1", port: "22"},
		"ssh://mini/run/macexec.sock":      {host: "mini", socket: "/run/macexec.sock"},
		"ssh://mini?state=/srv/mx":         {host: "mini", state: "/srv/mx"},
		"ssh://mini?state=/Users/ci/a b":   {host: "mini", state: "/Users/ci/a b"},
		"ssh://mini/Users/ci/a%20b/s":      {host: "mini", socket: "/Users/ci/a b/s"},
		"ssh://mini?state=/Users/ci/a%2Bb": {host: "mini", state: "/Users/ci/a+b"},
		"ssh://mini?state=/Users/ci/a+b":   {host: "mini", state: "/Users/ci/a+b"},
	} {
		got, err := parseSSH(address)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(sshAddress{})); err != nil || diff != "" {
			t.Errorf("%s: %v %s", address, err, diff)
		}
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	t.Parallel()
	for address, why := range map[string]string{
		"":                             "no address",
		"unix:":                        "no address",
		"mini":                         "no address",
		"mini:7777":                    "comes with identity",
		"127.0.0.1:7777":               "comes with identity",
		"[::1]:7777":                   "comes with identity",
		"tcp://mini:7777":              "comes with identity",
		"https://mini":                 "comes with identity",
		"ssh:mini":                     "must be ssh://",
		"ssh://":                       "the host",
		"ssh:///run/macexec.sock":      "the host",
		"ssh://-oProxyCommand=id":      "begins with a sign",
		"ssh://-oProxyCommand=id@mini": "begins with a sign",
		"ssh://@mini":                  "the user",
		"ssh://ci:secret@mini":         "password has no place",
		"ssh://ci:secret@mi ni":        "it must be ssh://",
		"ssh://mini:":                  "the port",
		"ssh://mini:0":                 "the port",
		"ssh://mini:65536":             "the port",
		"ssh://mini:x":                 "must be ssh://",
		"ssh://mi%20ni":                "must be ssh://",
		"ssh://mini;id":                "the host",
		"ssh://$(id)":                  "the host",
		"ssh://mini#x":                 "'#'",
		"ssh://mini#":                  "'#'",
		"ssh://mini?":                  "only state=",
		"ssh://mini?state":             "only state=",
		"ssh://mini?state=":            "not an absolute path",
		"ssh://mini?state=srv":         "not an absolute path",
		"ssh://mini?state=/srv&x=1":    "not an absolute path",
		"ssh://mini?macexec=/bin/sh":   "only state=",
		"ssh://mini/run?state=/srv":    "one of them",
		"ssh://mini/run/'x":            "the path",
		"ssh://mini/run/$HOME":         "the path",
		"ssh://mini/run/`id`":          "the path",
		"ssh://mini?state=/srv/%0Aid":  "not an absolute path",
		"ssh://mini?state=/srv/\"x":    "not an absolute path",
		"ssh://mini?state=/srv/!x":     "not an absolute path",
		"ssh://mini?state=/srv/%5Cx":   "not an absolute path",
	} {
		if c, err := Dial(address); err == nil {
			_ = c.Close()
			t.Errorf("%q was taken", address)
		} else if !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", address, err, why)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the password: %v", address, err)
		}
	}
}

// What the login shell over there is given comes to macexec as it was meant, whichever
// shell that is.
func TestTheRemoteCommandSurvivesTheShell(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sh", "bash", "dash", "zsh", "fish", "tcsh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		for _, c := range []struct {
			to   sshAddress
			want string
		}{
			{sshAddress{}, "dial-stdio|--greet"},
			{sshAddress{state: "/srv/a  b/~%@=+:,x"}, "--state|/srv/a  b/~%@=+:,x|dial-stdio|--greet"},
			{sshAddress{socket: "/a b/macexec.sock"}, "--address|unix:/a b/macexec.sock|dial-stdio|--greet"},
		} {
			// A macexec that prints its arguments, with a bar between two.
			script := strings.Replace(c.to.command(), "exec macexec", `macexec() { IFS="|"; printf %s "$*"; }; macexec`, 1)
			out, err := exec.CommandContext(t.Context(), path, "-c", script).CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%s gives macexec %q, %v; want %q", shell, out, err, c.want)
			}
		}
	}
}

// No part of an address that is taken can be an option of ssh or say something to a
// shell, and the one form of an address is an address again, of the same place.
func FuzzSSHAddress(f *testing.F) {
	for _, seed := range []string{
		"ssh://ci@mini:22?state=/srv/mx", "ssh://mini/run/macexec.sock", "ssh://[::1]", "ssh://-oProxyCommand=id", "ssh://a@b@c", "ssh://mini?state=/a%2520b", "ssh://mini//x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseSSH(text)
		if err != nil {
			return
		}
		again, err := parseSSH(a.String())
		if err != nil || again != a {
			t.Fatalf("%q is %+v, and its form %q is %+v, %v", text, a, a.String(), again, err)
		}
		args := a.arguments()
		if args[len(args)-3] != "--" || args[len(args)-2] != a.host {
			t.Fatalf("the host is not the last but one: %q", args)
		}
		for _, part := range []string{a.user, a.host, a.port} {
			if strings.HasPrefix(part, "-") || strings.ContainsAny(part, " \t\r\n'\"$`\\!;&|<>()*?[]{}#%/@=,~") {
				t.Fatalf("%q has the part %q", text, part)
			}
		}
		for _, part := range []string{a.socket, a.state} {
			if part != "" && part[0] != '/' || strings.ContainsAny(part, "\t\r\n'\"$`\\!;&|<>()*?[]{}#") {
				t.Fatalf("%q has the path %q", text, part)
			}
		}
	})
}
