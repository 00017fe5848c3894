package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// submission is how a call is made and what is done then; call and jobs rerun share
// it.
type submission struct {
	key, downloadTo string
	chosen          bool // the key is the caller's own, so it may be known already
	detach, bounded bool
	limit           time.Duration
}

func (s *submission) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.key, "key", "", "the idempotency key (one is made and printed on stderr)")
	flags.BoolVar(&s.detach, "detach", false, "return as soon as the call is accepted")
	flags.DurationVar(&s.limit, "wait", 0, "wait at most so long (no limit)")
	flags.StringVar(&s.downloadTo, "download", "", "fetch the artifacts of the ended job into DIR")
	nothing(cmd, "key", "wait")
	folders(cmd, "download")
}

// check refuses flags that cannot be meant, before anything is sent.
func (s *submission) check(cmd *cobra.Command) error {
	s.bounded, s.chosen = cmd.Flags().Changed("wait"), cmd.Flags().Changed("key")
	switch {
	case s.detach && (s.bounded || s.downloadTo != ""):
		return usagef("leave out --detach, or use macexec jobs wait and macexec jobs artifacts later", "--detach does not wait, so --wait and --download have no meaning with it")
	case s.limit < 0:
		return usagef("--wait 30s", "the wait %s is negative", s.limit)
	case s.chosen && s.key == "":
		return usagef("leave out --key to have one made", "the key is empty")
	default:
		return nil
	}
}

// room makes the folder of the downloads, before the call: one that cannot be made is no
// reason to lose a result.
func (s *submission) room() error {
	if s.downloadTo == "" {
		return nil
	}
	return makeFolder(s.downloadTo)
}

// ownKey makes a key where none was given, and tells it before anything is sent:
// whatever happens then, the same key repeats the call without starting it twice. Of
// a key that was given it returns what it stands for, nil if it is free: of a known one
// nothing has to be uploaded, and the daemon answers it whatever has become of the
// world (promise G2).
func (a *app) ownKey(ctx context.Context, c *client.Client, s *submission) (*macexecv1.KeyRecord, error) {
	if !s.chosen {
		s.key = client.NewKey()
		a.remarkf("key: %s", s.key)
		return nil, nil //nolint:nilnil // it is free
	}
	known, err := c.LookupKey(ctx, s.key)
	if e, ok := errors.AsType[*client.Error](err); ok && jobs.Code(e.Code()) == jobs.CodeNotAuthorized {
		return nil, nil //nolint:nilnil // who may call and not look is told by the call itself
	}
	if err != nil {
		return nil, submitError(err, s.key)
	}
	return known, nil
}

// named is how arguments name a local file that the host has, or had, already.
func (a *app) named(ctx context.Context, path string) (string, error) {
	reference, err := client.Reference(ctx, path)
	if err != nil {
		return "", beforehand(err)
	}
	return reference, nil
}

// unmade is the end of a call that could not be made. With a key of the caller's own that
// is known it must not pass for a refusal, after which there is no job: the key has one,
// and only this call could not be compared with it. A key that was free before is looked
// up again, since another command may have used it meanwhile.
func (a *app) unmade(ctx context.Context, c *client.Client, s *submission, known *macexecv1.KeyRecord, why error) error {
	if known == nil && s.chosen {
		if now, err := c.LookupKey(ctx, s.key); err == nil {
			known = now
		}
	}
	if known == nil {
		return why
	}
	reason := explain(why)
	job := known.GetJobId()
	var f *failure
	switch known.GetKind() {
	case macexecv1.KeyKind_KEY_KIND_FENCE:
		f = failed(exitRefused, jobs.CodeKeyFenced, fmt.Sprintf("the key %s is fenced, so nothing ever starts under it; and this call could not be made: %s", s.key, reason.Error()),
			"macexec jobs show --key "+s.key)
	case macexecv1.KeyKind_KEY_KIND_TOMBSTONE:
		f = failed(exitExpired, jobs.CodeKeyExpired, fmt.Sprintf("the key %s belongs to job %s, whose record is no longer kept; this call could not be compared with it: %s", s.key, job, reason.Error()),
			"macexec jobs show --key "+s.key)
	default:
		f = failed(exitKeyConflict, jobs.CodeKeyConflict, fmt.Sprintf("the key %s belongs to job %s, and this call could not be compared with it: %s", s.key, job, reason.Error()),
			"look at the key's job: macexec jobs show "+job)
		// Not a new key: this may be a repeat of that very call.
		f.document.UserAction = macexecv1.UserAction_USER_ACTION_INSPECT_JOB
	}
	f.document.JobId = job
	if code := reason.document.GetCode(); code != "" {
		f.document.Metadata = map[string]string{"not_compared": code}
	}
	return f
}

// submit makes the call under the submission's key, and waits for its job.
func (a *app) submit(ctx context.Context, c *client.Client, s *submission, req *macexecv1.SubmitJobRequest) error {
	req.IdempotencyKey = s.key
	w := waiting{bounded: s.bounded, limit: s.limit, until: clock().Add(s.limit), download: s.downloadTo}
	job, err := s.answer(ctx, c, req, w)
	if err != nil {
		return withIDs(err, s.key, req.GetContext())
	}
	if job.GetReplayed() {
		a.remarkf("replay: this key belongs to job %s; nothing new was started", job.GetId())
	}
	if s.detach {
		return a.accepted(job)
	}
	return a.follow(ctx, c, job, w)
}

// answer sends the call and waits for what the daemon says to it, also no longer than
// the wait: a decision, and the turn of the key before it, may take long. A wait of no
// time is none for the job, and could not be one for an answer.
func (s *submission) answer(ctx context.Context, c *client.Client, req *macexecv1.SubmitJobRequest, w waiting) (*macexecv1.Job, error) {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if w.bounded && w.limit > 0 {
		limited, cancel = context.WithDeadline(ctx, w.until)
	}
	defer cancel()
	job, err := c.Submit(limited, req)
	if err == nil {
		return job, nil
	}
	err = submitError(err, s.key)
	if f := explain(err); f.code == exitAnswerLost && limited.Err() != nil && ctx.Err() == nil {
		f = &failure{code: f.code, document: proto.CloneOf(f.document), try: f.try}
		f.document.Message = fmt.Sprintf("the call was sent, and its answer was not there yet after --wait %s: it may be accepted already, or become so", w.limit)
		return nil, f
	}
	return nil, err
}

// accepted is the end of a call that does not wait: the call is accepted, whatever
// becomes of its job.
func (a *app) accepted(job *macexecv1.Job) error {
	if job.GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		a.remarkApproval(job)
	}
	return a.printAccepted(job)
}
