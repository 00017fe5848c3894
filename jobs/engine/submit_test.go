package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/jobs"
)

// TestDeadlineCancelsNothing (B05, G3): a caller goes away while its call is decided. The
// job is accepted all the same, and a repeat gets it. Who goes away while it waits for
// that has decided nothing, and does not wait on.
func TestDeadlineCancelsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("act", "external", "true", plainResult))
	told := &recorder{}
	h.Stop()
	h.observer = told
	h.start()
	req := Request{Tool: "act", Key: "k", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}
	ctx, leave := context.WithCancel(t.Context())
	first := true
	h.store.deciding = func(deciding context.Context) {
		if !first {
			return
		}
		first = false
		leave()
		if _, err := h.Submit(ctx, owner(), req); jobs.CodeOf(err) != jobs.CodeCallerGone {
			t.Errorf("who does not wait for the key gets %v", err)
		}
		if err := deciding.Err(); err != nil {
			t.Errorf("the decision ends with its caller: %v", err)
		}
	}
	r, err := h.Submit(ctx, owner(), req)
	if err != nil || r.Replayed {
		t.Fatalf("%+v, %v", r, err)
	}
	again, err := h.Submit(t.Context(), owner(), req)
	if err != nil || !again.Replayed || again.Job.ID != r.Job.ID {
		t.Errorf("the repeat gets %+v, %v", again, err)
	}
	var answers []string
	for _, said := range told.heard() {
		if strings.HasPrefix(said, "submitted,") {
			answers = append(answers, said)
		}
	}
	// Of who left nothing is told as an answer, least of all as a refusal.
	if diff := cmp.Diff([]string{"submitted,act,accepted,", "submitted,act,replayed,"}, answers); diff != "" {
		t.Error(diff)
	}
}

// TestCheckSaysWhatSubmitWould: each reason for which the world refuses a call is the same
// for both. The journal tells of each submission once, and of no check.
func TestCheckSaysWhatSubmitWould(t *testing.T) {
	t.Parallel()
	h := newHost(t, waitTool(), manifest("act", "external", "true", plainResult))
	submit := func(key, tool string, edit func(*Request)) (*jobs.Job, error, error) {
		req := Request{Tool: tool, Key: key, Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}
		edit(&req)
		_, checked := h.Check(t.Context(), owner(), req)
		r, err := h.Submit(t.Context(), owner(), req)
		return r.Job, checked, err
	}
	accepted := func(key string, edit func(*Request)) *jobs.Job {
		job, checked, err := submit(key, "act", edit)
		if err != nil || checked != nil {
			t.Fatalf("%s: checked %v, submitted %v", key, checked, err)
		}
		return job
	}
	waiting := accepted("waiting", func(*Request) {})
	old := accepted("old", func(*Request) {})
	if _, err := h.Cancel(t.Context(), owner(), old.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	supersede := func(id string) func(*Request) { return func(r *Request) { r.Options.Supersedes = id } }
	heir := accepted("heir", supersede(old.ID))
	if _, err := h.CancelRun(t.Context(), owner(), "r", "enough"); err != nil {
		t.Fatal(err)
	}
	head := h.store.Head()
	refusals := 0
	refusedAs := func(want jobs.Code, tool string, edit func(*Request)) {
		t.Helper()
		refusals++
		_, checked, err := submit(fmt.Sprint("refused ", refusals), tool, edit)
		if jobs.CodeOf(checked) != want || jobs.CodeOf(err) != want || checked.Error() != err.Error() {
			t.Errorf("want %s; checked: %v; submitted: %v", want, checked, err)
		}
	}
	refusedAs(jobs.CodeTooLate, "act", func(r *Request) { r.Options.StartBy = time.Unix(1, 0) })
	refusedAs(jobs.CodeRunClosed, "act", func(r *Request) { r.Context.RunID = "r" })
	refusedAs(jobs.CodeRunClosed, "act", func(r *Request) { r.Context.ParentRunID = "r" })
	refusedAs(jobs.CodeJobNotFound, "act", supersede("nosuch"))
	refusedAs(jobs.CodeStateConflict, "act", supersede(waiting.ID))
	refusedAs(jobs.CodeSuperseded, "act", supersede(old.ID))
	refusedAs(jobs.CodeToolNotFound, "nosuch", func(*Request) {})
	h.setHost(jobs.ModeDraining)
	refusedAs(jobs.CodeDraining, "act", func(*Request) {})
	rejected := 0
	if err := h.store.Journal(t.Context(), head, 0, func(e jobs.Entry) bool {
		if e.Kind == jobs.EntryRejected {
			rejected++
		} else if e.Kind != jobs.EntryHost {
			t.Errorf("entry %d is a %s", e.Seq, e.Kind)
		}
		return true
	}); err != nil || rejected != refusals {
		t.Errorf("the journal tells of %d refusals of %d, %v", rejected, refusals, err)
	}
	if job, err := h.Job(t.Context(), owner(), old.ID); err != nil || job.SupersededBy != heir.ID {
		t.Errorf("the old job is superseded by %q, %v", job.SupersededBy, err)
	}
}
