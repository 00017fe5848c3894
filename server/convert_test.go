package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// TestWords: the domain and the API have the same words for the same things, in
// both directions.
func TestWords(t *testing.T) {
	t.Parallel()
	same := func(name string, domain, api []string) {
		t.Helper()
		slices.Sort(domain)
		slices.Sort(api)
		if diff := cmp.Diff(domain, api); diff != "" {
			t.Errorf("%s: domain and API differ:\n%s", name, diff)
		}
	}
	same("state", words(jobs.States()), document.Words[macexecv1.JobState]())
	same("phase", words([]jobs.Phase{jobs.PhaseStaging, jobs.PhaseRunning, jobs.PhaseVerifying, jobs.PhasePublishing}), document.Words[macexecv1.JobPhase]())
	same("event", words(jobs.Events()), document.Words[macexecv1.JobEvent]())
	same("end reason", words(jobs.EndReasons()), document.Words[macexecv1.EndReason]())
	same("side effect", words([]jobs.SideEffect{jobs.SideEffectNone, jobs.SideEffectPossible, jobs.SideEffectPartial, jobs.SideEffectApplied}), document.Words[macexecv1.SideEffect]())
	same("retry", words([]jobs.Retry{jobs.RetryNever, jobs.RetryNewKey, jobs.RetrySameKey}), document.Words[macexecv1.Retry]())
	same("effects", words([]jobs.Effects{jobs.EffectsNone, jobs.EffectsStaged, jobs.EffectsExternal}), document.Words[macexecv1.Effects]())
	same("evidence", words(jobs.EvidenceKinds()), document.Words[macexecv1.EvidenceKind]())
	same("wait", words([]jobs.WaitKind{jobs.WaitApproval, jobs.WaitSlot, jobs.WaitLock, jobs.WaitPaused, jobs.WaitRestored}), document.Words[macexecv1.WaitKind]())
	same("verb", words([]jobs.Verb{jobs.VerbCreate, jobs.VerbReplace, jobs.VerbRemove}), document.Words[macexecv1.PublishVerb]())
	same("purpose", words(jobs.Purposes()), document.Words[macexecv1.Purpose]())
	same("on lock", words([]jobs.OnLock{jobs.OnLockWait, jobs.OnLockRefuse}), document.Words[macexecv1.OnLock]())
	same("decision", words([]jobs.DecisionEffect{jobs.Allow, jobs.Deny, jobs.RequireApproval}), document.Words[macexecv1.DecisionEffect]())
	same("key", words([]jobs.KeyKind{jobs.KeyJob, jobs.KeyTombstone, jobs.KeyFence}), document.Words[macexecv1.KeyKind]())
	same("usage by", words([]jobs.UsageBy{jobs.UsageByRun, jobs.UsageByPrincipal, jobs.UsageByTool}), document.Words[macexecv1.UsageBy]())
	same("host mode", words(jobs.Modes()), document.Words[macexecv1.HostMode]())
	same("class", words(jobs.Classes()), document.Words[macexecv1.ErrorClass]())
	same("user action", words(jobs.UserActions()), document.Words[macexecv1.UserAction]())
	same("probe", words([]engine.ProbeAnswer{engine.ProbeHappened, engine.ProbeNotHappened, engine.ProbeNoAnswer}), document.Words[macexecv1.ProbeAnswer]())
	same("verdict", []string{"syntax", "schema", "business"}, document.Words[macexecv1.Verdict]())
}

func words[W ~string](list []W) []string {
	out := make([]string, 0, len(list))
	for _, w := range list {
		out = append(out, string(w))
	}
	return out
}

// full sets every field of a value of the domain, so that a field that a conversion
// forgets shows as one that is not set.
func full(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		full(v.Elem(), name)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				full(v.Field(i), v.Type().Field(i).Name)
			}
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"n":9007199254740993}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		full(v.Index(0), name)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		full(key, "")
		full(value, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(sample(v.Type(), name))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(3)
	case reflect.Float64:
		v.SetFloat(50)
	default:
		panic("no sample for " + v.Kind().String())
	}
}

// sample is a string that the type and the field may hold.
func sample(t reflect.Type, name string) string {
	samples := map[reflect.Type]string{
		reflect.TypeFor[jobs.State]():          string(jobs.StateRunning),
		reflect.TypeFor[jobs.Phase]():          string(jobs.PhaseRunning),
		reflect.TypeFor[jobs.Event]():          string(jobs.EventStart),
		reflect.TypeFor[jobs.EndReason]():      string(jobs.EndCancelledByCaller),
		reflect.TypeFor[jobs.SideEffect]():     string(jobs.SideEffectPossible),
		reflect.TypeFor[jobs.Retry]():          string(jobs.RetryNewKey),
		reflect.TypeFor[jobs.Effects]():        string(jobs.EffectsStaged),
		reflect.TypeFor[jobs.EvidenceKind]():   string(jobs.EvidencePerson),
		reflect.TypeFor[jobs.WaitKind]():       string(jobs.WaitSlot),
		reflect.TypeFor[jobs.Verb]():           string(jobs.VerbCreate),
		reflect.TypeFor[jobs.Purpose]():        string(jobs.PurposePreview),
		reflect.TypeFor[jobs.OnLock]():         string(jobs.OnLockRefuse),
		reflect.TypeFor[jobs.DecisionEffect](): string(jobs.RequireApproval),
		reflect.TypeFor[jobs.KeyKind]():        string(jobs.KeyJob),
		reflect.TypeFor[jobs.EntryKind]():      string(jobs.EntryChanged),
		reflect.TypeFor[jobs.UsageScope]():     string(jobs.UsageWhole),
		reflect.TypeFor[jobs.Mode]():           string(jobs.ModePaused),
	}
	switch s, listed := samples[t]; {
	case listed:
		return s
	case name == "Verdict":
		return "schema"
	case name == "Role":
		return "output"
	case name == "Purposes":
		return "preview"
	case name == "Stream":
		return "stderr"
	case strings.HasSuffix(name, "SHA256"), strings.HasSuffix(name, "Digest"), name == "Prev", name == "Hash", name == "Inputs", name == "Programs":
		return strings.Repeat("0123abcd", 8)
	default:
		return "some " + name
	}
}

func sampleJob() *jobs.Job {
	var j jobs.Job
	full(reflect.ValueOf(&j).Elem(), "")
	return &j
}

// unset lists the fields of a message, and of all messages in it, that are not set.
func unset(m protoreflect.Message, path string) []string {
	var missing []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := path + "." + string(f.Name())
		switch {
		case !m.Has(f):
			missing = append(missing, name)
		case f.IsMap() || f.Message() == nil || f.Message().FullName() == (*timestamppb.Timestamp)(nil).ProtoReflect().Descriptor().FullName():
		case f.IsList():
			missing = append(missing, unset(m.Get(f).List().Get(0).Message(), name)...)
		default:
			missing = append(missing, unset(m.Get(f).Message(), name)...)
		}
	}
	return missing
}

// TestNothingIsForgotten: every field of the API is filled from the domain, and the
// document that comes of it is valid against its schema.
func TestNothingIsForgotten(t *testing.T) {
	t.Parallel()
	var (
		tool   engine.ToolInfo
		check  engine.Check
		entry  jobs.Entry
		chunk  engine.LogChunk
		record jobs.KeyRecord
		host   engine.HostInfo
		bar    engine.Progress
		info   engine.FileInfo
		run    engine.RunCancellation
		sum    jobs.UsageRow
	)
	for _, v := range []any{&tool, &check, &entry, &chunk, &record, &host, &bar, &info, &run, &sum} {
		full(reflect.ValueOf(v).Elem(), "")
	}
	tool.Name, tool.InputSchema, tool.OutputSchema = "t", []byte(`{"type":"object"}`), []byte(`{}`)
	f := &fakeEngine{
		tools:  []engine.ToolInfo{tool},
		check:  func(engine.Request) (engine.Check, error) { return check, nil },
		job:    func(string) (*jobs.Job, error) { return sampleJob(), nil },
		lookup: func(string) (jobs.KeyRecord, *jobs.Job, error) { return record, sampleJob(), nil },
		fence: func(key, reason string) (jobs.KeyRecord, bool, *jobs.Job, error) {
			if key != "some key" || reason != "some reason" {
				return jobs.KeyRecord{}, false, nil, jobs.Errorf(jobs.CodeRequestInvalid, "%s for %s", key, reason)
			}
			return record, true, sampleJob(), nil
		},
		watch: func(_ context.Context, _ engine.WatchRequest, yield func(engine.WatchEvent) error) error {
			if err := yield(engine.WatchEvent{Cursor: 5, Snapshot: true, Job: sampleJob()}); err != nil {
				return err
			}
			if err := yield(engine.WatchEvent{Cursor: 6, Entry: &entry, Job: sampleJob()}); err != nil {
				return err
			}
			return yield(engine.WatchEvent{Progress: &bar})
		},
		logs: func(_ context.Context, _ engine.LogRequest, yield func(engine.LogChunk) error) error {
			return yield(chunk)
		},
		open: func(string) (engine.File, engine.FileInfo, error) {
			return memory{bytes.NewReader(nil)}, info, nil
		},
		cancelRun: func(string, string) (engine.RunCancellation, error) { return run, nil },
		usage:     func(jobs.UsageQuery) (jobs.UsagePage, error) { return jobs.UsagePage{Rows: []jobs.UsageRow{sum}}, nil },
		projects:  []jobs.Project{{Name: "p", Root: "/p"}},
		host:      host,
		verify: func() (uint64, error) {
			return 7, jobs.Errorf(jobs.CodeRecordDamaged, "entry 8 is broken")
		},
		journal: func(_ uint64, _ int, _ bool, yield func(jobs.Entry) error) error { return yield(entry) },
	}
	c := start(t, f)
	ctx := t.Context()

	got := map[string][]proto.Message{}
	add := func(name string, m proto.Message, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got[name] = append(got[name], m)
	}
	tools, err := c.Tools.ListTools(ctx, &macexecv1.ListToolsRequest{})
	add("tool", tools.GetTools()[0], err)
	checked, err := c.Tools.CheckCall(ctx, &macexecv1.CheckCallRequest{Context: fullContext()})
	add("check", checked.GetCheck(), err)
	job, err := c.Jobs.GetJob(ctx, &macexecv1.GetJobRequest{})
	add("job", job.GetJob(), err)
	key, err := c.Jobs.LookupKey(ctx, &macexecv1.LookupKeyRequest{})
	add("key", key.GetRecord(), err)
	fenced, err := c.Jobs.FenceKey(ctx, &macexecv1.FenceKeyRequest{Key: "some key", Reason: "some reason"})
	add("key", fenced.GetRecord(), err)
	if !fenced.GetPlanted() {
		t.Error("the fence is not said to be planted")
	}
	add("event", nil, c.Watch(ctx, &macexecv1.WatchJobsRequest{}, func(e *macexecv1.Event) error {
		add("event", e, nil)
		return nil
	}))
	add("log", nil, c.ReadLogs(ctx, &macexecv1.ReadJobLogsRequest{JobId: "j"}, func(l *macexecv1.LogChunk) error {
		add("log", l, nil)
		return nil
	}))
	add("journal_entry", nil, c.ReadJournal(ctx, &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		add("journal_entry", e, nil)
		return nil
	}))
	cancelled, err := c.Jobs.CancelRun(ctx, &macexecv1.CancelRunRequest{})
	add("run_cancellation", cancelled, err)
	usage, err := c.Jobs.SumUsage(ctx, &macexecv1.SumUsageRequest{})
	add("usage_row", usage.GetRows()[0], err)
	stat, err := c.Stat(ctx, "x")
	add("file", stat, err)
	projects, err := c.Host.ListProjects(ctx, &macexecv1.ListProjectsRequest{})
	add("project", projects.GetProjects()[0], err)
	hostResp, err := c.Host.GetHost(ctx, &macexecv1.GetHostRequest{})
	add("host", hostResp.GetHost(), err)
	identity, err := c.WhoAmI(ctx)
	add("whoami", identity, err)
	verified, err := c.Journal.VerifyJournal(ctx, &macexecv1.VerifyJournalRequest{})
	add("verify", verified.GetReport(), err)

	mayBeUnset := []string{ // by their meaning, or set by the client only
		"job.replayed", "job.request_context", "job.omitted", "verify.ok",
		"key.job.replayed", "key.job.request_context", "key.job.omitted",
	}
	for name, messages := range got {
		schema := compile(t, name)
		for _, m := range messages {
			if m == nil {
				continue
			}
			validate(t, schema, m)
			if name == "event" {
				continue // its fields exclude one another; their parts are looked at by themselves
			}
			for _, field := range unset(m.ProtoReflect(), name) {
				if !slices.Contains(mayBeUnset, field) {
					t.Errorf("%s is not set", field)
				}
			}
		}
	}
	events := got["event"]
	if len(events) != 4 {
		t.Fatalf("%d events", len(events))
	}
	if missing := unset(events[2].(*macexecv1.Event).GetProgress().ProtoReflect(), "progress"); len(missing) > 0 {
		t.Errorf("not set: %v", missing)
	}
}

// TestSmallestDocuments: a job that has only just been accepted is valid too.
func TestSmallestDocuments(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	j := &jobs.Job{
		ID: "j", Call: jobs.Call{Tool: "t", Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction},
		Tool: jobs.ToolRef{Effects: jobs.EffectsNone}, Decision: jobs.Decision{Effect: jobs.Allow, DecidedAt: now}, SubmittedAt: now,
	}
	if err := j.Accept(now); err != nil {
		t.Fatal(err)
	}
	c := start(t, &fakeEngine{job: func(string) (*jobs.Job, error) { return j, nil }})
	resp, err := c.Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{})
	if err != nil {
		t.Fatal(err)
	}
	validate(t, compile(t, "job"), resp.GetJob())

	_, err = c.Jobs.ListJobs(t.Context(), &macexecv1.ListJobsRequest{PageSize: -1})
	validate(t, compile(t, "error"), failure(t, err).Detail)
}

// TestRequests: what a caller sends reaches the engine as it was sent.
func TestRequests(t *testing.T) {
	t.Parallel()
	got := make(chan engine.Request, 1)
	c := start(t, &fakeEngine{submit: func(_ context.Context, r engine.Request) (engine.Receipt, error) {
		got <- r
		return engine.Receipt{Job: sampleJob(), Replayed: true, Context: r.Context, Warnings: []string{"an input has changed"}}, nil
	}})
	by := time.Date(2026, 11, 2, 0, 0, 0, 5, time.UTC)
	job, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{
		IdempotencyKey: "k", Tool: "t", ToolVersion: "v", Arguments: []byte("{\"a\":1.0}\xff"), Context: fullContext(),
		Options: &macexecv1.Options{
			Replace: true, OnLock: macexecv1.OnLock_ON_LOCK_REFUSE, SerialContext: true, Priority: -3,
			TimeoutSeconds: 1.5, StartBy: timestamppb.New(by), Supersedes: "old",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var sentContext jobs.CallContext
	full(reflect.ValueOf(&sentContext).Elem(), "")
	want := engine.Request{
		Tool: "t", ToolVersion: "v", Arguments: []byte("{\"a\":1.0}\xff"), Key: "k", Purpose: jobs.PurposeProduction,
		Options: jobs.Options{
			Replace: true, OnLock: jobs.OnLockRefuse, SerialContext: true, Priority: -3,
			Timeout: 1500 * time.Millisecond, StartBy: by, Supersedes: "old",
		},
		Context: sentContext,
	}
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error(diff)
	}
	// G2, G14: the answer says that it is a replay, with this request's own ids.
	if !job.GetReplayed() || !slices.Contains(job.GetWarnings(), "an input has changed") {
		t.Errorf("replayed %t, warnings %v", job.GetReplayed(), job.GetWarnings())
	}
	if diff := cmp.Diff(fullContext(), job.GetRequestContext(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// TestFilters: each field that narrows a list or a watch reaches the engine, and the
// two mean the same by it.
func TestFilters(t *testing.T) {
	t.Parallel()
	lists, watches := make(chan jobs.Query, 1), make(chan engine.WatchRequest, 1)
	c := start(t, &fakeEngine{
		list: func(q jobs.Query) (jobs.Page, error) {
			lists <- q
			return jobs.Page{}, nil
		},
		watch: func(_ context.Context, r engine.WatchRequest, _ func(engine.WatchEvent) error) error {
			watches <- r
			return nil
		},
	})
	states := []macexecv1.JobState{macexecv1.JobState_JOB_STATE_QUEUED, macexecv1.JobState_JOB_STATE_UNKNOWN}
	labels := map[string]string{"team": "blue", "": "none"}
	since := time.Date(2026, 11, 2, 0, 0, 0, 5, time.UTC)
	list := &macexecv1.ListJobsRequest{
		PageSize: 7, States: states, Labels: labels, Since: timestamppb.New(since), Until: timestamppb.New(since.Add(time.Hour)),
		Tool: "tool", Principal: "principal", Key: "key", RunId: "run", ToolCallId: "call", ParentRunId: "parent run",
		ThreadId: "thread", ContextId: "context", ParentCallId: "parent call",
	}
	want := jobs.Query{
		States: []jobs.State{jobs.StateQueued, jobs.StateUnknown}, Labels: labels,
		Tool: "tool", Principal: "principal", Key: "key", RunID: "run", ToolCall: "call", ParentRunID: "parent run",
		ThreadID: "thread", ContextID: "context", ParentCall: "parent call",
	}
	wantList := want
	wantList.Limit, wantList.Since, wantList.Until = 7, since, since.Add(time.Hour)
	if _, err := c.Jobs.ListJobs(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantList, <-lists); diff != "" {
		t.Error(diff)
	}
	watch := &macexecv1.WatchJobsRequest{
		After: 4, JobId: "job", Progress: true, States: states, Labels: labels,
		Tool: "tool", Principal: "principal", Key: "key", RunId: "run", ToolCallId: "call", ParentRunId: "parent run",
		ThreadId: "thread", ContextId: "context", ParentCallId: "parent call",
	}
	if err := c.Watch(t.Context(), watch, func(*macexecv1.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(engine.WatchRequest{After: 4, JobID: "job", Progress: true, Filter: want}, <-watches); diff != "" {
		t.Error(diff)
	}
	// Whatever field is added to either request has to be asked for here.
	forgotten := append(unset(list.ProtoReflect(), "list"), unset(watch.ProtoReflect(), "watch")...)
	if !slices.Equal(forgotten, []string{"list.page_token", "watch.from_now"}) {
		t.Errorf("not asked for: %v", forgotten)
	}
}

// TestUsage: what is asked for reaches the engine, and a page of long names is cut
// without losing any.
func TestUsage(t *testing.T) {
	t.Parallel()
	const rows = 90
	asked := make(chan jobs.UsageQuery, 64)
	c := start(t, &fakeEngine{usage: func(q jobs.UsageQuery) (page jobs.UsagePage, err error) {
		asked <- q
		from := 0
		if q.After != "" {
			if from, err = strconv.Atoi(q.After); err != nil {
				return page, err
			}
		}
		for i := from; i < min(from+q.Limit, rows); i++ {
			page.Rows = append(page.Rows, jobs.UsageRow{Name: fmt.Sprint(i, strings.Repeat("n", 60<<10))})
		}
		if from+q.Limit < rows {
			page.Next = strconv.Itoa(from + q.Limit)
		}
		return page, nil
	}})
	since := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	var got []string
	for token, first := "", true; first || token != ""; first = false {
		page, err := c.Jobs.SumUsage(t.Context(), &macexecv1.SumUsageRequest{
			By: macexecv1.UsageBy_USAGE_BY_TOOL, Since: timestamppb.New(since), PageToken: token,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.GetRows() {
			got = append(got, strings.TrimRight(r.GetName(), "n"))
		}
		token = page.GetNextPageToken()
	}
	if len(got) != rows || got[0] != "0" || got[rows-1] != strconv.Itoa(rows-1) {
		t.Errorf("rows %v", got)
	}
	if diff := cmp.Diff(jobs.UsageQuery{By: jobs.UsageByTool, Since: since, Limit: 100}, <-asked); diff != "" {
		t.Error(diff)
	}
}

// TestBadRequests: what a field may not hold is refused before the engine sees it.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	c := start(t, &fakeEngine{})
	submit := func(o *macexecv1.Options, p macexecv1.Purpose) error {
		_, err := c.Jobs.SubmitJob(t.Context(), &macexecv1.SubmitJobRequest{Options: o, Purpose: p})
		return err
	}
	list := func(r *macexecv1.ListJobsRequest) error {
		_, err := c.Jobs.ListJobs(t.Context(), r)
		return err
	}
	wait := func(seconds float64) error {
		_, err := c.Jobs.WaitJob(t.Context(), &macexecv1.WaitJobRequest{Id: "j", WaitSeconds: seconds})
		return err
	}
	zero := 0.0
	cases := map[string]error{
		"options.timeout_seconds": submit(&macexecv1.Options{TimeoutSeconds: zero / zero}, 0),
		"options.on_lock":         submit(&macexecv1.Options{OnLock: 9}, 0),
		"options.start_by":        submit(&macexecv1.Options{StartBy: &timestamppb.Timestamp{Nanos: -1}}, 0),
		"purpose":                 submit(nil, 77),
		"wait_seconds":            wait(zero / zero),
		"page_size":               list(&macexecv1.ListJobsRequest{PageSize: -1}),
		"page_token":              list(&macexecv1.ListJobsRequest{PageToken: "nonsense"}),
		"states":                  list(&macexecv1.ListJobsRequest{States: []macexecv1.JobState{88}}),
		"until":                   list(&macexecv1.ListJobsRequest{Until: &timestamppb.Timestamp{Nanos: -1}}),
		"since":                   list(&macexecv1.ListJobsRequest{Since: &timestamppb.Timestamp{Nanos: -1}}),
	}
	for field, err := range cases {
		e := failure(t, err)
		if e.Code() != "REQUEST_INVALID" || e.Detail.GetMetadata()["field"] != field {
			t.Errorf("%s: %v", field, e.Detail)
		}
	}
	for _, seconds := range []float64{-1, 1e300} {
		if e := failure(t, submit(&macexecv1.Options{TimeoutSeconds: seconds}, 0)); e.Code() != "REQUEST_INVALID" {
			t.Errorf("%v seconds: %v", seconds, e)
		}
	}
}

func fullContext() *macexecv1.CallContext {
	some := func(s string) string { return "some " + s }
	agent := &macexecv1.Agent{Name: some("Name"), Version: some("Version")}
	return &macexecv1.CallContext{
		TraceId: some("TraceID"), CorrelationId: some("CorrelationID"), InteractionId: some("InteractionID"),
		ToolCallId: some("ToolCallID"), ParentCallId: some("ParentCallID"), ParallelGroup: some("ParallelGroup"), Sequence: 2,
		RunId: some("RunID"), ParentRunId: some("ParentRunID"), ThreadId: some("ThreadID"), CheckpointId: some("CheckpointID"),
		Step: some("Step"), Node: some("Node"), ContextId: some("ContextID"), TaskId: some("TaskID"),
		Model: agent, Orchestrator: agent, VisibleTools: []string{some("VisibleTools")},
		Labels: map[string]string{some(""): some("Labels")}, Traceparent: some("TraceParent"), Tracestate: some("TraceState"),
	}
}

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := c.Compile(filepath.Join("..", "schemas", name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validate(t *testing.T, schema *jsonschema.Schema, m proto.Message) {
	t.Helper()
	doc, err := document.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s\n%v", doc, err)
	}
}

// memory is a file in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }
