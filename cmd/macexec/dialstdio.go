package main

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// dialStdioCommand is the far end of an ssh:// address. Who it is to the daemon is
// who it is on this machine: the user that ssh logged in.
func (a *app) dialStdioCommand() *cobra.Command {
	greet := false
	cmd := command("dial-stdio", "Connect stdin and stdout with the daemon's socket; ssh:// addresses use it", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		if a.address == "" {
			a.Getenv = withoutSSH(a.Getenv, "MACEXEC_ADDRESS")
		}
		address, err := a.resolveAddress()
		if err != nil {
			return err
		}
		path := strings.TrimPrefix(address, unixScheme)
		if strings.Contains(address, "://") || !filepath.IsAbs(path) {
			return usagef("macexec dial-stdio --address unix:/path/to/macexec.sock", "dial-stdio connects with a socket of this machine, and %q is none", address)
		}
		conn, err := (&net.Dialer{}).DialContext(cmd.Context(), "unix", path)
		if err != nil {
			return noDaemon(err)
		}
		if greet {
			if err := a.printLine(client.Greeting + show.Line(buildVersion().Version)); err != nil {
				return err
			}
		}
		return join(cmd.Context(), conn, a.In, a.Out)
	})
	cmd.Flags().BoolVar(&greet, "greet", false, "say on stdout, in a line of its own, that the daemon was reached")
	return cmd
}

// withoutSSH is an environment whose variable does not name another host: those who
// came here by ssh came to reach this one.
func withoutSSH(getenv func(string) (string, bool), name string) func(string) (string, bool) {
	return func(asked string) (string, bool) {
		value, ok := getenv(asked)
		if asked == name && strings.HasPrefix(value, "ssh:") {
			return "", false
		}
		return value, ok
	}
}

// join carries bytes both ways until the daemon ends the connection, which it does
// once it has been told that in has ended.
func join(ctx context.Context, conn net.Conn, in io.Reader, out io.Writer) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		// An error of either side ends the other way too: what the daemon was sent is whole
		// frames or a broken one, and it takes neither for more than it is.
		_, _ = io.Copy(conn, in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err := io.Copy(out, conn)
	_ = conn.Close()
	if err != nil {
		return &failure{code: exitAnswerLost, try: "connect again", document: unavailable(client.CodeAnswerLost, "the connection with the daemon broke: "+err.Error())}
	}
	return nil
}

// noDaemon is an error of connecting with the daemon of this machine.
func noDaemon(err error) error {
	return &failure{code: exitNotReached, try: "start the daemon there: macexec serve", document: unavailable(client.CodeNotReached, err.Error())}
}

func unavailable(code, message string) *macexecv1.Error {
	return &macexecv1.Error{
		Class: macexecv1.ErrorClass_ERROR_CLASS_UNAVAILABLE, Code: code, Message: message, Retryable: true,
		UserAction: macexecv1.UserAction_USER_ACTION_REPEAT_SAME_KEY, SideEffect: macexecv1.SideEffect_SIDE_EFFECT_NONE,
	}
}
