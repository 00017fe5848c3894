package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// size says how much is measured.
type size struct {
	round     time.Duration // of raw writes
	window    time.Duration // of submissions at one number of callers
	calls     int           // that do nothing
	pairs     int           // of exports
	stage     int64         // bytes of the staged input
	stageRuns int
	log       int64 // bytes of the log
	jobs      int   // finished ones in the large store
	starts    int   // of the daemon over the large store
	many      int   // finished jobs in the very large store
	listCalls int   // of each kind of list
	passing   int   // jobs that run and are removed
	kept      int   // of them
}

func full() size {
	return size{
		round: 500 * time.Millisecond, window: 4 * time.Second, calls: 400, pairs: 5,
		stage: 1 << 30, log: 200_000_000, jobs: 100_000, starts: 5, stageRuns: 3,
		many: 1_000_000, listCalls: 50, passing: 200_000, kept: 1000,
	}
}

func quick() size {
	return size{
		round: 200 * time.Millisecond, window: time.Second, calls: 200, pairs: 2,
		stage: 128 << 20, log: 50_000_000, jobs: 10_000, starts: 3, stageRuns: 1,
		many: 20_000, listCalls: 20, passing: 4000, kept: 200,
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to end but the handling of signals
	}
}

func run(ctx context.Context) error {
	bin := flag.String("bin", "bin", "the folder of macexec and macexec-keeper")
	short := flag.Bool("quick", os.Getenv("BENCH_QUICK") != "", "measure less, in less time")
	at := flag.String("dir", "", "the folder to measure in, on the file system that counts (default: the system's)")
	only := flag.String("only", "", "measure only this part")
	flag.Parse()

	from, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp(*at, "mx")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{size: full(), bin: from, dir: dir}
	if *short {
		b.size = quick()
	}
	b.addLoad("before")
	begun := time.Now()
	for _, part := range b.parts() {
		if *only != part.name && (*only != "" || part.asked) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(begun).Seconds(), part.name)
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	b.addLoad("after")
	return b.table.print(os.Stdout)
}

// addLoad notes what else the machine did: a table from a busy one tells little.
func (b *bench) addLoad(when string) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return // this system does not tell
	}
	load, _, _ := strings.Cut(string(text), " ")
	b.table.add(row{what: "load of the machine " + when, figure: load, ratio: fmt.Sprintf("on %d CPUs", runtime.NumCPU())})
}

// bench is one run.
type bench struct {
	size
	bin, dir string
	table    table
}

type part struct {
	name    string
	measure func(context.Context) error
	asked   bool // measured only when it is asked for
}

func (b *bench) parts() []part {
	return []part{
		{name: "binaries", measure: b.binaries},
		{name: "submit", measure: b.submit},
		{name: "replay", measure: b.replay},
		{name: "call", measure: b.call},
		{name: "export", measure: b.export},
		{name: "stage", measure: b.stageInput},
		{name: "log", measure: b.logs},
		{name: "memory", measure: b.memory},
		{name: "million", measure: b.million, asked: true},
		{name: "plateau", measure: b.plateau, asked: true},
	}
}

// binaries weighs the two programs, as they were built.
func (b *bench) binaries(context.Context) error {
	for _, program := range []struct {
		name string
		most float64
	}{{"macexec", 40}, {"macexec-keeper", 6}} {
		info, err := os.Stat(filepath.Join(b.bin, program.name))
		if err != nil {
			return err
		}
		mib := float64(info.Size()) / (1 << 20)
		b.table.add(row{what: "size of " + program.name, figure: fmt.Sprintf("%.1f MiB", mib), floor: atMost(mib, program.most, "%.0f MiB")})
	}
	return nil
}
