package engine

import (
	"cmp"
	"context"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// visible returns a job that the caller may see. A hidden job and a missing one
// give the same answer (promise G10).
func (e *Engine) visible(ctx context.Context, c Caller, id string) (*jobs.Job, error) {
	if host := hostOf(id); host != "" && host != e.store.HostID() {
		return nil, jobs.Errorf(jobs.CodeOtherHost, "job %s is on host %s; this is %s", id, host, e.store.HostID()).WithJob(id).With("host", host)
	}
	job, err := e.store.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if job.Principal != c.Principal {
		return nil, jobs.Errorf(jobs.CodeJobNotFound, "there is no job %s", id).WithJob(id)
	}
	return job, nil
}

// Job returns a job as it is now.
func (e *Engine) Job(ctx context.Context, c Caller, id string) (*jobs.Job, error) {
	job, err := e.visible(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return e.decorated(job), nil
}

// decorated adds what is not stored: what a queued job waits for now.
func (e *Engine) decorated(job *jobs.Job) *jobs.Job {
	if job == nil || job.State != jobs.StateQueued {
		return job
	}
	waiting := e.sched.waiting(job.ID)
	if waiting == nil {
		// It has ended since it was read.
		if now, err := e.store.Get(context.Background(), job.ID); err == nil {
			return now
		}
		return job
	}
	shown := *job
	shown.WaitingFor = waiting
	return &shown
}

// LookupKey answers "did this key start?" and changes nothing.
func (e *Engine) LookupKey(ctx context.Context, c Caller, key string) (jobs.KeyRecord, *jobs.Job, error) {
	record, err := e.store.LookupKey(ctx, jobs.Key{Principal: c.Principal, Text: key})
	if err != nil || record.Kind != jobs.KeyJob {
		return record, nil, err
	}
	job, err := e.Job(ctx, c, record.JobID)
	return record, job, err
}

// Jobs lists the caller's jobs, newest first.
func (e *Engine) Jobs(ctx context.Context, c Caller, q jobs.Query) (jobs.Page, error) {
	if q.Principal != "" && q.Principal != c.Principal {
		return jobs.Page{}, nil // others' jobs are hidden, and hidden is as if there were none
	}
	q.Principal = c.Principal
	page, err := e.store.List(ctx, q)
	for i, job := range page.Jobs {
		page.Jobs[i] = e.decorated(job)
	}
	return page, err
}

// SumUsage sums what the caller's ended jobs cost.
func (e *Engine) SumUsage(ctx context.Context, c Caller, q jobs.UsageQuery) (jobs.UsagePage, error) {
	if q.Principal != "" && q.Principal != c.Principal {
		return jobs.UsagePage{}, nil // as for a list
	}
	q.Principal = c.Principal
	return e.store.SumUsage(ctx, q)
}

// Tools lists the newest version of every tool, by name, and the manifests that
// could not be loaded.
func (e *Engine) Tools(ctx context.Context, _ Caller) ([]ToolInfo, []ToolProblem, error) {
	var infos []ToolInfo
	for _, t := range e.registry.Tools() {
		infos = append(infos, e.describe(ctx, t))
	}
	slices.SortFunc(infos, func(a, b ToolInfo) int { return cmp.Compare(a.Name, b.Name) })
	var problems []ToolProblem
	for _, p := range e.registry.Problems() {
		for _, f := range p.Findings {
			problems = append(problems, ToolProblem{File: p.File, Message: f.Message})
		}
	}
	return infos, problems, nil
}

// Tool describes one tool; version "" is the newest.
func (e *Engine) Tool(ctx context.Context, _ Caller, name, version string) (ToolInfo, error) {
	t, ok := e.registry.Tool(name, version)
	if !ok {
		return ToolInfo{}, e.noSuchTool(Request{Tool: name, ToolVersion: version})
	}
	return e.describe(ctx, t), nil
}

func (e *Engine) describe(ctx context.Context, t *schemas.Tool) ToolInfo {
	info := ToolInfo{
		Name: t.Tool, Version: t.Version, Title: t.Title, Description: t.Description,
		Effects: jobs.Effects(t.Effects), Destructive: t.Destructive, Purposes: t.Purposes, Needs: t.Needs,
		InputSchema: t.Input, OutputSchema: t.Output, ManifestDigest: t.Digest, Source: t.Source,
		Available: true, KeyOptional: keyOptional(t),
	}
	for _, a := range t.FileArguments() {
		info.FileArguments = append(info.FileArguments, FileArgument{Name: a.Name, Role: a.Role, Kinds: a.Kinds})
	}
	info.SecretArguments = t.SecretArguments()
	if !runs(t) {
		return info
	}
	variant, missing := e.chooseVariant(t)
	if variant == nil {
		info.Available, info.Missing = false, missing
		return info
	}
	info.Programs, _ = e.programsOf(ctx, variant, schemas.Vars{})
	return info
}

// keyOptional: a tool that only reads may be called without a key.
func keyOptional(t *schemas.Tool) bool {
	return jobs.Effects(t.Effects) == jobs.EffectsNone && !t.Destructive && len(t.Publish) == 0
}

// HostID returns the host's id.
func (e *Engine) HostID() string { return e.store.HostID() }

// Host describes the host and what its daemon is doing.
func (e *Engine) Host(ctx context.Context, _ Caller) (HostInfo, error) {
	info := e.facts
	info.ID = e.HostID()
	info.Accepting, info.Mode = e.accepting(), e.currentMode()
	info.Confinement = describeConfinement(e.confinement)
	info.Slots = e.sched.slots()
	info.ToolPath = e.programs.Dirs()
	info.CPUs = runtime.NumCPU()
	if info.Hostname == "" {
		info.Hostname, _ = os.Hostname()
	}
	if free, err := files.FreeBytes(e.exec.Root()); err == nil {
		info.DiskFreeBytes = free
		info.Accepting = info.Accepting && free >= minFreeBytes
	}
	info.Restored, info.Retention = e.forgetful(ctx), e.RetentionStatus()
	counts, err := e.store.Counts(ctx)
	info.Running, info.Queued = counts[jobs.StateRunning], counts[jobs.StateQueued]
	info.AwaitingApproval, info.Unknown = counts[jobs.StateAwaitingApproval], counts[jobs.StateUnknown]
	return info, err
}

// describeConfinement says in words what the host enforces on a tool.
func describeConfinement(c keeper.Confinement) string {
	if !c.Files {
		return "none: operators' tools count as external here"
	}
	words := []string{"files"}
	if c.Network {
		words = append(words, "network")
	}
	if c.Signals {
		words = append(words, "signals")
	}
	return c.Kind + ": " + strings.Join(words, ", ")
}
