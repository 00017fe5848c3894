package engine

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/jobs"
)

// What left the tool's session and could not be ended is reported with the job.
func TestEscapedProcessesAreReported(t *testing.T) {
	t.Parallel()
	j := &jobs.Job{Attempts: []jobs.Attempt{{N: 1}}}
	(&attempt{job: j, n: 1}).keepExit(j, executor.Found{Exit: &keeper.Exit{Escaped: []keeper.Process{{Pid: 41, StartTime: "1"}, {Pid: 42, StartTime: "1"}}}})
	if got := j.Attempts[0].Exit.Escaped; !slices.Equal(got, []int{41, 42}) || len(j.Warnings) != 1 || j.Usage.Scope != jobs.UsagePartial {
		t.Errorf("escaped %v, warnings %q, usage %s", got, j.Warnings, j.Usage.Scope)
	}
}

// The figures of a job are whole only if those of all its attempts are.
func TestUsageScope(t *testing.T) {
	t.Parallel()
	started := &keeper.Started{Pid: 1}
	lost := executor.Found{Started: started}
	whole := executor.Found{Started: started, Exit: &keeper.Exit{Usage: keeper.Usage{Whole: true}}}
	partial := executor.Found{Started: started, Exit: &keeper.Exit{}}
	for _, test := range []struct {
		name     string
		attempts []executor.Found
		want     jobs.UsageScope
	}{
		{"one that was seen to its end", []executor.Found{whole}, jobs.UsageWhole},
		{"one that others outlived", []executor.Found{partial}, jobs.UsagePartial},
		{"one that was lost", []executor.Found{lost}, jobs.UsagePartial},
		{"one that never started", []executor.Found{{}}, ""},
		{"whole after one that never started", []executor.Found{{}, whole}, jobs.UsageWhole},
		{"whole after a lost one", []executor.Found{lost, whole}, jobs.UsagePartial},
		{"partial after a whole one", []executor.Found{whole, partial}, jobs.UsagePartial},
	} {
		j := &jobs.Job{}
		for n, found := range test.attempts {
			j.Attempts = append(j.Attempts, jobs.Attempt{N: n + 1})
			keepStart(j, found)
			if found.Exit != nil {
				(&attempt{job: j, n: n + 1}).keepExit(j, found)
			}
		}
		if j.Usage.Scope != test.want {
			t.Errorf("%s: %q, want %q", test.name, j.Usage.Scope, test.want)
		}
	}
}

// On Linux the keeper adopts orphans, so also what a tool left behind is counted.
func TestUsageOfOrphansIsCounted(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("orphan", "none", burnInOrphan, plainResult))
	job := h.submit("orphan", `{}`)
	ended := h.await(job.ID, func(j *jobs.Job) bool { return j.State.Terminal() })
	want := jobs.UsageWhole
	if runtime.GOOS == "darwin" {
		want = jobs.UsagePartial
	}
	if u := ended.Usage; u.Scope != want || want == jobs.UsageWhole && u.CPUUser+u.CPUSystem < orphanBurns {
		t.Errorf("%s: %+v, want the scope %s", ended.State, u, want)
	}
}

// burnInOrphan has a process count to a million whose parent is gone by then, and
// waits for it by the pipe that it holds open.
const burnInOrphan = `x=$( (i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done) & )`

// orphanBurns is below what it takes to count so far, and above what all else takes.
const orphanBurns = 50 * time.Millisecond
