package engine

import (
	"strings"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// A call that stands on what is not there is refused, the refusal is in the journal,
// and its key stays free (G5, G9).
func TestCallThatStandsOnWhatIsNotThere(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	first := h.await(h.submit("copy", `{"output":"first.txt"}`).ID, settled)
	h.wantState(first, jobs.StateCompleted, jobs.EndOK)
	if _, err := h.store.CloseRuns(t.Context(), jobs.RunClosing{Principal: "owner", RunIDs: []string{"closed"}, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	req := Request{Tool: "copy", Key: "second", Arguments: []byte(`{"output":"second.txt"}`), Purpose: jobs.PurposeProduction}
	refused := func(change func(*Request), want jobs.Code) {
		t.Helper()
		r := req
		change(&r)
		_, err := h.Submit(t.Context(), owner(), r)
		if jobs.CodeOf(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
		var last jobs.Entry
		if err := h.store.Journal(t.Context(), h.store.Head()-1, 0, func(e jobs.Entry) bool { last = e; return true }); err != nil {
			t.Fatal(err)
		}
		if last.Kind != jobs.EntryRejected || last.Owner != "owner" {
			t.Errorf("%s: the newest entry is %+v", want, last)
		}
		_, err = h.store.LookupKey(t.Context(), jobs.Key{Principal: "owner", Text: r.Key})
		if jobs.CodeOf(err) != jobs.CodeJobNotFound {
			t.Errorf("%s: the key: %v", want, err)
		}
	}
	refused(func(r *Request) { r.Context.RunID = "closed" }, jobs.CodeRunClosed)
	refused(func(r *Request) { r.Context.ParentRunID = "closed" }, jobs.CodeRunClosed)
	refused(func(r *Request) { r.Options.Supersedes = "none" }, jobs.CodeJobNotFound)
	refused(func(r *Request) { r.Options.Supersedes = strings.Replace(first.ID, h.store.HostID(), "aaaaaaaa", 1) }, jobs.CodeOtherHost)

	req.Options.Supersedes = first.ID
	second, err := h.Submit(t.Context(), owner(), req)
	if err != nil {
		t.Fatal(err)
	}
	if old, err := h.Job(t.Context(), owner(), first.ID); err != nil || old.SupersededBy != second.Job.ID {
		t.Errorf("the first job is superseded by %q, %v", old.SupersededBy, err)
	}
	h.await(second.Job.ID, settled) // so that nothing else is written meanwhile
	refused(func(r *Request) { r.Key, r.Arguments = "third", []byte(`{"output":"third.txt"}`) }, jobs.CodeSuperseded)
}
