package main

import "testing"

// The limit leaves room for garbage, however much is in use.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int64{0: leastMemory, leastMemory / 3: leastMemory, 1 << 30: 3 << 30} {
		if got := memoryLimit(live); got != want {
			t.Errorf("with %d bytes in use the limit is %d, want %d", live, got, want)
		}
	}
}
