package endtoend

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// step is one fault at one point.
type step struct{ point, fault string }

// result is what a cell comes to. A destination or a trash with nothing in it is "-".
type result struct {
	state, reason, sideEffect string
	starts                    int
	destination, trash        string
}

// cell is one call that meets faults.
type cell struct {
	steps   []step
	effects string // a column of the table
	want    result
}

func (c cell) name() string {
	var parts []string
	for _, s := range c.steps {
		parts = append(parts, s.point+":"+s.fault)
	}
	return c.effects + "/" + strings.Join(parts, ">")
}

// columns are the kinds of tools, in the order of the table.
func columns() []string { return []string{none, staged, "replace", "remove", external} }

// readMatrix reads the table. A line that it does not understand is a mistake.
func readMatrix(t *testing.T) []cell {
	t.Helper()
	text, err := os.ReadFile("testdata/matrix.txt")
	if err != nil {
		t.Fatal(err)
	}
	results := map[[2]string]result{} // by word and effects
	used := map[[2]string]bool{}
	var cells []cell
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case fields[0] == "result" && len(fields) == 9:
			starts, err := strconv.Atoi(fields[6])
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			results[[2]string{fields[1], fields[2]}] = result{fields[3], fields[4], fields[5], starts, fields[7], fields[8]}
		case fields[0] == "cell" && len(fields) >= 8:
			words := fields[len(fields)-5:]
			steps := stepsOf(fields[1 : len(fields)-5])
			for i, effects := range columns() {
				if words[i] == "." {
					continue
				}
				key := [2]string{words[i], effects}
				want, ok := results[key]
				if !ok {
					t.Fatalf("%sthere is no result %v", line, key)
				}
				used[key] = true
				cells = append(cells, cell{steps, effects, want})
			}
		default:
			t.Fatalf("not understood: %s", line)
		}
	}
	for key := range results {
		if !used[key] {
			t.Errorf("no cell has the result %v", key)
		}
	}
	return cells
}

// stepsOf reads "A:fault > B:fault > C fault".
func stepsOf(fields []string) []step {
	var steps []step
	for _, f := range fields[:len(fields)-2] {
		if point, fault, ok := strings.Cut(f, ":"); ok {
			steps = append(steps, step{point, fault})
		}
	}
	return append(steps, step{fields[len(fields)-2], fields[len(fields)-1]})
}

// cellsAtOnce is more than there are processors: a cell waits more than it works.
const cellsAtOnce = 6

// G2, G3, G4, G5, G6, G7: the fault matrix. Every cell has its own daemon, keepers and
// tools, and a ledger in which the tools write down that they were started.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	if raceBuilt {
		t.Skip("the matrix is walked without the race detector, which the Makefile does")
	}
	needFaulty(t)
	cells := readMatrix(t)
	work := make(chan cell)
	var walked, starts, failures atomic.Int64
	var walkers sync.WaitGroup
	for range cellsAtOnce {
		walkers.Go(func() {
			for c := range work {
				if !t.Run(c.name(), func(t *testing.T) {
					walked.Add(1)
					starts.Add(int64(walk(t, c)))
				}) {
					failures.Add(1)
				}
			}
		})
	}
	for _, c := range cells {
		work <- c
	}
	close(work)
	walkers.Wait()
	points := map[step]bool{}
	for _, c := range cells {
		for _, s := range c.steps {
			points[s] = true
		}
	}
	fmt.Fprintf(os.Stdout, "fault matrix: %d of %d cells walked (%d faults at %d points), %d failed; %d process starts counted by ledgers\n",
		walked.Load(), len(cells), len(points), countPoints(points), failures.Load(), starts.Load())
}

func countPoints(faults map[step]bool) int {
	var points []string
	for s := range faults {
		points = append(points, s.point)
	}
	slices.Sort(points)
	return len(slices.Compact(points))
}
