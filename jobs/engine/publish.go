package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// publish changes the projects. The new files are brought to hidden names first,
// where nobody sees them; then the plan is stored, after which a stop comes too
// late; then each step is carried out by one rename. keep, if any, puts what the
// tool made into the record together with the plan; evidence, if any, is of the
// tool's end.
func (a *attempt) publish(keep func(*jobs.Job), evidence ...jobs.Evidence) error {
	ctx := a.e.stopped
	steps, findings := a.publishes(ctx)
	if len(findings) > 0 {
		reason := jobs.EndPublishFailed
		if findings[0].Keyword == "destination_taken" {
			reason = jobs.EndDestinationTaken
		}
		return a.unpublished(reason, findings[0].Message, keep, evidence)
	}
	if a.job.Approval == nil {
		// What needed no approval when it was decided must not need one now: a file
		// may have come to the destination meanwhile.
		decision := a.e.decideNow(a.job.Principal, a.job.Call.Purpose, a.job.Call.Context.VisibleTools, a.job.Tool, steps)
		if decision.Effect != jobs.Allow {
			return a.unpublished(jobs.EndDestinationTaken, "the destination holds a file now: "+decision.Reason, keep, evidence)
		}
	} else if difference := a.planDifference(steps); difference != "" {
		return a.unpublished(jobs.EndDestinationTaken, difference, keep, evidence)
	}
	var draft jobs.Job // the artifacts that keep will store
	if keep != nil {
		keep(&draft)
	}
	for i := range steps {
		a.name(&steps[i], i, draft.Artifacts)
		if err := a.place(ctx, &steps[i], draft.Artifacts); err != nil {
			a.undo(ctx, steps[:i+1], draft.Artifacts)
			if a.e.stopped.Err() != nil {
				return errLeft
			}
			return a.unpublished(placeReason(err), plainMessage(err), keep, evidence)
		}
	}
	if len(steps) == 0 {
		return a.nothingToPublish(keep, evidence)
	}
	err := a.update("", "the publish plan is stored", func(j *jobs.Job) error {
		if keep != nil {
			keep(j)
		}
		j.Evidence = append(j.Evidence, evidence...)
		return j.Plans(jobs.PublishPlan{Steps: steps})
	})
	if err != nil {
		a.undo(ctx, steps, draft.Artifacts)
		if jobs.CodeOf(err) == jobs.CodeStateConflict {
			return a.stoppedUnpublished(keep, evidence)
		}
		return err
	}
	return a.carry()
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
	default:
		return jobs.EndPublishFailed
	}
}

// undo removes the hidden names of steps that were not carried out. What cannot
// be removed is logged: it is hidden, and named after the job.
func (a *attempt) undo(ctx context.Context, steps []jobs.PublishStep, artifacts []jobs.Artifact) {
	for _, step := range steps {
		err := a.withStep(ctx, step, artifacts, func(s files.Step) error { return files.Undo(ctx, s) })
		if err != nil {
			a.e.log.Warn("a hidden file is left behind", "job_id", a.job.ID, "project", step.Project, "path", step.Temp, "error", err)
		}
	}
}

func (a *attempt) withStep(ctx context.Context, step jobs.PublishStep, artifacts []jobs.Artifact, do func(files.Step) error) error {
	root, err := a.e.openProject(ctx, a.job.Principal, step.Project)
	if err != nil {
		return err
	}
	defer root.Close()
	source := ""
	if i := slices.IndexFunc(artifacts, func(art jobs.Artifact) bool { return art.Name == step.Artifact }); i >= 0 {
		source = filepath.Join(a.e.exec.JobDir(a.job.ID), artifacts[i].Kept)
	}
	return do(files.Step{
		Verb: files.Verb(step.Verb), Root: root, Path: step.Path, Temp: step.Temp, Trash: step.Trash,
		OldSHA256: step.OldSHA256, SHA256: step.SHA256, Device: step.Device, Inode: step.Inode,
		Source: source, Job: a.job.ID,
	})
}

// carry carries the stored plan out. It may begin anywhere: each step says by what
// is there whether it was done (promise G6, and the crash in the middle).
func (a *attempt) carry() error {
	ctx := a.e.stopped
	plan := jobs.PublishPlan{Steps: slices.Clone(a.job.Plan.Steps)}
	done, reason, message := 0, jobs.EndOK, ""
	for i := range plan.Steps {
		res := a.carryStep(ctx, plan.Steps[i])
		if a.e.stopped.Err() != nil {
			return errLeft
		}
		switch res.Outcome {
		case files.Done:
			plan.Steps[i].Done = true
			if res.Trash != "" {
				plan.Steps[i].Trash = res.Trash
			}
			done++
			continue
		case files.Taken:
			reason = jobs.EndDestinationTaken
		case files.Changed:
			reason = jobs.EndInputChanged
		case files.Refused:
			reason = jobs.EndPublishFailed
		case files.Unfinished, files.Unproven:
			return a.unproven(plan, res)
		}
		message = res.Err.Error()
		break
	}
	a.undo(ctx, pending(plan.Steps), a.job.Artifacts)
	out := jobs.PublishOutcome(done, len(plan.Steps), reason)
	if !a.job.Tool.Effects.LeavesNothing() && out.SideEffect == jobs.SideEffectNone {
		out.SideEffect = jobs.SideEffectPossible
	}
	var result []byte
	if a.job.Result == nil && out.State == jobs.StateCompleted && a.tool != nil {
		// The tool started no process; its manifest says what there is to tell.
		var err error
		if result, err = a.tool.Result(ctx, a.vars); err != nil {
			a.e.log.Warn("a manifest's result cannot be worked out", "job_id", a.job.ID, "error", err)
		}
	}
	return &over{event: eventOf(out.State), why: orCompleted(message), change: func(j *jobs.Job) error {
		j.Plan = &plan
		j.Artifacts = placed(j.Artifacts, plan.Steps)
		j.Usage.Publishing += a.lap()
		if j.Result == nil && out.State == jobs.StateCompleted {
			j.Result = result
		}
		detail := fmt.Sprintf("%d of %d changes are in place, by device and inode", done, len(plan.Steps))
		return j.End(out, jobs.Evidence{Kind: jobs.EvidencePublished, Detail: detail, Attempt: a.n}, message, a.e.now())
	}}
}

func orCompleted(message string) string {
	if message == "" {
		return "completed"
	}
	return message
}

func pending(steps []jobs.PublishStep) []jobs.PublishStep {
	return slices.DeleteFunc(slices.Clone(steps), func(s jobs.PublishStep) bool { return s.Done })
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
	pause := 50 * time.Millisecond
	for range carryTries {
		err := a.withStep(ctx, step, a.job.Artifacts, func(s files.Step) error {
			res = files.Carry(ctx, s)
			return nil
		})
		if err != nil {
			res = files.Result{Outcome: files.Unfinished, Err: err}
		}
		if res.Outcome != files.Unfinished {
			return res
		}
		select {
		case <-ctx.Done():
			return res
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		}
	}
	return res
}

// carryTries bounds how long a step is tried when the system refuses: about 20 s.
const carryTries = 10

// unproven leaves the job unknown: the plan cannot be finished and nothing proves
// how far it went.
func (a *attempt) unproven(plan jobs.PublishPlan, res files.Result) error {
	why := "the publish plan could not be finished, and it cannot be told whether its changes were made: " + res.Err.Error()
	return &over{event: jobs.EventLose, why: why, change: func(j *jobs.Job) error {
		j.Plan = &plan
		out := jobs.Outcome{State: jobs.StateUnknown, SideEffect: jobs.SideEffectPossible, Retry: jobs.RetrySameKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: why, Attempt: a.n}, why, a.e.now())
	}}
}

// unpublished fails the job before any change; what the tool made is kept with it.
func (a *attempt) unpublished(reason jobs.EndReason, why string, keep func(*jobs.Job), evidence []jobs.Evidence) error {
	return a.endUnpublished(jobs.EventFail, jobs.PublishOutcome(0, 1, reason), why, keep, evidence)
}

func (a *attempt) stoppedUnpublished(keep func(*jobs.Job), evidence []jobs.Evidence) error {
	out := jobs.OutcomeOf(a.job.Tool.Effects, jobs.EndedStopped)
	return a.endUnpublished(jobs.EventStop, out, "stopped on request before its result was used", keep, evidence)
}

func (a *attempt) nothingToPublish(keep func(*jobs.Job), evidence []jobs.Evidence) error {
	out := jobs.OutcomeOf(a.job.Tool.Effects, jobs.EndedZero)
	return a.endUnpublished(jobs.EventComplete, out, "", keep, evidence)
}

func (a *attempt) endUnpublished(event jobs.Event, out jobs.Outcome, why string, keep func(*jobs.Job), evidence []jobs.Evidence) error {
	return &over{event: event, why: orCompleted(why), change: func(j *jobs.Job) error {
		if j.Stop != nil && event == jobs.EventComplete && j.Tool.Effects.LeavesNothing() {
			out, why = jobs.OutcomeOf(j.Tool.Effects, jobs.EndedStopped), "stopped on request before its result was used"
		}
		if out.State == jobs.StateCancelled {
			out.Reason = stopReason(j)
		}
		if keep != nil {
			keep(j)
		}
		if !j.Tool.Effects.LeavesNothing() && out.SideEffect == jobs.SideEffectNone {
			out.SideEffect = jobs.SideEffectPossible
		}
		proof := jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "no change was begun", Attempt: a.n}
		if len(evidence) > 0 {
			proof = evidence[0]
		}
		return j.End(out, proof, why, a.e.now())
	}}
}
