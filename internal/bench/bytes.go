package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// stageInput measures how fast an input is taken in as a copy with a digest, beside
// what a person would do for the same.
func (b *bench) stageInput(ctx context.Context) error {
	return b.with(ctx, "i", func(d *daemon) error {
		input := filepath.Join(d.state, "projects", "default", "large")
		if err := fill(input, b.stage); err != nil {
			return err
		}
		copied := filepath.Join(b.dir, "copied")
		defer os.Remove(copied)
		var staged, byHand []float64
		rate := func(took float64) float64 { return float64(b.stage) / 1e6 / took }
		for range b.stageRuns {
			begun := time.Now()
			for _, argv := range [][]string{{"cp", input, copied}, {"sha256sum", copied}} {
				if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w: %s", argv[0], err, out)
				}
			}
			byHand = append(byHand, rate(time.Since(begun).Seconds()))
			if err := os.Remove(copied); err != nil {
				return err
			}
			job, err := d.finish(ctx, &macexecv1.SubmitJobRequest{Tool: "bench_input", Arguments: []byte(`{"input":"large"}`)})
			if err != nil {
				return err
			}
			staged = append(staged, rate(job.GetUsage().GetStagingSeconds()))
		}
		bare, own := median(byHand), median(staged)
		b.table.add(row{what: fmt.Sprintf("cp and sha256sum of %d MiB", b.stage>>20), figure: fmt.Sprintf("%.0f MB/s", bare), ratio: yardstick})
		b.table.add(row{what: fmt.Sprintf("staging of an input of %d MiB", b.stage>>20), figure: fmt.Sprintf("%.0f MB/s", own), ratio: times(own, bare)})
		return nil
	})
}

// fill makes a file that no file system stores as a hole.
func fill(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	source := rand.NewChaCha8([32]byte{})
	for left := size; left > 0; left -= int64(len(block)) {
		_, _ = source.Read(block) // never fails
		if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// logs measures how fast what a tool prints reaches a client that follows it.
func (b *bench) logs(ctx context.Context) error {
	return b.with(ctx, "l", func(d *daemon) error {
		begun := time.Now()
		job, err := d.Submit(ctx, &macexecv1.SubmitJobRequest{Tool: "bench_log", Arguments: fmt.Appendf(nil, `{"bytes":%d}`, b.log)})
		if err != nil {
			return err
		}
		read := func(follow bool) error {
			var got int64
			err := d.ReadLogs(ctx, &macexecv1.ReadJobLogsRequest{JobId: job.GetId(), Follow: follow}, func(c *macexecv1.LogChunk) error {
				got += int64(len(c.GetData()))
				if c.GetGapBytes() > 0 {
					return fmt.Errorf("%d bytes are missing", c.GetGapBytes())
				}
				return nil
			})
			if err == nil && got != b.log {
				err = fmt.Errorf("the log has %d bytes, not %d", got, b.log)
			}
			return err
		}
		if err := read(true); err != nil {
			return err
		}
		followed := time.Since(begun)
		again := time.Now()
		if err := read(false); err != nil {
			return err
		}
		rate := func(took time.Duration) string { return fmt.Sprintf("%.0f MB/s", float64(b.log)/1e6/took.Seconds()) }
		b.table.add(row{what: fmt.Sprintf("log of %d MB, written and followed", b.log/1_000_000), figure: rate(followed)})
		b.table.add(row{what: fmt.Sprintf("log of %d MB, read afterwards", b.log/1_000_000), figure: rate(time.Since(again))})
		return nil
	})
}
