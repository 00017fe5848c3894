package store

import (
	"cmp"
	"context"

	"github.com/macexec/macexec/jobs"
)

// Submit implements jobs.Store.
func (s *Store) Submit(ctx context.Context, sub jobs.Submission) (jobs.Submitted, error) {
	p, err := s.prepare(sub)
	if err != nil {
		return jobs.Submitted{}, err
	}
	var (
		got submitted
		seq uint64
	)
	err = s.do(ctx, func(b *batch) (write func() error, err error) {
		got, write, err = b.submit(p)
		seq = b.jobSeq + 1
		return write, err
	})
	if err != nil {
		return jobs.Submitted{}, err
	}
	out := jobs.Submitted{Outcome: got.outcome, Key: got.record, Closed: got.closed}
	switch got.outcome {
	case jobs.SubmitAccepted:
		// The caller gets its own job back, completed; decoding the record for it
		// would cost more than all the rest. The cache keeps the record, not this.
		job := *sub.Job
		job.Seq, job.Revision, job.Event = seq, 1, ""
		out.Job = &job
	case jobs.SubmitReplayed, jobs.SubmitConflict:
		if got.snap != nil { // else it is pruned
			out.Job, err = got.snap.decoded()
		}
	case jobs.SubmitFree, jobs.SubmitExpired, jobs.SubmitFenced, jobs.SubmitClosed:
		// There is no job to give back.
	}
	return out, err
}

// prepared is a submission with everything done that needs no transaction.
type prepared struct {
	jobs.Submission
	place  []byte
	raw    []byte // of the job, without its seq; nil: only look
	stands standing
	record jobs.KeyRecord
	key    []byte // of record
}

func (s *Store) prepare(sub jobs.Submission) (*prepared, error) {
	p := &prepared{Submission: sub, place: keyPlace(sub.Key)}
	p.Entry.Principal = cmp.Or(p.Entry.Principal, sub.Key.Principal)
	if sub.Key.Text == "" || sub.Fingerprint == "" {
		return p, jobs.Errorf(jobs.CodeInternal, "a submission needs a key and a fingerprint")
	}
	j := sub.Job
	if j == nil {
		return p, nil
	}
	switch {
	case j.ID == "" || j.State == "":
		return p, jobs.Errorf(jobs.CodeInternal, "a job that is to be stored needs an id and a state")
	case j.Principal != sub.Key.Principal || j.Key != sub.Key.Text || j.Fingerprint != sub.Fingerprint:
		return p, jobs.Errorf(jobs.CodeInternal, "job %s is not the job of its submission", j.ID).WithJob(j.ID)
	}
	var err error
	if p.raw, err = encodeNewJob(*j); err != nil {
		return p, err
	}
	p.stands = standingOf(j)
	p.stands.values = valuesOf(j)
	p.record = jobs.KeyRecord{Key: p.Key, Kind: jobs.KeyJob, Fingerprint: p.Fingerprint, JobID: j.ID, CreatedAt: s.now().UTC()}
	p.key, err = encodeRecord(p.record)
	return p, err
}

// submitted is what became of a submission.
type submitted struct {
	outcome jobs.SubmitOutcome
	record  jobs.KeyRecord // of its key, if that is used now
	snap    *snapshot      // of the key's job, if there is one
	closed  string         // what the job came from and is closed
}

func (b *batch) submit(p *prepared) (got submitted, write func() error, err error) {
	if record, err := b.s.keyRecord(b.tx, p.Key, p.place, !b.s.free.take(p.place)); record != nil || err != nil {
		if err != nil {
			return submitted{}, nil, err
		}
		return b.resubmit(p, *record)
	}
	if p.raw == nil {
		return submitted{outcome: jobs.SubmitFree}, nil, nil
	}
	if b.jobs.Get([]byte(p.Job.ID)) != nil {
		return submitted{}, nil, jobs.Errorf(jobs.CodeInternal, "there is already a job %s", p.Job.ID).WithJob(p.Job.ID)
	}
	if closed, err := b.closedFor(p.Job); closed != "" || err != nil {
		return submitted{outcome: jobs.SubmitClosed, closed: closed}, nil, err
	}
	if err := b.usableUploads(p.stands.principal, p.stands.uploads); err != nil {
		return submitted{}, nil, err
	}
	seq := b.jobSeq + 1
	e := p.Entry
	e.Kind = jobs.EntrySubmitted
	describe(&e, p.Job)
	e.Revision = 1
	entry, err := b.seal(e)
	if err != nil {
		return submitted{}, nil, err
	}
	snap := &snapshot{id: p.Job.ID, raw: withSeq(p.raw, seq, entry.seq)}
	var supersede func() error
	if target := p.Job.Call.Options.Supersedes; target != "" {
		if supersede, err = b.supersede(target, p.Job, entry.head); err != nil {
			return submitted{}, nil, err
		}
	}
	p.stands.seq = seq
	return submitted{outcome: jobs.SubmitAccepted, record: p.record, snap: snap}, func() error {
		if err := b.putJob(snap, 0, &standing{}, &p.stands, entry); err != nil {
			return err
		}
		b.jobSeq = seq
		if err := b.keys.Put(p.place, p.key); err != nil || supersede == nil {
			return err
		}
		return supersede()
	}, nil
}

// supersede returns the write that gives an older job its successor, with an entry
// that follows the successor's own. A job has at most one (G5).
func (b *batch) supersede(target string, successor *jobs.Job, prev chainHead) (write func() error, err error) {
	old, err := b.snapshot(target)
	if err != nil {
		return nil, err
	}
	job, err := decodeJob(target, old.raw)
	if err != nil {
		return nil, err
	}
	switch {
	case job.Principal != successor.Principal:
		return nil, jobNotFound(target)
	case !job.State.Settled():
		return nil, jobs.Errorf(jobs.CodeStateConflict, "job %s is %s; only a job that has ended, or whose end is unknown, can be superseded", target, job.State).WithJob(target)
	case job.SupersededBy != "":
		return nil, jobs.Errorf(jobs.CodeSuperseded, "job %s is superseded by job %s", target, job.SupersededBy).WithJob(job.SupersededBy)
	}
	was := standingOf(job)
	job.SupersededBy = successor.ID
	job.Revision++
	raw, err := encodeRecord(job)
	if err != nil {
		return nil, err
	}
	e := changeOf(job, jobs.Note{Principal: successor.Principal, Message: "superseded by job " + successor.ID})
	entry, err := b.sealAfter(prev, e)
	if err != nil {
		return nil, err
	}
	before, _, _ := splitLink(old.raw)
	return func() error {
		return b.putJob(&snapshot{id: target, raw: withLink(entry.seq, raw)}, before, &was, &was, entry)
	}, nil
}

// resubmit answers a submission whose key is used. Every one of them is in the
// journal.
func (b *batch) resubmit(p *prepared, record jobs.KeyRecord) (got submitted, write func() error, err error) {
	got.record = record
	e := p.Entry
	e.Kind, e.JobID = jobs.EntryConflict, record.JobID
	same := record.Same(p.Fingerprint)
	switch record.Kind {
	case jobs.KeyJob:
		got.outcome = jobs.SubmitConflict
		if got.snap, err = b.snapshot(record.JobID); err != nil {
			return submitted{}, nil, damaged("the job of a used key", err.Error()).WithJob(record.JobID)
		}
		job, err := got.snap.decoded()
		if err != nil {
			return submitted{}, nil, err
		}
		if same {
			got.outcome, e.Kind = jobs.SubmitReplayed, jobs.EntryReplayed
			describe(&e, job)
		}
	case jobs.KeyTombstone:
		got.outcome = jobs.SubmitConflict
		if same {
			got.outcome, e.Kind = jobs.SubmitExpired, jobs.EntryReplayed
		}
	case jobs.KeyFence:
		got.outcome = jobs.SubmitFenced
	default:
		return submitted{}, nil, damaged("the record of a key", "it is of the kind "+string(record.Kind))
	}
	entry, err := b.seal(e)
	if err != nil {
		return submitted{}, nil, err
	}
	return got, func() error { return b.putEntry(entry) }, nil
}

// describe says in an entry what a job is.
func describe(e *jobs.Entry, j *jobs.Job) {
	e.JobID, e.Revision, e.State, e.Phase = j.ID, j.Revision, j.State, j.Phase
	e.EndReason, e.SideEffect = j.EndReason, j.SideEffect
}
