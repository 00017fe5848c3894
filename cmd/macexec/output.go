package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
)

// connect makes the client that every command but serve talks through.
func (a *app) connect() (*client.Client, error) {
	address, err := a.resolveAddress()
	if err != nil {
		return nil, err
	}
	var options []client.Option
	if a.Patience > 0 {
		options = append(options, client.Patience(a.Patience))
	}
	c, err := client.Dial(address, options...)
	if err != nil {
		return nil, usagef("--address unix:/path/to/macexec.sock, or --address ssh://user@host", "%s", err.Error())
	}
	return c, nil
}

// colour says whether what is written to a terminal may be coloured.
func (a *app) colour() bool {
	_, plain := a.Getenv("NO_COLOR")
	term, _ := a.Getenv("TERM")
	return !plain && term != "dumb"
}

// print writes one result to stdout: its document with -o json, its id with -q,
// else what human draws.
func (a *app) print(m proto.Message, id string, human func(w io.Writer) error) error {
	switch {
	case a.format == formatJSON:
		return a.printDocument(m)
	case a.quiet:
		return a.printLine(show.Line(id))
	default:
		return human(a.Out)
	}
}

// printDocument writes a message of the API as one line of JSON.
func (a *app) printDocument(m proto.Message) error {
	b, err := document.Marshal(m)
	if err != nil {
		return err
	}
	return a.printLine(string(b))
}

// printValue writes a document that is no message of the API as one line of JSON.
func (a *app) printValue(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.printLine(string(b))
}

func (a *app) printLine(line string) error {
	_, err := io.WriteString(a.Out, line+"\n")
	return err
}

// results is stdout. That it cannot be written is one error, whatever was to be written.
type results struct{ w io.Writer }

func (r results) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if err != nil {
		err = failed(exitRefused, jobs.CodeRequestInvalid, "the output could not be written: "+err.Error(),
			"send stdout where there is room; what the command did is done, and what it found is still there")
	}
	return n, err
}

// remarkf tells a person something on stderr that is no result.
func (a *app) remarkf(format string, args ...any) {
	fmt.Fprintf(a.Err, "%s\n", show.Line(fmt.Sprintf(format, args...)))
}

// list writes a list: one document per line with -o json, one id per line with
// -q, else a table.
func list[M proto.Message](a *app, items []M, id func(M) string, table *show.Table, row func(M) []show.Cell) error {
	for _, item := range items {
		switch {
		case a.format == formatJSON:
			if err := a.printDocument(item); err != nil {
				return err
			}
		case a.quiet:
			if err := a.printLine(show.Line(id(item))); err != nil {
				return err
			}
		default:
			table.Rows = append(table.Rows, row(item))
		}
	}
	if a.format == formatJSON || a.quiet {
		return nil
	}
	return table.Write(a.Out, a.OutTerminal && a.colour())
}

// fields draws "name: value" lines, leaving out empty values.
type fields struct{ table show.Table }

func (f *fields) add(name, value string) { f.addStyled(name, value, show.Plain) }

func (f *fields) addStyled(name, value string, style show.Style) {
	if value != "" {
		f.table.Rows = append(f.table.Rows, []show.Cell{{Text: name + ":"}, {Text: value, Style: style}})
	}
}

// clock is the present, for ages in tables.
func clock() time.Time { return time.Now() }
