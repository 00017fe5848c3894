package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// reached fails at once when there is no daemon; a stream would look for it for a
// while, since it also outlives the daemon's restart.
func reached(ctx context.Context, c *client.Client) error {
	_, err := c.Host.WhoAmI(ctx, &macexecv1.WhoAmIRequest{})
	return beforehand(err)
}

// streamed is the end of a stream: a person who ends it has seen enough.
func streamed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // the error is only that the person left
	}
	return beforehand(err)
}

// errSeen ends a watch whose job is settled.
var errSeen = errors.New("the job is settled")

// told finds out when a watch has told all that happened to a job. The job that comes
// with an event is as it is now, and the entries that say how it came to that may still
// be on their way.
type told struct {
	after uint64
	// quiet ends the watch of a job that was settled before it began, when no more comes:
	// whether there is an entry behind the caller's cursor nobody says otherwise.
	quiet *time.Timer
	ended bool
}

// quietFor is how long such a watch waits for the next entry, which is there already.
const quietFor = 3 * time.Second

// by takes an event, and reports that it is the last.
func (t *told) by(e *macexecv1.Event) bool {
	t.ended = t.ended || client.Settled(e.GetJob().GetState())
	switch {
	case !t.ended:
		return false
	case e.GetSnapshot() && t.after == 0:
		return true
	case client.Settled(e.GetJob().GetState()) && client.Settled(e.GetEntry().GetState()) && e.GetEntry().GetRevision() >= e.GetJob().GetRevision():
		return true
	}
	if t.after > 0 {
		t.quiet.Reset(quietFor)
	}
	return false
}

const watchHelp = `Print what happens to jobs, or to one job until it is settled. A watch outlives
restarts of the daemon: nothing is left out, and nothing comes twice.

Each event but progress has a cursor. --after CURSOR goes on behind it, also days
later; --after 0 begins with the oldest event. When events behind the cursor are gone
the error is CURSOR_EXPIRED (exit code 10): --snapshot begins anew with every selected
job as it is now, and goes on from there without a gap; the last event of the snapshot
has the cursor to go on from.`

func (a *app) jobsWatchCommand() *cobra.Command {
	var f jobFilter
	var after uint64
	var snapshot bool
	var cmd *cobra.Command
	cmd = a.talk("watch [JOB]", "Print what happens to jobs, or to one job until it is settled", cobra.MaximumNArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		if err := f.read(); err != nil {
			return err
		}
		req := f.watch()
		req.After, req.FromNow, req.Progress = after, !cmd.Flags().Changed("after"), true
		if len(args) == 1 {
			req.JobId = args[0]
		}
		watch := c.Watch
		if snapshot {
			if req.GetJobId() != "" || !req.GetFromNow() {
				return usagef("macexec jobs watch --snapshot", "--snapshot begins anew with every selected job, so --after has no meaning with it, and one job has a snapshot anyway")
			}
			watch = c.WatchSnapshot
		}
		if err := reached(ctx, c); err != nil {
			return err
		}
		last := after
		watched, cancel := context.WithCancelCause(ctx)
		all := told{after: after, quiet: time.AfterFunc(time.Hour, func() { cancel(errSeen) })}
		all.quiet.Stop()
		defer func() { all.quiet.Stop(); cancel(nil) }()
		err := watch(watched, req, func(e *macexecv1.Event) error {
			if err := a.printEvent(e); err != nil {
				return err
			}
			last = max(last, e.GetCursor())
			if req.GetJobId() != "" && all.by(e) {
				return errSeen
			}
			return nil
		})
		if errors.Is(err, errSeen) || errors.Is(context.Cause(watched), errSeen) {
			return nil
		}
		if last > 0 && a.ErrTerminal {
			a.remarkf("the last cursor was %d; --after %d goes on behind it", last, last)
		}
		if e, ok := errors.AsType[*client.Error](err); ok && e.Oldest() > 0 {
			return &failure{code: exitRefused, document: e.Detail, try: fmt.Sprintf(
				"macexec jobs watch --snapshot begins anew with the jobs as they are; --after %d goes on behind the gap", e.Oldest()-1)}
		}
		return streamed(ctx, err)
	})
	cmd.Long = watchHelp
	f.add(a, cmd)
	cmd.Flags().Uint64Var(&after, "after", 0, "go on after this cursor; 0: from the oldest event (from now on)")
	cmd.Flags().BoolVar(&snapshot, "snapshot", false, "begin with the jobs as they are")
	nothing(cmd, "after")
	cmd.ValidArgsFunction = one(a.completeJobs(openStates()...))
	return cmd
}

// printEvent prints one event: a document, a job's id, or a line.
func (a *app) printEvent(e *macexecv1.Event) error {
	id := e.GetJob().GetId()
	if e.GetSnapshot() && e.GetJob() == nil && a.format != formatJSON {
		return nil // a snapshot of no jobs: it only has a cursor
	}
	if p := e.GetProgress(); p != nil {
		if a.quiet && a.format != formatJSON {
			return nil
		}
		id = p.GetJobId()
	}
	return a.print(e, id, func(w io.Writer) error {
		_, err := io.WriteString(w, show.Line(eventLine(e))+"\n")
		return err
	})
}

func eventLine(e *macexecv1.Event) string {
	if p := e.GetProgress(); p != nil {
		return p.GetJobId() + "  " + progressLine("progress", p)
	}
	if e.GetSnapshot() {
		return e.GetJob().GetId() + "  " + stateLine(e.GetJob())
	}
	return entryLine(e.GetEntry())
}

// entryLine draws a journal entry.
func entryLine(e *macexecv1.Entry) string {
	parts := []string{e.GetAt().AsTime().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf("%6d", e.GetSeq()), e.GetKind()}
	for _, part := range []string{e.GetJobId(), document.Word(e.GetEvent()), document.Word(e.GetState()), document.Word(e.GetPhase()), document.Word(e.GetEndReason()), e.GetMessage()} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.GetPrincipal() != "" {
		parts = append(parts, "("+e.GetPrincipal()+")")
	}
	return strings.Join(parts, "  ")
}

func (a *app) jobsLogsCommand() *cobra.Command {
	var follow bool
	var attempt int32
	var tail int64
	cmd := a.talk("logs JOB", "Print what a job's tool wrote", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		if _, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: args[0]}); err != nil {
			return beforehand(err)
		}
		out, flush := a.logWriter()
		err := c.ReadLogs(ctx, &macexecv1.ReadJobLogsRequest{
			JobId: args[0], Attempt: attempt, Follow: follow, TailBytes: tail,
		}, func(chunk *macexecv1.LogChunk) error {
			if a.format == formatJSON {
				return a.printDocument(chunk)
			}
			if gap := chunk.GetGapBytes(); gap > 0 {
				// Promise G12: a reader is told of every gap.
				a.remarkf("… %d bytes are missing here …", gap)
			}
			_, err := out.Write(chunk.GetData())
			return err
		})
		if err := flush(); err != nil {
			return unwritable(err)
		}
		return streamed(ctx, err)
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job is settled")
	cmd.Flags().Int32Var(&attempt, "attempt", 0, "which attempt (the newest)")
	cmd.Flags().Int64Var(&tail, "tail", 0, "begin at most so many bytes before the end")
	nothing(cmd, "attempt", "tail")
	cmd.ValidArgsFunction = one(a.completeJobs())
	return cmd
}

// logWriter is where a tool's bytes go: to a terminal with control characters made
// visible, elsewhere as they are.
func (a *app) logWriter() (w io.Writer, flush func() error) {
	if !a.OutTerminal {
		return a.Out, func() error { return nil }
	}
	visible := show.NewWriter(a.Out)
	return visible, visible.Flush
}
