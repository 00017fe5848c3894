package jobs

import (
	"cmp"
	"time"
)

// Plus returns the usage of two things together.
func (u Usage) Plus(o Usage) Usage {
	scope := cmp.Or(u.Scope, o.Scope)
	if u.Scope == UsagePartial || o.Scope == UsagePartial {
		scope = UsagePartial
	}
	return Usage{
		Waiting: u.Waiting + o.Waiting, Staging: u.Staging + o.Staging, Running: u.Running + o.Running, Publishing: u.Publishing + o.Publishing,
		CPUUser: u.CPUUser + o.CPUUser, CPUSystem: u.CPUSystem + o.CPUSystem,
		PeakMemory: max(u.PeakMemory, o.PeakMemory), BytesIn: u.BytesIn + o.BytesIn, BytesOut: u.BytesOut + o.BytesOut,
		Scope: scope,
	}
}

// UsageBy says what usage is summed over.
type UsageBy string

// What usage can be summed over.
const (
	UsageByRun       UsageBy = "run"
	UsageByPrincipal UsageBy = "principal"
	UsageByTool      UsageBy = "tool"
)

// UsageQuery selects the ended jobs whose usage is summed.
type UsageQuery struct {
	By        UsageBy
	Principal string    // only this one's jobs; empty: everybody's
	Since     time.Time // cut down to a full hour; zero: all that is known
	After     string    // Next of the page before
	Limit     int       // 0: 100; at most 1000
}

// UsagePage is a part of a sum, by name. Next is the After of the next page, empty
// at the end.
type UsagePage struct {
	Rows []UsageRow
	Next string
}

// UsageRow is what the ended jobs of one run, principal or tool cost together.
type UsageRow struct {
	Name                         string // empty: jobs that name no run
	Since                        time.Time
	Completed, Failed, Cancelled int64
	Usage                        Usage
}
