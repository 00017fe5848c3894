package engine

import (
	"fmt"
	"os"
	"strings"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// A store that was restored knows less of a job than the job's folder does. What the
// folder proves is concluded. A tool that leaves nothing behind may run again, but not one
// of which something may have been published: that it finds its destination taken, or
// what it was to replace replaced, would be its own doing, and an end that says so false.

// withoutIntent concludes an attempt whose intent is not stored. As a rule nothing was
// started then, and the job is queued again. Only a restored store can have forgotten an
// intent, or that there was a later attempt, and the folders tell of that.
func (a *attempt) withoutIntent() error {
	numbers, err := a.e.exec.Attempts(a.job.ID)
	if err != nil {
		return err
	}
	var last executor.Found // that was started
	how, used := "", false
	for _, n := range numbers {
		if n < a.n {
			continue
		}
		found, watched, err := a.foundAt(n)
		if err != nil {
			return err
		}
		switch found.Kind {
		case executor.NeverStarted, executor.FolderGone, executor.Held:
			continue
		case executor.Exited:
			if found.Exit.NotStarted || endedOf(*found.Exit) != jobs.EndedZero {
				if n == a.n {
					return a.finish(found)
				}
				break
			}
			// While its keeper lived nobody had seen its end, and so nobody used it.
			used = used || !watched
		case executor.Unwatched:
			if a.job.Tool.Effects.LeavesNothing() {
				if err := a.e.exec.StopTree(a.e.stopped, found); err != nil {
					return err
				}
			}
			last = found
		case executor.Lost, executor.Rebooted:
		}
		how = fmt.Sprintf("attempt %d was found %s", n, found.Kind)
	}
	if how == "" && a.overtaken() {
		return a.lost(executor.Found{}, jobs.EndedFolderGone, a.job.Overtaken)
	}
	if how == "" {
		return a.requeue(jobs.Evidence{Kind: jobs.EvidenceNeverStarted, Detail: "no intent was stored, so nothing was started", Attempt: a.n}, executor.Found{})
	}
	return a.forgotten(last, how, used)
}

// overtaken reports whether the store that was replaced by this one knew more of the job
// than it is to be started after.
func (a *attempt) overtaken() bool {
	return a.job.Overtaken != "" && !a.job.Tool.Effects.LeavesNothing()
}

// foundAt tells what became of an attempt, once no keeper has it any more. As a rule one
// that has it got no orders, and leaves: its daemon is gone.
func (a *attempt) foundAt(n int) (found executor.Found, watched bool, err error) {
	for {
		found, err = a.e.exec.Inspect(a.job.ID, n)
		if err != nil || found.Kind != executor.Held {
			return found, watched, err
		}
		running, held, err := a.e.exec.Attach(a.job.ID, n)
		if err != nil {
			return found, watched, err
		}
		if held {
			_, err = running.Wait(a.e.stopped)
			running.Detach()
			if err != nil {
				return found, watched, err
			}
			watched = true
		}
	}
}

// forgotten gives an attempt up whose folder knows of what came before the store was
// restored, and the store does not; used says that the tool succeeded and that what it
// made may have been used.
func (a *attempt) forgotten(found executor.Found, how string, used bool) error {
	why := "this attempt, or one after it, was started before the store was restored, which has forgotten it: " + how
	if places := a.mayHavePublished(); used && places != "" {
		return a.unprovable(why + "; what it made may be in place, so it is not run again: look at " + places)
	}
	return a.lost(found, jobs.EndedFolderGone, why)
}

// unprovable leaves a job unknown that may have changed a project.
func (a *attempt) unprovable(why string) error {
	return &over{why: why, change: func(j *jobs.Job) error {
		out := jobs.Outcome{State: jobs.StateUnknown, SideEffect: jobs.SideEffectPossible, Retry: jobs.RetrySameKey}
		return j.End(out, jobs.Evidence{Kind: jobs.EvidenceLostAttempt, Detail: why, Attempt: a.n}, why, a.e.now())
	}}
}

// mayHavePublished lists in words what a tool that leaves nothing else behind may have
// changed; "": nothing.
func (a *attempt) mayHavePublished() string {
	if !a.job.Tool.Effects.LeavesNothing() {
		return ""
	}
	if err := a.load(); a.tool == nil || a.vars.Args == nil {
		return "its destination (" + plainMessage(err) + ")"
	}
	var places []string
	for _, step := range a.wanted() {
		places = append(places, fmt.Sprintf("%q in project %s", step.Path, step.Project))
	}
	return strings.Join(places, ", ")
}

// wasTidied reports whether the tool's own folder is gone. It goes only once what the attempt
// led to is stored, so a store that does not know that has forgotten it.
func (a *attempt) wasTidied() bool {
	_, err := os.Lstat(a.e.exec.AttemptDir(a.job.ID, a.n).Work())
	return isNotExist(err)
}

// tidiedBefore gives an attempt up that exited with 0 and was tidied since.
func (a *attempt) tidiedBefore(found executor.Found) error {
	return a.forgotten(found, "its exit code is 0, and its folder was tidied since", true)
}

// movedBefore says that what a job without a plan was to remove lies in the trash under
// the job's own name: its plan was carried out, and the store has forgotten it. "": not.
func (a *attempt) movedBefore() (why string, err error) {
	for i, step := range a.wanted() {
		root, err := a.e.openProject(a.e.stopped, a.job.Principal, step.Project)
		if err != nil {
			return "", nil //nolint:nilerr // staging says so
		}
		trash := files.TrashPath(a.job.ID, i, step.Path)
		there, err := root.Holds(trash)
		_ = root.Close()
		switch {
		case err != nil:
			return "", err
		case there:
			return fmt.Sprintf("this job was carried out before the store was restored, which has forgotten it: %q lies in the trash of project %s as %q", step.Path, step.Project, trash), nil
		}
	}
	return "", nil
}
