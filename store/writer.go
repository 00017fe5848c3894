package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
)

// maxBatch bounds how many operations share one commit, so that none waits for an
// endless one.
const maxBatch = 1024

// gatherPart is the part of the last commit's time that the next one may be put
// off for, to be shared by more operations; gatherMax bounds it after a commit that
// took unusually long.
const (
	gatherPart = 4
	gatherMax  = time.Millisecond
)

// operation is one write, on its way through the writer.
type operation struct {
	// check looks at everything that could refuse the operation and returns the
	// function that writes it, which then cannot be refused any more. A nil function
	// means that there is nothing to write. It may run again if nothing of its first
	// run was done.
	check func(*batch) (write func() error, err error)

	err   error
	taken bool          // by the writer; guarded by Store.mu
	done  chan struct{} // closed when err is final
}

// do gives an operation to the writer and waits until its outcome is known. If ctx
// ends before the writer has taken it, nothing is done; afterwards the commit
// decides, not the caller's patience.
func (s *Store) do(ctx context.Context, check func(*batch) (func() error, error)) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	op := &operation{check: check, done: make(chan struct{})}
	s.mu.Lock()
	if err := s.usableLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.pending = append(s.pending, op)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // the writer is already told
	}

	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
	}
	if s.withdraw(op) {
		return contextError(ctx)
	}
	<-op.done
	return op.err
}

// withdraw takes back an operation that the writer has not taken.
func (s *Store) withdraw(op *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.taken {
		return false
	}
	for i, p := range s.pending {
		if p == op {
			s.pending = append(s.pending[:i], s.pending[i+1:]...)
			return true
		}
	}
	return false
}

// take returns what is pending, at most maxBatch operations, and whether more may
// come. It empties the queue before it says that no more will.
func (s *Store) take() (ops []*operation, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.pending), maxBatch)
	ops = s.pending[:n:n]
	s.pending = s.pending[n:]
	if len(s.pending) == 0 {
		s.pending = nil
	}
	for _, op := range ops {
		op.taken = true
	}
	return ops, n > 0 || !s.closed
}

// gather lets callers bring their operations before the next commit begins, until
// there are as many as last time: those just answered often ask again at once, and
// a commit costs nearly the same for one operation as for many. It waits at most a
// small part of what the last commit took, so a lone caller loses nothing.
func (s *Store) gather() {
	n := s.waiting()
	if n == 0 || n >= s.lastSize {
		return
	}
	for begun := time.Now(); time.Since(begun) < min(s.lastTook/gatherPart, gatherMax); {
		runtime.Gosched()
		if s.waiting() >= s.lastSize {
			return
		}
	}
}

func (s *Store) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// writer is the one goroutine that writes. It ends when the store is closed and
// the queue is empty.
func (s *Store) writer() {
	defer close(s.done)
	debug.SetPanicOnFault(true)
	for {
		s.gather()
		ops, more := s.take()
		switch {
		case len(ops) > 0:
			begun := time.Now()
			s.run(ops)
			s.lastSize, s.lastTook = len(ops), time.Since(begun)
		case !more:
			return
		default:
			select {
			case <-s.wake:
			case <-s.closing:
			}
		}
	}
}

// run carries operations out and answers them. If one of them stumbles while it
// writes, the others must not suffer: nothing of the batch is kept, and each gets
// a transaction of its own.
func (s *Store) run(ops []*operation) {
	if !s.attempt(ops) && len(ops) > 1 {
		for i := range ops {
			s.attempt(ops[i : i+1])
		}
	}
	for _, op := range ops {
		close(op.done)
	}
}

// attempt runs operations in one transaction and sets their errors. It returns
// false if it gave the transaction up, so that nothing was done.
func (s *Store) attempt(ops []*operation) bool {
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure == nil {
		if failure = s.displaced(); failure != nil {
			s.fail(failure)
		}
	}
	if failure != nil {
		setErrors(ops, errFailed(failure))
		return true
	}
	var b *batch
	if err := guarded(func() (err error) { b, err = s.begin(); return err }); err != nil {
		s.wedged = true
		s.fail(err)
		setErrors(ops, errFailed(err))
		return true
	}
	for _, op := range ops {
		var write func() error
		op.err = guarded(func() (err error) { write, err = op.check(b); return err })
		if b.broken != nil {
			s.giveUp(b, ops, b.broken)
			return false
		}
		if op.err != nil || write == nil {
			continue
		}
		b.dirty = true
		if err := guarded(write); err != nil {
			s.giveUp(b, ops, err)
			return false
		}
	}
	if !b.dirty {
		s.rollback(b)
		return true
	}
	if err := guarded(b.finish); err != nil {
		s.giveUp(b, ops, err)
		return false
	}
	s.commit(b, ops)
	return true
}

func setErrors(ops []*operation, err error) {
	for _, op := range ops {
		op.err = err
	}
}

// giveUp drops a transaction of which nothing has reached the file.
func (s *Store) giveUp(b *batch, ops []*operation, why error) {
	s.log.Error("a write was given up", "operations", len(ops), "error", why)
	setErrors(ops, jobs.Errorf(jobs.CodeRecordDamaged, "nothing was written, since a part of the store is damaged: %v", why))
	s.rollback(b)
}

func (s *Store) rollback(b *batch) {
	if err := guarded(b.tx.Rollback); err != nil {
		s.wedged = true
		s.fail(fmt.Errorf("a transaction could not be given up: %w", err))
	}
}

// commit makes a batch durable and publishes it, or finds out what became of it.
func (s *Store) commit(b *batch, ops []*operation) {
	var err error
	begun := time.Now()
	defer func() { s.told(time.Since(begun), err) }()
	s.gate.Lock()
	defer s.gate.Unlock()
	b.pass("before")
	txid := uint64(b.tx.ID())
	panicked := true
	err = guarded(func() error {
		err := b.tx.Commit()
		panicked = false
		return err
	})
	if s.committed != nil {
		s.committed()
	}
	switch {
	case err == nil:
		s.publish(b)
		b.pass("after")
	case !panicked && isNoSpace(err) && s.notDone(txid):
		s.log.Error("the disk is full; a write was not done", "operations", len(ops), "error", err)
		// Also what was refused may have been refused because of a write of this batch.
		err = jobs.Errorf(jobs.CodeDiskFull, "nothing was written, since the disk of the store is full")
		setErrors(ops, err)
	default:
		s.wedged = panicked
		s.fail(err)
		setErrors(ops, jobs.Errorf(jobs.CodeCommitUnknown, "the store cannot tell whether the write is durable: %v", err))
	}
}

// notDone proves that nothing of a failed commit can ever be seen: both meta pages
// in the file are whole and of earlier transactions. Whatever else was written
// lies in pages that no meta page leads to.
func (s *Store) notDone(txid uint64) bool {
	info, err := s.file.Stat()
	if err != nil {
		return false
	}
	head, err := inspectFile(s.file, info.Size())
	return err == nil && head.both && head.current.txid == txid-1
}

// publish makes a committed batch visible. The writer holds the gate.
func (s *Store) publish(b *batch) {
	for id, snap := range b.fresh {
		if snap == nil {
			s.cache.drop(id)
		} else {
			s.cache.put(snap)
		}
	}
	s.jobSeq, s.chain = b.jobSeq, b.chain
	if s.head.Swap(b.chain.seq) == b.chain.seq {
		return
	}
	s.mu.Lock()
	close(s.grown)
	s.grown = make(chan struct{})
	s.mu.Unlock()
}

// batch is one transaction of the writer. Operations see what those before them in
// the same batch wrote.
type batch struct {
	s     *Store
	tx    *bbolt.Tx
	now   time.Time
	dirty bool // something was written

	// What nearly every operation uses; the others are opened by name.
	jobs, keys, open, journal *bbolt.Bucket

	jobSeq uint64
	chain  chainHead
	fresh  map[string]*snapshot // jobs written in this batch; nil: pruned in it
	marks  marks

	broken error // why a part of it may be lost, though no write of its operations failed

	about []string // what it is about, for its fault points; else empty

	recentJobs uint64 // that are in bucket recent at most; recentJobs but for tests
}

func (s *Store) begin() (*batch, error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		return nil, errors.New("no write can begin: " + err.Error())
	}
	b := newBatch(tx, s.now().UTC())
	b.s, b.jobSeq, b.chain = s, s.jobSeq, s.chain
	if s.noRows {
		b.recentJobs = 0
	}
	return b, nil
}

func newBatch(tx *bbolt.Tx, now time.Time) *batch {
	b := &batch{tx: tx, now: now, fresh: map[string]*snapshot{}, recentJobs: recentJobs}
	b.jobs, b.keys, b.open = b.bucket(bucketJobs), b.bucket(bucketKeys), b.bucket(bucketOpen)
	b.journal = b.bucket(bucketJournal)
	for _, grows := range []*bbolt.Bucket{b.jobs, b.journal} {
		grows.FillPercent = fillAppended
	}
	return b
}

func (b *batch) bucket(name string) *bbolt.Bucket { return b.tx.Bucket([]byte(name)) }

// finish writes what belongs to the batch as a whole.
func (b *batch) finish() error {
	meta := b.tx.Bucket([]byte(bucketMeta))
	return errors.Join(
		b.flush(),
		meta.Put([]byte(metaJobSeq), encodeU64(b.jobSeq)),
		meta.Put([]byte(metaJournalHead), b.chain.encode()),
	)
}

// snapshot returns a job as it is after the operations before.
func (b *batch) snapshot(id string) (*snapshot, error) {
	if snap, known := b.fresh[id]; known {
		if snap == nil {
			return nil, jobNotFound(id)
		}
		return snap, nil
	}
	if snap := b.s.cache.get(id); snap != nil {
		return snap, nil
	}
	raw := b.jobs.Get([]byte(id))
	if raw == nil {
		return nil, jobNotFound(id)
	}
	snap := &snapshot{id: id, raw: append([]byte(nil), raw...)}
	b.s.cache.put(snap) // nothing in this batch has changed it, so it is committed
	return snap, nil
}

// standing is what the store keeps of a job beside its record.
type standing struct {
	seq                  uint64
	submitted            int64   // in milliseconds since 1970
	values               []value // of a new job
	principal, tool, run string
	state                jobs.State // empty: there is no job yet
	left                 bool       // it has ended, and processes of it may still live
	ended                time.Time
	usage                jobs.Usage
	uploads              []string
}

func standingOf(j *jobs.Job) standing {
	return standing{
		seq: j.Seq, submitted: j.SubmittedAt.UnixMilli(),
		principal: j.Principal, tool: j.Tool.Name, run: j.Call.Context.RunID,
		state: j.State, left: j.LeftBehind(), ended: j.EndedAt, usage: j.Usage, uploads: uploadsOf(j),
	}
}

// putJob stores a job's record with the entry that tells of it, and keeps exact what the
// store has beside it. before is the link of the record that it replaces, 0 for a new job.
func (b *batch) putJob(snap *snapshot, before uint64, was, now *standing, e sealed) error {
	if err := b.jobs.Put([]byte(snap.id), snap.raw); err != nil {
		return err
	}
	if err := b.journal.Put(encodeU64(e.seq), withLink(before, e.raw)); err != nil {
		return err
	}
	b.chain = e.head
	b.fresh[snap.id] = snap
	return b.putBeside(snap.id, was, now)
}

func (b *batch) putBeside(id string, was, now *standing) error {
	if err := b.pin(id, was.uploads, now.uploads); err != nil {
		return err
	}
	if was.left != now.left {
		if err := b.markLeft(id, now.left); err != nil {
			return err
		}
	}
	if was.state == "" {
		if err := b.index(id, now); err != nil {
			return err
		}
	}
	if !now.state.Terminal() {
		return b.open.Put([]byte(id), openValue(now.seq, now.state))
	}
	if was.state.Terminal() {
		return nil
	}
	b.mark(now.seq, valueOf(ofState, string(now.state)))
	if err := b.addUsage(now); err != nil {
		return err
	}
	return b.open.Delete([]byte(id))
}

// sealed is an entry that is ready to be the next one of the journal.
type sealed struct {
	seq   uint64
	jobID string
	raw   []byte
	head  chainHead
}

// seal prepares an entry as the next one; it changes nothing.
func (b *batch) seal(e jobs.Entry) (sealed, error) { return b.sealAfter(b.chain, e) }

// sealAfter prepares an entry that follows another one of the same operation.
func (b *batch) sealAfter(prev chainHead, e jobs.Entry) (sealed, error) {
	if e.At.IsZero() {
		e.At = b.now
	}
	if fault.On {
		b.about = append(b.about, aboutOf(&e))
	}
	raw, head, err := sealEntry(&e, prev)
	return sealed{seq: e.Seq, jobID: e.JobID, raw: raw, head: head}, err
}

// putEntry appends a prepared entry that comes with no record of a job.
func (b *batch) putEntry(e sealed) error {
	if err := b.journal.Put(encodeU64(e.seq), e.raw); err != nil {
		return err
	}
	b.chain = e.head
	if e.jobID == "" {
		return nil
	}
	return b.bucket(bucketJobJournal).Put(jobJournalKey(e.jobID, e.seq), nil)
}
