package engine

import (
	"context"
	"encoding/json"
	"runtime"
	"strings"

	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs"
)

// limits are those in force now. A decision reads them once.
func (e *Engine) limits() Limits { return *e.bounds.Load() }

// Reconfigure puts other limits and another tool path in force, for what is decided
// from now on; an attempt that runs keeps what it was started with. changed names
// the fields of the configuration, for the journal. After an error nothing has
// changed.
func (e *Engine) Reconfigure(ctx context.Context, c Caller, l Limits, toolPath, changed []string) error {
	if err := programs.CheckDirs(toolPath); err != nil {
		return jobs.Errorf(jobs.CodeRequestInvalid, "%w", err)
	}
	data, err := json.Marshal(map[string][]string{"changed": changed})
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "describe the change: %w", err)
	}
	entry := jobs.Entry{
		Kind: jobs.EntryHost, Principal: c.Principal, Data: data,
		Message: "the configuration was read again, and changed " + strings.Join(changed, ", "),
	}
	// Recorded first (promise G9), as nothing behind it fails: the folders were checked.
	if err := e.store.Append(context.WithoutCancel(ctx), entry); err != nil {
		return err
	}
	if err := e.programs.SetDirs(toolPath); err != nil {
		return jobs.Errorf(jobs.CodeRequestInvalid, "%w", err)
	}
	l = l.WithDefaults()
	e.bounds.Store(&l)
	e.sched.resize(slotSizes(runtime.NumCPU(), e.facts.MemoryBytes, l.Slots))
	e.dispatch()
	return nil
}
