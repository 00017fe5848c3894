package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/schemas"
)

const rerunHelp = `Make the call of a job that ended, or is unknown, once more: the same tool, arguments
and ids under a new key, as the job's successor. A job has at most one successor.

What is known of the old job is shown first, and somebody has to say yes: on a
terminal, or with --yes. A start_by is not taken over, since it has mostly passed. The
values of secrets are given to nobody, so each has to be given again with -a.

The successor of an unknown job waits for the locks of that job until somebody resolves
it. If the answer gets lost, run the command again with the printed --key.`

func (a *app) jobsRerunCommand() *cobra.Command {
	var s submission
	var yes bool
	var set []string
	var startBy string
	cmd := command("rerun JOB", "Make the call of an ended or unknown job once more, as its successor", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if err := s.check(cmd); err != nil {
			return err
		}
		var by *timestamppb.Timestamp
		if startBy != "" {
			at, err := point(startBy, clock())
			if err != nil {
				return err
			}
			by = timestamppb.New(at)
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the answer is there
		// With a key of its own it may be a repeat, which is answered whatever has
		// become of the old job.
		var known *macexecv1.KeyRecord
		if s.chosen {
			if known, err = a.ownKey(ctx, c, &s); err != nil {
				return withIDs(err, s.key, nil)
			}
		}
		old, raw, err := a.callAgain(ctx, c, args[0], set)
		if err == nil {
			err = s.room()
		}
		if err != nil {
			return withIDs(a.unmade(ctx, c, &s, known, err), s.key, old.GetCall().GetContext())
		}
		if err := a.mayRun(ctx, &s, old, known, yes); err != nil {
			return err
		}
		if !s.chosen {
			if _, err := a.ownKey(ctx, c, &s); err != nil {
				return err
			}
		}
		return a.submit(ctx, c, &s, successor(old, raw, by))
	})
	cmd.Long = rerunHelp
	s.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "say yes beforehand")
	cmd.Flags().StringArrayVarP(&set, "arg", "a", nil, "a secret argument again: name=@env:VAR")
	cmd.Flags().StringVar(&startBy, "start-by", "", "never start after this time: RFC 3339, or a duration from now")
	nothing(cmd, "arg", "start-by")
	cmd.ValidArgsFunction = one(a.completeJobs(
		macexecv1.JobState_JOB_STATE_UNKNOWN, macexecv1.JobState_JOB_STATE_FAILED,
		macexecv1.JobState_JOB_STATE_CANCELLED, macexecv1.JobState_JOB_STATE_COMPLETED))
	return cmd
}

// successor is the call of a job once more, with the arguments raw.
func successor(old *macexecv1.Job, raw []byte, by *timestamppb.Timestamp) *macexecv1.SubmitJobRequest {
	options := proto.CloneOf(old.GetCall().GetOptions())
	if options == nil {
		options = &macexecv1.Options{}
	}
	options.Supersedes, options.StartBy = old.GetId(), by
	ids := proto.CloneOf(old.GetCall().GetContext())
	if ids != nil {
		// The span of the old call has ended; this one is its caller's of today.
		ids.Traceparent, ids.Tracestate = "", ""
	}
	return &macexecv1.SubmitJobRequest{
		Tool: old.GetCall().GetTool(), ToolVersion: old.GetCall().GetToolVersion(),
		Arguments: raw, Purpose: old.GetCall().GetPurpose(), Options: options, Context: ids,
	}
}

// mayRun gets somebody's yes to a second run. Under a known key there is none: it is a
// repeat, or a conflict.
func (a *app) mayRun(ctx context.Context, s *submission, old *macexecv1.Job, known *macexecv1.KeyRecord, yes bool) error {
	if known != nil {
		return nil
	}
	if err := mayRerun(old); err != nil && !s.chosen {
		return err
	}
	return a.agree(ctx, old, yes)
}

// mayRerun says early what the daemon would say: a job goes on, or has a successor.
func mayRerun(old *macexecv1.Job) error {
	var f *failure
	switch {
	case !client.Settled(old.GetState()):
		f = failed(exitRefused, jobs.CodeStateConflict, fmt.Sprintf("job %s is %s, so there is nothing to run again", old.GetId(), document.Word(old.GetState())),
			"macexec jobs wait "+old.GetId())
	case old.GetSupersededBy() != "":
		f = failed(exitRefused, jobs.CodeSuperseded, fmt.Sprintf("job %s has a successor already: %s", old.GetId(), old.GetSupersededBy()),
			"look at it: macexec jobs show "+old.GetSupersededBy()+"; to run that once more: macexec jobs rerun "+old.GetSupersededBy())
	default:
		return nil
	}
	f.document.JobId = old.GetId()
	return f
}

// callAgain reads the old job, and makes the arguments of its call.
func (a *app) callAgain(ctx context.Context, c *client.Client, id string, set []string) (old *macexecv1.Job, raw []byte, err error) {
	resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: id})
	if err != nil {
		return nil, nil, beforehand(err)
	}
	raw, err = a.sameArguments(ctx, c, resp.GetJob(), set)
	return resp.GetJob(), raw, err
}

// sameArguments are those of the old call, with its secrets given again.
func (a *app) sameArguments(ctx context.Context, c *client.Client, old *macexecv1.Job, set []string) ([]byte, error) {
	settings := make([]argument.Setting, len(set))
	for i, text := range set {
		var err error
		if settings[i], err = argument.Parse(text); err != nil {
			return nil, err
		}
	}
	arguments := old.GetCall().GetArguments()
	hidden := argument.Hidden(arguments, schemas.SecretMarker)
	tool := &macexecv1.ToolInfo{}
	if len(hidden) > 0 {
		resp, err := c.Tools.GetTool(ctx, &macexecv1.GetToolRequest{Name: old.GetCall().GetTool(), Version: old.GetCall().GetToolVersion()})
		if err != nil {
			return nil, beforehand(err)
		}
		tool = resp.GetTool()
	}
	return argument.Of(tool).Refill(arguments, hidden, settings, a.Getenv)
}

// agree shows what is known of the old job, and gets somebody's yes to a second run.
func (a *app) agree(ctx context.Context, old *macexecv1.Job, yes bool) error {
	if err := writeKnown(a.Err, old, a.ErrTerminal && a.colour()); err != nil {
		return unwritable(err)
	}
	if old.GetState() == macexecv1.JobState_JOB_STATE_UNKNOWN {
		a.remarkf("its successor waits for its locks until it is resolved: %s", resolveLine(old.GetId()))
	}
	if yes {
		return nil
	}
	again := "macexec jobs rerun " + old.GetId() + " --yes"
	if !a.InTerminal || !a.ErrTerminal {
		return usagef(again, "running a job again needs somebody's yes, and there is no terminal to ask at")
	}
	fmt.Fprintf(a.Err, "Run it again? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.Err)
		return ctx.Err()
	case said := <-answer:
		if said != "y" && said != "yes" {
			return failed(exitRefused, jobs.CodeRequestInvalid, "nothing was run again, since nobody said yes", again)
		}
		return nil
	}
}

// writeKnown draws what proves the state of a job, for somebody who has to judge
// whether a second run does harm.
func writeKnown(w io.Writer, job *macexecv1.Job, colour bool) error {
	var f fields
	f.add("job", job.GetId())
	f.add("tool", strings.TrimSpace(job.GetTool().GetName()+" "+job.GetTool().GetVersion())+", effects "+effectsText(job.GetTool()))
	f.addStyled("state", stateText(job), stateStyle(job.GetState()))
	f.add("message", job.GetMessage())
	f.addStyled("still lives", stillLives(job), show.Yellow)
	f.add("side effect", document.Word(job.GetSideEffect()))
	for _, attempt := range job.GetAttempts() {
		f.add(fmt.Sprintf("attempt %d", attempt.GetN()), attemptText(attempt))
	}
	for _, e := range job.GetEvidence() {
		f.add("evidence", strings.TrimSpace(moment(e.GetAt())+" "+document.Word(e.GetKind())+": "+e.GetDetail()))
	}
	if job.GetRetry() == macexecv1.Retry_RETRY_NEVER {
		f.addStyled("retry", "never: the same call would end the same way", show.Yellow)
	}
	return f.table.Write(w, colour)
}

func effectsText(tool *macexecv1.ToolRef) string {
	if tool.GetDestructive() {
		return document.Word(tool.GetEffects()) + ", destructive"
	}
	return document.Word(tool.GetEffects())
}

func attemptText(attempt *macexecv1.Attempt) string {
	var parts []string
	if s := attempt.GetStarted(); s != nil {
		parts = append(parts, fmt.Sprintf("started %s as process %d", s.GetAt().AsTime().Format(time.RFC3339), s.GetPid()))
	} else {
		parts = append(parts, "no start is recorded")
	}
	switch exit := attempt.GetExit(); {
	case exit == nil:
		parts = append(parts, "no end is recorded")
	case exit.GetSignal() != "":
		parts = append(parts, "ended by "+exit.GetSignal())
	default:
		parts = append(parts, fmt.Sprintf("ended with exit code %d", exit.GetCode()))
	}
	if attempt.GetLost() != "" {
		parts = append(parts, "lost: "+attempt.GetLost())
	}
	return strings.Join(parts, "; ")
}
