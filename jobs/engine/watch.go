package engine

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/jobs"
)

// progressEvery is how often a watcher that asks for progress is told of it.
const progressEvery = 500 * time.Millisecond

// Watch yields events until ctx ends, yield fails or the engine stops. Every entry
// after the cursor that the caller may see is yielded exactly once and in order;
// entries that are gone give CodeCursorExpired (promise G12).
func (e *Engine) Watch(ctx context.Context, c Caller, w WatchRequest, yield func(WatchEvent) error) error {
	ctx, cancel := e.untilStopped(ctx)
	defer cancel()
	after, err := e.beginWatch(ctx, c, w, yield)
	if err != nil {
		return err
	}
	last := map[string]Progress{}
	for {
		entries, err := e.journalPage(ctx, after)
		if err != nil {
			return e.endOfStream(ctx, err)
		}
		for _, entry := range entries {
			after = entry.Seq
			if err := e.yieldEntry(ctx, c, w, entry, yield); err != nil {
				return e.endOfStream(ctx, err)
			}
		}
		if e.store.Head() > after {
			continue
		}
		waitCtx, done := ctx, context.CancelFunc(func() {})
		if w.Progress {
			waitCtx, done = context.WithTimeout(ctx, progressEvery)
		}
		err = e.store.Wait(waitCtx, after)
		done()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return e.endOfStream(ctx, err)
		}
		if w.Progress {
			if err := e.yieldProgress(c, w, last, yield); err != nil {
				return err
			}
		}
	}
}

// beginWatch says from which cursor a watch goes on, and tells its first event.
func (e *Engine) beginWatch(ctx context.Context, c Caller, w WatchRequest, yield func(WatchEvent) error) (uint64, error) {
	after := w.After
	if w.FromNow {
		after = e.store.Head()
		if err := yield(WatchEvent{Cursor: after}); err != nil {
			return after, err
		}
	}
	switch {
	case w.JobID != "":
	case after > 0 || w.FromNow:
		return after, nil
	default:
		return e.beforeOldest(ctx)
	}
	// The cursor is taken before the snapshot: a change in between is told again,
	// never missed.
	if w.After == 0 {
		after = e.store.Head()
	}
	job, err := e.visible(ctx, c, w.JobID)
	if err != nil {
		return after, err
	}
	return after, yield(WatchEvent{Cursor: after, Snapshot: true, Job: e.decorated(job)})
}

// beforeOldest returns the cursor before the oldest kept entry.
func (e *Engine) beforeOldest(ctx context.Context) (uint64, error) {
	err := e.store.Journal(ctx, 0, 1, func(jobs.Entry) bool { return false })
	gone, ok := errors.AsType[*jobs.Error](err)
	if !ok || gone.Code != jobs.CodeCursorExpired {
		return 0, err
	}
	oldest, err := strconv.ParseUint(gone.Metadata["oldest"], 10, 64)
	if err != nil || oldest == 0 {
		return 0, gone
	}
	return oldest - 1, nil
}

// journalPage reads the next entries, bounded in number and size. They are read
// first and given out after, since a caller that does not read must not hold a
// transaction of the store open.
func (e *Engine) journalPage(ctx context.Context, after uint64) ([]jobs.Entry, error) {
	var page []jobs.Entry
	size := 0
	err := e.store.Journal(ctx, after, 256, func(entry jobs.Entry) bool {
		page = append(page, entry)
		size += len(entry.Data)
		return size < 1<<20
	})
	return page, err
}

func (e *Engine) yieldEntry(ctx context.Context, c Caller, w WatchRequest, entry jobs.Entry, yield func(WatchEvent) error) error {
	if entry.Owner != c.Principal || !strings.HasPrefix(string(entry.Kind), "job.") {
		return nil
	}
	if w.JobID != "" && entry.JobID != w.JobID {
		return nil
	}
	job, err := e.store.Get(ctx, entry.JobID)
	switch jobs.CodeOf(err) {
	case "":
		if !afterEvent(job, entry.State, w.Filter) {
			return nil
		}
	case jobs.CodeJobNotFound, jobs.CodeRecordDamaged:
		job = nil // the entry is true all the same
		if !mayBeOf(entry, w.Filter) {
			return nil
		}
	default:
		return err
	}
	return yield(WatchEvent{Cursor: entry.Seq, Entry: &entry, Job: e.decorated(job)})
}

// afterEvent reports whether a filter selects a job in the state that an event left
// it in; since then it may have moved on.
func afterEvent(job *jobs.Job, state jobs.State, filter jobs.Query) bool {
	states := filter.States
	filter.States = nil
	return (len(states) == 0 || slices.Contains(states, state)) && filter.Matches(job)
}

// mayBeOf reports whether an entry, whose job cannot be read any more, may be of a job
// that a filter selects: nothing that the entry says is against it. A reader is told
// of one event too many rather than not of a gap (promise G12).
func mayBeOf(entry jobs.Entry, filter jobs.Query) bool {
	said := &jobs.Job{Principal: entry.Owner}
	said.Call.Context.RunID, said.Call.Context.ToolCallID = entry.RunID, entry.ToolCallID
	return afterEvent(said, entry.State, jobs.Query{
		Principal: filter.Principal, States: filter.States, RunID: filter.RunID, ToolCall: filter.ToolCall,
	})
}

// yieldProgress tells what is new. last is what was told of the jobs that run now.
func (e *Engine) yieldProgress(c Caller, w WatchRequest, last map[string]Progress, yield func(WatchEvent) error) error {
	list := e.progress()
	maps.DeleteFunc(last, func(id string, _ Progress) bool {
		return !slices.ContainsFunc(list, func(p Progress) bool { return p.JobID == id })
	})
	for _, p := range list {
		if w.JobID != "" && p.JobID != w.JobID {
			continue
		}
		job, err := e.store.Get(context.Background(), p.JobID)
		if err != nil || job.Principal != c.Principal || !w.Filter.Matches(job) {
			continue
		}
		if sameProgress(last[p.JobID], p) {
			continue
		}
		last[p.JobID] = p
		if err := yield(WatchEvent{Progress: &p}); err != nil {
			return err
		}
	}
	return nil
}

func sameProgress(a, b Progress) bool {
	if (a.Percent == nil) != (b.Percent == nil) || (a.Percent != nil && *a.Percent != *b.Percent) {
		return false
	}
	return a.Attempt == b.Attempt && a.Phase == b.Phase && a.Rate == b.Rate
}

// progress reads what every running job's tool last said of itself.
func (e *Engine) progress() []Progress {
	e.mu.Lock()
	running := slices.Collect(maps.Values(e.live))
	e.mu.Unlock()
	var list []Progress
	for _, l := range running {
		if p, ok := l.currentProgress(); ok {
			list = append(list, p)
		}
	}
	return list
}

// Logs yields the log of one attempt. With Follow it waits for more until the
// attempt has ended, and then goes on with the next attempt if there is one.
func (e *Engine) Logs(ctx context.Context, c Caller, r LogRequest, yield func(LogChunk) error) error {
	ctx, cancel := e.untilStopped(ctx)
	defer cancel()
	job, err := e.visible(ctx, c, r.JobID)
	if err != nil {
		return err
	}
	if r.Attempt < 0 || r.Attempt > len(job.Attempts) {
		return jobs.Errorf(jobs.CodeFileNotFound, "job %s has %d attempts, not %d", r.JobID, len(job.Attempts), r.Attempt).WithJob(r.JobID)
	}
	for r.Follow && len(job.Attempts) == 0 && !job.State.Settled() {
		// Nothing has started yet; wait for the first attempt.
		if job, err = e.waitChange(ctx, c, job); err != nil {
			return e.endOfStream(ctx, err)
		}
	}
	n := cmp.Or(r.Attempt, len(job.Attempts))
	if n == 0 {
		return nil
	}
	secrets, err := e.vault.openAll(job)
	if err != nil {
		return err
	}
	options := executor.LogOptions{Cursor: r.Cursor, Follow: r.Follow, TailBytes: r.TailBytes}
	for {
		err := e.exec.ReadLog(ctx, r.JobID, n, options, func(ch executor.LogChunk) error {
			return yield(LogChunk{
				Attempt: n, Stream: ch.Stream.String(), At: ch.Time, Data: maskedBytes(ch.Data, secrets), Cursor: ch.Cursor, Gap: ch.Gap,
			})
		})
		if r.Follow && isNotExist(err) && !job.State.Settled() && n == len(job.Attempts) && job.Attempts[n-1].Intent == nil {
			// The attempt is stored and its folder is still being made: it is there
			// before the intent is stored, which is the next change.
			if job, err = e.waitChange(ctx, c, job); err == nil {
				continue
			}
		}
		// Without a folder nothing was ever started in this attempt, or it was pruned.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return e.endOfStream(ctx, err)
		}
		if !r.Follow {
			return nil
		}
		for n == len(job.Attempts) && !job.State.Settled() {
			if job, err = e.waitChange(ctx, c, job); err != nil {
				return e.endOfStream(ctx, err)
			}
		}
		if n == len(job.Attempts) {
			return nil
		}
		n++
		options = executor.LogOptions{Follow: true}
	}
}

// waitChange returns the job once it has a newer revision.
func (e *Engine) waitChange(ctx context.Context, c Caller, old *jobs.Job) (*jobs.Job, error) {
	for {
		head := e.store.Head()
		job, err := e.visible(ctx, c, old.ID)
		if err != nil || job.Revision > old.Revision {
			return job, err
		}
		if err := e.store.Wait(ctx, head); err != nil {
			return nil, err
		}
	}
}

// Journal yields the entries after a sequence number that the caller may see; after 0:
// from the oldest kept one on.
func (e *Engine) Journal(ctx context.Context, c Caller, after uint64, limit int, follow bool, yield func(jobs.Entry) error) error {
	ctx, cancel := e.untilStopped(ctx)
	defer cancel()
	if after == 0 {
		oldest, err := e.beforeOldest(ctx)
		if err != nil {
			return e.endOfStream(ctx, err)
		}
		after = oldest
	}
	given := 0
	for {
		entries, err := e.journalPage(ctx, after)
		if err != nil {
			return e.endOfStream(ctx, err)
		}
		for _, entry := range entries {
			after = entry.Seq
			if entry.Owner != "" && entry.Owner != c.Principal {
				continue
			}
			if err := yield(entry); err != nil {
				return e.endOfStream(ctx, err)
			}
			if given++; limit > 0 && given >= limit {
				return nil
			}
		}
		switch {
		case e.store.Head() > after:
			continue
		case !follow:
			return nil
		}
		if err := e.store.Wait(ctx, after); err != nil {
			return e.endOfStream(ctx, err)
		}
	}
}

// VerifyJournal walks the hash chain.
func (e *Engine) VerifyJournal(ctx context.Context, _ Caller) (uint64, error) {
	return e.store.VerifyJournal(ctx)
}

// untilStopped gives a context that also ends when the engine stops.
func (e *Engine) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.stopped, func() { cancel(errStopping) })
	return ctx, func() { stop(); cancel(nil) }
}

var errStopping = jobs.Errorf(jobs.CodeDraining, "the daemon is stopping; reconnect and go on from your cursor")

// endOfStream names the reason why a stream ended: the engine's stop rather than
// the cancelled context that it caused.
func (e *Engine) endOfStream(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStopping) {
		return cause
	}
	return err
}
