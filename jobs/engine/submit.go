package engine

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// submit decides a call and, if it is accepted, stores it as a job before it
// answers. A decision that is being written is not cut short by the caller's going
// away: it must not depend on who still listens (promise G3).
//
// The order is the promise: the known key comes before everything that depends on
// the world, so that a repeat gets its job even when files are gone, the policy
// is tighter or the manifest is newer (promise G2).
func (e *Engine) submit(ctx context.Context, c Caller, req Request) (Receipt, error) {
	durable := context.WithoutCancel(ctx)
	if err := checkRequest(req); err != nil {
		return Receipt{}, err
	}
	args, findings := schemas.Parse(req.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		return Receipt{}, e.reject(durable, c, req, refusal(syntaxCode(findings), "syntax", findings))
	}
	if req.Key != "" {
		receipt, known, err := e.repeat(durable, c, req, args)
		if known || err != nil {
			return receipt, err
		}
	}
	if draining := refusedBy(e.currentMode()); draining != nil {
		return e.drained(durable, c, req, args, draining)
	}
	if err := e.looksPossible(ctx, c, req); err != nil {
		return Receipt{}, err
	}
	return e.submitNew(ctx, c, req, args)
}

// looksPossible refuses a new call for what can be told without its arguments.
func (e *Engine) looksPossible(ctx context.Context, c Caller, req Request) error {
	durable := context.WithoutCancel(ctx)
	if id := req.Options.Supersedes; id != "" {
		// The write below decides; this says sooner, and names another host.
		_, err := e.visible(ctx, c, id)
		if refused, ok := errors.AsType[*jobs.Error](err); ok && refusesCall(refused.Code) {
			return e.reject(durable, c, req, refused)
		}
		if err != nil {
			return err
		}
	}
	if tool, ok := e.registry.Tool(req.Tool, req.ToolVersion); ok && req.Key == "" && !keyOptional(tool) {
		return e.reject(durable, c, req, jobs.Errorf(jobs.CodeKeyRequired,
			"%s does more than read, so the call needs an idempotency key of your choice; the same key again never starts it twice", tool.Tool))
	}
	if by := req.Options.StartBy; !by.IsZero() && e.now().After(by) {
		return e.reject(durable, c, req, jobs.Errorf(jobs.CodeTooLate,
			"start_by was %s, which has passed; the key is still free", by.Format(time.RFC3339)))
	}
	return nil
}

// submitNew judges a call that was not known a moment ago, and stores it as a job if
// it is accepted. The write looks at the key once more.
func (e *Engine) submitNew(ctx context.Context, c Caller, req Request, args any) (Receipt, error) {
	durable := context.WithoutCancel(ctx)
	j, refused := e.judge(ctx, c, req, args)
	switch {
	case refused != nil && refused.Verdicts == nil:
		return Receipt{}, refused // a fault: nothing is decided
	case refused != nil:
		return Receipt{}, e.reject(durable, c, req, refused)
	}
	if j.decision.Effect == jobs.Deny {
		denied := jobs.Errorf(jobs.CodePolicyDenied, "the policy denies this call: %s (rule %s)", j.decision.Reason, first(j.decision.Rules))
		denied.Verdicts, denied.Decision = &j.verdicts, &j.decision
		return Receipt{}, e.reject(durable, c, req, denied)
	}
	job, err := e.newJob(c, req, j)
	if err != nil {
		return Receipt{}, err
	}
	job.Trace = e.observer.Trace(ctx)
	data, err := json.Marshal(submittedData{
		Approval: job.Approval, Context: req.Context, Decision: j.decision,
		Fingerprint: job.Fingerprint, Tool: job.Tool, Verdicts: j.verdicts,
	})
	if err != nil {
		return Receipt{}, jobs.Errorf(jobs.CodeInternal, "describe the job: %w", err)
	}
	t, held := e.expect(ctx, job, j, args)
	if held != nil {
		return Receipt{}, e.reject(durable, c, req, held)
	}
	return e.decideNew(durable, c, req, args, job, t, data)
}

// decideNew lets the store decide on a call that was judged. t has its locks already if
// the call would not wait for them; they are given back unless the job is accepted.
func (e *Engine) decideNew(ctx context.Context, c Caller, req Request, args any, job *jobs.Job, t turn, data []byte) (Receipt, error) {
	accepted := false
	defer func() {
		if !accepted {
			e.sched.remove(t.id)
			e.dispatch()
		}
	}()
	var (
		sub jobs.Submitted
		err error
	)
	draining := e.whileAccepting(func() {
		sub, err = e.store.Submit(ctx, jobs.Submission{
			Key: jobs.Key{Principal: c.Principal, Text: job.Key}, Fingerprint: job.Fingerprint, Job: job,
			Entry: entryOf(c, req, jobs.EntrySubmitted, "", data),
		})
	})
	if draining != nil {
		return e.drained(ctx, c, req, args, draining)
	}
	if refused, ok := errors.AsType[*jobs.Error](err); ok && refusesCall(refused.Code) {
		return Receipt{}, e.reject(ctx, c, req, refused)
	}
	if err != nil {
		return Receipt{}, err
	}
	if sub.Outcome == jobs.SubmitClosed {
		return Receipt{}, e.reject(ctx, c, req, jobs.Errorf(jobs.CodeRunClosed,
			"%s, so nothing of it starts any more; the key is still free", sub.Closed))
	}
	if sub.Outcome == jobs.SubmitAccepted {
		accepted = true
		t.rank = rankOf(sub.Job)
		e.queue(sub.Job, t)
	}
	return e.answer(req, sub, nil)
}

// expect tells the scheduler of a job that is about to be stored. One that does not
// wait for locks has them from here on, or is refused.
func (e *Engine) expect(ctx context.Context, job *jobs.Job, j *judgement, args any) (turn, *jobs.Error) {
	if job.State != jobs.StateQueued && job.Call.Options.OnLock != jobs.OnLockRefuse {
		t := turn{id: job.ID, principal: job.Principal, class: j.slot, rank: rankOf(job)} // a person decides first
		e.sched.expect(t)
		return t, nil
	}
	t := e.turnOf(ctx, job, j.slot, j.tool, args)
	if !t.refuse {
		e.sched.expect(t)
		return t, nil
	}
	t.rank.seq = math.MaxUint64 // it comes after all that are accepted
	if o, held := e.sched.hold(t); !held {
		err := o.refusal()
		err.Verdicts, err.Decision = &j.verdicts, &j.decision
		return t, err
	}
	return t, nil
}

// refusesCall tells the refusals that were found in the world as it is, most of them by
// the store at the very write, from what failed.
func refusesCall(code jobs.Code) bool {
	switch code {
	case jobs.CodeJobNotFound, jobs.CodeOtherHost, jobs.CodeStateConflict, jobs.CodeSuperseded, jobs.CodeFileNotFound:
		return true
	default:
		return false
	}
}

// drained answers a call that came to a draining host: with its job if it is known by
// now, else with the refusal. No key becomes known any more, so this look is the last.
func (e *Engine) drained(ctx context.Context, c Caller, req Request, args any, refusal *jobs.Error) (Receipt, error) {
	if req.Key != "" {
		if receipt, known, err := e.repeat(ctx, c, req, args); known || err != nil {
			return receipt, err
		}
	}
	return Receipt{}, e.reject(ctx, c, req, refusal)
}

// submittedData is what the journal keeps of an accepted call besides the entry's own
// fields.
type submittedData struct {
	Approval    *jobs.Approval   `json:"approval"`
	Context     jobs.CallContext `json:"context"`
	Decision    jobs.Decision    `json:"decision"`
	Fingerprint string           `json:"fingerprint"`
	Tool        jobs.ToolRef     `json:"tool"`
	Verdicts    jobs.Verdicts    `json:"verdicts"`
}

// repeat answers a call whose key is known.
func (e *Engine) repeat(ctx context.Context, c Caller, req Request, args any) (Receipt, bool, error) {
	key := jobs.Key{Principal: c.Principal, Text: req.Key}
	record, err := e.store.LookupKey(ctx, key)
	if jobs.CodeOf(err) == jobs.CodeJobNotFound {
		return Receipt{}, false, nil
	}
	if err != nil {
		return Receipt{}, false, err
	}
	// Which arguments are secret is what the first submission said: the manifest
	// may have changed since.
	secret := map[string]bool{}
	if record.Kind == jobs.KeyJob {
		job, err := e.store.Get(ctx, record.JobID)
		if err != nil {
			return Receipt{}, true, err
		}
		for pointer := range job.Sealed {
			secret[pointer] = true
		}
	}
	sub, err := e.store.Submit(ctx, jobs.Submission{
		Key: key, Fingerprint: e.fingerprint(req, args, secret),
		Entry: entryOf(c, req, jobs.EntryReplayed, "", nil),
	})
	if err != nil {
		return Receipt{}, true, err
	}
	receipt, err := e.answer(req, sub, nil)
	if err == nil {
		receipt.Warnings = e.changedInputs(ctx, sub.Job)
	}
	return receipt, true, err
}

// answer turns what the store decided into a receipt or an error.
func (e *Engine) answer(req Request, sub jobs.Submitted, warnings []string) (Receipt, error) {
	switch sub.Outcome {
	case jobs.SubmitAccepted, jobs.SubmitReplayed:
		return Receipt{
			Job: e.decorated(sub.Job), Replayed: sub.Outcome == jobs.SubmitReplayed,
			Context: req.Context, Warnings: warnings,
		}, nil
	case jobs.SubmitConflict:
		return Receipt{}, jobs.Errorf(jobs.CodeKeyConflict,
			"the key %q belongs to job %s, which was another call; choose a new key for a new call", req.Key, sub.Key.JobID).
			WithJob(sub.Key.JobID).With("key", req.Key)
	case jobs.SubmitExpired:
		return Receipt{}, jobs.Errorf(jobs.CodeKeyExpired,
			"the key %q was used for job %s; its result has expired and it will not run again", req.Key, sub.Key.JobID).
			WithJob(sub.Key.JobID).With("key", req.Key)
	case jobs.SubmitFenced:
		return Receipt{}, jobs.Errorf(jobs.CodeKeyFenced,
			"the key %q was fenced before anything started under it, and nothing will", req.Key).With("key", req.Key)
	case jobs.SubmitFree, jobs.SubmitClosed:
	}
	return Receipt{}, jobs.Errorf(jobs.CodeInternal, "the store answered a submission with outcome %d", sub.Outcome)
}

// newJob makes the record of an accepted call; it is not stored yet.
func (e *Engine) newJob(c Caller, req Request, j *judgement) (*jobs.Job, error) {
	now := e.now()
	id, err := e.newJobID(now)
	if err != nil {
		return nil, err
	}
	key, made := req.Key, false
	if key == "" {
		key, made = newRandomKey(), true
	}
	arguments, err := json.Marshal(j.tool.Mask(j.args))
	if err != nil {
		return nil, jobs.Errorf(jobs.CodeInternal, "write the arguments down: %w", err)
	}
	if len(j.secrets) == 0 {
		arguments = slices.Clone(req.Arguments) // as written
	}
	job := &jobs.Job{
		ID: id, Host: e.store.HostID(),
		Principal: c.Principal, Key: key, KeyMade: made, Fingerprint: j.fingerprint,
		Call: jobs.Call{
			Tool: req.Tool, ToolVersion: req.ToolVersion, Arguments: arguments,
			Purpose: req.Purpose, Options: req.Options, Context: req.Context,
		},
		Tool: j.ref, Verdicts: j.verdicts, Decision: j.decision, Inputs: j.inputs,
		SubmittedAt: now,
	}
	if len(j.secrets) > 0 {
		job.Sealed = map[string][]byte{}
		for pointer, value := range j.secrets {
			job.Sealed[pointer] = e.vault.seal(id, pointer, value)
		}
	}
	if j.decision.Effect == jobs.RequireApproval {
		job.Approval = &jobs.Approval{Binding: j.binding, ExpiresAt: now.Add(e.limits().ApprovalExpiry)}
		err = job.Hold(now)
	} else {
		err = job.Accept(now)
	}
	return job, err
}

// Check says what Submit would answer now. It uses no key and runs nothing.
func (e *Engine) Check(ctx context.Context, c Caller, req Request) (Check, error) {
	if err := checkRequest(req); err != nil {
		return Check{}, err
	}
	args, findings := schemas.Parse(req.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		check := Check{Verdicts: *refusal(syntaxCode(findings), "syntax", findings).Verdicts}
		if tool, ok := e.registry.Tool(req.Tool, req.ToolVersion); ok {
			check.Tool = e.refOf(tool)
			return check, nil
		}
		return Check{}, e.noSuchTool(req)
	}
	j, refused := e.judge(ctx, c, req, args)
	if refused != nil {
		if refused.Verdicts == nil || refused.Code == jobs.CodeToolNotFound {
			return Check{}, refused
		}
		return Check{Tool: j.ref, Verdicts: *refused.Verdicts}, nil
	}
	check := Check{
		Tool: j.ref, Verdicts: j.verdicts, Decision: &j.decision, Fingerprint: j.fingerprint,
		Programs: j.programs, Publishes: j.publishes,
	}
	if j.decision.Effect == jobs.Deny {
		return check, nil
	}
	call := &jobs.Job{Principal: c.Principal, Call: jobs.Call{Options: req.Options, Context: req.Context}, SubmittedAt: e.now(), Seq: math.MaxUint64}
	t := e.turnOf(ctx, call, j.slot, j.tool, args)
	if o, ok := e.sched.obstacle(t); ok && t.refuse {
		held := o.refusal()
		held.Verdicts, held.Decision = &j.verdicts, &j.decision
		return Check{}, held
	} else if ok {
		check.Warnings = append(check.Warnings, "the job would have to wait: "+o.String())
	}
	return check, nil
}

// reject journals a refusal before it is answered. If the journal cannot be
// written the answer is that, and still no.
func (e *Engine) reject(ctx context.Context, c Caller, req Request, refused *jobs.Error) error {
	data, err := json.Marshal(map[string]any{
		"code": refused.Code, "verdicts": refused.Verdicts, "decision": refused.Decision,
		"tool": req.Tool, "key": req.Key, "context": req.Context,
	})
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "describe the refusal: %w", err)
	}
	if err := e.store.Append(ctx, entryOf(c, req, jobs.EntryRejected, refused.Message, data)); err != nil {
		return err
	}
	return refused
}

func entryOf(c Caller, req Request, kind jobs.EntryKind, message string, data []byte) jobs.Entry {
	return jobs.Entry{
		Kind: kind, Principal: c.Principal, Owner: c.Principal, Message: message, Data: data,
		ToolCallID: req.Context.ToolCallID, RunID: req.Context.RunID, TraceID: req.Context.TraceID,
	}
}

// fingerprint identifies the call; a secret counts by its digest.
func (e *Engine) fingerprint(req Request, args any, secret map[string]bool) string {
	return schemas.Fingerprint(schemas.CanonicalCall{
		Tool: req.Tool, Version: req.ToolVersion, Purpose: string(req.Purpose), Replace: req.Options.Replace,
		Arguments: args, Secret: e.vault.digest,
	}, secret)
}

// checkRequest looks at what is not arguments.
func checkRequest(req Request) error {
	o := req.Options
	switch {
	case req.Tool == "":
		return jobs.Errorf(jobs.CodeRequestInvalid, "name the tool; ListTools says which there are")
	case len(req.Key) > maxKeyBytes:
		return jobs.Errorf(jobs.CodeRequestInvalid, "the idempotency key has %d bytes; the limit is %d", len(req.Key), maxKeyBytes)
	case !slices.Contains(jobs.Purposes(), req.Purpose):
		return jobs.Errorf(jobs.CodeRequestInvalid, "purpose %q is none of %v", req.Purpose, jobs.Purposes())
	case contextBytes(req.Context) > maxContextBytes:
		return jobs.Errorf(jobs.CodeRequestInvalid, "the call context has %d bytes; the limit is %d", contextBytes(req.Context), maxContextBytes)
	case o.Timeout < 0:
		return jobs.Errorf(jobs.CodeRequestInvalid, "a timeout cannot be negative")
	case o.OnLock != "" && o.OnLock != jobs.OnLockWait && o.OnLock != jobs.OnLockRefuse:
		return jobs.Errorf(jobs.CodeRequestInvalid, "on_lock is %q or %q", jobs.OnLockWait, jobs.OnLockRefuse)
	case o.Priority < minPriority || o.Priority > maxPriority:
		return jobs.Errorf(jobs.CodeRequestInvalid, "priority %d is not from %d to %d; 0 is normal, and each step is worth a minute of waiting", o.Priority, minPriority, maxPriority)
	case o.SerialContext && req.Context.ContextID == "":
		return jobs.Errorf(jobs.CodeRequestInvalid, "serial_context needs the context_id whose jobs are to run one after the other")
	}
	return nil
}

// maxContextBytes bounds the call context, which every record of the job carries.
const maxContextBytes = 64 << 10

func contextBytes(c jobs.CallContext) int {
	text, err := json.Marshal(c)
	if err != nil {
		return maxContextBytes + 1
	}
	return len(text)
}

// maxKeyBytes bounds an idempotency key; a UUID has 36.
const maxKeyBytes = 512

// refusal makes the error for a call that a verdict refuses.
func refusal(code jobs.Code, verdict string, findings []schemas.Finding) *jobs.Error {
	err := jobs.Errorf(code, "the arguments are refused (%s): %s", verdict, findings[0].Message)
	if len(findings) > 1 {
		err = jobs.Errorf(code, "the arguments are refused (%s): %s, and %d more", verdict, findings[0].Message, len(findings)-1)
	}
	v := &jobs.Verdicts{
		SyntaxChecked: true, SyntaxValid: verdict != "syntax",
		SchemaChecked: verdict != "syntax", SchemaValid: verdict == "business",
		BusinessChecked: verdict == "business",
	}
	for _, f := range findings {
		v.Findings = append(v.Findings, jobs.Finding{
			Verdict: verdict, Pointer: f.Pointer, Keyword: f.Keyword, Message: f.Message, Hint: f.Hint,
		})
	}
	err.Verdicts, err.Findings = v, v.Findings
	return err
}

// syntaxCode tells bytes that are no JSON from JSON that exceeds a limit.
func syntaxCode(findings []schemas.Finding) jobs.Code {
	switch findings[0].Keyword {
	case "size", "depth", "number":
		return jobs.CodeArgumentsTooLarge
	default:
		return jobs.CodeArgumentsNotJSON
	}
}

func first(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return list[0]
}

func secretPointers(secrets map[string]string) map[string]bool {
	set := map[string]bool{}
	for pointer := range maps.Keys(secrets) {
		set[pointer] = true
	}
	return set
}
