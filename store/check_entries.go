package store

import (
	"encoding/json"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// newestEntry is the last entry that tells of a change of a job, as far as the journal
// was read.
type newestEntry struct {
	seq      uint64 // 0: only an entry without a link was seen
	revision uint64
	state    jobs.State
	told     uint64 // seq of the entry, linked or not
}

// checkEntries compares the journal with the jobs, with what leads from one entry of a
// job to the one before, and with bucket job_journal.
func (c *checker) checkEntries(tx *bbolt.Tx) {
	journal, byJob := tx.Bucket([]byte(bucketJournal)), tx.Bucket([]byte(bucketJobJournal))
	newest := map[string]newestEntry{}
	first, _ := journal.Cursor().First()
	oldest := max(decodeU64(first), 1)
	listed := 0
	_ = journal.ForEach(func(k, raw []byte) error {
		var e jobs.Entry
		link, record, linked := splitLink(raw)
		if json.Unmarshal(record, &e) != nil || e.JobID == "" {
			return nil //nolint:nilerr // of a damaged one the chain has told
		}
		last := newest[e.JobID]
		switch {
		case linked && link != last.seq && (last.seq != 0 || link >= oldest):
			c.problemf("entry %d of job %s leads to entry %d and not to %d", e.Seq, e.JobID, link, last.seq)
		case !linked:
			listed++
			if !has(byJob, jobJournalKey(e.JobID, decodeU64(k))) {
				c.problemf("entry %d names job %s but is not in job_journal", e.Seq, e.JobID)
			}
		}
		if linked {
			last.seq = e.Seq
		}
		if e.Kind == jobs.EntrySubmitted || e.Kind == jobs.EntryChanged {
			last.revision, last.state, last.told = e.Revision, e.State, e.Seq
		}
		newest[e.JobID] = last
		return nil
	})
	_ = byJob.ForEach(func(k, _ []byte) error {
		id, seq, ok := splitJobJournalKey(k)
		switch {
		case !ok:
			c.problemf("job_journal has the odd key %x", k)
		case seq < oldest:
			c.problemf("job_journal lists entry %d of job %s, which was dropped", seq, id)
		case journal.Get(encodeU64(seq)) == nil:
			c.problemf("job_journal lists entry %d of job %s, which does not exist", seq, id)
		default:
			listed--
		}
		return nil
	})
	if listed < 0 {
		c.problemf("job_journal lists %d entries that name no job or another one, or that a job leads to", -listed)
	}
	for id, job := range c.jobs {
		e := newest[id]
		switch {
		case job.damaged || e.told == 0 && oldest > 1:
		case e.told == 0:
			c.problemf("job %s is not in the journal", id)
		case e.revision != job.revision || e.state != job.state:
			c.problemf("job %s is %s at revision %d, but entry %d says %s at revision %d", id, job.state, job.revision, e.told, e.state, e.revision)
		case job.newest != e.seq && (e.seq != 0 || job.newest >= oldest):
			c.problemf("job %s leads to entry %d and not to its newest one, %d", id, job.newest, e.seq)
		}
	}
}
