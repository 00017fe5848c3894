package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/jobs"
)

// all follows the pages of a query.
func all(t *testing.T, s jobs.Store, q jobs.Query) (ids []string) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			ids = append(ids, j.ID)
		}
		if page.Next == "" {
			return ids
		}
		q.After = page.Next
	}
}

func ids(numbers ...int) (out []string) {
	for _, n := range numbers {
		out = append(out, JobID(n))
	}
	return out
}

func listTests() []suiteTest {
	return []suiteTest{
		{"jobs come newest first in pages", func(t *testing.T, s jobs.Store) {
			if got := all(t, s, jobs.Query{}); len(got) != 0 {
				t.Errorf("an empty store lists %v", got)
			}
			for n := range 7 {
				mustSubmit(t, s, n)
			}
			for limit := 1; limit <= 8; limit++ {
				wantSame(t, "ids", ids(6, 5, 4, 3, 2, 1, 0), all(t, s, jobs.Query{Limit: limit}))
			}
			page, err := s.List(t.Context(), jobs.Query{Limit: 7})
			if err != nil || len(page.Jobs) != 7 || page.Next != "" {
				t.Errorf("a page that holds everything: %d jobs, next %q, %v", len(page.Jobs), page.Next, err)
			}
		}},
		{"pages are stable while jobs come in", func(t *testing.T, s jobs.Store) {
			for n := range 6 {
				mustSubmit(t, s, n*2)
			}
			page, err := s.List(t.Context(), jobs.Query{Limit: 3})
			if err != nil {
				t.Fatal(err)
			}
			mustSubmit(t, s, 20)
			mustSubmit(t, s, 3)
			wantSame(t, "the rest", ids(4, 3, 2, 0), all(t, s, jobs.Query{Limit: 2, After: page.Next}))
		}},
		{"a cursor need not be a job", func(t *testing.T, s jobs.Store) {
			mustSubmit(t, s, 1)
			mustSubmit(t, s, 3)
			wantSame(t, "ids", ids(1), all(t, s, jobs.Query{After: JobID(2)}))
			wantSame(t, "ids", ids(3, 1), all(t, s, jobs.Query{After: "zzz"}))
			wantSame(t, "ids", ids(), all(t, s, jobs.Query{After: "0"}))
		}},
		{"filters", func(t *testing.T, s jobs.Store) {
			for n := range 30 {
				sub := Submission(NewJob(n))
				if n%2 == 1 {
					sub.Job.Principal, sub.Key.Principal = "other <&>", "other <&>"
				}
				if n == 29 {
					sub.Job.Tool.Name, sub.Job.SubmittedAt = "inspect_audio", Time().Add(time.Hour)
				}
				if _, err := s.Submit(t.Context(), sub); err != nil {
					t.Fatal(err)
				}
			}
			mustUpdate(t, s, JobID(4), Cancel)
			mustUpdate(t, s, JobID(5), Start)
			for name, test := range map[string]struct {
				q    jobs.Query
				want []string
			}{
				"run":                {jobs.Query{RunID: "run-7"}, ids(27, 17, 7)},
				"tool call":          {jobs.Query{ToolCall: "call-12"}, ids(12)},
				"tool":               {jobs.Query{Tool: "inspect_audio"}, ids(29)},
				"since":              {jobs.Query{Since: Time().Add(time.Minute)}, ids(29)},
				"key":                {jobs.Query{Key: "key-8"}, ids(8)},
				"key of a principal": {jobs.Query{Key: "key-8", Principal: "orchestrator"}, ids(8)},
				"key of another":     {jobs.Query{Key: "key-8", Principal: "other <&>"}, nil},
				"key, no such run":   {jobs.Query{Key: "key-8", Principal: "orchestrator", RunID: "run-1"}, nil},
				"key behind cursor":  {jobs.Query{Key: "key-8", Principal: "orchestrator", After: JobID(8)}, nil},
				"principal and run":  {jobs.Query{Principal: "other <&>", RunID: "run-3"}, ids(23, 13, 3)},
				"terminal state":     {jobs.Query{States: []jobs.State{jobs.StateCancelled}}, ids(4)},
				"open state":         {jobs.Query{States: []jobs.State{jobs.StateRunning, jobs.StateUnknown}}, ids(5)},
				"any state":          {jobs.Query{States: jobs.States(), RunID: "run-4"}, ids(24, 14, 4)},
				"label":              {jobs.Query{Labels: map[string]string{"batch": "2"}, RunID: "run-8"}, ids(8)},
				"no such label":      {jobs.Query{Labels: map[string]string{"none": ""}}, nil},
				"nothing":            {jobs.Query{Tool: "none"}, nil},
			} {
				for _, limit := range []int{0, 1, 2} {
					test.q.Limit = limit
					wantSame(t, name, test.want, all(t, s, test.q))
				}
			}
		}},
		{"a rare job is found among many", func(t *testing.T, s jobs.Store) {
			const each = 10
			together(func(i int) {
				for n := i * each; n < (i+1)*each; n++ {
					if _, err := s.Submit(t.Context(), Submission(NewJob(n))); err != nil {
						t.Error(err)
					}
				}
			})
			mustUpdate(t, s, JobID(1), Cancel)
			wantSame(t, "cancelled", ids(1), all(t, s, jobs.Query{States: []jobs.State{jobs.StateCancelled}, Limit: 2}))
			wantSame(t, "call", ids(0), all(t, s, jobs.Query{ToolCall: "call-0"}))
			for _, limit := range []int{255, 256, 257, 1000} {
				if got := all(t, s, jobs.Query{Limit: limit}); len(got) != crowd*each || got[0] != JobID(crowd*each-1) || got[len(got)-1] != JobID(0) {
					t.Errorf("in pages of %d: %d jobs", limit, len(got))
				}
			}
		}},
		{"a page of large jobs ends early", func(t *testing.T, s jobs.Store) {
			const number, mib = 20, 1 << 20
			var want []string
			for n := range number {
				big := strings.Repeat("x", mib)
				if n == 7 {
					big = strings.Repeat(big, 9) // more than a page takes
				}
				_, err := submitChanged(t, s, n, func(j *jobs.Job) { j.Message = big; j.Call.Context.RunID = "r" })
				if err != nil {
					t.Fatal(err)
				}
				want = append(ids(n), want...)
			}
			for _, q := range []jobs.Query{{}, {RunID: "r"}, {Limit: 3}, {Limit: 1}, {Limit: 1000, Tool: "export_video"}} {
				var got []string
				for {
					page, err := s.List(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					size := 0
					for _, j := range page.Jobs {
						size += len(j.Message)
						got = append(got, j.ID)
					}
					if size > 8*mib && len(page.Jobs) > 1 || len(page.Jobs) == 0 {
						t.Errorf("%+v: a page of %d jobs with %d bytes", q, len(page.Jobs), size)
					}
					if q.After = page.Next; q.After == "" {
						break
					}
				}
				wantSame(t, fmt.Sprintf("%+v", q), want, got)
			}
		}},
		{"a page has bounds", func(t *testing.T, s jobs.Store) {
			for _, limit := range []int{-1, 1001} {
				_, err := s.List(t.Context(), jobs.Query{Limit: limit})
				wantCode(t, err, jobs.CodeRequestInvalid)
			}
		}},
	}
}
