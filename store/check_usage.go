package store

import (
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// usageCheck compares what ended jobs cost with what was counted when they ended. Rows
// outlive the records of jobs, so once records are gone, or cannot be read, there may
// be more in the rows, but never less.
type usageCheck struct {
	jobs map[usageName]usageRow // of all hours together
	gone bool                   // there were jobs that are not in jobs
}

// usageName is the principal, tool and run of a usage row, digested.
type usageName [usageKeySize - 8]byte

func usageNameOf(r usageRow) usageName {
	return usageName(usageKey(0, r.Principal, r.Tool, r.RunID)[8:])
}

// job counts a job, if it has ended.
func (u *usageCheck) job(j *jobs.Job) {
	if !j.State.Terminal() {
		return
	}
	stands := standingOf(j)
	u.add(newUsageRow(&stands))
}

func (u *usageCheck) add(r usageRow) {
	if u.jobs == nil {
		u.jobs = map[usageName]usageRow{}
	}
	name := usageNameOf(r)
	sum, known := u.jobs[name]
	if !known {
		sum.Principal, sum.Tool, sum.RunID = r.Principal, r.Tool, r.RunID
	}
	u.jobs[name] = sum.plus(r)
}

func (c *checker) checkUsage(tx *bbolt.Tx) {
	var rows usageCheck
	damaged := false
	_ = tx.Bucket([]byte(bucketUsage)).ForEach(func(k, raw []byte) error {
		row, err := decodeUsage(k, raw)
		if err != nil {
			c.problemf("%v", err)
			damaged = true
			return nil
		}
		rows.add(row)
		return nil
	})
	if damaged {
		return // what it counted is not known
	}
	for name, want := range c.usage.jobs {
		got := rows.jobs[name]
		less := got.Completed < want.Completed || got.Failed < want.Failed || got.Cancelled < want.Cancelled
		if less || !c.usage.gone && got != want {
			c.problemf("usage: of principal %s, tool %s and run %q the rows say %s, and the jobs %s", want.Principal, want.Tool, want.RunID, got, want)
		}
	}
	for name, got := range rows.jobs {
		if _, known := c.usage.jobs[name]; !known && !c.usage.gone {
			c.problemf("usage: of principal %s, tool %s and run %q the rows say %s, and there are no such jobs", got.Principal, got.Tool, got.RunID, got)
		}
	}
}

func (r usageRow) String() string {
	return fmt.Sprintf("%d completed, %d failed, %d cancelled with %+v", r.Completed, r.Failed, r.Cancelled, r.Usage)
}
