package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
)

// product is what a tool has made and how it goes into the record. The zero product
// is of a tool that starts no process and only publishes.
type product struct {
	ran       bool
	artifacts []jobs.Artifact
	keep      func(*jobs.Job) // puts it into the record
	proof     jobs.Evidence   // of the tool's end
}

// publish changes the projects, if the call asks for that, and completes the job.
// The new files are brought to hidden names first, where nobody sees them; then the
// plan is stored, after which a stop comes too late; then each step is carried out
// by one rename.
func (a *attempt) publish(made product) error {
	ctx := a.e.stopped
	steps, refused := a.publishes(ctx)
	if refused != nil {
		return a.unpublished(made, *refused)
	}
	if len(steps) == 0 {
		return a.complete(made)
	}
	if a.job.Approval == nil {
		// What needed no approval when it was decided must not need one now: a file
		// may have come to the destination meanwhile.
		decision := a.e.decideNow(a.job.Principal, a.job.Call.Purpose, a.job.Call.Context.VisibleTools, a.job.Tool, steps)
		if decision.Effect != jobs.Allow {
			return a.unpublished(made, unfit{jobs.EndDestinationTaken, "the destination holds a file now: " + decision.Reason})
		}
	} else if difference := a.planDifference(steps); difference != "" {
		return a.unpublished(made, unfit{jobs.EndDestinationTaken, difference})
	}
	planned := steps
	steps = nil
	for i, step := range planned {
		if step.Verb != jobs.VerbRemove && !hasArtifact(made.artifacts, step.Artifact) {
			continue // verified: the tool may leave it out
		}
		a.name(&step, i, made.artifacts)
		if err := a.place(ctx, &step, made.artifacts); err != nil {
			return a.unpublished(made, unfit{placeReason(err), plainMessage(err)})
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		return a.complete(made)
	}
	fault.Point("engine.placed")
	err := a.update("the publish plan is stored", func(j *jobs.Job) error {
		if made.ran {
			made.keep(j)
			j.Evidence = append(j.Evidence, made.proof)
		} else if err := a.e.inTime(j); err != nil {
			return err
		}
		return j.Plans(jobs.PublishPlan{Steps: steps})
	})
	if err == nil && !made.ran {
		err = a.e.inTime(a.job) // storing it may have taken any time
	}
	switch jobs.CodeOf(err) {
	case "":
		return a.carry()
	case jobs.CodeTooLate:
		return a.tooLate()
	case jobs.CodeStateConflict:
		return a.stoppedUnpublished(made)
	default:
		// It cannot be told whether the plan is stored, so the hidden names stay.
		return err
	}
}

func hasArtifact(artifacts []jobs.Artifact, name string) bool {
	return slices.ContainsFunc(artifacts, func(art jobs.Artifact) bool { return art.Name == name })
}

// planDifference says what of the approved plan is not so any more.
func (a *attempt) planDifference(steps []jobs.PublishStep) string {
	approved := a.job.Approval.Binding.Inputs
	for _, step := range steps {
		if step.OldSHA256 == "" {
			continue
		}
		if approved[string(step.Verb)+":"+step.Path] != step.OldSHA256 {
			return fmt.Sprintf("%q is not the file whose change was approved", step.Path)
		}
	}
	return ""
}

// name gives a step the names that its job and number determine, so that a crash
// before the plan is stored leaves nothing that the next try would not find.
func (a *attempt) name(step *jobs.PublishStep, i int, artifacts []jobs.Artifact) {
	if step.Verb != jobs.VerbRemove {
		step.Temp = files.TempPath(a.job.ID, i, step.Path)
		if k := slices.IndexFunc(artifacts, func(art jobs.Artifact) bool { return art.Name == step.Artifact }); k >= 0 {
			step.SHA256 = artifacts[k].SHA256
		}
	}
	if step.Verb != jobs.VerbCreate {
		step.Trash = files.TrashPath(a.job.ID, i, step.Path)
	}
}

func (a *attempt) place(ctx context.Context, step *jobs.PublishStep, artifacts []jobs.Artifact) error {
	return a.withStep(ctx, *step, artifacts, func(s files.Step) (err error) {
		step.Device, step.Inode, err = files.Place(ctx, s)
		return err
	})
}

func placeReason(err error) jobs.EndReason {
	switch {
	case errors.Is(err, files.ErrTaken):
		return jobs.EndDestinationTaken
	case errors.Is(err, files.ErrChanged), isNotExist(err):
		return jobs.EndInputChanged
	case startReason(err) == jobs.EndDiskFull:
		return jobs.EndDiskFull
	default:
		return jobs.EndPublishFailed
	}
}

// takeBack removes the hidden names of steps that a job which has ended did not
// carry out; also of those that were placed before a crash and whose plan was never
// stored, since their names follow from the job. What cannot be removed is logged.
func (a *attempt) takeBack(ctx context.Context, job *jobs.Job) {
	var steps []jobs.PublishStep
	if job.Plan != nil {
		steps = slices.DeleteFunc(slices.Clone(job.Plan.Steps), func(s jobs.PublishStep) bool { return s.Done })
	} else {
		for i, wanted := range a.wanted() {
			a.name(&wanted, i, job.Artifacts)
			steps = append(steps, wanted)
		}
	}
	for _, step := range steps {
		if step.Verb == jobs.VerbRemove {
			continue
		}
		err := a.withStep(ctx, step, job.Artifacts, func(s files.Step) error { return files.Undo(ctx, s) })
		if err != nil && !isNotExist(err) && jobs.CodeOf(err) != jobs.CodeProjectNotFound {
			a.e.log.Warn("a hidden file may be left behind", "job_id", job.ID, "project", step.Project, "path", step.Temp, "error", err)
		}
	}
}

// wanted lists the changes that the call asks for, whatever the project holds now.
func (a *attempt) wanted() []jobs.PublishStep {
	var steps []jobs.PublishStep
	for _, p := range a.tool.Publish {
		for _, arg := range a.tool.Files(a.vars.Args) {
			switch arg.Name {
			case p.At:
				made, _ := a.tool.Artifact(p.Create)
				steps = append(steps, jobs.PublishStep{Verb: jobs.VerbCreate, Artifact: p.Create, Project: projectOf(a.vars.Args), Path: arg.Value, Folder: made.Folder()})
			case p.Remove:
				steps = append(steps, jobs.PublishStep{Verb: jobs.VerbRemove, Project: projectOf(a.vars.Args), Path: arg.Value})
			}
		}
	}
	return steps
}

func (a *attempt) withStep(ctx context.Context, step jobs.PublishStep, artifacts []jobs.Artifact, do func(files.Step) error) error {
	root, err := a.e.openProject(ctx, a.job.Principal, step.Project)
	if err != nil {
		return err
	}
	defer root.Close()
	// Without a kept artifact there is nothing to give back, and so no such file.
	source := filepath.Join(a.e.exec.JobDir(a.job.ID), "none")
	if i := slices.IndexFunc(artifacts, func(art jobs.Artifact) bool { return art.Name == step.Artifact }); i >= 0 {
		source = filepath.Join(a.e.exec.JobDir(a.job.ID), artifacts[i].Kept)
	}
	return do(files.Step{
		Verb: files.Verb(step.Verb), Root: root, Path: step.Path, Temp: step.Temp, Trash: step.Trash, Folder: step.Folder,
		OldSHA256: step.OldSHA256, SHA256: step.SHA256, Device: step.Device, Inode: step.Inode,
		Source: source, Job: a.job.ID, At: a.e.deadlines.most(),
	})
}

// carry carries the stored plan out. It may begin anywhere: each step says by what
// is there whether it was done (promise G6, and the crash in the middle).
func (a *attempt) carry() error {
	ctx := a.e.stopped
	plan := jobs.PublishPlan{Steps: slices.Clone(a.job.Plan.Steps)}
	done, reason, message, moved := 0, jobs.EndOK, "", false
	for i := range plan.Steps {
		res := a.carryStep(ctx, plan.Steps[i])
		if a.e.stopped.Err() != nil {
			return errLeft
		}
		if res.Trash != "" {
			plan.Steps[i].Trash, moved = res.Trash, true
		}
		if res.Outcome == files.Done {
			plan.Steps[i].Done = true
			done++
			continue
		}
		if res.Outcome == files.Unfinished || res.Outcome == files.Unproven {
			return a.unproven(plan, res)
		}
		reason, message = carryReason(res.Outcome), res.Err.Error()
		break
	}
	fault.Point("engine.carried")
	out := jobs.PublishOutcome(done, len(plan.Steps), reason)
	switch {
	case out.State == jobs.StateCompleted || out.SideEffect != jobs.SideEffectNone:
	case moved:
		out.SideEffect = jobs.SideEffectPartial // a file lies in the trash that could not be put back
	case !a.job.Tool.Effects.LeavesNothing():
		out.SideEffect = jobs.SideEffectPossible
	}
	result := a.publishedResult(ctx, out.State)
	took := a.lap()
	return &over{why: orCompleted(message), change: func(j *jobs.Job) error {
		j.Plan = &plan
		j.Artifacts = placed(j.Artifacts, plan.Steps)
		j.Usage.Publishing += took
		if j.Result == nil {
			j.Result = result
		}
		detail := fmt.Sprintf("%d of %d changes are in place, by device and inode", done, len(plan.Steps))
		return j.End(out, jobs.Evidence{Kind: jobs.EvidencePublished, Detail: detail, Attempt: a.n}, message, a.e.now())
	}}
}

func carryReason(o files.Outcome) jobs.EndReason {
	switch o {
	case files.Taken:
		return jobs.EndDestinationTaken
	case files.Changed:
		return jobs.EndInputChanged
	default:
		return jobs.EndPublishFailed
	}
}

// publishedResult is the result of a tool that started no process: its manifest says
// what there is to tell. Every other result was stored with the plan.
func (a *attempt) publishedResult(ctx context.Context, state jobs.State) []byte {
	if a.tool == nil || runs(a.tool) || state != jobs.StateCompleted {
		return nil
	}
	result, err := a.tool.Result(ctx, a.vars)
	if err != nil {
		a.e.log.Warn("a manifest's result cannot be worked out", "job_id", a.job.ID, "error", err)
		return nil
	}
	return result
}

func orCompleted(message string) string {
	if message == "" {
		return "completed"
	}
	return message
}

// placed says of each artifact where it lies now.
func placed(artifacts []jobs.Artifact, steps []jobs.PublishStep) []jobs.Artifact {
	list := slices.Clone(artifacts)
	for _, step := range steps {
		i := slices.IndexFunc(list, func(art jobs.Artifact) bool { return art.Name == step.Artifact })
		if i >= 0 && step.Done {
			list[i].Project, list[i].Path, list[i].Kept = step.Project, step.Path, ""
		}
	}
	return list
}

// carryStep carries one step out, and tries again for a while when the system
// came in between.
func (a *attempt) carryStep(ctx context.Context, step jobs.PublishStep) files.Result {
	var res files.Result
	patiently(ctx, func() (done bool) {
		err := a.withStep(ctx, step, a.job.Artifacts, func(s files.Step) error {
			res = files.Carry(ctx, s)
			return nil
		})
		if err != nil {
			res = files.Result{Outcome: files.Unfinished, Err: err}
		}
		return res.Outcome != files.Unfinished
	})
	return res
}

// patiently does something until it is done, about 20 s at most.
func patiently(ctx context.Context, try func() (done bool)) {
	const tries = 10
	pause := 50 * time.Millisecond
	for range tries {
		if try() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		}
	}
}

// unproven leaves the job unknown: the plan cannot be finished and nothing proves
// how far it went.
func (a *attempt) unproven(plan jobs.PublishPlan, res files.Result) error {
	why := "the publish plan could not be finished, and it cannot be told whether its changes were made: " + res.Err.Error()
	return &over{why: why, change: func(j *jobs.Job) error {
		j.Plan = &plan
		out := jobs.Outcome{State: jobs.StateUnknown, SideEffect: jobs.SideEffectPossible, Retry: jobs.RetrySameKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: why, Attempt: a.n}, why, a.e.now())
	}}
}

// unpublished fails the job before any change; what the tool made is kept with it.
func (a *attempt) unpublished(made product, u unfit) error {
	if a.e.stopped.Err() != nil {
		return errLeft
	}
	return a.endBefore(made, jobs.PublishOutcome(0, 1, u.reason), u.why)
}

func (a *attempt) stoppedUnpublished(made product) error {
	return a.endBefore(made, jobs.OutcomeOf(a.job.Tool.Effects, jobs.EndedStopped), stoppedUnused)
}

const stoppedUnused = "stopped on request before its result was used"

// complete ends a job that has nothing to publish. A stop that was stored while the
// outputs were verified still counts for a tool that leaves nothing behind.
func (a *attempt) complete(made product) error {
	return a.endBefore(made, jobs.OutcomeOf(a.job.Tool.Effects, jobs.EndedZero), "")
}

// endBefore ends the job without a change to a project.
func (a *attempt) endBefore(made product, planned jobs.Outcome, why string) error {
	return &over{why: orCompleted(why), change: func(j *jobs.Job) error {
		out, message := planned, why
		if j.Stop != nil && out.State == jobs.StateCompleted && j.Tool.Effects.LeavesNothing() {
			out, message = jobs.OutcomeOf(j.Tool.Effects, jobs.EndedStopped), stoppedUnused
		}
		if out.State == jobs.StateCancelled {
			out.Reason = stopReason(j)
		}
		proof := jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "no change was begun", Attempt: a.n}
		if made.ran {
			made.keep(j)
			proof = made.proof
			if !j.Tool.Effects.LeavesNothing() && out.SideEffect == jobs.SideEffectNone {
				out.SideEffect = jobs.SideEffectPossible
			}
		}
		return a.endIn(j, out, proof, message)
	}}
}
