package store

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// linkChunk is how many links are followed, or entries looked at, in one transaction.
const linkChunk = 1024

// JobJournal implements jobs.Store. Entries that were dropped from the journal are
// left out.
func (s *Store) JobJournal(ctx context.Context, jobID string, yield func(jobs.Entry) bool) error {
	seqs, err := s.entriesOf(ctx, jobID)
	for err == nil && len(seqs) > 0 {
		var c chunk
		err = s.view(ctx, func(tx *bbolt.Tx) error {
			journal := tx.Bucket([]byte(bucketJournal))
			oldest, _ := journal.Cursor().First()
			for len(seqs) > 0 {
				seq := seqs[0]
				seqs = seqs[1:]
				if seq >= decodeU64(oldest) && c.add(seq, journal.Get(encodeU64(seq))) {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if more, err := c.show(yield); !more {
			return err
		}
	}
	return err
}

// entriesOf returns the Seqs of a job's entries up to now, ascending: those that its
// record leads to, one to the one before, and those that bucket job_journal lists.
func (s *Store) entriesOf(ctx context.Context, jobID string) ([]uint64, error) {
	until := s.head.Load()
	w := linkWalk{id: jobID}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		w.begin(tx)
		return nil
	})
	for prefix, after, more := jobJournalPrefix(jobID), uint64(0), true; err == nil && more; {
		err = s.view(ctx, func(tx *bbolt.Tx) error {
			more = false
			c := tx.Bucket([]byte(bucketJobJournal)).Cursor()
			n := 0
			for k, _ := c.Seek(jobJournalKey(jobID, after+1)); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
				if n++; n > linkChunk {
					more = true
					break
				}
				after = decodeU64(k[len(prefix):])
				w.seqs = append(w.seqs, after)
			}
			return nil
		})
	}
	for err == nil && w.at != 0 {
		err = s.view(ctx, func(tx *bbolt.Tx) error {
			w.step(tx.Bucket([]byte(bucketJournal)))
			return nil
		})
	}
	if w.broken != 0 {
		s.log.Error("what leads from one entry of a job to the one before is damaged, so its entries were looked for one by one", "job", jobID, "entry", w.broken)
	}
	slices.Sort(w.seqs)
	seqs := slices.Compact(w.seqs)
	behind, _ := slices.BinarySearch(seqs, until+1)
	return seqs[:behind], err
}

// linkWalk follows the links of a job's entries, newest first. Where one is damaged it
// looks through the journal for the next entry of the job.
type linkWalk struct {
	id     string
	at     uint64 // the entry to look at; 0: there is no other
	from   uint64 // what led there; behind the newest entry if that was the record
	search bool   // at need not be the job's
	broken uint64 // the last entry that led nowhere; 0: none
	seqs   []uint64
}

// begin finds the newest entry.
func (w *linkWalk) begin(tx *bbolt.Tx) {
	raw := tx.Bucket([]byte(bucketJobs)).Get([]byte(w.id))
	if raw == nil {
		return
	}
	newest, _ := tx.Bucket([]byte(bucketJournal)).Cursor().Last()
	w.from = decodeU64(newest) + 1
	link, _, ok := splitLink(raw)
	if w.at = link; ok {
		return
	}
	if _, err := decodeJob(w.id, raw); err != nil { // else it was written before there were links
		w.lost()
	}
}

// lost begins to look through the journal.
func (w *linkWalk) lost() {
	w.at, w.search, w.broken = w.from-1, true, w.from
}

func (w *linkWalk) step(journal *bbolt.Bucket) {
	first, _ := journal.Cursor().First()
	oldest := decodeU64(first)
	for range linkChunk {
		if w.at == 0 || w.at < oldest {
			w.at = 0
			return
		}
		raw := journal.Get(encodeU64(w.at))
		link, record, linked := splitLink(raw)
		whole, names := w.names(record)
		if names || !whole && !w.search { // the damage of what a link leads to is shown
			w.seqs = append(w.seqs, w.at)
		}
		switch {
		case names && linked && link < w.at:
			w.at, w.from, w.search = link, w.at, false
		case w.search:
			w.at--
		default:
			w.lost()
		}
	}
}

// names reports whether an entry can be read, and whether it is of the job.
func (w *linkWalk) names(record []byte) (whole, names bool) {
	var e struct {
		JobID string `json:"job_id"`
	}
	if w.search && !bytes.Contains(record, []byte(w.id)) {
		return false, false
	}
	err := json.Unmarshal(record, &e)
	return err == nil, err == nil && e.JobID == w.id
}
