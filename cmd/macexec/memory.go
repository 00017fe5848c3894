package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// leastMemory is the limit of a daemon with little in memory. Fifty readers of a log, of
// whom most do not read, stay below it (B62).
const leastMemory = 80 << 20

// boundMemory lets the collector wait until there is much garbage, which saves a third of
// the time of a request, but not for more of it than twice what is in use. The limit
// moves with what is in use: one that stood still would let a daemon with many open jobs
// do little else than collect. It follows until ctx ends.
func boundMemory(ctx context.Context) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(leastMemory)
	go func() {
		look := time.NewTicker(time.Second)
		defer look.Stop()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
			metrics.Read(live)
			debug.SetMemoryLimit(memoryLimit(live[0].Value.Uint64()))
		}
	}()
}

// memoryLimit is the limit while so many bytes are in use.
func memoryLimit(live uint64) int64 { return max(leastMemory, 3*int64(live)) }
