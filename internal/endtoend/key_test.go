package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/testdata/media"
)

const (
	completed = macexecv1.JobState_JOB_STATE_COMPLETED
	failed    = macexecv1.JobState_JOB_STATE_FAILED
	cancelled = macexecv1.JobState_JOB_STATE_CANCELLED
	unknown   = macexecv1.JobState_JOB_STATE_UNKNOWN
	queued    = macexecv1.JobState_JOB_STATE_QUEUED
	running   = macexecv1.JobState_JOB_STATE_RUNNING
	awaiting  = macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL
)

// G2, G14: however many submit the same call under one key at once, there is one
// job and one process, and each caller gets its own call id back.
func TestG2_ParallelSubmissionsOfOneKeyAreOneJob(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	second, err := client.Dial(d.Address(), client.Patience(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	const callers = 64
	answers := make([]*macexecv1.Job, callers)
	errs := make([]error, callers)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range callers {
		req := call("one", "ledger_none", l.args("a", "print:hello"))
		req.Context = &macexecv1.CallContext{ToolCallId: fmt.Sprintf("call-%d", i), RunId: "run"}
		c := []*client.Client{d.Client, second}[i%2]
		ctx := d.context()
		all.Go(func() {
			<-begin
			answers[i], errs[i] = c.Submit(ctx, req)
		})
	}
	close(begin)
	all.Wait()
	first := 0
	for i, job := range answers {
		if errs[i] != nil {
			t.Fatalf("call %d: %v", i, errs[i])
		}
		if job.GetId() != answers[0].GetId() {
			t.Errorf("call %d got job %s, call 0 got %s", i, job.GetId(), answers[0].GetId())
		}
		if id := job.GetRequestContext().GetToolCallId(); id != fmt.Sprintf("call-%d", i) {
			t.Errorf("call %d got the call id %q back", i, id)
		}
		if !job.GetReplayed() {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d callers were told that theirs is the first submission, want 1", first)
	}
	d.wait(answers[0].GetId(), completed)
	l.wantStarts("a", 1)
	var submitted, replayed int
	seen := map[string]bool{}
	err = d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		switch e.GetKind() {
		case "job.submitted":
			submitted++
			seen[e.GetToolCallId()] = true
		case "job.replayed":
			replayed++
			seen[e.GetToolCallId()] = true
		}
		return nil
	})
	if err != nil || submitted != 1 || replayed != callers-1 || len(seen) != callers {
		t.Errorf("the journal has %d submissions, %d replays and %d call ids, want 1, %d and %d; %v", submitted, replayed, len(seen), callers-1, callers, err)
	}
}

// G2: what is another call and what is the same one does not depend on how it is
// spelled.
func TestG2_TheKeyBelongsToTheCanonicalCall(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	spelled := func(text string) *macexecv1.SubmitJobRequest {
		return call("k", "ledger_none", strings.ReplaceAll(text, "DIR", l.dir))
	}
	first := d.submit(spelled(`{"folder":"DIR","ledger":"a","number":1,"word":"\u00e9t\u00e9"}`))
	d.wait(first.GetId(), completed)
	for _, text := range []string{
		`{"word":"été","number":1.0,"ledger":"a","folder":"DIR"}`,
		"{ \"ledger\" : \"a\",\n\t\"folder\": \"DIR\", \"number\": 10e-1, \"word\": \"\\u00E9t\\u00E9\" }",
		`{"folder":"DIR","\u006cedger":"a","number":0.1E1,"word":"\u00e9té"}`,
	} {
		if again := d.submit(spelled(text)); again.GetId() != first.GetId() || !again.GetReplayed() {
			t.Errorf("%s: got job %s (replayed %v), want the first one", text, again.GetId(), again.GetReplayed())
		}
	}
	others := map[string]*macexecv1.SubmitJobRequest{
		"other arguments": spelled(`{"folder":"DIR","ledger":"a","number":1.0000000000000000001,"word":"été"}`),
		"fewer arguments": spelled(`{"folder":"DIR","ledger":"a"}`),
		"other letters":   spelled(`{"folder":"DIR","ledger":"a","number":1,"word":"e\u0301te\u0301"}`),
		"another tool":    call("k", "ledger_staged", l.args("a")),
		"another purpose": spelled(`{"folder":"DIR","ledger":"a","number":1,"word":"été"}`),
	}
	others["another purpose"].Purpose = macexecv1.Purpose_PURPOSE_PREVIEW
	for name, req := range others {
		req.Context = &macexecv1.CallContext{ToolCallId: "id of " + name}
		_, err := d.Submit(d.context(), req)
		e := wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT")
		if e.GRPCStatus().Code() != codes.AlreadyExists || e.JobID() != first.GetId() || e.Detail.GetToolCallId() != "id of "+name {
			t.Errorf("%s: %s about job %q for %q, want ALREADY_EXISTS about %s", name, e.GRPCStatus().Code(), e.JobID(), e.Detail.GetToolCallId(), first.GetId())
		}
	}
	l.wantStarts("a", 1)
}

// G2: a repeat gets its job whatever has become of the world.
func TestG2_ARepeatGetsItsJobThoughTheWorldHasChanged(t *testing.T) {
	t.Parallel()
	needs(t, "ffmpeg", "ffprobe")
	d, l := startDaemon(t), newLedgers(t)
	clip, err := media.Files.ReadFile(media.Clip)
	if err != nil {
		t.Fatal(err)
	}
	d.put("clip.mp4", string(clip))
	d.put("old.txt", "old")
	requests := map[string]*macexecv1.SubmitJobRequest{
		"delete": call("delete", "delete_asset", `{"project_id":"default","asset":"old.txt"}`),
		"export": call("export", "export_video", `{"project_id":"default","input":"clip.mp4","output":"small.mkv","format":"mkv","resolution":"source","include_audio":false}`),
		"act":    call("act", "ledger_external", l.args("act")),
	}
	first := map[string]string{}
	for name, req := range requests {
		first[name] = d.submitRun(req).GetId()
		d.wait(first[name], completed)
	}
	if err := os.Remove(filepath.Join(d.project, "clip.mp4")); err != nil {
		t.Fatal(err)
	}
	exported, err := os.Stat(filepath.Join(d.project, "small.mkv"))
	if err != nil {
		t.Fatal(err)
	}
	repeat := func(when string) {
		t.Helper()
		for name, req := range requests {
			for _, visible := range [][]string{nil, {"something_else"}} {
				// A call whose context does not list the tool is denied by the policy.
				req.Context = &macexecv1.CallContext{ToolCallId: when, VisibleTools: visible}
				job := d.submit(req)
				if job.GetId() != first[name] || !job.GetReplayed() || job.GetState() != completed || job.GetRequestContext().GetToolCallId() != when {
					t.Errorf("%s: %s got job %s %s (replayed %v, call id %q), want %s", when, name, job.GetId(), job.GetState(), job.GetReplayed(), job.GetRequestContext().GetToolCallId(), first[name])
				}
			}
		}
	}
	repeat("afterwards")
	d.kill()
	d.start()
	repeat("after a restart")
	d.end(syscall.SIGTERM)
	if err := writeManifest(d.manifest(external), "2026-02-02", external); err != nil {
		t.Fatal(err)
	}
	d.start()
	repeat("after the manifest was replaced")
	d.end(syscall.SIGTERM)
	if err := os.Remove(d.manifest(external)); err != nil {
		t.Fatal(err)
	}
	d.start()
	repeat("after the tool was removed")
	denied := call("new", "delete_asset", `{"project_id":"default","asset":"small.mkv"}`)
	denied.Context = &macexecv1.CallContext{VisibleTools: []string{"something_else"}}
	_, err = d.Submit(d.context(), denied)
	wantCode(t, err, "POLICY_DENIED")
	l.wantStarts("act", 1)
	if now, err := os.Stat(filepath.Join(d.project, "small.mkv")); err != nil || !os.SameFile(now, exported) {
		t.Errorf("the exported file is another one: %v", err)
	}
}
