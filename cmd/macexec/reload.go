package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
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
	named   map[string]string          // the projects of the file that was read last
	fields  []configField
	readAt  time.Time
}

const projectsField = "/projects"

func newConfiguration(path string, c config, eng *engine.Engine, log *slog.Logger) *configuration {
	conf := &configuration{path: path, eng: eng, log: log, inForce: map[string]json.RawMessage{}, named: c.Projects, fields: c.fields, readAt: clock()}
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

// Reload reads the file again. It is all or nothing: a file that cannot be used, or a
// new or changed project that cannot be one, changes nothing. The projects go first, as
// one of them may be in use; the rest was checked by then.
func (c *configuration) Reload(ctx context.Context, by engine.Caller) (applied, needsRestart []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := readConfig(c.path)
	if err != nil {
		return nil, nil, jobs.Errorf(jobs.CodeRequestInvalid, "the configuration cannot be used, and what was in force stays: %w", err)
	}
	if err := programs.CheckDirs(next.ToolPath); err != nil {
		return nil, nil, jobs.Errorf(jobs.CodeRequestInvalid, "the configuration cannot be used, and what was in force stays: %w", err)
	}
	if err := c.lookAtProjects(ctx); err != nil {
		return nil, nil, err
	}
	differs := func(f configField) bool { return !bytes.Equal(c.inForce[f.pointer], next.given(f.pointer)) }
	for _, f := range c.fields {
		switch {
		case !differs(f):
		case f.reloads:
			applied = append(applied, f.pointer)
		default:
			needsRestart = append(needsRestart, f.pointer)
		}
	}
	c.readAt = clock()
	if slices.Contains(applied, projectsField) {
		changed, err := c.nameProjects(ctx, by, next)
		if err != nil {
			return nil, nil, err
		}
		if !changed {
			applied = slices.DeleteFunc(applied, func(pointer string) bool { return pointer == projectsField })
		}
	}
	if len(applied) == 0 {
		return applied, needsRestart, nil
	}
	if err := c.eng.Reconfigure(ctx, by, next.limits(), next.ToolPath, applied); err != nil {
		return nil, nil, err
	}
	for _, pointer := range applied {
		if pointer != projectsField {
			c.put(pointer, next.given(pointer))
		}
	}
	return applied, needsRestart, nil
}

// lookAtProjects brings up to date what is in force of the projects that the file named:
// a start leaves one out that cannot be one, and people remove them.
func (c *configuration) lookAtProjects(ctx context.Context) error {
	have, err := c.eng.Projects(ctx, engine.Caller{})
	if err != nil || len(c.named) == 0 {
		return err
	}
	there := map[string]string{}
	for _, p := range have {
		switch root, named := c.named[p.Name]; {
		case named && sameFolder(root, p.Root):
			there[p.Name] = root
		case named:
			there[p.Name] = p.Root
		}
	}
	if len(there) == 0 {
		c.put(projectsField, nil)
		return nil
	}
	text, err := json.Marshal(there)
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "describe the projects: %w", err)
	}
	c.put(projectsField, text)
	return nil
}

// sameFolder says whether a path of the file is the folder of a project, which is
// remembered without links.
func sameFolder(path, root string) bool {
	if path == root {
		return true
	}
	folder, err := filepath.EvalSymlinks(path)
	return err == nil && folder == root
}

// nameProjects gives the projects of the file their folders, and says whether anything
// in force has changed. What is new in the file must be possible; what could not be one
// already when the file was read last is tried again, and left out again if need be.
func (c *configuration) nameProjects(ctx context.Context, by engine.Caller, next config) (changed bool, err error) {
	before := c.inForce[projectsField]
	var there map[string]string
	_ = json.Unmarshal(before, &there) // lookAtProjects wrote it
	var fresh, late []jobs.Project
	for _, name := range slices.Sorted(maps.Keys(next.Projects)) {
		p := jobs.Project{Name: name, Root: next.Projects[name]}
		switch {
		case there[name] == p.Root:
		case c.named[name] == p.Root:
			late = append(late, p)
		default:
			fresh = append(fresh, p)
		}
	}
	if err := c.eng.ReplaceProjects(ctx, by, fresh); err != nil {
		return false, err
	}
	for _, p := range late {
		if err := c.eng.ReplaceProjects(ctx, by, []jobs.Project{p}); err != nil {
			c.log.Warn(leftOut, "project", p.Name, "error", err)
		}
	}
	c.named = next.Projects
	c.put(projectsField, next.given(projectsField))
	err = c.lookAtProjects(ctx)
	return !bytes.Equal(before, c.inForce[projectsField]), err
}

// leftOut is what the log says of a project that cannot be one: an unplugged disk, say,
// must not keep the others and every repeat from their answers.
const leftOut = "a project of the configuration is left out"

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
func (c *configuration) Show(ctx context.Context, _ engine.Caller) (server.ConfigState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.lookAtProjects(ctx); err != nil {
		return server.ConfigState{}, err
	}
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
