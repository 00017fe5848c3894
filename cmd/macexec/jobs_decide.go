package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const cancelHelp = `Ask for a stop. The wish is durable when the command returns; a job that has started
ends a little later, which macexec jobs wait tells.

With --run a whole run is cancelled: every job of it that has not ended, and of the
runs and calls that came from it. The run is closed for ever, so that a submission
which is still on its way is refused (RUN_CLOSED), whether the run has a job yet or
not.`

func (a *app) jobsCancelCommand() *cobra.Command {
	var run, reason string
	cmd := a.talk("cancel JOB… | --run R", "Ask for a stop of jobs, or of a whole run", cobra.ArbitraryArgs, func(ctx context.Context, c *client.Client, args []string) error {
		if (run == "") == (len(args) == 0) {
			return usagef("macexec jobs cancel JOB, or macexec jobs cancel --run R", "give the ids of jobs or a run, one of them")
		}
		if run != "" {
			return a.cancelRun(ctx, c, run, reason)
		}
		for _, id := range args {
			resp, err := c.Jobs.CancelJob(ctx, &macexecv1.CancelJobRequest{Id: id, Reason: reason})
			if err := a.decided(resp.GetJob(), err); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Long = cancelHelp
	cmd.Flags().StringVar(&run, "run", "", "every job of this run, and all that came from it")
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the jobs")
	nothing(cmd, "run", "reason")
	cmd.ValidArgsFunction = a.completeJobs(openStates()...)
	return cmd
}

// cancelRun cancels a run and tells what became of it; with -q the ids of the jobs
// that were asked to stop.
func (a *app) cancelRun(ctx context.Context, c *client.Client, run, reason string) error {
	done, err := c.CancelRun(ctx, run, reason)
	if err != nil {
		return a.decided(nil, err)
	}
	switch {
	case a.format == formatJSON:
		err = a.printDocument(done)
	case a.quiet:
		for _, id := range done.GetJobIds() {
			err = errors.Join(err, a.printLine(show.Line(id)))
		}
	default:
		var f fields
		for _, id := range done.GetRunIds() {
			f.add("closed run", id)
		}
		for _, id := range done.GetJobIds() {
			f.add("asked to stop", id)
		}
		for _, id := range done.GetTooLateJobIds() {
			f.add("too late for", id+", whose result is being published")
		}
		for _, id := range done.GetUnknownJobIds() {
			f.addStyled("cannot reach", id+", which is unknown", show.Yellow)
		}
		err = f.table.Write(a.Out, a.OutTerminal && a.colour())
	}
	for _, id := range done.GetUnknownJobIds() {
		a.remarkf("nothing proves how job %s ended; find out, then %s", id, resolveLine(id))
	}
	return err
}

func (a *app) jobsApproveCommand() *cobra.Command {
	var reason, binding string
	cmd := a.talk("approve JOB", "Agree to exactly what the job's approval binds; it then runs", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.ApproveJob(ctx, &macexecv1.ApproveJobRequest{Id: args[0], BindingDigest: binding, Reason: reason})
		return a.decided(resp.GetJob(), err)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the job")
	cmd.Flags().StringVar(&binding, "binding", "", "the digest of the binding that you have seen (whatever it is now)")
	nothing(cmd, "reason", "binding")
	cmd.ValidArgsFunction = one(a.completeJobs(macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL))
	return cmd
}

func (a *app) jobsDenyCommand() *cobra.Command {
	var reason string
	cmd := a.talk("deny JOB", "Refuse a job that awaits approval; it never runs", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.DenyJob(ctx, &macexecv1.DenyJobRequest{Id: args[0], Reason: reason})
		return a.decided(resp.GetJob(), err)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the job")
	nothing(cmd, "reason")
	cmd.ValidArgsFunction = one(a.completeJobs(macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL))
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
	words(cmd, "as", []string{"completed", "failed", "cancelled"})
	nothing(cmd, "reason")
	cmd.ValidArgsFunction = one(a.completeJobs(macexecv1.JobState_JOB_STATE_UNKNOWN))
	return cmd
}

const probeHelp = `Ask the tool's own probe, a read-only command of its manifest, whether the effect of an
unknown job happened. macexec asks it by itself when the job becomes unknown, and when
the last process of a tool that outlived its keeper has ended; ask again when what the
probe looks at was out of reach then.

Before that macexec looks whether the record of the tool's end can be read by now, if it
could not when the job became unknown. Such a record settles the job, with or without a
probe.

An answer settles the job: completed if it happened, failed if it did not and nothing
lives that could still make it happen. Without an answer the job stays unknown, and the
exit code is 6. Of a job that a person has resolved the answer is kept as evidence, and
its state stays.`

func (a *app) jobsProbeCommand() *cobra.Command {
	cmd := a.talk("probe JOB", "Ask an unknown job's probe whether it happened", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.ProbeJob(ctx, &macexecv1.ProbeJobRequest{Id: args[0]})
		if err := a.decided(resp.GetJob(), err); err != nil {
			return err
		}
		a.remarkf("%s", resp.GetDetail())
		job := resp.GetJob()
		open := job.GetState() == macexecv1.JobState_JOB_STATE_UNKNOWN || job.GetEndReason() == macexecv1.EndReason_END_REASON_RESOLVED
		if open && resp.GetAnswer() == macexecv1.ProbeAnswer_PROBE_ANSWER_NO_ANSWER {
			return ended(exitUnknown)
		}
		return nil
	})
	cmd.Long = probeHelp
	cmd.ValidArgsFunction = one(a.completeJobs(macexecv1.JobState_JOB_STATE_UNKNOWN))
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
