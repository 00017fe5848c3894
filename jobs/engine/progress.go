package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/macexec/macexec/jobs"
)

// progressSource reads what a running tool says of its progress. It is asked only
// when somebody watches.
func (a *attempt) progressSource(ctx context.Context) func() (Progress, bool) {
	id, n := a.job.ID, a.n
	if a.variant == nil || a.variant.Progress == nil {
		return func() (Progress, bool) { return Progress{JobID: id, Attempt: n, Phase: jobs.PhaseRunning}, true }
	}
	file := a.variant.Progress.File
	total, _ := a.variant.ProgressTotal(ctx, a.vars)
	var best float64
	return func() (Progress, bool) {
		p := Progress{JobID: id, Attempt: n, Phase: jobs.PhaseRunning}
		now, err := a.e.exec.Progress(id, n, file, total)
		if err != nil {
			return p, false
		}
		if now.Percent != nil {
			// Never back, and 100 only when the job has completed.
			best = min(max(best, *now.Percent), 99.9)
			percent := best
			p.Percent = &percent
		}
		if now.Speed != nil {
			p.Rate = fmt.Sprintf("%.2fx", *now.Speed)
		}
		if now.ETA != nil {
			left := now.ETA.Round(time.Second)
			p.TimeLeft = &left
		}
		if now.Frame != nil {
			p.Detail = fmt.Sprintf("frame %d", *now.Frame)
		}
		return p, true
	}
}

func (l *live) setProgress(source func() (Progress, bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.source = source
}

func (l *live) currentProgress() (Progress, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.source == nil {
		return Progress{}, false
	}
	return l.source()
}
