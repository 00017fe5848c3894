package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/macexec/macexec/jobs"
)

// Approve records a person's yes. bindingDigest says what the person looked at;
// empty means what the job asks for now.
func (e *Engine) Approve(ctx context.Context, c Caller, id, bindingDigest, reason string) (*jobs.Job, error) {
	job, err := e.decide(ctx, c, id, "approved: "+reason, func(j *jobs.Job) error {
		return j.Approve(c.Principal, reason, bindingDigest, e.now())
	})
	if err != nil {
		return nil, err
	}
	e.forget(id)
	e.admit(job)
	return e.decorated(job), nil
}

// Deny records a person's no; the job is cancelled.
func (e *Engine) Deny(ctx context.Context, c Caller, id, reason string) (*jobs.Job, error) {
	job, err := e.decide(ctx, c, id, "denied: "+reason, func(j *jobs.Job) error {
		return j.Deny(c.Principal, reason, e.now())
	})
	if err != nil {
		return nil, err
	}
	e.forget(id)
	return job, nil
}

func (e *Engine) decide(ctx context.Context, c Caller, id, message string, change func(*jobs.Job) error) (*jobs.Job, error) {
	before, err := e.visible(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if ok, why := e.policy.MayDecide(before.Principal, c.Principal); !ok {
		return nil, jobs.Errorf(jobs.CodeNotAuthorized, "%s", why).WithJob(id)
	}
	return e.store.Update(context.WithoutCancel(ctx), id, func(j *jobs.Job) (jobs.Note, error) {
		if j.State == jobs.StateAwaitingApproval && e.deadlines.passed(j, j.Approval.ExpiresAt) {
			return jobs.Note{}, jobs.Errorf(jobs.CodeApprovalDecided, "the approval of job %s expired at %s", id, j.Approval.ExpiresAt.Format(time.RFC3339)).WithJob(id)
		}
		if err := change(j); err != nil {
			return jobs.Note{}, err
		}
		return jobs.Note{Principal: c.Principal, Message: message, Data: j.Approval}, nil
	})
}

// tidyJob removes the work folders of a job that ended while nobody attended to it.
func (e *Engine) tidyJob(job *jobs.Job) {
	if job.State == jobs.StateUnknown {
		return // they may tell somebody what it was
	}
	for _, at := range job.Attempts {
		if err := e.exec.Tidy(job.ID, at.N, len(job.Artifacts) > 0); err != nil {
			e.log.Warn("an attempt's folder could not be tidied", "job_id", job.ID, "attempt", at.N, "error", err)
		}
	}
}

// sealBinding fixes what a person is asked to approve by its digest.
func sealBinding(b jobs.Binding) (jobs.Binding, error) {
	b.Digest = ""
	text, err := json.Marshal(b) // maps are written in sorted order
	if err != nil {
		return b, jobs.Errorf(jobs.CodeInternal, "write the binding down: %w", err)
	}
	sum := sha256.Sum256(text)
	b.Digest = hex.EncodeToString(sum[:])
	return b, nil
}

// bindingDifference says in words what of an approved binding is not so any more,
// or "". The policy may have become laxer or stricter: that is looked at apart.
func bindingDifference(approved, now jobs.Binding) string {
	switch {
	case approved.Tool != now.Tool || approved.Version != now.Version || approved.ManifestDigest != now.ManifestDigest:
		return "the tool " + approved.Tool + " is not the one that was approved"
	case approved.Fingerprint != now.Fingerprint:
		return "the call is not the one that was approved"
	case approved.Requester != now.Requester:
		return "the requester is not the one whose call was approved"
	}
	for pointer, digest := range approved.Inputs {
		if now.Inputs[pointer] != digest {
			return fileAt(pointer) + " has changed since it was approved"
		}
	}
	for pointer := range now.Inputs {
		if _, ok := approved.Inputs[pointer]; !ok {
			return fileAt(pointer) + " was not there when it was approved"
		}
	}
	for path, digest := range approved.Programs {
		if now.Programs[path] != digest {
			return "the program " + path + " has changed since it was approved"
		}
	}
	for path := range now.Programs {
		if _, ok := approved.Programs[path]; !ok {
			return "the program " + path + " is not one that was approved"
		}
	}
	return ""
}

// fileAt names a file of a binding: an argument's pointer, or "verb:path" for one
// that would be replaced or removed.
func fileAt(key string) string {
	if verb, path, ok := strings.Cut(key, ":"); ok && !strings.HasPrefix(key, "/") {
		return fmt.Sprintf("the file %q, which the call would %s,", path, verb)
	}
	return "the file that " + key + " names"
}
