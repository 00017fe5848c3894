package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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
	onLock                                string
	serialContext                         bool
	priority                              int32
	supersedes                            string
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
	flags.StringVar(&f.onLock, "on-lock", "", "when another job holds a path or the context of the call: "+strings.Join(document.Words[macexecv1.OnLock](), " or ")+" (wait)")
	flags.BoolVar(&f.serialContext, "serial-context", false, "one job of the call's context (--context-id) at a time")
	flags.Int32Var(&f.priority, "priority", 0, "-10 to 10: each step counts as one minute of waiting")
	flags.StringVar(&f.supersedes, "supersedes", "", "the ended or unknown JOB that this call runs again")
	flags.StringVar(&f.runID, "run-id", "", "the caller's run")
	flags.StringVar(&f.toolCallID, "tool-call-id", "", "the model's id of this tool call")
	flags.StringVar(&f.traceID, "trace-id", "", "the caller's trace")
	flags.StringVar(&f.contextID, "context-id", "", "the caller's context")
	flags.StringArrayVar(&f.labels, "label", nil, "k=v, kept with the job and searchable")
	flags.StringVar(&f.contextFile, "context", "", "the whole call context as a JSON FILE")
	words(cmd, "purpose", document.Words[macexecv1.Purpose]())
	words(cmd, "on-lock", document.Words[macexecv1.OnLock]())
	words(cmd, "priority", []string{"-10", "-5", "0", "5", "10"})
	nothing(cmd, "arg", "tool-version", "timeout", "start-by", "supersedes", "run-id", "tool-call-id", "trace-id", "context-id", "label")
}

// request makes what is the same for a check and for a submission, as far as the flags
// say it; fill adds what files and the daemon say. now is when the command began.
func (a *app) request(f *callFlags, tool string, now time.Time) (*macexecv1.CheckCallRequest, error) {
	if f.argsFile != "" && len(f.set) > 0 {
		return nil, usagef("give all arguments with -a, or all with --args", "-a and --args exclude each other")
	}
	purpose, ok := document.Enum[macexecv1.Purpose](f.purpose)
	if !ok {
		return nil, usagef("--purpose "+strings.Join(document.Words[macexecv1.Purpose](), ", --purpose "), "there is no purpose %q", f.purpose)
	}
	options, err := f.options(now)
	if err != nil {
		return nil, err
	}
	ids, err := f.callContext()
	if err != nil {
		return nil, err
	}
	return &macexecv1.CheckCallRequest{
		Tool: tool, ToolVersion: f.version, Purpose: purpose, Options: options, Context: ids,
	}, nil
}

// options are the call's wishes. Whether a priority or a job to supersede can be had
// is for the daemon to say.
func (f *callFlags) options(now time.Time) (*macexecv1.Options, error) {
	onLock, ok := document.Enum[macexecv1.OnLock](f.onLock)
	if !ok {
		return nil, usagef("--on-lock "+strings.Join(document.Words[macexecv1.OnLock](), ", --on-lock "), "a call cannot %q on a lock", f.onLock)
	}
	if f.timeout < 0 {
		return nil, usagef("--timeout 90s", "the timeout %s is negative", f.timeout)
	}
	options := &macexecv1.Options{
		Replace: f.replace, TimeoutSeconds: f.timeout.Seconds(), OnLock: onLock,
		SerialContext: f.serialContext, Priority: f.priority, Supersedes: f.supersedes,
	}
	if f.startBy != "" {
		by, err := point(f.startBy, now)
		if err != nil {
			return nil, err
		}
		options.StartBy = timestamppb.New(by)
	}
	return options, nil
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

// callContext is the call context as far as the flags say it.
func (f *callFlags) callContext() (*macexecv1.CallContext, error) {
	labels, err := labels(f.labels)
	if err != nil {
		return nil, err
	}
	if f.serialContext && f.contextID == "" && f.contextFile == "" {
		return nil, errNoContext()
	}
	return &macexecv1.CallContext{RunId: f.runID, ToolCallId: f.toolCallID, TraceId: f.traceID, ContextId: f.contextID, Labels: labels}, nil
}

func errNoContext() error {
	return usagef("add --context-id C, or leave out --serial-context", "--serial-context has no context to be serial in")
}

// withFile is a call context with what a file says that the flags do not.
func (a *app) withFile(ctx context.Context, ids *macexecv1.CallContext, f *callFlags) (*macexecv1.CallContext, error) {
	if f.contextFile == "" {
		return ids, nil
	}
	text, err := a.readFile(ctx, f.contextFile)
	if err != nil {
		return nil, err
	}
	whole := &macexecv1.CallContext{}
	if err := protojson.Unmarshal(text, whole); err != nil {
		return nil, usagef("its fields are those of request_context in a job document, such as run_id", "%s is no call context: %s", f.contextFile, err)
	}
	proto.Merge(whole, ids)
	if f.serialContext && whole.GetContextId() == "" {
		return nil, errNoContext()
	}
	return whole, nil
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
