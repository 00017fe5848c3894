package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/server"
)

// configuration is config.yaml of a daemon that runs: what is in force of it, and how
// that changes. It is the server's Config.
type configuration struct {
	path string
	eng  *engine.Engine
	log  *slog.Logger

	mu      sync.Mutex                 // held over a whole reload
	inForce map[string]json.RawMessage // by pointer; a field that the file left out is not there
	fields  []configField
	readAt  time.Time
}

func newConfiguration(path string, c config, eng *engine.Engine, log *slog.Logger) *configuration {
	conf := &configuration{path: path, eng: eng, log: log, inForce: map[string]json.RawMessage{}, fields: c.fields, readAt: clock()}
	for _, f := range c.fields {
		conf.put(f.pointer, c.given(f.pointer))
	}
	return conf
}

func (c *configuration) put(pointer string, value json.RawMessage) {
	if value == nil {
		delete(c.inForce, pointer)
	} else {
		c.inForce[pointer] = value
	}
}

// Reload reads the file again. All is looked at before anything changes: a file that
// cannot be used, or a changed project that cannot be one, changes nothing. The projects
// go first, as one of them may have come into use since it was looked at. If one fails
// after all, those before it are changed and the rest stays as it was; Show tells that,
// and the next reload goes on from there.
func (c *configuration) Reload(ctx context.Context, by engine.Caller) (applied, needsRestart []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := readConfig(c.path)
	if err != nil {
		return nil, nil, jobs.Errorf(jobs.CodeRequestInvalid, "the configuration cannot be used, and what was in force stays: %w", err)
	}
	for _, f := range c.fields {
		switch {
		case bytes.Equal(c.inForce[f.pointer], next.given(f.pointer)):
		case f.reloads:
			applied = append(applied, f.pointer)
		default:
			needsRestart = append(needsRestart, f.pointer)
		}
	}
	c.readAt = clock()
	if len(applied) == 0 {
		return applied, needsRestart, nil
	}
	if err := programs.CheckDirs(next.ToolPath); err != nil {
		return nil, nil, jobs.Errorf(jobs.CodeRequestInvalid, "the configuration cannot be used, and what was in force stays: %w", err)
	}
	have, changed, err := c.changedProjects(ctx, by, next)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range changed {
		if err := putProject(ctx, c.eng, by, p); err != nil {
			return nil, nil, err
		}
		have[p.Name] = p.Root
		now, err := json.Marshal(have)
		if err != nil {
			return nil, nil, jobs.Errorf(jobs.CodeInternal, "describe the projects: %w", err)
		}
		c.put("/projects", now)
	}
	if err := c.eng.Reconfigure(ctx, by, next.limits(), next.ToolPath, applied); err != nil {
		return nil, nil, err
	}
	for _, pointer := range applied {
		c.put(pointer, next.given(pointer))
	}
	return applied, needsRestart, nil
}

// changedProjects are those that the file names now and did not name before, or with
// another folder: each must be able to be one. have are the folders in force, by name.
func (c *configuration) changedProjects(ctx context.Context, by engine.Caller, next config) (have map[string]string, changed []jobs.Project, err error) {
	have = map[string]string{}
	_ = json.Unmarshal(c.inForce["/projects"], &have) // the schema has seen it
	for _, name := range slices.Sorted(maps.Keys(next.Projects)) {
		p := jobs.Project{Name: name, Root: next.Projects[name]}
		if have[name] == p.Root {
			continue
		}
		if err := c.eng.CheckProject(ctx, by, p); err != nil {
			return nil, nil, err
		}
		changed = append(changed, p)
	}
	return have, changed, nil
}

// hangUp reloads for a SIGHUP, and tells the log of the outcome.
func (c *configuration) hangUp(ctx context.Context) {
	applied, needsRestart, err := c.Reload(ctx, engine.Caller{})
	switch {
	case err != nil:
		c.log.Error("the configuration was not reloaded", "error", err)
	case len(needsRestart) > 0:
		c.log.Warn("the configuration was reloaded, and a part of it needs a restart", "applied", strings.Join(applied, " "), "needs_restart", strings.Join(needsRestart, " "))
	default:
		c.log.Info("the configuration was reloaded", "applied", strings.Join(applied, " "))
	}
}

// Show compares what is in force with the file as it is now.
func (c *configuration) Show(context.Context, engine.Caller) (server.ConfigState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := server.ConfigState{Path: c.path, ReadAt: c.readAt}
	next, err := readConfig(c.path)
	if err != nil {
		state.Problem = err.Error()
	}
	for _, f := range c.fields {
		now, given := c.inForce[f.pointer]
		field := server.ConfigField{Pointer: f.pointer, Value: now, Default: !given, NeedsRestart: !f.reloads}
		if !given {
			field.Value = f.standard
		}
		if said := next.given(f.pointer); state.Problem == "" && !bytes.Equal(now, said) {
			field.Differs, field.FileValue = true, said
		}
		state.Fields = append(state.Fields, field)
	}
	return state, nil
}
