package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/macexec/macexec/jobs"
)

// While the disk of the store is full (CodeDiskFull) nothing new is decided: no journal,
// no yes (promise G9). Three things go on all the same, and none needs a restart when
// there is room again:
//
//   - What an attempt led to is kept in memory, together with the job's slot, and tried
//     again until it is stored. If the daemon dies before, its successor concludes from the
//     keeper's records, whose room was taken before the tool began.
//   - A known key is answered (promise G2): what it is answered with is stored already, and
//     nothing is done because of it. That it was asked again is owed to the journal, and
//     written with the time of the asking once there is room; the answer says so.
//   - What happens to the host itself, its start for one, is owed in the same way: a daemon
//     that does not start on a full disk cannot even say what its jobs are.
//
// What is owed is lost with the daemon, and of more than maxOwed only the number is told.

// maxOwed bounds what is kept in memory of what the journal is owed.
const maxOwed = 1024

// debt writes what is owed, and answers as the store does.
type debt func(context.Context) error

// debts is what the journal is owed, oldest first. The zero value owes nothing.
type debts struct {
	mu     sync.Mutex
	list   []debt
	more   int  // that came when the list was full
	paying bool // somebody sees to it
}

// owe keeps what could not be written, and writes it when there is room again.
func (e *Engine) owe(d debt) {
	e.debts.mu.Lock()
	defer e.debts.mu.Unlock()
	if len(e.debts.list) == maxOwed {
		e.debts.more++
		return
	}
	e.debts.list = append(e.debts.list, d)
	if !e.debts.paying {
		e.debts.paying = true
		e.goRun(func() {
			p := e.newPause()
			for !e.payDebts(e.stopped) {
				if !p.wait(e.stopped) {
					return // Stop tries once more
				}
			}
		})
	}
}

// payDebts writes what is owed as long as there is room, and reports whether nothing is
// owed any more.
func (e *Engine) payDebts(ctx context.Context) bool {
	for {
		pay := e.nextDebt()
		if pay == nil {
			return true
		}
		switch err := pay(ctx); jobs.CodeOf(err) {
		case "":
		case jobs.CodeDiskFull, jobs.CodeStoreFailed, jobs.CodeCommitUnknown, jobs.CodeCallerGone:
			return false
		default:
			e.log.Error("the journal misses an entry that it was owed since its disk was full", "error", err)
		}
		e.debts.mu.Lock()
		e.debts.list = e.debts.list[1:]
		e.debts.mu.Unlock()
	}
}

func (e *Engine) nextDebt() debt {
	d := &e.debts
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == 0 && d.more > 0 {
		message := fmt.Sprintf("%d more entries were not written while the disk was full", d.more)
		d.list, d.more = append(d.list, func(ctx context.Context) error { return e.tell(ctx, message) }), 0
	}
	if len(d.list) == 0 {
		d.list, d.paying = nil, false
		return nil
	}
	return d.list[0]
}

// tellOrOwe is tell, later if there is no room now.
func (e *Engine) tellOrOwe(ctx context.Context, message string) error {
	at := e.now()
	err := e.tellAt(ctx, at, message)
	if jobs.CodeOf(err) != jobs.CodeDiskFull {
		return err
	}
	e.log.Error("the disk of the store is full; the daemon serves what is stored and takes new calls when there is room", "error", err)
	e.owe(func(ctx context.Context) error { return e.tellAt(ctx, at, message) })
	return nil
}

// keepManifests keeps the manifests of this start, so that whatever is accepted can be
// finished by the one that it was accepted with. On a full disk that is made up for
// before the next call is accepted.
func (e *Engine) keepManifests(ctx context.Context) error {
	if e.kept.Load() {
		return nil
	}
	for _, tool := range e.registry.All() {
		if err := e.store.PutManifest(ctx, tool.Digest, tool.Text); err != nil {
			return err
		}
	}
	e.kept.Store(true)
	return nil
}

// repeatOnFullDisk answers a call under a known key as the write would have that found
// no room, and owes the journal the entry. Fresh from the record, a job's state is the
// newest that is stored, as in any other answer.
func (e *Engine) repeatOnFullDisk(ctx context.Context, s jobs.Submission, known *jobs.KeyRecord) (jobs.Submitted, error) {
	sub := jobs.Submitted{Key: *known}
	switch known.Kind {
	case jobs.KeyJob:
		job, err := e.store.Get(ctx, known.JobID)
		if err != nil {
			return sub, err
		}
		sub.Job, sub.Outcome = job, jobs.SubmitConflict
		if known.Same(s.Fingerprint) {
			sub.Outcome = jobs.SubmitReplayed
		}
	case jobs.KeyTombstone:
		sub.Outcome = jobs.SubmitConflict
		if known.Same(s.Fingerprint) {
			sub.Outcome = jobs.SubmitExpired
		}
	case jobs.KeyFence:
		sub.Outcome = jobs.SubmitFenced
	default:
		return sub, jobs.Errorf(jobs.CodeRecordDamaged, "the record of a key is of the kind %s", known.Kind)
	}
	s.Entry.At = e.now()
	e.owe(func(ctx context.Context) error {
		_, err := e.store.Submit(ctx, s) // without a job it can start nothing
		return err
	})
	return sub, nil
}

const owedWarning = "the disk of the host's store is full; that this call was repeated is written into its journal when there is room again"

// lasting stores a change of a job that somebody attends to. While the disk is full it
// waits for room, with the job's slot: whatever else wanted the slot would need room, too.
func (e *Engine) lasting(id, message string, f func(*jobs.Job) error) (*jobs.Job, error) {
	for p := e.newPause(); ; {
		job, err := e.change(id, message, f)
		if jobs.CodeOf(err) != jobs.CodeDiskFull {
			return job, err
		}
		if !p.wait(e.stopped) {
			return nil, errLeft
		}
	}
}

// mayBeCutShort reports whether a full disk may have cut short what the attempt made.
func (a *attempt) mayBeCutShort() bool {
	if a.tool == nil {
		if err := a.load(); err != nil {
			return true // nobody knows what it was to make
		}
	}
	return len(a.tool.Artifacts) > 0
}

// makeRoom removes what an attempt has made that met the end of the disk, before its end
// is stored and not after it, as else: perhaps it is this that leaves no room for the
// record. So the exit record alone must say how the attempt ended, to the next engine, too.
func (a *attempt) makeRoom() {
	if err := a.e.exec.Tidy(a.job.ID, a.n, false); err != nil {
		a.e.log.Warn("what an attempt left on the full disk could not be removed", "job_id", a.job.ID, "attempt", a.n, "error", err)
	}
}

// pause is what lies between two tries: little at first, then up to the retry delay.
type pause struct{ next, most time.Duration }

func (e *Engine) newPause() *pause { return &pause{next: e.retryDelay / 16, most: e.retryDelay} }

// wait reports false if ctx ended meanwhile.
func (p *pause) wait(ctx context.Context) bool {
	t := time.NewTimer(p.next)
	defer t.Stop()
	p.next = min(2*p.next, p.most)
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
