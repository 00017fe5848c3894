package engine

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
)

// Retention says for how long what has ended is kept. Zero fields take the default
// stated with each; a job that is open or unknown is never pruned, nor is one whose
// artifact an open job reads.
type Retention struct {
	Completed, Failed, Cancelled Kept
	JobBytes                     int64         // of the folders of all jobs; 0: any number
	JournalAge                   time.Duration // 90 days
	JournalEntries               int           // 0: any number
	TrashAge                     time.Duration // of what lies in the trash of projects: 90 days
	TrashBytes                   int64         // in the trash of all projects; 0: any number
}

// Kept bounds the jobs in one state.
type Kept struct {
	Age   time.Duration // since the end: 90 days
	Count int           // 0: any number
}

// defaultAge is longer than callers repeat calls, or people come back to ask.
const defaultAge = 90 * 24 * time.Hour

func (r Retention) withDefaults() Retention {
	for _, age := range []*time.Duration{&r.Completed.Age, &r.Failed.Age, &r.Cancelled.Age, &r.JournalAge, &r.TrashAge} {
		*age = cmp.Or(*age, defaultAge)
	}
	return r
}

func (r Retention) of(state jobs.State) Kept {
	switch state {
	case jobs.StateCompleted:
		return r.Completed
	case jobs.StateFailed:
		return r.Failed
	default:
		return r.Cancelled
	}
}

const (
	// pruneEvery is how often what is too old is looked for.
	pruneEvery = time.Hour
	// pruneAfter is how many jobs end until it is looked for before that.
	pruneAfter = 256
	// pruneStep is how many jobs go in one write.
	pruneStep = 64
	// strayAge is how old a folder without a record must be to go: if it is the record
	// that was lost, there is time to notice.
	strayAge = 24 * time.Hour
)

// Pruned is what a pass of retention removed, or would remove.
type Pruned struct {
	Jobs    int // records, with their folders
	Entries int // of the journal
	Folders int // of jobs without a record
	Bytes   int64

	Trash      int // files and folders in the trash of projects
	TrashBytes int64

	Manifests, Keepers int   // that no job needs any more
	UnusedBytes        int64 // of both

	Held string // why nothing is removed now; empty: it is
}

func (p *Pruned) add(q Pruned) {
	p.Jobs += q.Jobs
	p.Entries += q.Entries
	p.Folders += q.Folders
	p.Bytes += q.Bytes
	p.Trash += q.Trash
	p.TrashBytes += q.TrashBytes
	p.Manifests += q.Manifests
	p.Keepers += q.Keepers
	p.UnusedBytes += q.UnusedBytes
}

// RetentionStatus is how retention does. A pass that fails is not given up: the next one
// tries again.
type RetentionStatus struct {
	LastPass     time.Time // its end; zero: there was none
	Failing      string    // why the last pass could not remove all; empty: it could
	FailingSince time.Time
	Failures     int64  // passes, since the start
	Removed      Pruned // since the start
}

// retention is the engine's own.
type retention struct {
	pass sync.Mutex    // is held by the one that runs
	wake chan struct{} // enough jobs have ended

	// inherited are the jobs that an earlier engine ran; the one that makes a pass forgets
	// them when none runs any more.
	inherited []string

	mu     sync.Mutex
	ended  int
	status RetentionStatus

	// naming is held while jobs are removed, and while a call says which it names.
	naming   sync.Mutex
	deciding map[string]int  // jobs that calls name which are being decided, with their number
	named    map[string]bool // jobs that were named since the pass began; nil if none runs
}

// name keeps jobs from being removed while a call is decided that reads what they made,
// or supersedes them. What the call finds from then on stays: once it is decided it is
// refused, or open, which the next pass sees, and this one is told of here.
func (r *retention) name(ids []string) (decided func()) {
	r.naming.Lock()
	defer r.naming.Unlock()
	for _, id := range ids {
		r.deciding[id]++
		if r.named != nil {
			r.named[id] = true
		}
	}
	return func() {
		r.naming.Lock()
		defer r.naming.Unlock()
		for _, id := range ids {
			if r.deciding[id]--; r.deciding[id] == 0 {
				delete(r.deciding, id)
			}
		}
	}
}

// begin makes a pass be told of the jobs that are named until it is over.
func (r *retention) begin() (over func()) {
	r.naming.Lock()
	defer r.naming.Unlock()
	r.named = map[string]bool{}
	for id := range r.deciding {
		r.named[id] = true
	}
	return func() {
		r.naming.Lock()
		defer r.naming.Unlock()
		r.named = nil
	}
}

// namedJobs are those whose bytes or whose place a call asks for.
func (e *Engine) namedJobs(req Request, args any) (ids []string) {
	if req.Options.Supersedes != "" {
		ids = append(ids, req.Options.Supersedes)
	}
	tool, ok := e.registry.Tool(req.Tool, req.ToolVersion)
	if !ok {
		return ids
	}
	for _, arg := range tool.Files(args) {
		if id, ok := jobOf(arg.Value); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// jobOf is the job whose artifact a reference names.
func jobOf(ref string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(ref, jobPrefix)
	id, _, _ = strings.Cut(rest, "/")
	return id, ok
}

// told counts an end.
func (r *retention) told() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended++; r.ended < pruneAfter {
		return
	}
	r.ended = 0
	select {
	case r.wake <- struct{}{}:
	default: // it is told already
	}
}

func (r *retention) over(at time.Time, got Pruned, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.status
	s.LastPass = at
	s.Removed.add(got)
	if err == nil {
		s.Failing, s.FailingSince = "", time.Time{}
		return
	}
	s.Failures++
	if s.Failing == "" {
		s.FailingSince = at
	}
	s.Failing = err.Error()
}

// RetentionStatus says how retention does.
func (e *Engine) RetentionStatus() RetentionStatus {
	e.retention.mu.Lock()
	defer e.retention.mu.Unlock()
	return e.retention.status
}

// retain removes what is too old or too much, at the start, from time to time and after
// many ends, until the engine stops.
func (e *Engine) retain() {
	for pass := 0; ; pass++ {
		e.guarded(func() {
			if _, err := e.prune(e.stopped, e.limits().Retention, pruning{all: pass%24 == 0}); err != nil && e.stopped.Err() == nil {
				e.log.Error("what is too old could not all be removed; it is tried again", "error", err)
			}
		})
		next := time.NewTimer(pruneEvery)
		select {
		case <-next.C:
		case <-e.retention.wake:
			next.Stop()
		case <-e.stopped.Done():
			next.Stop()
			return
		}
	}
}

// pruning says how a pass is made.
type pruning struct {
	all bool // also look for what seldom is too old: all but jobs and the journal
	dry bool // remove nothing

	// Of the pass itself; prune sets them.
	now     time.Time       // what ages count from
	counted map[string]bool // jobs that a dry pass would have removed by now
}

// Prune makes a pass of retention now. olderThan, if it is not 0, counts instead of the
// ages of jobs that are configured.
func (e *Engine) Prune(ctx context.Context, c Caller, olderThan time.Duration, dry bool) (Pruned, error) {
	r := e.limits().Retention
	if olderThan != 0 {
		r.Completed.Age, r.Failed.Age, r.Cancelled.Age = olderThan, olderThan, olderThan
	}
	restored, err := e.store.Restored(ctx)
	if err != nil {
		return Pruned{}, err
	}
	if restored != nil {
		return Pruned{Held: "the store may have forgotten what came last, and the folders of jobs tell of it: " + restored.Reason}, nil
	}
	if !dry {
		message := "what is kept for too long is removed now"
		if olderThan != 0 {
			message += ", and jobs that ended " + olderThan.String() + " ago or before"
		}
		if err := e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Principal: c.Principal, Message: message}); err != nil {
			return Pruned{}, err
		}
	}
	return e.prune(ctx, r, pruning{all: true, dry: dry})
}

// prune makes one pass. A record goes before its folder, so that a crash in between
// leaves a folder that a later pass finds without one.
func (e *Engine) prune(ctx context.Context, r Retention, how pruning) (got Pruned, err error) {
	e.retention.pass.Lock()
	defer e.retention.pass.Unlock()
	how.counted = map[string]bool{}
	how.now = e.deadlines.least() // a clock that was set ahead makes nothing old
	if !how.dry {
		defer func() {
			if e.stopped.Err() == nil {
				e.retention.over(e.now(), got, err)
			}
		}()
	}
	if restored, err := e.store.Restored(ctx); restored != nil || err != nil {
		return got, err // what the store has forgotten is looked at first; the folders are its proof
	}
	r = r.withDefaults()
	defer e.retention.begin()()
	spare, err := e.readByOpen(ctx)
	if err != nil {
		return got, err
	}
	var errs []error
	for _, state := range jobs.States() {
		if state.Terminal() {
			errs = append(errs, e.pruneState(ctx, r.of(state), state, spare, how, &got))
		}
	}
	if r.JobBytes > 0 {
		errs = append(errs, e.pruneBytes(ctx, r.JobBytes, spare, how, &got))
	}
	errs = append(errs, e.pruneJournal(ctx, r, how, &got))
	if how.all {
		errs = append(errs, e.pruneStrays(ctx, how, &got), e.pruneManifests(ctx, how, &got), e.pruneKeepers(ctx, how, &got))
	}
	if how.all || r.TrashBytes > 0 {
		errs = append(errs, e.pruneTrash(ctx, r, how, &got)) // last: a disk that is far away may take its time
	}
	return got, errors.Join(append(errs, ctx.Err())...)
}

func (e *Engine) pruneJournal(ctx context.Context, r Retention, how pruning, got *Pruned) (err error) {
	before := how.now.Add(-r.JournalAge)
	if how.dry {
		got.Entries, err = e.store.JournalToDrop(ctx, before, r.JournalEntries)
		return err
	}
	for n := 1; n > 0 && err == nil && ctx.Err() == nil; got.Entries += n {
		n, err = e.store.DropJournal(ctx, before, r.JournalEntries)
	}
	return err
}

// readByOpen returns the jobs whose artifacts open jobs read, and those that they
// supersede.
func (e *Engine) readByOpen(ctx context.Context) (map[string]bool, error) {
	open, _, err := e.store.Open(ctx)
	if err != nil {
		return nil, err
	}
	spare := map[string]bool{}
	for _, job := range open {
		for _, in := range job.Inputs {
			if id, ok := jobOf(in.Reference); ok {
				spare[id] = true
			}
		}
		if job.Call.Options.Supersedes != "" {
			spare[job.Call.Options.Supersedes] = true
		}
	}
	return spare, nil
}

func (e *Engine) pruneState(ctx context.Context, k Kept, state jobs.State, spare map[string]bool, how pruning, got *Pruned) error {
	q := jobs.ExpiredQuery{State: state, Before: how.now.Add(-k.Age), Keep: k.Count, Spare: spare, Limit: pruneStep}
	if how.dry {
		q.Limit = 1 << 30
	}
	for {
		found, err := e.store.Expired(ctx, q)
		if err == nil {
			err = e.pruneJobs(ctx, found.IDs, how, got)
		}
		if q.From = found.Next; err != nil || q.From == 0 {
			return err
		}
	}
}

// pruneJobs removes some jobs, and waits for as long as that took, so that it takes half
// of the store's time at most.
func (e *Engine) pruneJobs(ctx context.Context, ids []string, how pruning, got *Pruned) error {
	if len(ids) == 0 {
		return nil
	}
	begun := time.Now()
	gone, err := e.pruneRecords(ctx, ids, how)
	got.Jobs += len(gone)
	for _, id := range gone {
		got.Bytes += folderBytes(e.exec.JobDir(id))
		if !how.dry {
			err = errors.Join(err, e.removeFolder(id)) // a later pass removes what stays
		}
	}
	if !how.dry {
		rest := time.NewTimer(time.Since(begun))
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-ctx.Done():
		}
	}
	return err
}

func (e *Engine) removeFolder(id string) error {
	if err := e.exec.Remove(id); err != nil {
		return jobs.Errorf(jobs.CodeNotRemoved, "the folder of job %s cannot be removed: %w; mend that, and a later pass removes it", id, err)
	}
	return nil
}

// pruneRecords removes the records of jobs but of those that are named meanwhile, and of
// those whose processes live on and are watched: the folder says whose they are.
func (e *Engine) pruneRecords(ctx context.Context, ids []string, how pruning) (gone []string, err error) {
	e.retention.naming.Lock()
	defer e.retention.naming.Unlock()
	e.mu.Lock()
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		_, left := e.left[id]
		return left || e.retention.named[id]
	})
	e.mu.Unlock()
	if how.dry {
		for _, id := range ids {
			how.counted[id] = true
		}
		return ids, nil
	}
	return e.store.Prune(ctx, ids, "that are kept no longer")
}

// pruneBytes removes the oldest jobs until the folders of all are small enough together.
func (e *Engine) pruneBytes(ctx context.Context, most int64, spare map[string]bool, how pruning, got *Pruned) error {
	sizes, total := map[string]int64{}, int64(0)
	folders, err := os.ReadDir(e.exec.Root())
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "list the folders of jobs: %w", err)
	}
	for _, folder := range folders {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // an engine that stops leaves it to the next pass
		}
		if id := folder.Name(); !how.counted[id] {
			sizes[id] = folderBytes(e.exec.JobDir(id))
			total += sizes[id]
		}
	}
	for _, folder := range folders { // by their ids, so the oldest first
		id := folder.Name()
		if total <= most || ctx.Err() != nil {
			break
		}
		if spare[id] || how.counted[id] || !e.hasEnded(ctx, id) {
			continue
		}
		before := got.Jobs
		if err := e.pruneJobs(ctx, []string{id}, how, got); err != nil {
			return err
		}
		if got.Jobs > before {
			total -= sizes[id]
		}
	}
	return nil //nolint:nilerr // an engine that stops leaves the rest to the next pass
}

// hasEnded reports whether a job is there and terminal; one that cannot be read is not.
func (e *Engine) hasEnded(ctx context.Context, id string) bool {
	job, err := e.store.Get(ctx, id)
	return err == nil && job.State.Terminal()
}

// pruneStrays removes folders of jobs that have no record: those that a crash left when
// the record was pruned. What a crash left of jobs that had just ended goes, too.
func (e *Engine) pruneStrays(ctx context.Context, how pruning, got *Pruned) error {
	folders, err := os.ReadDir(e.exec.Root())
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "list the folders of jobs: %w", err)
	}
	var errs []error
	for _, folder := range folders {
		if ctx.Err() != nil {
			break
		}
		id := folder.Name()
		info, err := folder.Info()
		if err != nil || !folder.IsDir() || !strings.HasSuffix(id, "-"+e.store.HostID()) || e.attended(id) {
			continue
		}
		job, missing := e.store.Get(ctx, id)
		if missing == nil && job.State.Terminal() && !how.dry {
			e.tidyAgain(job)
		}
		if jobs.CodeOf(missing) != jobs.CodeJobNotFound || how.now.Sub(info.ModTime()) < strayAge {
			continue
		}
		got.Bytes += folderBytes(e.exec.JobDir(id))
		if !how.dry {
			err = e.removeFolder(id)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		got.Folders++
	}
	return errors.Join(errs...)
}

// folderBytes is the size of the files below a folder; what cannot be read counts nothing.
func folderBytes(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}
