package programs

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Runner runs a program and gives its standard output. It bounds time and output
// itself, and gives an error unless the program exited with 0.
type Runner func(ctx context.Context, argv []string) (stdout []byte, err error)

// question is one thing that was asked of one file.
type question struct {
	id   Identity
	args string
	re   string
}

func ask(p Program, args []string, re *regexp.Regexp) question {
	return question{p.Identity, strings.Join(args, "\x00"), re.String()}
}

// Version runs the program with args and returns what re finds in the output: its
// first group, or all of the match if it has none. A good answer is kept for as
// long as the file is the same.
func (r *Resolver) Version(ctx context.Context, p Program, args []string, re *regexp.Regexp, run Runner) (string, error) {
	q := ask(p, args, re)
	r.mu.Lock()
	known, ok := r.versions[q]
	r.mu.Unlock()
	if ok {
		return known, nil
	}
	out, err := output(ctx, p, args, run)
	if err != nil {
		return "", err
	}
	m := re.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s %s: nothing in the output matches %s", p.Path, strings.Join(args, " "), re)
	}
	version := string(m[min(1, len(m)-1)])
	r.mu.Lock()
	r.versions[q] = version
	r.mu.Unlock()
	return version, nil
}

// Features runs the program with args, such as ffmpeg with -encoders, and returns
// what re finds in each place of the output, sorted and without doubles. It is kept
// like a version. No match is an answer: no features.
func (r *Resolver) Features(ctx context.Context, p Program, args []string, re *regexp.Regexp, run Runner) ([]string, error) {
	q := ask(p, args, re)
	r.mu.Lock()
	known, ok := r.features[q]
	r.mu.Unlock()
	if ok {
		return slices.Clone(known), nil
	}
	out, err := output(ctx, p, args, run)
	if err != nil {
		return nil, err
	}
	features := []string{}
	for _, m := range re.FindAllSubmatch(out, -1) {
		features = append(features, string(m[min(1, len(m)-1)]))
	}
	slices.Sort(features)
	features = slices.Compact(features)
	r.mu.Lock()
	r.features[q] = features
	r.mu.Unlock()
	return slices.Clone(features), nil
}

// output runs the program and makes sure that it was the same file all the while.
// It is called by the path it was found by, since some go by their name.
func output(ctx context.Context, p Program, args []string, run Runner) ([]byte, error) {
	out, err := run(ctx, append([]string{p.Found}, args...))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", p.Found, strings.Join(args, " "), err)
	}
	return out, p.Same()
}
