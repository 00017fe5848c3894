package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// TestSumUsage: what ended jobs cost is summed, of the caller's own only (G10).
func TestSumUsage(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("good", "none", "true", plainResult), manifest("bad", "none", "exit 3", plainResult))
	h.say("good", "a", jobs.CallContext{RunID: "r"})
	h.say("bad", "b", jobs.CallContext{RunID: "r"})
	h.say("good", "c", jobs.CallContext{})
	other := Caller{Principal: "somebody else"}
	for by, want := range map[jobs.UsageBy]map[string][3]int64{
		jobs.UsageByRun:       {"": {1, 0, 0}, "r": {1, 1, 0}},
		jobs.UsageByTool:      {"good": {2, 0, 0}, "bad": {0, 1, 0}},
		jobs.UsageByPrincipal: {"owner": {2, 1, 0}},
	} {
		page, err := h.SumUsage(t.Context(), owner(), jobs.UsageQuery{By: by})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][3]int64{}
		for _, r := range page.Rows {
			got[r.Name] = [3]int64{r.Completed, r.Failed, r.Cancelled}
			if r.Usage.Running <= 0 {
				t.Errorf("%s %q: %+v", by, r.Name, r.Usage)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", by, diff)
		}
		for _, q := range []jobs.UsageQuery{{By: by}, {By: by, Principal: "owner"}} {
			if page, err := h.SumUsage(t.Context(), other, q); err != nil || len(page.Rows) > 0 {
				t.Errorf("somebody else sees %+v, %v", page.Rows, err)
			}
		}
	}
}
