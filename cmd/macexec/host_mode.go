package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

const pauseHelp = `Take calls and let them wait: nothing starts, and what runs goes on. The mode is kept
over restarts of the daemon, until macexec host resume.`

const drainHelp = `Refuse new calls (HOST_DRAINING) and run to its end what was accepted, also what is
queued. Repeats of known calls are answered. The mode is kept over restarts of the
daemon, until macexec host resume.

With --wait the command returns when nothing is queued or running any more. Jobs that
wait for approval, and unknown ones, are not waited for: they need a person. An
interrupt ends the wait (exit code 12) and not the drain, and so does a daemon that stays
away; while it only starts again the wait goes on.`

const resumeHelp = `Take calls and start jobs again, after a pause or a drain.`

func (a *app) hostModeCommand(use, short, long string, mode macexecv1.HostMode) *cobra.Command {
	var reason string
	var wait bool
	var cmd *cobra.Command
	cmd = a.talk(use, short, cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		if !cmd.Flags().Changed("reason") {
			// As to wait for a drain that was begun before: what it is for stays.
			if resp, err := c.Host.GetHost(ctx, &macexecv1.GetHostRequest{}); err == nil && resp.GetHost().GetMode() == mode {
				reason = resp.GetHost().GetModeReason()
			}
		}
		resp, err := c.Host.SetHostMode(ctx, &macexecv1.SetHostModeRequest{Mode: mode, Reason: reason})
		if err != nil {
			f := explain(err)
			if f.code == exitAnswerLost {
				f.try = "macexec host show tells the mode; setting it again is safe"
			}
			return f
		}
		host := resp.GetHost()
		if wait {
			if host, err = a.drained(ctx, c, host); err != nil {
				return err
			}
		}
		return a.print(host, host.GetId(), func(w io.Writer) error {
			var f fields
			addMode(&f, host)
			f.add("jobs", hostJobs(host))
			return f.table.Write(w, a.OutTerminal && a.colour())
		})
	})
	cmd.Long = long
	cmd.Flags().StringVar(&reason, "reason", "", "why; shown to whoever asks about the host (in the mode already: as it was)")
	nothing(cmd, "reason")
	if mode == macexecv1.HostMode_HOST_MODE_DRAINING {
		cmd.Flags().BoolVar(&wait, "wait", false, "until nothing is queued or running")
	}
	return cmd
}

// drainedEvery is how often a host that drains is looked at: its counts have no
// events that everybody who may drain it may see.
const drainedEvery = 500 * time.Millisecond

// drained waits until a draining host has run what it had.
func (a *app) drained(ctx context.Context, c *client.Client, host *macexecv1.HostInfo) (*macexecv1.HostInfo, error) {
	status := a.status()
	defer status.Clear()
	ticker := time.NewTicker(drainedEvery)
	defer ticker.Stop()
	patience := cmp.Or(a.Patience, 30*time.Second)
	var failing time.Time // since when the daemon does not answer: it may be starting again
	for host.GetQueued()+host.GetRunning() > 0 {
		status.Set("drain: " + hostJobs(host))
		select {
		case <-ctx.Done():
			status.Clear()
			a.remarkf("the drain goes on: %s. macexec host show tells how far it is; macexec host resume ends it", hostJobs(host))
			return host, ended(exitNotSettled)
		case <-ticker.C:
		}
		resp, err := c.Host.GetHost(ctx, &macexecv1.GetHostRequest{})
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil && !away(err):
			return nil, explain(err)
		case err != nil && failing.IsZero():
			failing = clock()
			continue
		case err != nil && clock().Sub(failing) < patience:
			continue
		case err != nil:
			status.Clear()
			a.remarkf("the daemon does not answer: %s. The drain is kept, and goes on when the daemon is back; macexec host show tells how far it is", explain(err).Error())
			return host, ended(exitNotSettled)
		}
		failing = time.Time{}
		if host = resp.GetHost(); host.GetMode() != macexecv1.HostMode_HOST_MODE_DRAINING {
			return nil, failed(exitRefused, jobs.CodeStateConflict,
				fmt.Sprintf("the host is %s again, set by %s, so it is not drained to its end", document.Word(host.GetMode()), orElse(host.GetModeBy(), "somebody")), "macexec host show")
		}
	}
	return host, nil
}

// away reports that a daemon is not there for a while, as when it starts again.
func away(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && (e.NotReached() || e.AnswerLost() || jobs.Code(e.Code()) == jobs.CodeDraining)
}

func hostJobs(h *macexecv1.HostInfo) string {
	return fmt.Sprintf("%d running, %d queued, %d awaiting approval, %d unknown", h.GetRunning(), h.GetQueued(), h.GetAwaitingApproval(), h.GetUnknown())
}

// addMode draws whether calls are taken and jobs started, and since when and why.
func addMode(f *fields, h *macexecv1.HostInfo) {
	word, style := modeText(h)
	f.addStyled("mode", word, style)
	f.add("set by", h.GetModeBy())
	f.add("since", moment(h.GetModeSince()))
	f.add("reason", h.GetModeReason())
	if r := h.GetRestored(); r != nil {
		f.addStyled("restored", restoredText(r)+"; calls with outside effects wait for macexec store confirm", show.Yellow)
	}
}

func modeText(h *macexecv1.HostInfo) (string, show.Style) {
	switch h.GetMode() {
	case macexecv1.HostMode_HOST_MODE_PAUSED:
		return "paused: calls are taken and wait, nothing starts", show.Yellow
	case macexecv1.HostMode_HOST_MODE_DRAINING:
		return "draining: new calls are refused, what was accepted runs to its end", show.Yellow
	case macexecv1.HostMode_HOST_MODE_OPEN:
		return "open: calls are taken, and jobs start", show.Green
	default:
		return document.Word(h.GetMode()), show.Plain
	}
}
