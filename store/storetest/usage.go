package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// rows follows the pages of a sum.
func rows(t *testing.T, s jobs.Store, q jobs.UsageQuery) (out []jobs.UsageRow) {
	t.Helper()
	for {
		page, err := s.SumUsage(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, page.Rows...)
		if page.Next == "" {
			return out
		}
		q.After = page.Next
	}
}

func usageTests() []suiteTest {
	first := Time().Truncate(time.Hour)
	// end submits the n-th job and ends it at a time as it should have ended.
	end := func(t *testing.T, s jobs.Store, n int, at time.Time, u jobs.Usage, change func(*jobs.Job)) {
		t.Helper()
		if _, err := submitChanged(t, s, n, change); err != nil {
			t.Fatal(err)
		}
		mustUpdate(t, s, JobID(n), func(j *jobs.Job) (jobs.Note, error) {
			note, err := Cancel(j)
			j.Usage, j.EndedAt = u, at
			return note, err
		})
	}
	return []suiteTest{
		{"usage is summed by run, tool and principal", func(t *testing.T, s jobs.Store) {
			if got := rows(t, s, jobs.UsageQuery{By: jobs.UsageByRun}); len(got) != 0 {
				t.Errorf("an empty store sums %+v", got)
			}
			whole := jobs.Usage{Running: time.Second, CPUUser: 2, BytesIn: 10, PeakMemory: 100, Scope: jobs.UsageWhole}
			part := jobs.Usage{Running: time.Minute, Waiting: 3, BytesOut: 7, PeakMemory: 50, Scope: jobs.UsagePartial}
			end(t, s, 1, Time(), whole, func(*jobs.Job) {})
			end(t, s, 11, Time().Add(2*time.Hour), part, func(j *jobs.Job) { j.Tool.Name = "inspect_audio" })
			end(t, s, 2, Time(), jobs.Usage{Running: -time.Hour}, func(j *jobs.Job) { j.Principal = "other" })
			end(t, s, 3, Time(), jobs.Usage{}, func(j *jobs.Job) { j.Call.Context.RunID = "" })
			mustSubmit(t, s, 4)
			both := jobs.Usage{Running: time.Minute + time.Second, Waiting: 3, CPUUser: 2, BytesIn: 10, BytesOut: 7, PeakMemory: 100, Scope: jobs.UsagePartial}
			for name, test := range map[string]struct {
				q    jobs.UsageQuery
				want []jobs.UsageRow
			}{
				"by run": {jobs.UsageQuery{By: jobs.UsageByRun}, []jobs.UsageRow{
					{Since: first, Cancelled: 1}, {Name: "run-1", Since: first, Cancelled: 2, Usage: both}, {Name: "run-2", Since: first, Cancelled: 1},
				}},
				"by run of one": {jobs.UsageQuery{By: jobs.UsageByRun, Principal: "other"}, []jobs.UsageRow{{Name: "run-2", Since: first, Cancelled: 1}}},
				"by principal": {jobs.UsageQuery{By: jobs.UsageByPrincipal}, []jobs.UsageRow{
					{Name: "orchestrator", Since: first, Cancelled: 3, Usage: both}, {Name: "other", Since: first, Cancelled: 1},
				}},
				"by tool": {jobs.UsageQuery{By: jobs.UsageByTool, Principal: "orchestrator"}, []jobs.UsageRow{
					{Name: "export_video", Since: first, Cancelled: 2, Usage: whole},
					{Name: "inspect_audio", Since: first.Add(2 * time.Hour), Cancelled: 1, Usage: part},
				}},
				"since the same hour": {jobs.UsageQuery{By: jobs.UsageByTool, Since: first.Add(2*time.Hour + 59*time.Minute)}, []jobs.UsageRow{
					{Name: "inspect_audio", Since: first.Add(2 * time.Hour), Cancelled: 1, Usage: part},
				}},
				"since later": {jobs.UsageQuery{By: jobs.UsageByTool, Since: first.Add(3 * time.Hour)}, nil},
			} {
				for _, test.q.Limit = range []int{0, 1, 2} {
					wantSame(t, name, test.want, rows(t, s, test.q))
				}
			}
			for _, q := range []jobs.UsageQuery{{}, {By: "colour"}, {By: jobs.UsageByRun, Limit: -1}, {By: jobs.UsageByRun, Limit: 1001}, {By: jobs.UsageByRun, After: "run-1"}} {
				_, err := s.SumUsage(t.Context(), q)
				wantCode(t, err, jobs.CodeRequestInvalid)
			}
		}},
		{"a job counts once, when it ends", func(t *testing.T, s jobs.Store) {
			id := mustSubmit(t, s, 1).ID
			mustUpdate(t, s, id, Start)
			mustUpdate(t, s, id, Lose)
			if got := rows(t, s, jobs.UsageQuery{By: jobs.UsageByTool}); len(got) != 0 {
				t.Errorf("an unknown job counts: %+v", got)
			}
			mustUpdate(t, s, id, Resolve)
			mustUpdate(t, s, id, func(j *jobs.Job) (jobs.Note, error) {
				j.AddEvidence(jobs.Evidence{Kind: jobs.EvidenceProbe, At: Time()})
				return jobs.Note{}, nil
			})
			wantSame(t, "rows", []jobs.UsageRow{{Name: "export_video", Since: first, Completed: 1}}, rows(t, s, jobs.UsageQuery{By: jobs.UsageByTool}))
			_, err := s.Update(t.Context(), id, func(j *jobs.Job) (jobs.Note, error) { *j = *withIdentity(NewJob(1), j); return jobs.Note{}, nil })
			wantCode(t, err, jobs.CodeInternal)
		}},
		{"a crowd's jobs are all counted", func(t *testing.T, s jobs.Store) {
			together(func(i int) {
				end(t, s, i, Time(), jobs.Usage{BytesIn: 1}, func(*jobs.Job) {})
			})
			want := []jobs.UsageRow{{Name: "orchestrator", Since: first, Cancelled: crowd, Usage: jobs.Usage{BytesIn: crowd}}}
			wantSame(t, "rows", want, rows(t, s, jobs.UsageQuery{By: jobs.UsageByPrincipal}))
			for _, limit := range []int{1, 3, 10, 11} {
				got := rows(t, s, jobs.UsageQuery{By: jobs.UsageByRun, Limit: limit})
				for n, row := range got {
					wantSame(t, "name", fmt.Sprintf("run-%d", n), row.Name)
				}
				wantSame(t, "runs", 10, len(got))
			}
		}},
		{"many runs are paged", func(t *testing.T, s jobs.Store) {
			const n = 60
			for i := range n { // in an order that is not that of the names
				end(t, s, i, Time().Add(time.Duration(i%5)*time.Hour), jobs.Usage{}, func(j *jobs.Job) { j.Call.Context.RunID = fmt.Sprintf("run-%02d", (i*37)%n) })
			}
			for _, limit := range []int{1, 2, 7, 100} {
				got := rows(t, s, jobs.UsageQuery{By: jobs.UsageByRun, Limit: limit})
				for i, row := range got {
					wantSame(t, "row", []any{fmt.Sprintf("run-%02d", i), int64(1)}, []any{row.Name, row.Cancelled})
				}
				wantSame(t, "runs", n, len(got))
			}
		}},
	}
}

// withIdentity gives a job what no change may touch of another one.
func withIdentity(j, of *jobs.Job) *jobs.Job {
	j.Seq, j.Revision = of.Seq, of.Revision
	return j
}
