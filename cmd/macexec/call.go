package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// callFlags are what call and check have in common.
type callFlags struct {
	set                                   []string
	argsFile                              string
	purpose, version                      string
	replace                               bool
	timeout                               time.Duration
	startBy                               string
	runID, toolCallID, traceID, contextID string
	labels                                []string
	contextFile                           string
}

func (f *callFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.set, "arg", "a", nil, "an argument: name=value, name:=JSON, name=@FILE to upload, name=@env:VAR for a secret")
	flags.StringVar(&f.argsFile, "args", "", "all arguments as JSON, sent as they are: a FILE, or - for stdin")
	flags.StringVar(&f.purpose, "purpose", "production", strings.Join(document.Words[macexecv1.Purpose](), ", "))
	flags.StringVar(&f.version, "tool-version", "", "the tool's version (the newest)")
	flags.BoolVar(&f.replace, "replace", false, "an existing destination may be replaced, if the policy agrees")
	flags.DurationVar(&f.timeout, "timeout", 0, "shortens the tool's own time limit")
	flags.StringVar(&f.startBy, "start-by", "", "never start after this time: RFC 3339, or a duration from now")
	flags.StringVar(&f.runID, "run-id", "", "the caller's run")
	flags.StringVar(&f.toolCallID, "tool-call-id", "", "the model's id of this tool call")
	flags.StringVar(&f.traceID, "trace-id", "", "the caller's trace")
	flags.StringVar(&f.contextID, "context-id", "", "the caller's context")
	flags.StringArrayVar(&f.labels, "label", nil, "k=v, kept with the job and searchable")
	flags.StringVar(&f.contextFile, "context", "", "the whole call context as a JSON FILE")
}

// request makes what is the same for a check and for a submission. now is when
// the command began.
func (a *app) request(f *callFlags, tool string, now time.Time) (*macexecv1.CheckCallRequest, error) {
	if f.argsFile != "" && len(f.set) > 0 {
		return nil, usagef("give all arguments with -a, or all with --args", "-a and --args exclude each other")
	}
	purpose, ok := document.Enum[macexecv1.Purpose](f.purpose)
	if !ok {
		return nil, usagef("--purpose "+strings.Join(document.Words[macexecv1.Purpose](), ", --purpose "), "there is no purpose %q", f.purpose)
	}
	options := &macexecv1.Options{Replace: f.replace, TimeoutSeconds: f.timeout.Seconds()}
	if f.timeout < 0 {
		return nil, usagef("--timeout 90s", "the timeout %s is negative", f.timeout)
	}
	if f.startBy != "" {
		by, err := point(f.startBy, now)
		if err != nil {
			return nil, err
		}
		options.StartBy = timestamppb.New(by)
	}
	ids, err := f.callContext()
	if err != nil {
		return nil, err
	}
	return &macexecv1.CheckCallRequest{
		Tool: tool, ToolVersion: f.version, Purpose: purpose, Options: options, Context: ids,
	}, nil
}

// point reads a time: RFC 3339, or a duration after now.
func point(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usagef("write 2026-11-30T12:00:00Z, or a duration such as 10m", "%q is no time", text)
	}
	return at, nil
}

func (f *callFlags) callContext() (*macexecv1.CallContext, error) {
	ids := &macexecv1.CallContext{}
	if f.contextFile != "" {
		text, err := os.ReadFile(f.contextFile)
		if err != nil {
			return nil, unreadable(err)
		}
		if err := protojson.Unmarshal(text, ids); err != nil {
			return nil, usagef("its fields are those of request_context in a job document, such as run_id", "%s is no call context: %s", f.contextFile, err)
		}
	}
	for _, id := range []struct {
		flag  string
		field *string
	}{{f.runID, &ids.RunId}, {f.toolCallID, &ids.ToolCallId}, {f.traceID, &ids.TraceId}, {f.contextID, &ids.ContextId}} {
		if id.flag != "" {
			*id.field = id.flag
		}
	}
	labels, err := labels(f.labels)
	if err != nil {
		return nil, err
	}
	for k, v := range labels {
		if ids.Labels == nil {
			ids.Labels = map[string]string{}
		}
		ids.Labels[k] = v
	}
	return ids, nil
}

func labels(texts []string) (map[string]string, error) {
	found := map[string]string{}
	for _, text := range texts {
		k, v, ok := strings.Cut(text, "=")
		if !ok || k == "" {
			return nil, usagef("--label name=value", "the label %q has no name or no value", text)
		}
		found[k] = v
	}
	return found, nil
}

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
			file, err := c.Upload(ctx, path)
			if err != nil {
				return "", beforehand(err)
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
	var key, download string
	var detach bool
	var wait time.Duration
	cmd := command("call TOOL", "Call a tool and wait for its job", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		bounded := cmd.Flags().Changed("wait")
		if detach && (bounded || download != "") {
			return usagef("leave out --detach, or use macexec jobs wait and macexec jobs artifacts later", "--detach does not wait, so --wait and --download have no meaning with it")
		}
		if cmd.Flags().Changed("key") && key == "" {
			return usagef("leave out --key to have one made", "the key is empty")
		}
		check, err := a.request(&f, args[0], clock())
		if err != nil {
			return err
		}
		if download != "" {
			// Before the call: a folder that cannot be made is no reason to lose a result.
			if err := makeFolder(download); err != nil {
				return err
			}
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the answer is there
		if key == "" {
			key = client.NewKey()
			// Before anything is sent: whatever happens now, the same key repeats the
			// call without starting it twice.
			a.remarkf("key: %s", key)
		}
		raw, err := a.arguments(ctx, c, &f, args[0])
		if err != nil {
			return withIDs(err, key, check.GetContext())
		}
		job, err := c.Submit(ctx, &macexecv1.SubmitJobRequest{
			IdempotencyKey: key, Tool: check.GetTool(), ToolVersion: check.GetToolVersion(),
			Arguments: raw, Purpose: check.GetPurpose(), Options: check.GetOptions(), Context: check.GetContext(),
		})
		if err != nil {
			return withIDs(submitError(err, key), key, check.GetContext())
		}
		if job.GetReplayed() {
			a.remarkf("replay: this key belongs to job %s; nothing new was started", job.GetId())
		}
		if detach {
			return a.accepted(job)
		}
		return a.follow(ctx, c, job, waiting{bounded: bounded, limit: wait, download: download})
	})
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&key, "key", "", "the idempotency key (one is made and printed on stderr)")
	flags.BoolVar(&detach, "detach", false, "return as soon as the call is accepted")
	flags.DurationVar(&wait, "wait", 0, "wait at most so long (no limit)")
	flags.StringVar(&download, "download", "", "fetch the artifacts of a completed job into DIR")
	return cmd
}

// accepted is the end of a call that does not wait.
func (a *app) accepted(job *macexecv1.Job) error {
	if err := a.printJob(job); err != nil {
		return err
	}
	if job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		a.remarkApproval(job)
		return ended(exitOfJob(job))
	}
	return nil
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
	return cmd
}
