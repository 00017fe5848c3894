package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// plateau runs very many short jobs through a daemon that keeps few of them, and then
// measures what each key that was retired costs, what a submission takes beside one to a
// fresh daemon, and whether each key is still known.
func (b *bench) plateau(ctx context.Context) error {
	keep := fmt.Sprintf("retention: {completed_count: %d, journal_entries: %d}\nslots: {bench: 8}\nlog: {level: warn}\n", b.kept, 8*b.kept)
	return b.withConfig(ctx, "p", keep, func(d *daemon) error {
		begun := time.Now()
		const parts = 20
		var first, last *macexecv1.StoreUse
		for i := range parts {
			if err := b.pass(ctx, d, b.passing/parts*i, b.passing/parts*(i+1)); err != nil {
				return err
			}
			use, err := describe(ctx, d)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%6.1fs %d jobs: file %d, used %d, tombstones %d, job folders %d\n", time.Since(begun).Seconds(),
				b.passing/parts*(i+1), use.GetSize(), use.GetSize()-use.GetFree(), use.GetTombstones(), use.GetJobFolders())
			if i == parts/4 {
				first = use
			}
			last = use
		}
		took := time.Since(begun).Seconds()
		b.table.add(row{what: fmt.Sprintf("%d short jobs through a daemon that keeps %d", b.passing, b.kept), figure: fmt.Sprintf("%.0f s", took), ratio: fmt.Sprintf("%.0f/s", float64(b.passing)/took)})
		used := func(u *macexecv1.StoreUse) int64 { return u.GetSize() - u.GetFree() }
		grown := float64(used(last)-used(first)) / float64(last.GetTombstones()-first.GetTombstones())
		b.table.add(row{what: "growth of the used store for each key retired", figure: fmt.Sprintf("%.1f bytes", grown), floor: atMost(grown, 96, "%.0f bytes")})
		if err := b.keysAreKnown(ctx, d); err != nil {
			return err
		}
		return b.with(ctx, "q", func(fresh *daemon) error {
			return b.submitBeside(ctx, d, fresh, fmt.Sprintf("%d keys of removed jobs", last.GetTombstones()), 1)
		})
	})
}

// passing is the call of one of the jobs that pass.
func passing(i int) *macexecv1.SubmitJobRequest {
	return nothing(fmt.Sprintf("passing/%d", i), &macexecv1.CallContext{RunId: "passing"})
}

// pass runs the jobs from..to-1, and prunes.
func (b *bench) pass(ctx context.Context, d *daemon, from, to int) error {
	var next atomic.Int64
	next.Store(int64(from))
	group, gctx := errgroup.WithContext(ctx)
	for range 8 {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < to; i = int(next.Add(1)) - 1 {
				if _, err := d.finish(gctx, passing(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err := d.Store.PruneStore(ctx, &macexecv1.PruneStoreRequest{})
	return err
}

func describe(ctx context.Context, d *daemon) (*macexecv1.StoreUse, error) {
	resp, err := d.Store.DescribeStore(ctx, &macexecv1.DescribeStoreRequest{})
	return resp.GetUse(), err
}

// keysAreKnown makes each call once more. Nothing may run.
func (b *bench) keysAreKnown(ctx context.Context, d *daemon) error {
	var next, expired, replayed atomic.Int64
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < b.passing; i = int(next.Add(1)) - 1 {
				resp, err := d.Jobs.SubmitJob(ctx, passing(i))
				var refused *client.Error
				switch {
				case err == nil && resp.GetReplayed():
					replayed.Add(1)
				case errors.As(err, &refused) && refused.Code() == string(jobs.CodeKeyExpired):
					expired.Add(1)
				default:
					return errors.Join(fmt.Errorf("key %d was not known", i), err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	b.table.add(row{
		what: "each of these calls made once more", figure: fmt.Sprintf("%d refused", expired.Load()), ratio: fmt.Sprintf("%d replayed, 0 run", replayed.Load()),
	})
	return nil
}
