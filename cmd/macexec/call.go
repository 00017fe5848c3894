package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// fill adds to a request what files of this machine and the daemon say: its context and
// its arguments. sent says how arguments name a local file.
func (a *app) fill(ctx context.Context, c *client.Client, f *callFlags, req *macexecv1.CheckCallRequest, sent func(path string) (string, error)) (err error) {
	if req.Context, err = a.withFile(ctx, req.GetContext(), f); err != nil {
		return err
	}
	req.Arguments, err = a.arguments(ctx, c, f, req.GetTool(), sent)
	return err
}

// arguments makes the JSON text of the arguments: the bytes of --args untouched,
// or the -a settings with their types from the tool's schema.
func (a *app) arguments(ctx context.Context, c *client.Client, f *callFlags, tool string, sent func(path string) (string, error)) ([]byte, error) {
	if f.argsFile != "" {
		return a.readArguments(ctx, f.argsFile)
	}
	settings := make([]argument.Setting, len(f.set))
	for i, text := range f.set {
		var err error
		if settings[i], err = argument.Parse(text); err != nil {
			return nil, err
		}
	}
	if len(settings) == 0 {
		return []byte("{}"), nil
	}
	resp, err := c.Tools.GetTool(ctx, &macexecv1.GetToolRequest{Name: tool, Version: f.version})
	if err != nil {
		return nil, beforehand(err)
	}
	return argument.Of(resp.GetTool()).Build(settings, argument.Sources{Env: a.Getenv, Upload: sent})
}

// uploading sends local files to the host.
func (a *app) uploading(ctx context.Context, c *client.Client) func(path string) (string, error) {
	return func(path string) (string, error) {
		file, err := a.upload(ctx, c, path)
		return file.GetReference(), err
	}
}

func (a *app) callCommand() *cobra.Command {
	var f callFlags
	var s submission
	cmd := command("call TOOL", "Call a tool and wait for its job", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if err := s.check(cmd); err != nil {
			return err
		}
		check, err := a.request(&f, args[0], clock())
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the answer is there
		known, err := a.ownKey(ctx, c, &s)
		if err != nil {
			return withIDs(err, s.key, check.GetContext())
		}
		sent := a.uploading(ctx, c)
		if known != nil {
			sent = func(path string) (string, error) { return a.named(ctx, path) }
		}
		if err := s.room(); err != nil {
			return withIDs(a.unmade(ctx, c, &s, known, err), s.key, check.GetContext())
		}
		if err := a.fill(ctx, c, &f, check, sent); err != nil {
			return withIDs(a.unmade(ctx, c, &s, known, err), s.key, check.GetContext())
		}
		return a.submit(ctx, c, &s, &macexecv1.SubmitJobRequest{
			Tool: check.GetTool(), ToolVersion: check.GetToolVersion(),
			Arguments: check.GetArguments(), Purpose: check.GetPurpose(), Options: check.GetOptions(), Context: check.GetContext(),
		})
	})
	cmd.Long = callHelp
	f.add(cmd)
	s.add(cmd)
	cmd.ValidArgsFunction = a.completeTools
	return cmd
}

const callHelp = `Call a tool and wait for its job.

The key makes a repeat safe: the same call under the same key gives the same job and
starts nothing again, whatever became of the first answer. Without --key one is made
and printed on stderr before anything is sent.

While it waits, stderr says what for. Ctrl-C ends the wait and not the job, and
prints how to follow and how to cancel it; so does the end of --wait.

--wait counts from when the call is sent, after uploads. When it ends before there is
an answer the exit code is 11: repeat the call with the same key. With --wait 0s the
answer is waited for, and the job is not.`

func (a *app) checkCommand() *cobra.Command {
	var f callFlags
	cmd := command("check TOOL", "Give the verdicts, the decision and the plan of a call, and run nothing", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		req, err := a.request(&f, args[0], clock())
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the answer is there
		if err := a.fill(cmd.Context(), c, &f, req, a.uploading(cmd.Context(), c)); err != nil {
			return err
		}
		resp, err := c.Tools.CheckCall(cmd.Context(), req)
		if err != nil {
			return beforehand(err)
		}
		check := resp.GetCheck()
		if err := a.print(check, check.GetFingerprint(), func(w io.Writer) error { return writeCheck(w, check, a.OutTerminal && a.colour()) }); err != nil {
			return err
		}
		return ended(exitOfCheck(check))
	})
	f.add(cmd)
	cmd.ValidArgsFunction = a.completeTools
	return cmd
}
