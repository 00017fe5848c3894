package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// TestG2KnownKeysOnAFullDisk: a known key is answered though nothing can be written. What
// the journal is owed of that is bounded, told of, and written when there is room again,
// or when the daemon stops.
func TestG2KnownKeysOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%v", stopped), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, copyTool())
			job := h.await(h.submit("copy", `{"output":"made.txt"}`).ID, settled)
			if _, _, _, err := h.FenceKey(t.Context(), owner(), "fenced", "never"); err != nil {
				t.Fatal(err)
			}
			ask := func(key, args string) (Receipt, error) {
				return h.Submit(t.Context(), owner(), Request{Tool: "copy", Key: key, Arguments: []byte(args), Purpose: jobs.PurposeProduction})
			}
			h.store.full.Store(true)
			before := h.store.Head()
			for key, want := range map[string]jobs.Code{"k": jobs.CodeKeyConflict, "fenced": jobs.CodeKeyFenced, "new": jobs.CodeDiskFull} {
				if _, err := ask(key, `{"output":"other.txt"}`); jobs.CodeOf(err) != want {
					t.Errorf("%s: %v, want %s", key, err, want)
				}
			}
			const repeats = maxOwed + 5
			for range repeats {
				r, err := ask("k", `{"output":"made.txt"}`)
				if err != nil || !r.Replayed || r.Job.ID != job.ID || r.Job.State != jobs.StateCompleted {
					t.Fatalf("the known key: %+v, %v", r, err)
				}
				if len(r.Warnings) != 1 || r.Warnings[0] != owedWarning {
					t.Fatalf("the warnings: %q", r.Warnings)
				}
			}
			if head := h.store.Head(); head != before {
				t.Errorf("%d entries were written on the full disk", head-before)
			}
			h.store.full.Store(false)
			if stopped {
				h.Stop()
				h.start()
			}
			told, replayed := false, 0
			for at := before; !told; {
				if err := h.store.Wait(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				err := h.store.Journal(t.Context(), at, 0, func(e jobs.Entry) bool {
					at = e.Seq
					if e.Kind == jobs.EntryReplayed {
						replayed++
					}
					told = told || strings.HasPrefix(e.Message, "7 more entries")
					return true
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if replayed != maxOwed-2 { // and two that had another answer
				t.Errorf("%d repeats are in the journal", replayed)
			}
		})
	}
}

// TestG7StartOnAFullDisk: the daemon starts although it cannot write that it does. It
// serves what is stored, and what it is given later can be finished by its manifest.
func TestG7StartOnAFullDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t, copyTool())
	job := h.await(h.submit("copy", `{"output":"made.txt"}`).ID, settled)
	h.Stop()
	h.write("tools/tool0.yaml", strings.Replace(copyTool(), "A tool", "The same tool", 1))
	h.store.full.Store(true)
	h.start()
	if r, err := h.Submit(t.Context(), owner(), Request{Tool: "copy", Key: "k", Arguments: []byte(`{"output":"made.txt"}`), Purpose: jobs.PurposeProduction}); err != nil || r.Job.ID != job.ID {
		t.Errorf("the known key: %+v, %v", r, err)
	}
	tool, _ := h.registry.Tool("copy", "")
	if _, err := h.store.Manifest(t.Context(), tool.Digest); jobs.CodeOf(err) != jobs.CodeToolNotFound {
		t.Errorf("its manifest: %v", err)
	}
	h.store.full.Store(false)
	next := h.mustCall(owner(), "copy", "next", `{"output":"next.txt"}`, jobs.Options{})
	if _, err := h.store.Manifest(t.Context(), tool.Digest); err != nil {
		t.Errorf("an accepted job's manifest: %v", err)
	}
	h.wantState(h.await(next.ID, settled), jobs.StateCompleted, jobs.EndOK)
}
