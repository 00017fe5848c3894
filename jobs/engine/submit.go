package engine

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// Submit decides a call. What happens to it:
//
//	syntax → key's record or turn → decide → a refusal is journaled → release → observers
//
// A caller that goes away while another call has the key's turn has decided nothing.
// From then on the decision is made whatever becomes of the caller: it must not depend on
// who still listens (promise G3), and a caller with little patience finds the job by its
// repeat.
func (e *Engine) Submit(ctx context.Context, c Caller, req Request) (Receipt, error) {
	began := time.Now()
	receipt, err := e.submit(ctx, c, req)
	e.observe(ctx, req, receipt, err, time.Since(began))
	return receipt, err
}

func (e *Engine) submit(ctx context.Context, c Caller, req Request) (receipt Receipt, err error) {
	decided := context.WithoutCancel(ctx)
	args, err := parse(req)
	if err == nil {
		var hold keyHold
		if hold, err = e.claim(ctx, jobs.Key{Principal: c.Principal, Text: req.Key}); err != nil {
			return Receipt{}, err
		}
		defer hold.release()
		receipt, err = e.decideCall(decided, c, req, args, hold.record)
	}
	if no, ok := errors.AsType[refused](err); ok {
		err = e.reject(decided, c, req, no.why)
	}
	return receipt, err
}

// parse is the syntax verdict.
func parse(req Request) (args any, err error) {
	if err := checkRequest(req); err != nil {
		return nil, err
	}
	args, findings := schemas.Parse(req.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		return nil, refusal(syntaxCode(findings), "syntax", findings)
	}
	return args, nil
}

// refused is a no to a call that was looked at; Submit journals it before it answers.
// Any other error says that nothing is decided, or that the store has journaled it.
type refused struct{ why *jobs.Error }

func (r refused) Error() string { return r.why.Error() }
func (r refused) Unwrap() error { return r.why }

// decideCall decides a call and, if it is accepted, stores it as a job before it answers:
//
//	known key? its job → key needed? → admissible → accept
//
// The order is the promise: the known key comes before everything that depends on the
// world, so that a repeat gets its job even when files are gone, the policy is tighter
// or the manifest is newer (promise G2).
func (e *Engine) decideCall(ctx context.Context, c Caller, req Request, args any, known *jobs.KeyRecord) (Receipt, error) {
	if known != nil {
		return e.repeat(ctx, c, req, args, known)
	}
	if tool, ok := e.registry.Tool(req.Tool, req.ToolVersion); ok && req.Key == "" && !keyOptional(tool) {
		return Receipt{}, refused{jobs.Errorf(jobs.CodeKeyRequired,
			"%s does more than read, so the call needs an idempotency key of your choice; the same key again never starts it twice", tool.Tool)}
	}
	defer e.retention.name(e.namedJobs(req, args))()
	j, err := e.admissible(ctx, c, req, args)
	if err != nil {
		return Receipt{}, err
	}
	if j.decision.Effect == jobs.Deny {
		denied := jobs.Errorf(jobs.CodePolicyDenied, "the policy denies this call: %s (rule %s)", j.decision.Reason, first(j.decision.Rules))
		return Receipt{}, refused{j.on(denied)}
	}
	return e.accept(ctx, c, req, j)
}

// admissible tells whether a call of no known key would be taken now; the policy's
// decision is in the judgement. The judgement of a refused call is as far as it came.
// What others may change meanwhile is looked at once more by the write that accepts.
func (e *Engine) admissible(ctx context.Context, c Caller, req Request, args any) (*judgement, error) {
	if draining := refusedBy(e.currentMode()); draining != nil {
		return &judgement{}, refused{draining}
	}
	if err := e.supersedable(ctx, c, req.Options.Supersedes); err != nil {
		return &judgement{}, err
	}
	if by := req.Options.StartBy; !by.IsZero() && e.now().After(by) {
		return &judgement{}, refused{jobs.Errorf(jobs.CodeTooLate,
			"start_by was %s, which has passed; the key is still free", by.Format(time.RFC3339))}
	}
	if from := req.Context; from.RunID != "" || from.ParentRunID != "" || from.ParentCallID != "" {
		closed, err := e.store.Closed(ctx, &jobs.Job{Principal: c.Principal, Call: jobs.Call{Context: from}})
		if err != nil {
			return &judgement{}, err
		}
		if closed != "" {
			return &judgement{}, refused{ofClosed(closed)}
		}
	}
	return e.judge(ctx, c, req, args)
}

// supersedable tells whether a new call may take the place of a job.
func (e *Engine) supersedable(ctx context.Context, c Caller, id string) error {
	if id == "" {
		return nil
	}
	old, err := e.visible(ctx, c, id)
	switch {
	case err != nil:
		return worldly(err)
	case !old.State.Settled():
		return refused{jobs.Errorf(jobs.CodeStateConflict, "job %s is %s; only a job that has ended, or whose end is unknown, can be superseded", id, old.State).WithJob(id)}
	case old.SupersededBy != "":
		return refused{jobs.Errorf(jobs.CodeSuperseded, "job %s is superseded by job %s", id, old.SupersededBy).WithJob(old.SupersededBy)}
	default:
		return nil
	}
}

// ofClosed refuses a call that is of something closed, as the words say.
func ofClosed(words string) *jobs.Error {
	return jobs.Errorf(jobs.CodeRunClosed, "%s, so nothing of it starts any more; the key is still free", words)
}

// worldly makes a refusal of an error that says how the world is that a call names, and
// hands on any other: then something failed.
func worldly(err error) error {
	e, ok := errors.AsType[*jobs.Error](err)
	if !ok {
		return err
	}
	switch e.Code {
	case jobs.CodeJobNotFound, jobs.CodeOtherHost, jobs.CodeStateConflict, jobs.CodeSuperseded, jobs.CodeFileNotFound:
		return refused{e}
	default:
		return err
	}
}

// accept stores a call that was judged as a job, and lets it wait for its turn or for a
// person. If the store refuses it, the locks that it may have by then are given back.
func (e *Engine) accept(ctx context.Context, c Caller, req Request, j *judgement) (Receipt, error) {
	if err := e.keepManifests(ctx); err != nil {
		return Receipt{}, err
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
	fault.Point("engine.decided")
	t, err := e.expect(ctx, job, j)
	if err != nil {
		return Receipt{}, err
	}
	accepted := false
	defer func() {
		if !accepted {
			e.sched.remove(t.id)
			e.dispatch()
		}
	}()
	sub, err := e.storeNew(ctx, jobs.Submission{
		Key: jobs.Key{Principal: c.Principal, Text: job.Key}, Fingerprint: job.Fingerprint, Job: job,
		Entry: entryOf(c, req, jobs.EntrySubmitted, "", data),
	})
	if err != nil {
		return Receipt{}, err
	}
	if accepted = sub.Outcome == jobs.SubmitAccepted; accepted {
		t.rank = rankOf(sub.Job)
		fault.Point("engine.accepted")
		e.queue(sub.Job, t)
	}
	return e.answer(req, sub)
}

// expect tells the scheduler of a job that is about to be stored. One that does not
// wait for locks has them from here on, or is refused.
func (e *Engine) expect(ctx context.Context, job *jobs.Job, j *judgement) (turn, error) {
	t := e.turnOf(ctx, job)
	if !t.refuse {
		e.sched.expect(t)
		return t, nil
	}
	t.rank.seq = math.MaxUint64 // it comes after all that are accepted
	if o, held := e.sched.hold(t); !held {
		return t, refused{j.on(o.refusal())}
	}
	return t, nil
}

// storeNew is the write that decides. It is made while the host takes calls, and looks
// once more at all that the store knows of: key, closed runs, the job to supersede, files.
func (e *Engine) storeNew(ctx context.Context, s jobs.Submission) (sub jobs.Submitted, err error) {
	draining := e.whileAccepting(func() { sub, err = e.store.Submit(ctx, s) })
	switch {
	case draining != nil:
		return sub, refused{draining}
	case err != nil:
		return sub, worldly(err)
	case sub.Outcome == jobs.SubmitClosed:
		return sub, refused{ofClosed(sub.Closed)}
	default:
		return sub, nil
	}
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

// repeat answers a call whose key has a record.
func (e *Engine) repeat(ctx context.Context, c Caller, req Request, args any, record *jobs.KeyRecord) (Receipt, error) {
	// Which arguments are secret is what the first submission said: the manifest
	// may have changed since.
	secret := map[string]bool{}
	if record.Kind == jobs.KeyJob {
		job, err := e.store.Get(ctx, record.JobID)
		if err != nil {
			return Receipt{}, err
		}
		for pointer := range job.Sealed {
			secret[pointer] = true
		}
	}
	again := jobs.Submission{
		Key: jobs.Key{Principal: c.Principal, Text: req.Key}, Fingerprint: e.fingerprint(req, args, secret),
		Entry: entryOf(c, req, jobs.EntryReplayed, "", nil),
	}
	sub, err := e.store.Submit(ctx, again)
	full := jobs.CodeOf(err) == jobs.CodeDiskFull
	if full {
		sub, err = e.repeatOnFullDisk(ctx, again, record)
	}
	if err != nil {
		return Receipt{}, err
	}
	receipt, err := e.answer(req, sub)
	if err == nil {
		receipt.Warnings = e.changedInputs(ctx, sub.Job)
	}
	if err == nil && full {
		receipt.Warnings = append(receipt.Warnings, owedWarning)
	}
	return receipt, err
}

// answer turns what the store decided into a receipt or an error.
func (e *Engine) answer(req Request, sub jobs.Submitted) (Receipt, error) {
	switch sub.Outcome {
	case jobs.SubmitAccepted, jobs.SubmitReplayed:
		return Receipt{Job: e.decorated(sub.Job), Replayed: sub.Outcome == jobs.SubmitReplayed, Context: req.Context}, nil
	case jobs.SubmitConflict:
		if sub.Key.Kind == jobs.KeyTombstone {
			return Receipt{}, jobs.Errorf(jobs.CodeKeyConflict,
				"the key %q belongs to job %s, which was another call, and of which no record is kept any more; choose a new key for a new call", req.Key, sub.Key.JobID).
				WithJob(sub.Key.JobID).With("key", req.Key).With("kind", string(sub.Key.Kind))
		}
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
	arguments := slices.Clone(req.Arguments) // as written
	if len(j.secrets) > 0 {
		if arguments, err = json.Marshal(j.tool.Mask(j.args)); err != nil {
			return nil, jobs.Errorf(jobs.CodeInternal, "write the arguments down: %w", err)
		}
	}
	job := &jobs.Job{
		ID: id, Host: e.store.HostID(), Clock: jobs.JobClock{Accepted: now.Round(0).Sub(e.deadlines.steady())},
		Principal: c.Principal, Key: key, KeyMade: made, Fingerprint: j.fingerprint,
		Call: jobs.Call{
			Tool: req.Tool, ToolVersion: req.ToolVersion, Arguments: arguments,
			Purpose: req.Purpose, Options: req.Options, Context: req.Context,
		},
		Tool: j.ref, Verdicts: j.verdicts, Decision: j.decision, Inputs: j.inputs,
		Needs: callNeeds(j.slot, j.tool, j.args), SubmittedAt: now,
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

// Check says what Submit would answer now to a call with a key that nobody has used. It
// uses no key, runs nothing and is in no journal. A bad verdict and a denial are in the
// answer, any other refusal is the error.
func (e *Engine) Check(ctx context.Context, c Caller, req Request) (Check, error) {
	if err := checkRequest(req); err != nil {
		return Check{}, err
	}
	args, findings := schemas.Parse(req.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		check := Check{Verdicts: *refusal(syntaxCode(findings), "syntax", findings).why.Verdicts}
		if tool, ok := e.registry.Tool(req.Tool, req.ToolVersion); ok {
			check.Tool = e.refOf(tool)
			return check, nil
		}
		return Check{}, e.noSuchTool(req)
	}
	j, err := e.admissible(ctx, c, req, args)
	no, ok := errors.AsType[refused](err)
	if ok && no.why.Verdicts != nil && no.why.Code != jobs.CodeToolNotFound {
		return Check{Tool: j.ref, Verdicts: *no.why.Verdicts}, nil
	}
	if ok {
		return Check{}, no.why
	}
	if err != nil {
		return Check{}, err
	}
	check := Check{
		Tool: j.ref, Verdicts: j.verdicts, Decision: &j.decision, Fingerprint: j.fingerprint,
		Programs: j.programs, Publishes: j.publishes,
	}
	if j.decision.Effect == jobs.Deny {
		return check, nil
	}
	call := &jobs.Job{
		Principal: c.Principal, Call: jobs.Call{Options: req.Options, Context: req.Context},
		Needs: callNeeds(j.slot, j.tool, j.args), SubmittedAt: e.now(), Seq: math.MaxUint64,
	}
	t := e.turnOf(ctx, call)
	if o, ok := e.sched.obstacle(t); ok && t.refuse {
		return Check{}, j.on(o.refusal())
	} else if ok {
		check.Warnings = append(check.Warnings, "the job would have to wait: "+o.String())
	}
	return check, nil
}

// reject journals a refusal before it is answered. If the journal cannot be
// written the answer is that, and still no.
func (e *Engine) reject(ctx context.Context, c Caller, req Request, why *jobs.Error) error {
	data, err := json.Marshal(map[string]any{
		"code": why.Code, "verdicts": why.Verdicts, "decision": why.Decision,
		"tool": req.Tool, "key": req.Key, "context": req.Context,
	})
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "describe the refusal: %w", err)
	}
	if err := e.store.Append(ctx, entryOf(c, req, jobs.EntryRejected, why.Message, data)); err != nil {
		return err
	}
	return why
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
func refusal(code jobs.Code, verdict string, findings []schemas.Finding) refused {
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
	return refused{err}
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
	for pointer := range secrets {
		set[pointer] = true
	}
	return set
}
