package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// needs is what the locks of a job are worked out from, again and again.
type needs struct {
	principal string
	project   string
	paths     []jobs.PathUse
	context   string // of a serial job
}

// turnOf is what the scheduler has to know of a job.
func (e *Engine) turnOf(ctx context.Context, job *jobs.Job) turn {
	n := e.needsOf(job)
	t := turn{
		id: job.ID, principal: job.Principal, class: n.Slot, rank: rankOf(job), external: job.Tool.Effects == jobs.EffectsExternal,
		refuse: job.Call.Options.OnLock == jobs.OnLockRefuse, state: job.State,
		needs: needs{principal: job.Principal, project: n.Project, paths: n.Paths},
	}
	if job.Call.Options.SerialContext {
		t.needs.context = job.Call.Context.ContextID
	}
	if job.State != jobs.StateAwaitingApproval || t.refuse { // else a person decides first
		t.claims = e.claims(ctx, t.needs)
	}
	if job.State == jobs.StateRunning || job.State == jobs.StateUnknown {
		for _, l := range job.Needs.Locks {
			t.claims = addClaim(t.claims, claim{key: l.Key, mode: lockMode(l.Mode), name: l.Name})
		}
	}
	return t
}

// locksOf is how a job's record keeps the locks that it has.
func locksOf(claims []claim) []jobs.Lock {
	var list []jobs.Lock
	for _, c := range claims {
		list = append(list, jobs.Lock{Key: c.key, Mode: int(c.mode), Name: c.name})
	}
	return list
}

// needsOf is what a job needs, as its record says it; of an older record it is worked
// out from the manifest.
func (e *Engine) needsOf(job *jobs.Job) jobs.Needs {
	if job.Needs.Slot != "" {
		return job.Needs
	}
	tool, err := e.toolOf(job.Tool)
	args, findings := schemas.Parse(job.Call.Arguments, schemas.DefaultLimits())
	if err != nil || len(findings) > 0 {
		e.log.Warn("the paths that a job uses cannot be told, so it has no locks on them", "job_id", job.ID, "error", err)
		return jobs.Needs{Slot: publishSlot}
	}
	slot := publishSlot
	if runs(tool) {
		if variant, _ := e.chooseVariant(tool); variant != nil {
			slot = variant.Slot
		}
	}
	return callNeeds(slot, tool, args)
}

// publishSlot is the class of jobs that start no process.
const publishSlot = "publish"

// callNeeds is what a call of a tool needs. What was uploaded, and what another job
// keeps, nobody can change.
func callNeeds(slot string, tool *schemas.Tool, args any) jobs.Needs {
	n := jobs.Needs{Slot: slot, Project: projectOf(args)}
	for _, arg := range tool.Files(args) {
		write := true
		if arg.Role == schemas.RoleInput {
			if strings.HasPrefix(arg.Value, blobPrefix) || strings.HasPrefix(arg.Value, jobPrefix) {
				continue
			}
			write = slices.ContainsFunc(tool.Publish, func(p schemas.PublishSpec) bool { return p.Remove == arg.Name })
		}
		n.Paths = append(n.Paths, jobs.PathUse{Path: arg.Value, Write: write})
	}
	return n
}

// claims works the locks of a job out from the world as it is. Two calls that write a
// path alike share a lock whatever the world is; two that write it differently (another
// case, a link) share one if both can be looked at.
func (e *Engine) claims(ctx context.Context, n needs) []claim {
	var list []claim
	if n.context != "" {
		list = addClaim(list, claim{key: "context:" + n.principal + "\x00" + n.context, mode: exclusive, name: n.context})
	}
	if len(n.paths) == 0 {
		return list
	}
	for _, p := range n.paths {
		own, _ := lockModesOf(p)
		list = addClaim(list, claim{key: "path:" + n.project + "\x00" + path.Clean(p.Path), mode: own, name: p.Path})
	}
	root, err := e.openProject(ctx, n.principal, n.project)
	if err != nil {
		return list
	}
	defer root.Close()
	for _, p := range n.paths {
		own, folders := lockModesOf(p)
		for _, key := range root.FolderLockKeys(p.Path) {
			list = addClaim(list, claim{key: key, mode: folders, name: p.Path})
		}
		keys, err := root.LockKeys(p.Path)
		if err != nil {
			continue // it cannot be used either, and the attempt says so
		}
		for _, key := range keys {
			list = addClaim(list, claim{key: key, mode: own, name: p.Path})
		}
	}
	return list
}

// lockModesOf says how a path is locked, and how the folders are that it lies in.
func lockModesOf(p jobs.PathUse) (own, folders lockMode) {
	if p.Write {
		return exclusive, intentExclusive
	}
	return shared, intentShared
}

// sameClaims reports whether two sets of claims are of the same locks.
func sameClaims(a, b []claim) bool {
	return slices.EqualFunc(a, b, func(x, y claim) bool { return x.key == y.key && x.mode == y.mode })
}

// refusal says in an error what is in the way.
func (o obstacle) refusal() *jobs.Error {
	err := jobs.Errorf(jobs.CodeLockHeld, "%s; call again later under the same key, which is still free, or let the call wait (on_lock wait)", o).With("lock", o.name)
	if o.jobID != "" {
		err = err.WithJob(o.jobID)
	}
	return err
}

func (o obstacle) String() string {
	who := "a job of another principal"
	if o.jobID != "" {
		who = "job " + o.jobID
	}
	what := fmt.Sprintf("%q is used by %s, which is %s", o.name, who, strings.ReplaceAll(string(o.state), "_", " "))
	if o.state == jobs.StateUnknown {
		what += " until somebody resolves it"
	}
	return what
}

// rankOf is the rank of a job, and stays the same over its attempts. The time is that
// of its id, which never goes back, whatever becomes of the clock.
func rankOf(job *jobs.Job) rank {
	at := job.SubmittedAt.UnixMilli()
	if ms, ok := madeAt(job.ID); ok {
		at = int64(ms)
	}
	return rank{at: at - int64(job.Call.Options.Priority)*priorityStep.Milliseconds(), seq: job.Seq}
}

// madeAt is the time in a job's id, in milliseconds; ok is false if it has none.
func madeAt(jobID string) (ms uint64, ok bool) {
	if len(jobID) < ulid.EncodedSize {
		return 0, false
	}
	id, err := ulid.ParseStrict(strings.ToUpper(jobID[:ulid.EncodedSize]))
	return id.Time(), err == nil
}

// The bounds of a call's priority.
const (
	minPriority = -10
	maxPriority = 10
)

// sawID keeps the ids of new jobs above one that is there already, so that they sort
// and rank by acceptance also when the clock was set back between two engines.
func (e *Engine) sawID(id string) {
	ms, ok := madeAt(id)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastMilli = max(e.lastMilli, ms)
}
