package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// largestText is the most that is read of a file that is sent in one message or judged
// as a whole. No message may be larger.
const largestText = 4 << 20

// errTooLarge: a file has more than largestText.
var errTooLarge = errors.New("it is too large")

// readFile reads a whole file, or stdin for "-".
func (a *app) readFile(ctx context.Context, path string) ([]byte, error) {
	text, err := a.readText(ctx, path)
	if err != nil && ctx.Err() == nil {
		return nil, unreadable(err)
	}
	return text, err
}

// readArguments is readFile for the arguments of a call. More than any daemon takes is
// told with the verdict that a daemon would give.
func (a *app) readArguments(ctx context.Context, path string) ([]byte, error) {
	text, err := a.readText(ctx, path)
	if errors.Is(err, errTooLarge) {
		f := failed(exitRejected, jobs.CodeArgumentsTooLarge, err.Error(), "upload large content as a file and name it in the arguments")
		f.document.Verdicts = &macexecv1.Verdicts{SyntaxChecked: true}
		return nil, f
	}
	if err != nil && ctx.Err() == nil {
		return nil, unreadable(err)
	}
	return text, err
}

// readText reads in a hand of its own: a pipe may have a writer only later, or never, and
// the end of ctx is heard also while nothing comes.
func (a *app) readText(ctx context.Context, path string) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := a.readAll(path)
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		if r.err == nil && len(r.text) > largestText {
			return nil, fmt.Errorf("%s has more than the %d bytes that are read of it: %w", nameOf(path), largestText, errTooLarge)
		}
		return r.text, r.err
	}
}

func (a *app) readAll(path string) ([]byte, error) {
	from := a.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	return io.ReadAll(io.LimitReader(from, largestText+1))
}

func nameOf(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}
