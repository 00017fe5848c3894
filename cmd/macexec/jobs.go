package main

import (
	"context"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
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
		a.jobsArtifactsCommand(),
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

func (a *app) jobsListCommand() *cobra.Command {
	var all bool
	var run, toolCall, key, tool, since string
	var states, withLabels []string
	var cmd *cobra.Command
	cmd = a.talk("list", "List jobs: what waits, runs or is unknown first, then the last day", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		want := &macexecv1.ListJobsRequest{RunId: run, ToolCallId: toolCall, Key: key, Tool: tool}
		var err error
		if want.Labels, err = labels(withLabels); err != nil {
			return err
		}
		if since != "" {
			at, err := past(since, clock())
			if err != nil {
				return err
			}
			want.Since = timestamppb.New(at)
		}
		for _, word := range states {
			state, ok := document.Enum[macexecv1.JobState](word)
			if !ok || word == "" {
				return usagef("--state "+strings.Join(document.Words[macexecv1.JobState](), ", --state "), "there is no state %q", word)
			}
			want.States = append(want.States, state)
		}
		selected := cmd.Flags().NFlag() > 0 && (len(states) > 0 || anyChanged(cmd, "all", "run", "tool-call-id", "key", "tool", "since", "label"))
		jobs, damaged, err := recentJobs(ctx, c, want, selected)
		if err != nil {
			return beforehand(err)
		}
		for id, why := range damaged {
			a.remarkf("the record of job %s is damaged: %s", id, why)
		}
		return a.printJobs(jobs)
	})
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "of any age")
	flags.StringVar(&run, "run", "", "only of this run")
	flags.StringVar(&toolCall, "tool-call-id", "", "only of this tool call")
	flags.StringVar(&key, "key", "", "only under this key")
	flags.Var(stateFlag{words: &states, folder: &a.state}, "state", "only in these states: "+strings.Join(document.Words[macexecv1.JobState](), ", ")+"; or, with a slash in it, the daemon's state folder")
	flags.StringVar(&tool, "tool", "", "only of this tool")
	flags.StringVar(&since, "since", "", "only accepted since: RFC 3339, or a duration before now")
	flags.StringArrayVar(&withLabels, "label", nil, "only with this label, k=v")
	return cmd
}

// stateFlag is --state of jobs list, which selects by state, and is still the global
// --state for what can only be a folder: no state has a slash in it.
type stateFlag struct {
	words  *[]string
	folder *string
}

func (f stateFlag) String() string { return "" }

func (f stateFlag) Type() string { return "STATE" }

func (f stateFlag) Set(value string) error {
	if strings.Contains(value, "/") {
		*f.folder = value
		return nil
	}
	*f.words = append(*f.words, strings.Split(value, ",")...)
	return nil
}

func anyChanged(cmd *cobra.Command, names ...string) bool {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// past reads a time in the past: RFC 3339, or a duration before now.
func past(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	return point(text, now)
}

// recentJobs lists what is not settled or unknown first, then the others, newest
// first; without a selection only those of the last day.
func recentJobs(ctx context.Context, c *client.Client, want *macexecv1.ListJobsRequest, selected bool) (jobs []*macexecv1.Job, damaged map[string]string, err error) {
	damaged = map[string]string{}
	take := func(req *macexecv1.ListJobsRequest, keep func(*macexecv1.Job) bool) error {
		for {
			resp, err := c.Jobs.ListJobs(ctx, req)
			if err != nil {
				return err
			}
			for _, job := range resp.GetJobs() {
				if keep(job) {
					jobs = append(jobs, job)
				}
			}
			maps.Copy(damaged, resp.GetDamaged())
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				return nil
			}
		}
	}
	if len(want.GetStates()) > 0 {
		return jobs, damaged, take(want, func(*macexecv1.Job) bool { return true })
	}
	open := []macexecv1.JobState{
		macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL, macexecv1.JobState_JOB_STATE_QUEUED,
		macexecv1.JobState_JOB_STATE_RUNNING, macexecv1.JobState_JOB_STATE_UNKNOWN,
	}
	seen := map[string]bool{}
	first := &macexecv1.ListJobsRequest{
		RunId: want.GetRunId(), ToolCallId: want.GetToolCallId(), Key: want.GetKey(), Tool: want.GetTool(),
		Since: want.GetSince(), Labels: want.GetLabels(), States: open,
	}
	if err := take(first, func(job *macexecv1.Job) bool { seen[job.GetId()] = true; return true }); err != nil {
		return nil, nil, err
	}
	if !selected {
		want.Since = timestamppb.New(clock().Add(-24 * time.Hour))
	}
	// A job may have ended between the two lists: it is shown once, as first seen.
	err = take(want, func(job *macexecv1.Job) bool { return !seen[job.GetId()] })
	return jobs, damaged, err
}

func (a *app) printJobs(jobs []*macexecv1.Job) error {
	table := &show.Table{Head: []string{"JOB", "STATE", "TOOL", "AGE", "NOTE"}}
	if a.format == formatWide {
		table.Head = []string{"JOB", "STATE", "TOOL", "AGE", "PRINCIPAL", "KEY", "RUN", "TOOL CALL", "ATTEMPTS", "NOTE"}
	}
	now := clock()
	return list(a, jobs, (*macexecv1.Job).GetId, table, func(job *macexecv1.Job) []show.Cell {
		note := job.GetMessage()
		if waits := waitsFor(job); waits != "" {
			note = "waits for " + waits
		}
		row := []show.Cell{
			{Text: job.GetId()},
			{Text: document.Word(job.GetState()), Style: stateStyle(job.GetState())},
			{Text: job.GetTool().GetName()},
			{Text: show.Age(job.GetSubmittedAt().AsTime(), now)},
		}
		if a.format == formatWide {
			ids := job.GetCall().GetContext()
			row = append(row, show.Cell{Text: job.GetPrincipal()}, show.Cell{Text: job.GetKey()},
				show.Cell{Text: ids.GetRunId()}, show.Cell{Text: ids.GetToolCallId()},
				show.Cell{Text: strconv.Itoa(len(job.GetAttempts()))})
		}
		return append(row, show.Cell{Text: note})
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
	return cmd
}

func (a *app) showKey(ctx context.Context, c *client.Client, key string) error {
	resp, err := c.Jobs.LookupKey(ctx, &macexecv1.LookupKeyRequest{Key: key})
	if err != nil {
		return beforehand(err)
	}
	record := resp.GetRecord()
	return a.print(record, record.GetJobId(), func(w io.Writer) error {
		var f fields
		f.add("key", record.GetKey())
		f.add("principal", record.GetPrincipal())
		f.add("stands for", document.Word(record.GetKind()))
		f.add("first used", moment(record.GetCreatedAt()))
		f.add("fingerprint", record.GetFingerprint())
		if err := f.table.Write(w, false); err != nil || record.GetJob() == nil {
			return err
		}
		return writeJob(w, record.GetJob(), a.format == formatWide, a.OutTerminal && a.colour())
	})
}

func (a *app) jobsWaitCommand() *cobra.Command {
	var limit time.Duration
	var cmd *cobra.Command
	cmd = a.talk("wait JOB…", "Wait until jobs are settled; the exit code is that of the first that is not completed", cobra.MinimumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		var worst error
		deadline := clock().Add(limit)
		for _, id := range args {
			resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: id})
			if err != nil {
				return beforehand(err)
			}
			w := waiting{bounded: cmd.Flags().Changed("wait"), limit: max(0, deadline.Sub(clock()))}
			if err := a.follow(ctx, c, resp.GetJob(), w); err != nil && worst == nil {
				worst = err
			}
		}
		return worst
	})
	cmd.Flags().DurationVar(&limit, "wait", 0, "wait at most so long for all of them (no limit)")
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
				Reference: "job:" + job.GetId() + "/" + artifact.GetName(), Name: artifact.GetName(),
				Sha256: artifact.GetSha256(), Size: artifact.GetSize(), MediaType: artifact.GetMediaType(),
			}
		}
		return a.printFiles(files)
	})
	cmd.Flags().StringVar(&dir, "download", "", "fetch them into DIR; nothing there is replaced")
	return cmd
}
