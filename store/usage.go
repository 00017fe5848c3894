package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// usageRow is what the jobs of one principal, tool and run that ended in one hour
// cost together.
type usageRow struct {
	Principal string     `json:"principal"`
	Tool      string     `json:"tool"`
	RunID     string     `json:"run_id,omitempty"`
	Completed int64      `json:"completed,omitempty"`
	Failed    int64      `json:"failed,omitempty"`
	Cancelled int64      `json:"cancelled,omitempty"`
	Usage     jobs.Usage `json:"usage,omitzero"`
}

// newUsageRow counts one job that has ended.
func newUsageRow(j *standing) usageRow {
	row := usageRow{Principal: j.principal, Tool: j.tool, RunID: j.run, Usage: notNegative(j.usage)}
	switch j.state {
	case jobs.StateCompleted:
		row.Completed = 1
	case jobs.StateFailed:
		row.Failed = 1
	default:
		row.Cancelled = 1
	}
	return row
}

// plus returns what two rows of the same principal, tool and run are together.
func (r usageRow) plus(o usageRow) usageRow {
	r.Completed += o.Completed
	r.Failed += o.Failed
	r.Cancelled += o.Cancelled
	r.Usage = r.Usage.Plus(o.Usage)
	return r
}

// problem says why a row cannot be right, "" if it can.
func (r usageRow) problem() string {
	u := r.Usage
	if min(r.Completed, r.Failed, r.Cancelled) < 0 || r.Completed+r.Failed+r.Cancelled <= 0 {
		return "it counts no jobs"
	}
	if min(u.Waiting, u.Staging, u.Running, u.Publishing, u.CPUUser, u.CPUSystem) < 0 || min(u.PeakMemory, u.BytesIn, u.BytesOut) < 0 {
		return "it has a negative sum"
	}
	return ""
}

func decodeUsage(key, raw []byte) (row usageRow, err error) {
	what := fmt.Sprintf("the usage row at %x", key)
	if err := decodeInto(what, raw, &row); err != nil {
		return row, err
	}
	if why := row.problem(); why != "" {
		return row, damaged(what, why)
	}
	if len(key) < usageKeySize || !bytes.Equal(key[:usageKeySize], usageKey(hourOf(key), row.Principal, row.Tool, row.RunID)) {
		return row, damaged(what, "it lies in the place of another row")
	}
	return row, nil
}

// usageKeySize is that of a usage key: the hour and a digest.
const usageKeySize = 8 + 16

func usageKey(hour uint64, principal, tool, run string) []byte {
	return append(encodeU64(hour), place("usage", principal, tool, run)[1:17]...)
}

func hourOf(key []byte) uint64 {
	if len(key) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(key)
}

// hour numbers the hours since 1970.
func hour(at time.Time) uint64 { return uint64(max(at.Unix(), 0)) / 3600 }

func startOf(hour uint64) time.Time { return time.Unix(int64(hour)*3600, 0).UTC() }

// addUsage counts a job that has just become terminal. A row that cannot be read is
// kept, and the job counts in another one behind it.
func (b *batch) addUsage(j *standing) error {
	ended := j.ended
	if ended.IsZero() {
		ended = b.now
	}
	key := usageKey(hour(ended), j.principal, j.tool, j.run)
	row := newUsageRow(j)
	for {
		raw := b.bucket(bucketUsage).Get(key)
		if raw == nil {
			break
		}
		old, err := decodeUsage(key, raw)
		if err == nil {
			row = old.plus(row)
			break
		}
		key = append(key, 1)
	}
	raw, err := encodeRecord(row)
	if err != nil {
		return err
	}
	return b.bucket(bucketUsage).Put(key, raw)
}

// notNegative keeps a clock that was set back from taking something off a sum.
func notNegative(u jobs.Usage) jobs.Usage {
	for _, d := range []*time.Duration{&u.Waiting, &u.Staging, &u.Running, &u.Publishing, &u.CPUUser, &u.CPUSystem} {
		*d = max(*d, 0)
	}
	for _, n := range []*int64{&u.PeakMemory, &u.BytesIn, &u.BytesOut} {
		*n = max(*n, 0)
	}
	return u
}

// afterPrefix begins every token of a sum's pages, so that the row without a name
// has one too.
const afterPrefix = "="

// usageChunk is how many rows are read in one transaction.
const usageChunk = 4096

// SumUsage implements jobs.Store. A row that cannot be read is left out, logged and
// reported by Check.
func (s *Store) SumUsage(ctx context.Context, q jobs.UsageQuery) (jobs.UsagePage, error) {
	after, more := strings.CutPrefix(q.After, afterPrefix)
	switch {
	case !slices.Contains([]jobs.UsageBy{jobs.UsageByRun, jobs.UsageByPrincipal, jobs.UsageByTool}, q.By):
		return jobs.UsagePage{}, jobs.Errorf(jobs.CodeRequestInvalid, "usage is summed by run, principal or tool, not by %q", q.By)
	case q.After != "" && !more:
		return jobs.UsagePage{}, jobs.Errorf(jobs.CodeRequestInvalid, "%q is not the token of a page", q.After)
	case q.Limit < 0 || q.Limit > maxPage:
		return jobs.UsagePage{}, jobs.Errorf(jobs.CodeRequestInvalid, "a page has 1 to %d rows, not %d", maxPage, q.Limit)
	}
	limit := cmp.Or(q.Limit, defaultPage)
	sum := usageSum{q: q, after: after, more: more, most: limit + 1, rows: map[string]*jobs.UsageRow{}}
	from := encodeU64(hour(q.Since))
	for from != nil {
		var chunk []usageRecord
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			c := tx.Bucket([]byte(bucketUsage)).Cursor()
			k, raw := c.Seek(from)
			for from = nil; k != nil; k, raw = c.Next() {
				if len(chunk) == usageChunk {
					from = bytes.Clone(k)
					return nil
				}
				chunk = append(chunk, usageRecord{bytes.Clone(k), bytes.Clone(raw)})
			}
			return nil
		})
		if err != nil {
			return jobs.UsagePage{}, err
		}
		for _, r := range chunk {
			row, err := decodeUsage(r.key, r.raw)
			if err != nil {
				s.log.Error("a usage row is left out of a sum", "error", err)
				continue
			}
			sum.add(hourOf(r.key), row)
		}
	}
	return sum.page(limit), nil
}

type usageRecord struct{ key, raw []byte }

// usageSum keeps the rows with the first names behind a page's start, so that its
// size depends on the page and not on the store.
type usageSum struct {
	q     jobs.UsageQuery
	after string
	more  bool // only names behind after
	most  int  // rows that are ever shown
	last  string
	full  bool // names behind last are not wanted
	rows  map[string]*jobs.UsageRow
}

func (s *usageSum) add(hour uint64, r usageRow) {
	name := map[jobs.UsageBy]string{jobs.UsageByRun: r.RunID, jobs.UsageByPrincipal: r.Principal, jobs.UsageByTool: r.Tool}[s.q.By]
	if s.q.Principal != "" && r.Principal != s.q.Principal || s.more && name <= s.after || s.full && name > s.last {
		return
	}
	row := s.rows[name]
	if row == nil {
		row = &jobs.UsageRow{Name: name, Since: startOf(hour)} // rows come by their hours
		s.rows[name] = row
		if len(s.rows) > 4*s.most {
			s.cut()
		}
	}
	row.Completed += r.Completed
	row.Failed += r.Failed
	row.Cancelled += r.Cancelled
	row.Usage = row.Usage.Plus(r.Usage)
}

// cut drops the names that are behind what is shown: more of them can only come to
// lie further behind.
func (s *usageSum) cut() {
	names := slices.Sorted(maps.Keys(s.rows))
	if len(names) <= s.most {
		return
	}
	s.full, s.last = true, names[s.most-1]
	for _, name := range names[s.most:] {
		delete(s.rows, name)
	}
}

func (s *usageSum) page(limit int) (page jobs.UsagePage) {
	s.cut()
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		if len(page.Rows) == limit {
			page.Next = afterPrefix + page.Rows[limit-1].Name
			break
		}
		page.Rows = append(page.Rows, *s.rows[name])
	}
	return page
}
