package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// checkLockWait is how long Check waits for a store that is in use.
const checkLockWait = time.Second

// maxProblems bounds what Check lists; a broken store can have no end of them.
const maxProblems = 1000

// problems is what is wrong with a store, in words for a person.
type problems []string

func (p *problems) problemf(format string, args ...any) {
	if len(*p) < maxProblems {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

// Check reads a whole store that no process has open and returns what is wrong
// with it, in words for a person. It changes nothing. The error says why it could
// not look: the file is not there, is in use, or is of a newer macexec.
func Check(path string) (problems []string, err error) {
	file, err := openLocked(context.Background(), path, os.O_RDONLY, syscall.LOCK_SH, checkLockWait)
	if err != nil {
		return nil, err
	}
	if problems := checkPages(file); len(problems) > 0 {
		// bbolt trusts its pages; it must not walk such a file.
		return problems, closeLocked(file)
	}
	db, err := openBolt(file, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	c := &checker{problems: checkHead(file)}
	err = guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if err := checkVersion(path, readSchemaVersion(tx), schemaVersion(migrations())); err != nil {
				return err
			}
			for err := range tx.Check() {
				c.problemf("bbolt: %v", err)
			}
			c.run(tx)
			return nil
		})
	})
	return c.problems, err
}

// checker compares the buckets with each other. It keeps a few words per job, not
// the records.
type checker struct {
	problems
	older  bool // an upgrade makes anew what the store has beside its records
	jobs   map[string]jobSummary
	jobSeq uint64
	pinned int // pins that jobs must have
	usage  usageCheck
}

type jobSummary struct {
	place    string // of its key
	seq      uint64
	revision uint64
	newest   uint64 // entry that its record leads to
	state    jobs.State
	damaged  bool
}

func (c *checker) run(tx *bbolt.Tx) {
	need, missing := buckets(), false
	if c.older = readSchemaVersion(tx) < schemaVersion(migrations()); c.older {
		need = firstBuckets()
	}
	for _, name := range need {
		if tx.Bucket([]byte(name)) == nil {
			c.problemf("bucket %s is missing", name)
			missing = true
		}
	}
	if missing {
		return
	}
	c.checkMeta(tx)
	c.checkJobs(tx)
	c.checkKeys(tx)
	c.checkJournal(tx)
	c.checkFiles(tx)
	if c.older {
		return
	}
	c.checkTombstones(tx)
	c.checkOpen(tx)
	c.checkPins(tx)
	c.checkClosed(tx)
	c.checkUsage(tx)
}

func (c *checker) checkMeta(tx *bbolt.Tx) {
	meta := tx.Bucket([]byte(bucketMeta))
	if id := meta.Get([]byte(metaHostID)); !validHostID(string(id)) {
		c.problemf("meta: the host id %q is not possible", id)
	}
	if _, err := time.Parse(time.RFC3339, string(meta.Get([]byte(metaCreatedAt)))); err != nil {
		c.problemf("meta: created_at is not a time: %v", err)
	}
	c.jobSeq = decodeU64(meta.Get([]byte(metaJobSeq)))
	if raw := meta.Get([]byte(metaHostMode)); raw != nil {
		if _, err := decodeMode(raw); err != nil {
			c.problemf("meta: %v", err)
		}
	}
	c.checkRestore(tx)
}

func (c *checker) checkJobs(tx *bbolt.Tx) {
	c.jobs = map[string]jobSummary{}
	var index *indexCheck
	if !c.older {
		index = newIndexCheck(c, tx)
	}
	damaged := 0
	seqs := map[uint64]string{}
	keys, pins := tx.Bucket([]byte(bucketKeys)), tx.Bucket([]byte(bucketPins))
	_ = tx.Bucket([]byte(bucketJobs)).ForEach(func(k, raw []byte) error {
		id := string(k)
		job, err := decodeJob(id, raw)
		if err != nil {
			c.problemf("%v", err)
			c.jobs[id] = jobSummary{damaged: true}
			c.usage.gone = true
			damaged++
			return nil
		}
		place := keyPlace(jobs.Key{Principal: job.Principal, Text: job.Key})
		link, _, _ := splitLink(raw)
		c.jobs[id] = jobSummary{place: string(place), newest: link, seq: job.Seq, revision: job.Revision, state: job.State}
		if other, taken := seqs[job.Seq]; taken {
			c.problemf("job %s has the seq %d of job %s", id, job.Seq, other)
		}
		seqs[job.Seq] = id
		if job.Seq == 0 || job.Seq > c.jobSeq {
			c.problemf("job %s has the seq %d; the newest given is %d", id, job.Seq, c.jobSeq)
		}
		if !slices.Contains(jobs.States(), job.State) {
			c.problemf("job %s has the unknown state %q", id, job.State)
		}
		if keys.Get(place) == nil {
			c.problemf("job %s: its key has no record", id)
		}
		if c.older {
			return nil
		}
		for _, digest := range uploadsOf(job) {
			if !has(pins, pinKey(digest, id)) {
				c.problemf("job %s reads the file sha256:%s but does not pin it", id, digest)
			}
			c.pinned++
		}
		index.job(job)
		c.usage.job(job)
		return nil
	})
	if !c.older {
		index.whole(damaged)
	}
}

func (c *checker) checkKeys(tx *bbolt.Tx) {
	_ = tx.Bucket([]byte(bucketKeys)).ForEach(func(place, raw []byte) error {
		var record jobs.KeyRecord
		if err := decodeInto(fmt.Sprintf("the key record at %x", place), raw, &record); err != nil {
			c.problemf("%v", err)
			return nil
		}
		if !bytes.Equal(keyPlace(record.Key), place) {
			c.problemf("the key record at %x lies in the place of another key", place)
		}
		job, exists := c.jobs[record.JobID]
		if record.Kind == jobs.KeyTombstone {
			c.usage.gone = true
		}
		switch {
		case record.Kind == jobs.KeyJob && !exists:
			c.problemf("the key record at %x names job %s, which does not exist", place, record.JobID)
		case record.Kind == jobs.KeyJob && !job.damaged && job.place != string(place):
			c.problemf("the key record at %x names job %s, which has another key", place, record.JobID)
		case record.Kind == jobs.KeyTombstone && exists:
			c.problemf("the key record at %x is a tombstone, but job %s exists", place, record.JobID)
		case !c.older && has(tx.Bucket([]byte(bucketTombstones)), tombstoneKey(place)):
			c.problemf("the key at %x has both a record and a tombstone", place)
		case !slices.Contains([]jobs.KeyKind{jobs.KeyJob, jobs.KeyTombstone, jobs.KeyFence}, record.Kind):
			c.problemf("the key record at %x is of the unknown kind %q", place, record.Kind)
		}
		return nil
	})
}

func (c *checker) checkTombstones(tx *bbolt.Tx) {
	hostID := string(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaHostID)))
	_ = tx.Bucket([]byte(bucketTombstones)).ForEach(func(k, raw []byte) error {
		c.usage.gone = true
		t, ok := decodeTombstone(raw, hostID)
		_, exists := c.jobs[t.jobID]
		switch {
		case !ok || len(k) != tombstoneKeySize:
			c.problemf("the tombstone at %x cannot be read", k)
		case exists:
			c.problemf("the tombstone at %x is of job %s, which exists", k, t.jobID)
		}
		return nil
	})
}

func (c *checker) checkOpen(tx *bbolt.Tx) {
	open := tx.Bucket([]byte(bucketOpen))
	_ = open.ForEach(func(k, raw []byte) error {
		seq, state, ok := splitOpenValue(raw)
		job, exists := c.jobs[string(k)]
		switch {
		case !exists:
			c.problemf("job %s is listed as open but does not exist", k)
		case !job.damaged && job.state.Terminal():
			c.problemf("job %s is listed as open but is %s", k, job.state)
		case !job.damaged && (!ok || state != job.state || seq != job.seq):
			c.problemf("job %s is listed as open with seq %d and as %s, but has %d and is %s", k, seq, state, job.seq, job.state)
		}
		return nil
	})
	eachLeft(tx, func(id []byte) {
		if _, exists := c.jobs[string(id)]; !exists {
			c.problemf("processes of job %s are said to live, and it does not exist", id)
		}
	})
	for id, job := range c.jobs {
		if !job.damaged && !job.state.Terminal() && !has(open, []byte(id)) {
			c.problemf("job %s is %s but is not listed as open", id, job.state)
		}
	}
}

// has reports whether a bucket has a key, whose value may be empty.
func has(b *bbolt.Bucket, key []byte) bool {
	k, _ := b.Cursor().Seek(key)
	return bytes.Equal(k, key)
}

func (c *checker) checkJournal(tx *bbolt.Tx) {
	journal := tx.Bucket([]byte(bucketJournal))
	head, ok := decodeChainHead(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaJournalHead)))
	if !ok {
		c.problemf("meta: journal_head has %d bytes", len(head.encode()))
	}
	v := verifier{until: head.seq}
	for more := true; more; {
		var err error
		if more, err = v.chunk(tx, journalChunk); err != nil {
			c.problemf("%v", err)
		}
	}
	last, raw := journal.Cursor().Last()
	if decodeU64(last) != head.seq {
		c.problemf("the journal ends at entry %d, not at %d", decodeU64(last), head.seq)
	} else if head.seq > 0 {
		if hash, _ := checkEntry(raw, head.seq, ""); hash != fmt.Sprintf("%x", head.hash) {
			c.problemf("the hash of the newest entry is not the one in meta")
		}
	}
	c.checkEntries(tx)
}

func (c *checker) checkFiles(tx *bbolt.Tx) {
	_ = tx.Bucket([]byte(bucketBlobs)).ForEach(func(k, raw []byte) error {
		var blob jobs.Blob
		if err := decodeInto(fmt.Sprintf("the record of file sha256:%s", k), raw, &blob); err != nil {
			c.problemf("%v", err)
		} else if blob.SHA256 != string(k) {
			c.problemf("the record of file sha256:%s is of another file", k)
		}
		return nil
	})
	_ = tx.Bucket([]byte(bucketProjects)).ForEach(func(k, raw []byte) error {
		var p jobs.Project
		if err := decodeInto(fmt.Sprintf("the record of project %s", k), raw, &p); err != nil {
			c.problemf("%v", err)
		} else if p.Name != string(k) {
			c.problemf("the record of project %s is of another project", k)
		}
		return nil
	})
	_ = tx.Bucket([]byte(bucketManifests)).ForEach(func(k, text []byte) error {
		if err := wholeManifest(string(k), text); err != nil {
			c.problemf("%v", err)
		}
		return nil
	})
}

func (c *checker) checkPins(tx *bbolt.Tx) {
	surplus := -c.pinned
	_ = tx.Bucket([]byte(bucketPins)).ForEach(func(k, _ []byte) error {
		digest, id, ok := splitPinKey(k)
		job, exists := c.jobs[id]
		switch {
		case !ok || !exists:
			c.problemf("the file sha256:%s is pinned by job %s, which does not exist", digest, id)
		case job.damaged: // it may well read the file
		case job.state.Terminal():
			c.problemf("the file sha256:%s is pinned by job %s, which is %s", digest, id, job.state)
		default:
			surplus++
		}
		return nil
	})
	if surplus > 0 {
		c.problemf("%d files are pinned by jobs that do not read them", surplus)
	}
}

func (c *checker) checkClosed(tx *bbolt.Tx) {
	_ = tx.Bucket([]byte(bucketClosed)).ForEach(func(k, raw []byte) error {
		var record closing
		if err := decodeInto(fmt.Sprintf("the record of a closed run at %x", k), raw, &record); err != nil {
			c.problemf("%v", err)
		} else if !bytes.Equal(record.place(), k) {
			c.problemf("the record of a closed run at %x lies in the place of another one", k)
		}
		return nil
	})
}
