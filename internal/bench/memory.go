package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// memory measures what an idle daemon takes, over an empty store and over one with
// many finished jobs, and how long it then takes to start.
func (b *bench) memory(ctx context.Context) error {
	var pattern string
	err := b.with(ctx, "m", func(d *daemon) error {
		b.table.add(row{what: "start with an empty store, exec to ready", figure: ms(d.took)})
		if err := b.addMemory(ctx, d, "memory of the idle daemon, anonymous", 40); err != nil {
			return err
		}
		job, err := d.finish(ctx, nothing("", nil))
		pattern = job.GetId()
		return err
	})
	if err != nil {
		return err
	}
	if err := b.fillStore(ctx, filepath.Join(b.dir, "m", "store.db"), pattern); err != nil {
		return err
	}
	var took []time.Duration
	for i := range b.starts {
		err := b.with(ctx, "m", func(d *daemon) error {
			took = append(took, d.took)
			if i > 0 {
				return nil
			}
			return b.addMemory(ctx, d, fmt.Sprintf("the same with %d finished jobs", b.jobs), 0)
		})
		if err != nil {
			return err
		}
	}
	mid := median(took)
	b.table.add(row{what: fmt.Sprintf("start with %d finished jobs, exec to ready", b.jobs), figure: ms(mid), floor: atMost(mid.Seconds(), 1, "%.0f s")})
	return nil
}

// addMemory asks the daemon something first, so that it has really begun.
func (b *bench) addMemory(ctx context.Context, d *daemon, what string, most float64) error {
	if _, err := d.WhoAmI(ctx); err != nil {
		return err
	}
	bytes, err := d.anonymous()
	if err != nil || bytes == 0 {
		return err
	}
	r := row{what: what, figure: fmt.Sprintf("%.1f MiB", bytes/(1<<20))}
	if most > 0 {
		r.floor = atMost(bytes/(1<<20), most, "%.0f MiB")
	}
	b.table.add(r)
	return nil
}

// fillStore gives the store of a stopped daemon many jobs that ended as the pattern
// did, each by a submission and a change.
func (b *bench) fillStore(ctx context.Context, path, pattern string) (err error) {
	s, err := store.Open(ctx, store.Options{Path: path})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	done, err := s.Get(ctx, pattern)
	if err != nil {
		return err
	}
	const writers = 1024 // as many as share one commit
	var (
		next   atomic.Int64
		failed = make(chan error, writers)
		group  sync.WaitGroup
	)
	for range writers {
		group.Go(func() {
			for i := next.Add(1); i <= int64(b.jobs); i = next.Add(1) {
				if err := fillOne(ctx, s, *done, i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failed)
	return <-failed
}

func fillOne(ctx context.Context, s *store.Store, done jobs.Job, i int64) error {
	done.ID = strings.ToLower(ulid.Make().String()) + "-" + s.HostID()
	done.Key = fmt.Sprintf("filled/%d", i)
	begun := jobs.Job{
		ID: done.ID, Host: done.Host, Principal: done.Principal, Key: done.Key, Fingerprint: done.Fingerprint,
		Call: done.Call, Tool: done.Tool, Verdicts: done.Verdicts, Decision: done.Decision,
		State: jobs.StateQueued, SideEffect: jobs.SideEffectNone, SubmittedAt: done.SubmittedAt, QueuedAt: done.QueuedAt,
	}
	if _, err := s.Submit(ctx, jobs.Submission{
		Key: jobs.Key{Principal: done.Principal, Text: done.Key}, Fingerprint: done.Fingerprint, Job: &begun,
		Entry: jobs.Entry{Kind: jobs.EntrySubmitted, Principal: done.Principal, Owner: done.Principal},
	}); err != nil {
		return err
	}
	_, err := s.Update(ctx, done.ID, func(j *jobs.Job) (jobs.Note, error) {
		ended := done
		ended.Seq, ended.Revision, ended.Event = j.Seq, j.Revision, jobs.EventComplete
		*j = ended
		return jobs.Note{}, nil
	})
	return err
}
