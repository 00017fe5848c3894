package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) jobsCancelCommand() *cobra.Command {
	var reason string
	cmd := a.talk("cancel JOB…", "Ask for a stop; a job that has started ends a little later", cobra.MinimumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		for _, id := range args {
			resp, err := c.Jobs.CancelJob(ctx, &macexecv1.CancelJobRequest{Id: id, Reason: reason})
			if err := a.decided(resp.GetJob(), err); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the job")
	return cmd
}

func (a *app) jobsApproveCommand() *cobra.Command {
	var reason, binding string
	cmd := a.talk("approve JOB", "Agree to exactly what the job's approval binds; it then runs", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.ApproveJob(ctx, &macexecv1.ApproveJobRequest{Id: args[0], BindingDigest: binding, Reason: reason})
		return a.decided(resp.GetJob(), err)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the job")
	cmd.Flags().StringVar(&binding, "binding", "", "the digest of the binding that you have seen (whatever it is now)")
	return cmd
}

func (a *app) jobsDenyCommand() *cobra.Command {
	var reason string
	cmd := a.talk("deny JOB", "Refuse a job that awaits approval; it never runs", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.DenyJob(ctx, &macexecv1.DenyJobRequest{Id: args[0], Reason: reason})
		return a.decided(resp.GetJob(), err)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the job")
	return cmd
}

func (a *app) jobsResolveCommand() *cobra.Command {
	var as, reason string
	cmd := a.talk("resolve JOB", "Say in your name how an unknown job ended", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		const ends = "--as completed, --as failed or --as cancelled"
		state, ok := document.Enum[macexecv1.JobState](as)
		if !ok || as == "" {
			return usagef(ends, "there is no state %q", as)
		}
		if strings.TrimSpace(reason) == "" {
			return usagef("--reason TEXT", "a resolution needs a reason: how do you know that it is %s?", as)
		}
		resp, err := c.Jobs.ResolveJob(ctx, &macexecv1.ResolveJobRequest{Id: args[0], State: state, Reason: reason})
		return a.decided(resp.GetJob(), err)
	})
	cmd.Flags().StringVar(&as, "as", "", "completed, failed or cancelled")
	cmd.Flags().StringVar(&reason, "reason", "", "how you know")
	return cmd
}

// decided prints a job after somebody's word about it.
func (a *app) decided(job *macexecv1.Job, err error) error {
	if err != nil {
		f := explain(err)
		if f.code == exitAnswerLost {
			f.try = "macexec jobs show tells whether it was done; doing it again is safe"
		}
		return f
	}
	return a.print(job, job.GetId(), func(w io.Writer) error {
		var f fields
		f.add("job", job.GetId())
		f.addStyled("state", stateText(job), stateStyle(job.GetState()))
		f.add("message", job.GetMessage())
		if job.GetStop() != nil && !client.Settled(job.GetState()) {
			f.add("stop", "asked for; macexec jobs wait "+job.GetId()+" tells when it has ended")
		}
		return f.table.Write(w, a.OutTerminal && a.colour())
	})
}
