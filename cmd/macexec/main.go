package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/macexec/macexec/executor/keeper"
)

func main() {
	// Before anything else: where macexec-keeper is not beside this binary, it is the
	// keeper of a job itself, and then nothing of the command line concerns it.
	if len(os.Args) > 1 && os.Args[1] == keeperVerb {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	// The first signal asks for a graceful end; after it the signals have their
	// default effect again, so that the second one cuts short.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(int(run(ctx, os.Args[1:], processStdio())))
}

// stdio is what the program reads from and writes to.
type stdio struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) (string, bool)
	// InTerminal, OutTerminal and ErrTerminal say whether a person is at it.
	InTerminal, OutTerminal, ErrTerminal bool
	// Patience is how long a request is repeated without an answer; 0: the client's own.
	Patience time.Duration
	// Width is the terminal's width in columns, 0 when not known.
	Width func() int
}

func processStdio() stdio {
	return stdio{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Getenv:      os.LookupEnv,
		InTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		Width: func() int {
			width, _, err := term.GetSize(int(os.Stderr.Fd()))
			if err != nil {
				return 0
			}
			return width
		},
	}
}

// run is the whole program: it carries out one command line and returns the exit
// code. The end of ctx is the wish of the person at the terminal to end.
func run(ctx context.Context, args []string, io stdio) exitCode {
	io.Out = results{io.Out}
	a := &app{stdio: io}
	root := a.root(args)
	root.SetArgs(args)
	root.SetIn(io.In)
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	err := root.ExecuteContext(ctx)
	if err != nil {
		a.report(err)
	}
	return exitOf(err)
}
