package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// call measures a call that does nothing, from the request to the result, beside a
// bare start of the same program.
func (b *bench) call(ctx context.Context) error {
	return b.with(ctx, "c", func(d *daemon) error {
		program, err := exec.LookPath("true")
		if err != nil {
			return err
		}
		var whole, bare []time.Duration
		for i := range b.calls + 5 {
			begun := time.Now()
			if err := exec.CommandContext(ctx, program).Run(); err != nil {
				return err
			}
			between := time.Now()
			if _, err := d.finish(ctx, nothing("", nil)); err != nil {
				return err
			}
			if i >= 5 { // the first ones meet cold caches
				bare, whole = append(bare, between.Sub(begun)), append(whole, time.Since(between))
			}
		}
		start, mid, late := median(bare), median(whole), percentile(whole, 0.99)
		b.table.add(row{what: "bare start of true, p50", figure: ms(start), ratio: yardstick})
		b.table.add(row{
			what: fmt.Sprintf("call of true to its result, p50 of %d", b.calls), figure: ms(mid),
			ratio: times(float64(mid), float64(start)), floor: atMost(float64(mid)/float64(start), 12, "%.0f ×"),
		})
		b.table.add(row{
			what: "call of true to its result, p99", figure: ms(late),
			ratio: times(float64(late), float64(mid)) + " its p50", floor: atMost(float64(late)/float64(mid), 4, "%.0f × its p50"),
		})
		return nil
	})
}
