package client

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const unixScheme = "unix:"

// way is how a daemon is reached.
type way struct {
	address string // in its one form
	target  string // the same for gRPC
	options []grpc.DialOption
}

// wayTo reads an address.
func wayTo(address string) (way, error) {
	if strings.HasPrefix(address, "ssh:") {
		to, err := parseSSH(address)
		if err != nil {
			return way{}, err
		}
		return way{address: to.String(), target: asItIs + to.String(), options: []grpc.DialOption{
			grpc.WithAuthority("localhost"),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialSSH(ctx, "ssh", to) }),
			connecting(250*time.Millisecond, 5*time.Second, 20*time.Second), // the other side counts failed logins
		}}, nil
	}
	path, err := unixPath(address)
	if err != nil {
		return way{}, err
	}
	return way{address: unixScheme + path, target: unixScheme + path, options: []grpc.DialOption{
		connecting(50*time.Millisecond, time.Second, 5*time.Second),
	}}, nil
}

// asItIs makes gRPC give an address to the dialer as it is.
const asItIs = "passthrough:"

// connecting says how long to pause between two tries, at first and at most, and
// how long one may take.
func connecting(shortest, longest, bound time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: shortest, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longest},
		MinConnectTimeout: bound,
	})
}

// unixPath returns the socket's absolute path from "unix:" and a path, or from a
// path alone.
func unixPath(address string) (string, error) {
	path, marked := strings.CutPrefix(address, unixScheme)
	isPath := strings.ContainsRune(path, filepath.Separator) && !strings.Contains(path, "://")
	if path == "" || !marked && !isPath {
		return "", notAnAddress(address)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("the address %q: %w", address, err)
	}
	return path, nil
}

// withoutUser leaves out what an address that cannot be read may have of a user and a
// password.
func withoutUser(address string) string {
	scheme, rest, _ := strings.Cut(address, ":")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		return scheme + "://…" + rest[at:]
	}
	return address
}

func notAnAddress(address string) error {
	const forms = "it must be unix:/path/of/macexec.sock or ssh://user@host"
	if _, port, err := net.SplitHostPort(address); err == nil && port != "" || strings.Contains(address, "://") {
		return fmt.Errorf("%q would be reached over the network, where a caller has to prove who it is: that comes with identity (certificates and tokens), "+
			"and this version has none of it; until then %s", address, strings.Replace(forms, "it must be", "use", 1))
	}
	return fmt.Errorf("%q is no address of a daemon: %s", address, forms)
}

// sshAddress is a daemon that is reached through the system's ssh. Every part of it
// has been checked: none can be taken for an option, by ssh or by the macexec over
// there, and none says anything to a shell.
type sshAddress struct {
	user, host, port string
	socket           string // the path of the daemon's socket over there, or
	state            string // its state folder; with neither, macexec over there looks for its daemon
}

// What the parts of an address may be. A path goes through the login shell over
// there in quotes, so it has no quote, no $, no backslash, no backquote, no ! and no
// line break.
var (
	sshName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._+-]*$`)
	sshPath = regexp.MustCompile(`^/[A-Za-z0-9 ./_@%+=:,~-]*$`)
)

// parseSSH reads ssh://[user@]host[:port][/socket] or, in place of the socket's
// path, ?state=/folder. A host may also be a name from the user's ssh configuration.
func parseSSH(address string) (sshAddress, error) {
	wrong := func(format string, args ...any) (sshAddress, error) {
		return sshAddress{}, fmt.Errorf("the address %q: %s", address, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, "ssh://") {
		address = withoutUser(address)
		return wrong("it must be ssh://user@host:port, then nothing, ?state=/folder or /path/of/macexec.sock")
	}
	a := sshAddress{user: u.User.Username(), host: u.Hostname(), port: u.Port(), socket: u.Path}
	if _, secret := u.User.Password(); secret {
		address = u.Redacted() // an error goes to logs
		return wrong("a password has no place in an address; ssh proves who you are with a key")
	}
	if u.User != nil && !sshName.MatchString(a.user) {
		return wrong("the user %q is not made of letters, digits, '.', '_', '+' and '-' alone, or begins with a sign", a.user)
	}
	if !sshName.MatchString(a.host) && net.ParseIP(a.host) == nil {
		return wrong("the host %q is not made of letters, digits, '.', '_' and '-' alone, or begins with a sign", a.host)
	}
	if n, err := strconv.Atoi(a.port); strings.HasSuffix(u.Host, ":") || a.port != "" && (err != nil || n < 1 || n > 65535) {
		return wrong("the port %q is not one from 1 to 65535", a.port)
	}
	if u.Fragment != "" || strings.HasSuffix(address, "#") {
		return wrong("it has a '#', which says nothing here")
	}
	if u.RawQuery != "" || u.ForceQuery {
		value, ok := strings.CutPrefix(u.RawQuery, "state=")
		if a.state, err = url.PathUnescape(value); !ok || err != nil {
			return wrong("after '?' only state=/folder may stand")
		}
		if a.socket != "" {
			return wrong("it names a socket and a state folder; one of them is enough")
		}
		if !sshPath.MatchString(a.state) {
			return wrong("the state folder %q is not an absolute path of letters, digits, spaces and ./_@%%+=:,~- alone", a.state)
		}
	}
	if a.socket != "" && !sshPath.MatchString(a.socket) {
		return wrong("the path %q is not made of letters, digits, spaces and ./_@%%+=:,~- alone", a.socket)
	}
	return a, nil
}

// place is what ssh calls the host.
func (a sshAddress) place() string {
	if a.user == "" {
		return a.host
	}
	return a.user + "@" + a.host
}

// String is the address in its one form.
func (a sshAddress) String() string {
	host := a.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if a.port != "" {
		host += ":" + a.port
	}
	u := url.URL{Scheme: "ssh", Host: host, Path: a.socket}
	if a.user != "" {
		u.User = url.User(a.user)
	}
	text := u.String()
	if a.state != "" {
		text += "?state=" + (&url.URL{Path: a.state}).EscapedPath()
	}
	return text
}

// arguments are those of ssh. The user's own configuration holds: keys, known hosts,
// jump hosts, a shared connection. What would get in the way of a plain pipe is off.
func (a sshAddress) arguments() []string {
	args := []string{
		"-T",       // no terminal, so that every byte goes through as it is
		"-a", "-x", // the host gets neither the user's keys nor a display
		"-o", "BatchMode=yes", // there is nobody to ask
		"-o", "RemoteCommand=none", // the command is ours
		"-o", "ClearAllForwardings=yes", // a port that is forwarded already would be an error
	}
	if a.user != "" {
		args = append(args, "-l", a.user)
	}
	if a.port != "" {
		args = append(args, "-p", a.port)
	}
	return append(args, "--", a.host, a.command())
}

// command is what the login shell over there is given, whichever shell that is: one
// word for sh in single quotes. A shell that is not interactive often has a short
// PATH, without the folders where people install programs.
func (a sshAddress) command() string {
	command := `PATH="$PATH:/usr/local/bin:/opt/homebrew/bin:$HOME/bin"; exec macexec`
	switch {
	case a.socket != "":
		command += ` --address "unix:` + a.socket + `"`
	case a.state != "":
		command += ` --state "` + a.state + `"`
	}
	return "sh -c '" + command + " dial-stdio --greet'"
}
