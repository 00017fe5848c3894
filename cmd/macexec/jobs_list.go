package main

import (
	"context"
	"slices"
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

// jobFilter selects jobs, for jobs list and jobs watch.
type jobFilter struct {
	run, parentRun, thread, contextID, toolCall string
	key, tool, principal                        string
	words, labels                               []string
	states                                      []macexecv1.JobState
	labelled                                    map[string]string
}

func (f *jobFilter) add(a *app, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.run, "run", "", "only of this run")
	flags.StringVar(&f.parentRun, "parent-run", "", "only of runs that this run started")
	flags.StringVar(&f.thread, "thread", "", "only of this thread")
	flags.StringVar(&f.contextID, "context-id", "", "only of this context")
	flags.StringVar(&f.toolCall, "tool-call-id", "", "only of this tool call")
	flags.StringVar(&f.key, "key", "", "only under this key")
	flags.StringVar(&f.tool, "tool", "", "only of this tool")
	flags.StringVar(&f.principal, "principal", "", "only of this principal")
	states := document.Words[macexecv1.JobState]()
	flags.Var(stateFlag{words: &f.words, folder: &a.state}, "state", "only in these states: "+strings.Join(states, ", ")+"; with a slash in it (./DIR) it is the daemon's state folder, as in other commands")
	flags.StringArrayVar(&f.labels, "label", nil, "only with this label, k=v")
	words(cmd, "state", states)
	nothing(cmd, "run", "parent-run", "thread", "context-id", "tool-call-id", "key", "principal", "label")
	complete(cmd, "tool", a.completeTools)
}

// read turns the words of the command line into what the daemon is asked.
func (f *jobFilter) read() (err error) {
	if f.labelled, err = labels(f.labels); err != nil {
		return err
	}
	for _, word := range f.words {
		state, ok := document.Enum[macexecv1.JobState](word)
		if !ok || word == "" {
			return usagef("--state "+strings.Join(document.Words[macexecv1.JobState](), ", --state ")+"; a state folder in this command: MACEXEC_STATE=DIR, or --state with a slash in it: --state ./"+word,
				"there is no state %q; here --state selects jobs by their state", word)
		}
		f.states = append(f.states, state)
	}
	return nil
}

// selects says whether the filter leaves anything out.
func (f *jobFilter) selects() bool {
	for _, text := range []string{f.run, f.parentRun, f.thread, f.contextID, f.toolCall, f.key, f.tool, f.principal} {
		if text != "" {
			return true
		}
	}
	return len(f.labelled) > 0 || len(f.states) > 0
}

func (f *jobFilter) list() *macexecv1.ListJobsRequest { return client.Selection(f.watch()) }

func (f *jobFilter) watch() *macexecv1.WatchJobsRequest {
	return &macexecv1.WatchJobsRequest{
		RunId: f.run, ParentRunId: f.parentRun, ThreadId: f.thread, ContextId: f.contextID, ToolCallId: f.toolCall,
		Key: f.key, Tool: f.tool, Principal: f.principal, States: f.states, Labels: f.labelled,
	}
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

// past reads a time in the past: RFC 3339, or a duration before now.
func past(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	return point(text, now)
}

// pastTime is past for a field of a request; "" leaves it unset.
func pastTime(text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no time is a time here
	}
	at, err := past(text, now)
	return timestamppb.New(at), err
}

const listHelp = `List jobs: first those that need a person (awaiting_approval, unknown), then those
that run, then those that wait, each newest first; then all others of the last day.

A flag that selects lists jobs of any age. Times are RFC 3339, or a duration before
now: --since 2h.`

func (a *app) jobsListCommand() *cobra.Command {
	var f jobFilter
	var all bool
	var since, until string
	cmd := a.talk("list", "List jobs: what needs a person, runs or waits first, then the last day", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		if err := f.read(); err != nil {
			return err
		}
		req := f.list()
		var err error
		if req.Since, err = pastTime(since, clock()); err != nil {
			return err
		}
		if req.Until, err = pastTime(until, clock()); err != nil {
			return err
		}
		aged := all || f.selects() || since != "" || until != ""
		return a.listJobs(ctx, c, req, aged)
	})
	cmd.Long = listHelp
	f.add(a, cmd)
	cmd.Flags().BoolVar(&all, "all", false, "of any age")
	cmd.Flags().StringVar(&since, "since", "", "only accepted at or after this time, or in this last while")
	cmd.Flags().StringVar(&until, "until", "", "only accepted before this time, or before this last while")
	nothing(cmd, "since", "until")
	return cmd
}

// listJobs prints what is open first, and then the rest: of any age, or of the last
// day.
func (a *app) listJobs(ctx context.Context, c *client.Client, req *macexecv1.ListJobsRequest, aged bool) error {
	wanted := req.GetStates()
	first, rest := openStates(), []macexecv1.JobState(nil)
	if len(wanted) > 0 {
		first = slices.DeleteFunc(first, func(s macexecv1.JobState) bool { return !slices.Contains(wanted, s) })
		rest = slices.DeleteFunc(slices.Clone(wanted), func(s macexecv1.JobState) bool { return slices.Contains(first, s) })
	}
	out := a.jobList()
	// A job may end between the two lists: it is shown once, as first seen.
	seen := map[string]bool{}
	if len(first) > 0 {
		var open []*macexecv1.Job
		req.States = first
		damaged, err := c.ListJobs(ctx, req, func(job *macexecv1.Job) error {
			open = append(open, job)
			return nil
		})
		out.damaged(damaged)
		if err != nil {
			return beforehand(err)
		}
		slices.SortStableFunc(open, func(x, y *macexecv1.Job) int { return urgency(x) - urgency(y) })
		for _, job := range open {
			seen[job.GetId()] = true
			if err := out.add(job); err != nil {
				return err
			}
		}
	}
	if len(wanted) == 0 || len(rest) > 0 {
		req.States = rest
		if !aged {
			req.Since = timestamppb.New(clock().Add(-24 * time.Hour))
		}
		damaged, err := c.ListJobs(ctx, req, func(job *macexecv1.Job) error {
			if seen[job.GetId()] {
				return nil
			}
			return out.add(job)
		})
		out.damaged(damaged)
		if err != nil {
			return beforehand(err)
		}
	}
	return out.end()
}

// openStates are the states of jobs that something still has to happen to, those
// that need a person first.
func openStates() []macexecv1.JobState {
	return []macexecv1.JobState{
		macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL, macexecv1.JobState_JOB_STATE_UNKNOWN,
		macexecv1.JobState_JOB_STATE_RUNNING, macexecv1.JobState_JOB_STATE_QUEUED,
	}
}

// urgency orders open jobs: the two kinds that need a person are one.
func urgency(job *macexecv1.Job) int { return max(1, slices.Index(openStates(), job.GetState())) }

// jobList prints jobs as they come: a document or an id per line, or at the end a
// table.
type jobList struct {
	a     *app
	now   time.Time
	table *show.Table
	told  map[string]bool // the damaged records that were told
}

func (a *app) jobList() *jobList {
	l := &jobList{a: a, now: clock(), told: map[string]bool{}, table: &show.Table{Head: []string{"JOB", "STATE", "TOOL", "AGE", "NOTE"}}}
	if a.format == formatWide {
		l.table.Head = []string{"JOB", "STATE", "TOOL", "AGE", "PRINCIPAL", "KEY", "RUN", "TOOL CALL", "ATTEMPTS", "NOTE"}
	}
	return l
}

func (l *jobList) add(job *macexecv1.Job) error {
	switch {
	case l.a.format == formatJSON:
		return l.a.printDocument(job)
	case l.a.quiet:
		return l.a.printLine(show.Line(job.GetId()))
	}
	row := []show.Cell{
		{Text: job.GetId()},
		{Text: document.Word(job.GetState()), Style: stateStyle(job.GetState())},
		{Text: job.GetTool().GetName()},
		{Text: show.Age(job.GetSubmittedAt().AsTime(), l.now)},
	}
	if l.a.format == formatWide {
		ids := job.GetCall().GetContext()
		row = append(row, show.Cell{Text: job.GetPrincipal()}, show.Cell{Text: job.GetKey()},
			show.Cell{Text: ids.GetRunId()}, show.Cell{Text: ids.GetToolCallId()},
			show.Cell{Text: strconv.Itoa(len(job.GetAttempts()))})
	}
	note := job.GetMessage()
	if waits := waitsFor(job); waits != "" {
		note = "waits for " + waits
	}
	l.table.Rows = append(l.table.Rows, append(row, show.Cell{Text: note}))
	return nil
}

func (l *jobList) damaged(records map[string]string) {
	for id, why := range records {
		if !l.told[id] {
			l.told[id] = true
			l.a.remarkf("the record of job %s is damaged: %s", id, why)
		}
	}
}

func (l *jobList) end() error {
	if l.a.format == formatJSON || l.a.quiet {
		return nil
	}
	return l.table.Write(l.a.Out, l.a.OutTerminal && l.a.colour())
}
