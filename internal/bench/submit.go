package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// pageSize is what a raw write writes.
const pageSize = 4096

// rawWrites writes a page and makes it durable, again and again, and returns how
// often that was possible in a second: at the end of a file that grows, as a log
// does, or over and over the pages of a file that stays as large as it is.
func (b *bench) rawWrites(inPlace bool) (perSecond float64, err error) {
	const pages = 256
	name := filepath.Join(b.dir, "raw")
	defer os.Remove(name)
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := make([]byte, pageSize)
	if inPlace {
		if _, err := f.Write(make([]byte, pages*pageSize)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	n, begun := 0, time.Now()
	for ; time.Since(begun) < b.round; n++ {
		at := int64(n)
		if inPlace {
			at %= pages
		}
		page[0]++
		if _, err := f.WriteAt(page, at*pageSize); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}

// together calls f from n callers for as long as a window lasts and returns how
// many calls were answered in a second, and what each cost the daemon: that hardly
// depends on what else the machine does.
func (b *bench) together(d *daemon, n int, f func(caller, call int) error) (perSecond float64, cpu string, err error) {
	before, err := d.cpu()
	if err != nil {
		return 0, "", err
	}
	var (
		answered atomic.Int64
		failed   = make(chan error, n)
		callers  sync.WaitGroup
		begun    = time.Now()
	)
	for caller := range n {
		callers.Go(func() {
			for call := 0; time.Since(begun) < b.window; call++ {
				if err := f(caller, call); err != nil {
					failed <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	callers.Wait()
	took := time.Since(begun)
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	after, err := d.cpu()
	if after > 0 && answered.Load() > 0 {
		cpu = fmt.Sprintf("%d µs of the daemon's CPU each", (after-before).Microseconds()/answered.Load())
	}
	return float64(answered.Load()) / took.Seconds(), cpu, errors.Join(append(errs, err)...)
}

// submit measures how many calls become durable jobs in a second, beside raw durable
// writes in between.
func (b *bench) submit(ctx context.Context) error {
	return b.with(ctx, "s", func(d *daemon) error {
		var appended, inPlace []float64
		raw := func() error {
			for range 2 {
				rate, err := b.rawWrites(false)
				if err != nil {
					return err
				}
				appended = append(appended, rate)
				if rate, err = b.rawWrites(true); err != nil {
					return err
				}
				inPlace = append(inPlace, rate)
			}
			return nil
		}
		numbers := []int{1, 16, 64, 256}
		rates, costs := map[int]float64{}, map[int]string{}
		for _, n := range numbers {
			if err := raw(); err != nil {
				return err
			}
			rate, cpu, err := b.together(d, n, func(caller, call int) error {
				_, err := d.Submit(ctx, &macexecv1.SubmitJobRequest{
					IdempotencyKey: fmt.Sprintf("%d/%d/%d", n, caller, call), Tool: "bench_held", Arguments: []byte("{}"),
				})
				return err
			})
			if err != nil {
				return err
			}
			rates[n], costs[n] = rate, cpu
		}
		if err := raw(); err != nil {
			return err
		}
		log, over := median(appended), median(inPlace)
		b.table.add(row{what: "raw durable 4 KiB write at the end of a file", figure: fmt.Sprintf("%.0f/s", log), ratio: yardstick})
		b.table.add(row{what: "raw durable 4 KiB write in place", figure: fmt.Sprintf("%.0f/s", over), ratio: times(over, log)})
		for _, n := range numbers {
			r := row{what: fmt.Sprintf("durable SubmitJob, %d callers, 1 connection", n), figure: fmt.Sprintf("%.0f/s", rates[n]), ratio: times(rates[n], log) + ", " + costs[n]}
			if n == 64 {
				r.floor = atLeast(rates[n]/log, 2.5, "%.1f ×")
				r.ratio = fmt.Sprintf("%.2f × (%.2f × in place), %s", rates[n]/log, rates[n]/over, costs[n])
			}
			b.table.add(r)
		}
		return nil
	})
}

// replay measures how many repeats of the calls of finished jobs, under their keys,
// are answered in a second: of one call that everybody repeats, and of a call for each
// caller. Each is durable in the journal first.
func (b *bench) replay(ctx context.Context) error {
	return b.with(ctx, "r", func(d *daemon) error {
		const callers = 64
		var calls []*macexecv1.SubmitJobRequest
		for i := range callers {
			req := nothing(fmt.Sprintf("finished/%d", i), nil)
			if _, err := d.finish(ctx, req); err != nil {
				return err
			}
			calls = append(calls, req)
		}
		// The most that gRPC itself can do here, with client and daemon on one machine.
		rate, cpu, err := b.together(d, callers, func(int, int) error { _, err := d.WhoAmI(ctx); return err })
		if err != nil {
			return err
		}
		b.table.add(row{what: fmt.Sprintf("request that does nothing (WhoAmI), %d callers, 1 connection", callers), figure: fmt.Sprintf("%.0f/s", rate), ratio: cpu})
		for _, keys := range []int{1, callers} {
			rate, cpu, err := b.together(d, callers, func(caller, _ int) error {
				job, err := d.Submit(ctx, calls[caller%keys])
				if err == nil && !job.GetReplayed() {
					err = fmt.Errorf("job %s is no replay", job.GetId())
				}
				return err
			})
			if err != nil {
				return err
			}
			r := row{what: fmt.Sprintf("durable replay, %d callers, 1 connection, known keys: %d", callers, keys), figure: fmt.Sprintf("%.0f/s", rate), ratio: cpu}
			if keys == 1 {
				r.floor = atLeast(rate, 20_000, "%.0f/s")
			}
			b.table.add(r)
		}
		return nil
	})
}
