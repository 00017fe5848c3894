package executor_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
)

// BenchmarkNoOp is the whole way of a tool that does nothing, through the real
// keeper binary, and beside it a bare start of the same program.
func BenchmarkNoOp(b *testing.B) {
	s := setup(b)
	bin := filepath.Join(s.root, "macexec-keeper")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", bin, "github.com/macexec/macexec/cmd/macexec-keeper")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	x, err := executor.New(executor.Options{Root: filepath.Join(s.root, "jobs"), Keeper: []string{bin}, BootSession: boot})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	b.Run("attempt", func(b *testing.B) {
		measure(b, func() {
			n++
			a, err := x.Prepare("j"+strconv.Itoa(n), 1)
			if err != nil {
				b.Fatal(err)
			}
			r, err := a.Start(executor.Command{Argv: []string{"/bin/true"}})
			if err != nil {
				b.Fatal(err)
			}
			if o, err := r.Wait(b.Context()); err != nil || o.Kind != executor.Exited || o.Exit.Code != 0 || o.Exit.NotStarted {
				b.Fatalf("%+v, %v", o, err)
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		measure(b, func() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// measure also reports the median and the slow end, which a mean hides.
func measure(b *testing.B, f func()) {
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "µs-p95")
}
