//go:build faults

package store

import (
	"io"
	"log" //nolint:depguard // the kind of logger that bbolt takes
	"strings"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
)

// The fault points of a commit are store.WHAT.before and store.WHAT.after, where WHAT
// is each thing that is committed: a job's event, its phase, or the kind of an entry.
// A bbolt that was built for it asks at store.WHAT.data.write, .data.sync, .meta.write
// and .meta.sync as well.

func (b *batch) pass(step string) {
	if l, ok := b.tx.DB().Logger().(*faultLogger); ok {
		l.about = b.about
	}
	for _, what := range b.about {
		fault.Point("store." + what + "." + step)
	}
}

func aboutOf(e *jobs.Entry) string {
	switch {
	case e.Event != "":
		return string(e.Event)
	case e.Kind == jobs.EntryChanged:
		return string(e.Phase)
	default:
		_, what, _ := strings.Cut(string(e.Kind), ".")
		return what
	}
}

// faultLogger reaches into bbolt by the one thing that a caller can hand it.
type faultLogger struct {
	bbolt.DefaultLogger

	about []string
}

// Fault is asked by bbolt before it writes or flushes.
func (l *faultLogger) Fault(step string) error {
	for _, what := range l.about {
		if err := fault.Err("store." + what + "." + step); err != nil {
			return err
		}
	}
	return nil
}

func boltFaults() bbolt.Logger {
	return &faultLogger{DefaultLogger: bbolt.DefaultLogger{Logger: log.New(io.Discard, "", 0)}}
}
