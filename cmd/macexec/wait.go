package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// waiting says how long to wait for a job, and what to do then.
type waiting struct {
	bounded  bool // by limit
	limit    time.Duration
	until    time.Time // when the limit has passed
	download string    // a folder for the artifacts; empty: none
}

// follow waits for a job, prints it as it then is, and returns what its state
// means. The end of ctx ends the wait and not the job. Whatever fails here, the job is
// accepted: the exit code is never one of those that say that it is not.
func (a *app) follow(ctx context.Context, c *client.Client, job *macexecv1.Job, w waiting) error {
	job, why := a.wait(ctx, c, job, w)
	if err := a.printAccepted(job); err != nil {
		return err
	}
	switch {
	case why != "":
		a.remarkf("%s", why)
		a.remarkf("%s", jobGoesOn(job.GetId()))
	case exitOfJob(job) != exitOK:
		a.remarkEnd(job)
	}
	exit := exitOfJob(job)
	if w.download != "" && client.Settled(job.GetState()) {
		// Also of a job that failed: its artifacts are kept when their place was taken.
		if err := a.download(ctx, c, job, w.download); err != nil {
			missing := a.notAllHere(ctx, job, w.download, err)
			if exit == exitOK {
				exit = missing
			}
		}
	}
	return ended(exit)
}

// notAllHere says that a job ended and its artifacts did not all arrive, and how to
// fetch them. It is the end of a call whose job completed: the same call with the same
// key fetches them, too.
func (a *app) notAllHere(ctx context.Context, job *macexecv1.Job, dir string, err error) exitCode {
	again := "macexec jobs artifacts " + job.GetId() + " --download " + dir
	if ctx.Err() != nil {
		a.remarkf("detached: the artifacts of job %s are not all here. Fetch the rest: %s", job.GetId(), again)
		return exitNotSettled
	}
	a.remarkf("the artifacts of job %s are not all here: %s. Fetch the rest, there or elsewhere: %s", job.GetId(), explain(err).Error(), again)
	return exitAnswerLost
}

// printAccepted prints a job that exists, whether or not anybody can read that.
func (a *app) printAccepted(job *macexecv1.Job) error {
	if err := a.printJob(job); err != nil {
		a.remarkf("job %s is accepted, and could not be printed: %s. Look at it: macexec jobs show %s", job.GetId(), explain(err).Error(), job.GetId())
		return ended(exitAnswerLost)
	}
	return nil
}

// wait returns the job once it is settled, or as last seen with the reason why the
// wait ended before.
func (a *app) wait(ctx context.Context, c *client.Client, job *macexecv1.Job, w waiting) (last *macexecv1.Job, why string) {
	if client.Settled(job.GetState()) {
		return job, ""
	}
	cancel := context.CancelFunc(func() {})
	limited := ctx
	if w.bounded {
		limited, cancel = context.WithDeadline(ctx, w.until)
	}
	defer cancel()
	v := a.watchView(job)
	stop := v.lookAgain(limited, c, job.GetId())
	last, err := c.Follow(limited, job.GetId(), v.seen)
	stop()
	if last == nil {
		last = job
	}
	// What was said about this submission is true of the job as it is now, too.
	last.Replayed, last.RequestContext = job.GetReplayed(), job.GetRequestContext()
	for _, warning := range job.GetWarnings() {
		if !slices.Contains(last.GetWarnings(), warning) {
			last.Warnings = append(last.Warnings, warning)
		}
	}
	switch {
	case err == nil:
		return last, ""
	case ctx.Err() != nil:
		return last, "detached."
	case errors.Is(err, context.DeadlineExceeded):
		return last, "the wait ended after " + w.limit.String() + "."
	default:
		return last, "the daemon went away while it was waited for: " + explain(err).Error() + "."
	}
}

// remarkEnd says on stderr why a job is not completed and what can be done.
func (a *app) remarkEnd(job *macexecv1.Job) {
	var b strings.Builder
	colour := a.ErrTerminal && a.colour()
	fmt.Fprintf(&b, "%s job %s is %s", show.Red.Paint("Error:", colour), show.Line(job.GetId()), document.Word(job.GetState()))
	if reason := document.Word(job.GetEndReason()); reason != "" {
		fmt.Fprintf(&b, " (%s)", reason)
	}
	if job.GetMessage() != "" {
		fmt.Fprintf(&b, ": %s", show.Line(job.GetMessage()))
	}
	b.WriteByte('\n')
	if job.GetCause() != "" {
		fmt.Fprintf(&b, "  cause: %s\n", show.Line(job.GetCause()))
	}
	if try := afterwards(job); try != "" {
		fmt.Fprintf(&b, "%s %s\n", show.Bold.Paint("Try:", colour), try)
	}
	io.WriteString(a.Err, b.String()) //nolint:errcheck // as a remark
}

// afterwards says what can be done about a job that did not complete.
func afterwards(job *macexecv1.Job) string {
	switch job.GetState() {
	case macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL:
		return "macexec jobs approve " + job.GetId() + ", or macexec jobs deny " + job.GetId()
	case macexecv1.JobState_JOB_STATE_UNKNOWN:
		return "find out what happened, then " + resolveLine(job.GetId())
	case macexecv1.JobState_JOB_STATE_FAILED:
		if job.GetRetry() == macexecv1.Retry_RETRY_NEW_KEY {
			return "macexec jobs logs " + job.GetId() + "; then macexec jobs rerun " + job.GetId() + " makes the call once more"
		}
		return "macexec jobs logs " + job.GetId()
	case macexecv1.JobState_JOB_STATE_CANCELLED:
		if job.GetEndReason() == macexecv1.EndReason_END_REASON_RUN_CANCELLED {
			return "its run is cancelled and stays closed; make the call in another run, with another --run-id"
		}
		return "macexec jobs rerun " + job.GetId() + " makes the call once more"
	default:
		return ""
	}
}

// download fetches every artifact of a job into a folder: a file or a folder by its
// name, the files of a list into a folder with the list's name. Nothing that is
// there is replaced; what an earlier download brought is left as it is, so that one
// that ended half-way can be given again.
func (a *app) download(ctx context.Context, c *client.Client, job *macexecv1.Job, dir string) error {
	if err := makeFolder(dir); err != nil {
		return err
	}
	for _, artifact := range job.GetArtifacts() {
		reference := artifactReference(job, artifact)
		info, err := c.Stat(ctx, reference)
		if err != nil {
			return beforehand(err)
		}
		name := placeOf(artifact.GetName())
		path := filepath.Join(dir, name)
		if err := makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		_, before := os.Lstat(path)
		if err := a.fetch(ctx, c, info, path, client.KeepSame()); err != nil {
			return err
		}
		if before == nil {
			a.remarkf("%s is there already", path)
			continue
		}
		a.remarkf("downloaded %s (%s)", path, show.Size(info.GetTransferSize()))
	}
	return nil
}

func artifactReference(job *macexecv1.Job, artifact *macexecv1.Artifact) string {
	return "job:" + job.GetId() + "/" + artifact.GetName()
}

// placeOf says where in the folder an artifact goes: by its name in the manifest, of
// which a job has each once.
func placeOf(artifact string) string {
	if list, file, isList := strings.Cut(artifact, "/"); isList {
		return filepath.Join(plainName(list), plainName(file))
	}
	return plainName(artifact)
}

// makeFolder makes a folder of the caller's own, as mkdir -p does.
func makeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the umask decides who may look
		return unwritable(err)
	}
	return nil
}

// plainName returns the first of the names that is a plain file name, so that
// nothing is ever written outside the folder.
func plainName(names ...string) string {
	for _, name := range names {
		if name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00") {
			return name
		}
	}
	return "artifact"
}
