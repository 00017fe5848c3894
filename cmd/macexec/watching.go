package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// lookEvery is how often a job that waits is looked at again. What it waits for
// changes with other jobs, and so without an event of its own.
const lookEvery = 2 * time.Second

// view tells on stderr how a job gets on while somebody waits for it: on a terminal
// in a line that is painted over, and everywhere in a remark when it waits for
// something that goes on for a while, or that only a person can end.
type view struct {
	a    *app
	tool string

	mu      sync.Mutex
	status  *show.Status // nil when nobody looks at it
	said    string       // the last remark
	waiting bool
}

func (a *app) watchView(job *macexecv1.Job) *view {
	v := &view{a: a, tool: job.GetCall().GetTool(), status: a.status()}
	v.is(job, false) // also a wait of no time says what a person has to do
	return v
}

// status is the line of progress on stderr, nil when nobody looks at it.
func (a *app) status() *show.Status {
	if !a.ErrTerminal || a.quiet {
		return nil
	}
	return show.NewStatus(a.Err, a.Width)
}

// seen takes an event of the job.
func (v *view) seen(e *macexecv1.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case e.GetProgress() != nil:
		v.status.Set(progressLine(v.tool, e.GetProgress()))
	case e.GetJob() != nil:
		v.is(e.GetJob(), false)
	}
}

// is shows a job as it is; lasting says that it has waited for a while already.
func (v *view) is(job *macexecv1.Job, lasting bool) {
	v.waiting = job.GetWaitingFor() != nil
	if text := waitRemark(job, lasting && !v.a.quiet); text != "" && text != v.said {
		v.said = text
		v.status.Clear()
		v.a.remarkf("%s", text)
	}
	v.status.Set(stateLine(job))
}

// lookAgain looks at the job now and then while it waits. The returned function ends
// that, and takes the line of progress away.
func (v *view) lookAgain(ctx context.Context, c *client.Client, id string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			v.mu.Lock()
			waiting := v.waiting
			v.mu.Unlock()
			if !waiting {
				continue
			}
			resp, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{Id: id})
			if err != nil {
				continue // the watch has to say what is wrong
			}
			v.mu.Lock()
			// An event that came meanwhile is newer.
			if v.waiting && resp.GetJob().GetWaitingFor() != nil {
				v.is(resp.GetJob(), true)
			}
			v.mu.Unlock()
		}
	}()
	return func() {
		cancel()
		<-done
		v.status.Clear()
	}
}

// waitRemark says what a job waits for, if that needs a person, or if the wait lasts;
// "" otherwise. The place in the queue is left out, since it changes all the time.
func waitRemark(job *macexecv1.Job, lasting bool) string {
	w := job.GetWaitingFor()
	switch {
	case job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL:
		return approvalRemark(job)
	case w.GetKind() == macexecv1.WaitKind_WAIT_KIND_HOST_PAUSED:
		return "job " + job.GetId() + " waits, since the host is paused; macexec host resume lets it start"
	case w.GetKind() == macexecv1.WaitKind_WAIT_KIND_HOST_RESTORED:
		return "job " + job.GetId() + " waits, since the host's store was restored and may have forgotten that this was done before; an operator lets it start: macexec store confirm --reason TEXT"
	case w.GetKind() == macexecv1.WaitKind_WAIT_KIND_LOCK && w.GetJobState() == macexecv1.JobState_JOB_STATE_UNKNOWN:
		return "job " + job.GetId() + " waits for " + lockText(w) + ", and nothing proves how that ended; find out, then " + resolveLine(w.GetJobId())
	case lasting && w.GetKind() == macexecv1.WaitKind_WAIT_KIND_LOCK:
		return "job " + job.GetId() + " waits for " + lockText(w)
	case lasting && w.GetKind() == macexecv1.WaitKind_WAIT_KIND_SLOT:
		return strings.TrimSpace("job " + job.GetId() + " waits for a slot " + w.GetDetail())
	default:
		return ""
	}
}

func approvalRemark(job *macexecv1.Job) string {
	return fmt.Sprintf("job %s waits for approval: macexec jobs approve %s, or macexec jobs deny %s", job.GetId(), job.GetId(), job.GetId())
}

func (a *app) remarkApproval(job *macexecv1.Job) { a.remarkf("%s", approvalRemark(job)) }

// resolveLine is the command that settles an unknown job.
func resolveLine(id string) string { return "macexec jobs resolve " + id + " --as STATE --reason TEXT" }

// waitsFor says in a few words what a job waits for, with its place in the queue.
func waitsFor(job *macexecv1.Job) string {
	w := job.GetWaitingFor()
	if w == nil {
		return ""
	}
	text := lockText(w)
	if w.GetPosition() > 0 {
		text += fmt.Sprintf(", place %d", w.GetPosition())
	}
	if w.GetJobState() == macexecv1.JobState_JOB_STATE_UNKNOWN {
		text += "; resolve it: " + resolveLine(w.GetJobId())
	}
	return text
}

// lockText names the thing, and who holds it.
func lockText(w *macexecv1.WaitingFor) string {
	text := strings.ReplaceAll(document.Word(w.GetKind()), "_", " ")
	if w.GetDetail() != "" {
		text += " " + w.GetDetail()
	}
	if w.GetJobId() == "" {
		return text
	}
	text += " held by "
	if state := document.Word(w.GetJobState()); state != "" {
		text += state + " "
	}
	return text + "job " + w.GetJobId()
}

func progressLine(tool string, p *macexecv1.Progress) string {
	parts := []string{tool, document.Word(p.GetPhase())}
	if p.Percent != nil {
		parts = append(parts, show.Bar(p.GetPercent()))
	}
	if p.GetRate() != "" {
		parts = append(parts, p.GetRate())
	}
	if p.TimeLeftSeconds != nil {
		parts = append(parts, show.Seconds(p.GetTimeLeftSeconds())+" left")
	}
	if p.GetDetail() != "" {
		parts = append(parts, p.GetDetail())
	}
	return strings.Join(parts, "  ")
}

// stateLine says in one line where a job is.
func stateLine(job *macexecv1.Job) string {
	parts := []string{job.GetCall().GetTool(), document.Word(job.GetState())}
	if phase := document.Word(job.GetPhase()); phase != "" && phase != parts[1] {
		parts = append(parts, phase)
	}
	if waits := waitsFor(job); waits != "" {
		parts = append(parts, "waits for "+waits)
	}
	return strings.Join(parts, "  ")
}
