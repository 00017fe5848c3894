package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) jobsCommand() *cobra.Command {
	return group("jobs", "Look at jobs, wait for them, and decide about them",
		a.jobsListCommand(),
		a.jobsShowCommand(),
		a.jobsWaitCommand(),
		a.jobsWatchCommand(),
		a.jobsLogsCommand(),
		a.jobsCancelCommand(),
		a.jobsApproveCommand(),
		a.jobsDenyCommand(),
		a.jobsResolveCommand(),
		a.jobsProbeCommand(),
		a.jobsRerunCommand(),
		a.jobsArtifactsCommand(),
		a.jobsUsageCommand(),
	)
}

// talk is a leaf that needs the daemon.
func (a *app) talk(use, short string, want cobra.PositionalArgs, run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	return command(use, short, want, func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the answer is there
		return run(cmd.Context(), c, args)
	})
}

func (a *app) jobsShowCommand() *cobra.Command {
	var key string
	cmd := a.talk("show [JOB]", "Show a job, or with --key what a key stands for", cobra.MaximumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		if (key == "") == (len(args) == 0) {
			return usagef("macexec jobs show JOB, or macexec jobs show --key K", "give a job's id or a key, one of them")
		}
		if key != "" {
			return a.showKey(ctx, c, key)
		}
		resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: args[0]})
		if err != nil {
			return beforehand(err)
		}
		return a.printJob(resp.GetJob())
	})
	cmd.Flags().StringVar(&key, "key", "", "look a key up; changes nothing")
	nothing(cmd, "key")
	cmd.ValidArgsFunction = one(a.completeJobs())
	return cmd
}

func (a *app) showKey(ctx context.Context, c *client.Client, key string) error {
	record, err := c.LookupKey(ctx, key)
	if err != nil {
		return beforehand(err)
	}
	if record == nil {
		return failed(exitRefused, jobs.CodeJobNotFound, fmt.Sprintf("nothing ever started under the key %s", key), "macexec jobs list --all")
	}
	return a.print(record, record.GetJobId(), func(w io.Writer) error {
		var f fields
		f.add("key", record.GetKey())
		f.add("principal", record.GetPrincipal())
		f.add("stands for", document.Word(record.GetKind()))
		f.add("first used", moment(record.GetCreatedAt()))
		f.add("fingerprint", record.GetFingerprint())
		if record.GetKind() == macexecv1.KeyKind_KEY_KIND_TOMBSTONE {
			f.add("job", orElse(record.GetJobId(), "none")+", of which no record is kept any more")
		}
		if err := f.table.Write(w, false); err != nil || record.GetJob() == nil {
			return err
		}
		return writeJob(w, record.GetJob(), a.format == formatWide, a.OutTerminal && a.colour())
	})
}

const waitHelp = `Wait until jobs are settled (completed, failed, cancelled or unknown), and print each
as it then is. It outlives restarts of the daemon.

The exit code of several jobs is the worst of theirs, in this order: 6 unknown,
1 failed, 4 denied, 7 cancelled, 5 awaiting approval when the wait ended, 12 still
queued or running when the wait ended, 0 all completed.`

func (a *app) jobsWaitCommand() *cobra.Command {
	var limit time.Duration
	var cmd *cobra.Command
	cmd = a.talk("wait JOB…", "Wait until jobs are settled; the exit code is the worst of theirs", cobra.MinimumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		if limit < 0 {
			return usagef("--wait 30s", "the wait %s is negative", limit)
		}
		deadline := clock().Add(limit)
		// A job that does not exist is found before a long wait for another.
		found := make([]*macexecv1.Job, len(args))
		for i, id := range args {
			resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: id})
			if err != nil {
				return beforehand(err)
			}
			found[i] = resp.GetJob()
		}
		worst := exitOK
		for _, job := range found {
			w := waiting{bounded: cmd.Flags().Changed("wait"), limit: limit, until: deadline}
			err := a.follow(ctx, c, job, w)
			if f, ok := errors.AsType[*failure](err); ok && f.document == nil {
				worst = worse(worst, f.code)
			} else if err != nil {
				return err
			}
		}
		return ended(worst)
	})
	cmd.Long = waitHelp
	cmd.Flags().DurationVar(&limit, "wait", 0, "wait at most so long for all of them (no limit)")
	nothing(cmd, "wait")
	cmd.ValidArgsFunction = a.completeJobs(openStates()...)
	return cmd
}

func (a *app) jobsArtifactsCommand() *cobra.Command {
	var dir string
	cmd := a.talk("artifacts JOB", "List a job's artifacts, or download them", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: args[0]})
		if err != nil {
			return beforehand(err)
		}
		job := resp.GetJob()
		if dir != "" {
			if err := a.download(ctx, c, job, dir); err != nil {
				return err
			}
		}
		files := make([]*macexecv1.FileInfo, len(job.GetArtifacts()))
		for i, artifact := range job.GetArtifacts() {
			files[i] = &macexecv1.FileInfo{
				Reference: artifactReference(job, artifact), Name: artifact.GetName(), Folder: artifact.GetFolder(),
				Sha256: artifact.GetSha256(), Size: artifact.GetSize(), MediaType: artifact.GetMediaType(), TransferSize: artifact.GetSize(),
			}
			if artifact.GetFolder() {
				// How large its tar is only the host can say, while the folder is there.
				if info, err := c.Stat(ctx, artifactReference(job, artifact)); err == nil {
					files[i].TransferSize = info.GetTransferSize()
				}
			}
		}
		return a.printFiles(files)
	})
	cmd.Flags().StringVar(&dir, "download", "", "fetch them into DIR; nothing there is replaced")
	folders(cmd, "download")
	cmd.ValidArgsFunction = one(a.completeJobs())
	return cmd
}
