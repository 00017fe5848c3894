package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// arguments makes the JSON text of the arguments: the bytes of --args untouched,
// or the -a settings with their types from the tool's schema.
func (a *app) arguments(ctx context.Context, c *client.Client, f *callFlags, tool string) ([]byte, error) {
	if f.argsFile != "" {
		return a.readFile(f.argsFile)
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
	return argument.Of(resp.GetTool()).Build(settings, argument.Sources{
		Env: a.Getenv,
		Upload: func(path string) (string, error) {
			file, err := a.upload(ctx, c, path)
			if err != nil {
				return "", err
			}
			return file.GetReference(), nil
		},
	})
}

// readFile reads a whole file, or stdin for "-".
func (a *app) readFile(path string) ([]byte, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(a.In)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, unreadable(err)
	}
	return text, nil
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
		a.ownKey(&s)
		raw, err := a.arguments(ctx, c, &f, args[0])
		if err != nil {
			return withIDs(err, s.key, check.GetContext())
		}
		return a.submit(ctx, c, &s, &macexecv1.SubmitJobRequest{
			Tool: check.GetTool(), ToolVersion: check.GetToolVersion(),
			Arguments: raw, Purpose: check.GetPurpose(), Options: check.GetOptions(), Context: check.GetContext(),
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
prints how to follow and how to cancel it; so does the end of --wait.`

// submission is how a call is made and what is done then; call and jobs rerun share
// it.
type submission struct {
	key, downloadTo string
	detach, bounded bool
	limit           time.Duration
}

func (s *submission) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.key, "key", "", "the idempotency key (one is made and printed on stderr)")
	flags.BoolVar(&s.detach, "detach", false, "return as soon as the call is accepted")
	flags.DurationVar(&s.limit, "wait", 0, "wait at most so long (no limit)")
	flags.StringVar(&s.downloadTo, "download", "", "fetch the artifacts of the ended job into DIR")
	nothing(cmd, "key", "wait")
	folders(cmd, "download")
}

// check refuses what cannot be meant, before anything is sent.
func (s *submission) check(cmd *cobra.Command) error {
	s.bounded = cmd.Flags().Changed("wait")
	switch {
	case s.detach && (s.bounded || s.downloadTo != ""):
		return usagef("leave out --detach, or use macexec jobs wait and macexec jobs artifacts later", "--detach does not wait, so --wait and --download have no meaning with it")
	case s.limit < 0:
		return usagef("--wait 30s", "the wait %s is negative", s.limit)
	case cmd.Flags().Changed("key") && s.key == "":
		return usagef("leave out --key to have one made", "the key is empty")
	case s.downloadTo != "":
		// Before the call: a folder that cannot be made is no reason to lose a result.
		return makeFolder(s.downloadTo)
	default:
		return nil
	}
}

// ownKey makes a key where none was given, and tells it before anything is sent:
// whatever happens then, the same key repeats the call without starting it twice.
func (a *app) ownKey(s *submission) {
	if s.key == "" {
		s.key = client.NewKey()
		a.remarkf("key: %s", s.key)
	}
}

// submit makes the call under the submission's key, and waits for its job.
func (a *app) submit(ctx context.Context, c *client.Client, s *submission, req *macexecv1.SubmitJobRequest) error {
	req.IdempotencyKey = s.key
	job, err := c.Submit(ctx, req)
	if err != nil {
		return withIDs(submitError(err, s.key), s.key, req.GetContext())
	}
	if job.GetReplayed() {
		a.remarkf("replay: this key belongs to job %s; nothing new was started", job.GetId())
	}
	if s.detach {
		return a.accepted(job)
	}
	return a.follow(ctx, c, job, waiting{bounded: s.bounded, limit: s.limit, download: s.downloadTo})
}

// accepted is the end of a call that does not wait: the call is accepted, whatever
// becomes of its job.
func (a *app) accepted(job *macexecv1.Job) error {
	if job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		a.remarkApproval(job)
	}
	return a.printAccepted(job)
}

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
		if req.Arguments, err = a.arguments(cmd.Context(), c, &f, args[0]); err != nil {
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
