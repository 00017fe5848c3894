package schemas_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/macexec/macexec/schemas"
)

var update = flag.Bool("update", false, "copy shared definitions from the documents that own them")

func document(t *testing.T, name string) *schemas.DocumentSchema {
	t.Helper()
	d, ok := schemas.Document(name)
	if !ok {
		t.Fatalf("there is no document %s", name)
	}
	return d
}

func TestDocumentsCompileAndAreClosed(t *testing.T) {
	t.Parallel()
	want := []string{"check", "config", "configuration", "error", "event", "file", "host", "job", "journal_entry", "key", "lint", "log", "manifest", "project", "run_cancellation", "store", "store_adoption", "store_compaction", "store_confirmation", "store_copy", "store_pruning", "store_use", "tool", "usage_row", "verify", "version", "whoami"}
	if got := schemas.Documents(); !slices.Equal(got, want) {
		t.Errorf("documents %v", got)
	}
	for _, name := range schemas.Documents() {
		if f := document(t, name).Validate([]byte(`{"nobody_has_this_field":1}`)); len(f) == 0 {
			t.Errorf("%s is open", name)
		}
		if f := document(t, name).Validate([]byte(`{"a":1,"a":2}`)); len(f) != 1 || f[0].Keyword != "duplicate_name" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, ok := schemas.Document("nosuch"); ok {
		t.Error("a document that is not there")
	}
}

// TestSharedDefinitionsAgree: each file stands alone, so that any validator can
// use it, and a definition that several need is the same in all of them. A whole
// document that another holds is owned by its own file; the rest by the first of
// job, error, tool. Run with -update after a change to an owner.
func TestSharedDefinitionsAgree(t *testing.T) {
	t.Parallel()
	files := map[string]map[string]any{}
	for _, name := range schemas.Documents() {
		var tree map[string]any
		if err := json.Unmarshal(document(t, name).Text(), &tree); err != nil {
			t.Fatal(err)
		}
		files[name] = tree
	}
	owned := map[string]any{}
	for _, name := range []string{"tool", "error", "job"} {
		defs, _ := files[name]["$defs"].(map[string]any)
		maps.Copy(owned, defs)
	}
	for _, name := range []string{"job", "journal_entry"} {
		whole := maps.Clone(files[name])
		for _, k := range []string{"$schema", "$defs", "title", "description"} {
			delete(whole, k)
		}
		owned[name] = whole
	}
	for name, tree := range files {
		defs, _ := tree["$defs"].(map[string]any)
		stale := false
		for def := range defs {
			owner, ok := owned[def]
			if !ok {
				continue
			}
			if !reflect.DeepEqual(owner, defs[def]) {
				stale, defs[def] = true, owner
			}
		}
		if !stale {
			continue
		}
		if !*update {
			t.Errorf("%s.schema.json: a shared definition differs from its owner's; run go test ./schemas -run Shared -update", name)
			continue
		}
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(tree); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name+".schema.json", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const goodJob = `{"id":"01J-abcdefgh","host":"abcdefgh","seq":1,"revision":2,"principal":"me","key":"k","key_made":false,"fingerprint":"v1:0",
"call":{"tool":"t","tool_version":"","arguments":{"n":9007199254740993},"purpose":"production",
 "options":{"replace":false,"on_lock":"","serial_context":false,"priority":0,"timeout_seconds":0,"supersedes":""},
 "context":{"trace_id":"","correlation_id":"","interaction_id":"","tool_call_id":"c1","parent_call_id":"","parallel_group":"","sequence":0,"run_id":"","parent_run_id":"","thread_id":"","checkpoint_id":"","step":"","node":"","context_id":"","task_id":"","visible_tools":[],"labels":{},"traceparent":"","tracestate":""}},
"tool":{"name":"t","version":"2026-11-01","manifest_digest":"","effects":"none","destructive":false},
"verdicts":{"syntax_valid":true,"schema_valid":true,"business_valid":true,"syntax_checked":true,"schema_checked":true,"business_checked":true,"findings":[]},
"decision":{"effect":"allow","rules":[],"reason":"","policy_version":"","decided_at":"2026-11-01T00:00:00Z"},
"state":"queued","phase":"","waiting_for":{"kind":"slot","detail":"video","job_id":"","position":1,"job_state":""},"end_reason":"","side_effect":"none","message":"","cause":"","retry":"","log_tail":[],
"attempts":[],"inputs":[],"artifacts":[],"evidence":[],"warnings":[],
"usage":{"waiting_seconds":0,"staging_seconds":0,"running_seconds":0.25,"publishing_seconds":0,"cpu_user_seconds":0,"cpu_system_seconds":0,"peak_memory_bytes":0,"bytes_in":0,"bytes_out":0,"scope":""},
"superseded_by":"","submitted_at":"2026-11-01T00:00:00.123456789Z","omitted":[],"replayed":false}`

func TestJobDocument(t *testing.T) {
	t.Parallel()
	job := document(t, "job")
	if f := job.Validate([]byte(goodJob)); f != nil {
		t.Fatal(f)
	}
	for _, change := range []struct{ old, with, keyword string }{
		{`"state":"queued"`, `"state":"QUEUED"`, "enum"},
		{`"key_made":false,`, ``, "required"},
		{`"log_tail":[]`, `"log_tail":null`, "type"},
		{`"seq":1`, `"seq":"1"`, "type"},
		{`"submitted_at":"2026-11-01T00:00:00.123456789Z"`, `"submitted_at":""`, "format"},
		{`"replayed":false`, `"replayed":false,"sealed":{}`, "additionalProperties"},
	} {
		f := job.Validate([]byte(strings.Replace(goodJob, change.old, change.with, 1)))
		if len(f) != 1 || f[0].Keyword != change.keyword {
			t.Errorf("%s: %+v", change.with, f)
		}
	}
}

func TestEventDocument(t *testing.T) {
	t.Parallel()
	event := document(t, "event")
	progress := `{"job_id":"j","attempt":1,"phase":"running","percent":12.5,"rate":"2x","detail":""}`
	entry := `{"seq":7,"at":"2026-11-01T00:00:00Z","kind":"job.changed","principal":"","owner":"","job_id":"j","event":"start","revision":2,"state":"running","phase":"staging","end_reason":"","side_effect":"none","tool_call_id":"","run_id":"","trace_id":"","message":"","prev":"","hash":""}`
	for text, ok := range map[string]bool{
		`{"cursor":0,"snapshot":true,"job":` + goodJob + `}`:                              true,
		`{"cursor":7,"snapshot":false,"entry":` + entry + `,"job":` + goodJob + `}`:       true,
		`{"cursor":7,"snapshot":false,"entry":` + entry + `}`:                             true,
		`{"cursor":0,"snapshot":false,"progress":` + progress + `}`:                       true,
		`{"cursor":0,"snapshot":false}`:                                                   false,
		`{"cursor":0,"snapshot":true}`:                                                    false,
		`{"cursor":7,"snapshot":false,"entry":` + entry + `,"progress":` + progress + `}`: false,
		`{"cursor":0,"snapshot":true,"job":` + goodJob + `,"entry":` + entry + `}`:        false,
	} {
		if f := event.Validate([]byte(text)); (f == nil) != ok {
			t.Errorf("%.60s: %+v", text, f)
		}
	}
}

func TestErrorDocument(t *testing.T) {
	t.Parallel()
	wrong := `{"class":"schema","code":"ARGUMENTS_SCHEMA_VIOLATION","message":"m","retryable":false,"user_action":"fix_arguments","side_effect":"none",
"findings":[{"verdict":"schema","pointer":"/a","keyword":"type","message":"m","hint":""}],
"verdicts":{"syntax_valid":true,"schema_valid":false,"business_valid":false,"syntax_checked":true,"schema_checked":true,"business_checked":false,"findings":[]},
"job_id":"","metadata":{},"key":"","tool_call_id":"c1","run_id":"","trace_id":""}`
	d := document(t, "error")
	if f := d.Validate([]byte(wrong)); f != nil {
		t.Error(f)
	}
	if f := d.Validate([]byte(strings.Replace(wrong, `"retryable":false,`, "", 1))); len(f) != 1 || f[0].Keyword != "required" {
		t.Error(f)
	}
}

func TestConfigDocument(t *testing.T) {
	t.Parallel()
	d := document(t, "config")
	text, findings := d.ValidateYAML([]byte("projects: {default: /srv/media}\ntool_path: [/usr/bin]\nslots: {video: 2}\nlimits: {upload_bytes: 1000000}\nconfinement: required\n"))
	if findings != nil || string(text) != `{"projects":{"default":"/srv/media"},"tool_path":["/usr/bin"],"slots":{"video":2},"limits":{"upload_bytes":1000000},"confinement":"required"}` {
		t.Errorf("%s %+v", text, findings)
	}
	for text, keyword := range map[string]string{
		"projects: {default: media}": "pattern", "slots: {video: 0}": "minimum", "confinement: maybe": "enum", "listen: x": "additionalProperties",
		"slots: {video: 1}\nslots: {}": "yaml", "": "yaml", "[]": "type", "limits: {max_attempts: yes}": "type",
	} {
		_, f := d.ValidateYAML([]byte(text))
		if len(f) != 1 || f[0].Keyword != keyword {
			t.Errorf("%q: %+v", text, f)
		}
	}
}

func TestLintDocument(t *testing.T) {
	t.Parallel()
	for _, m := range []string{baseManifest, edited(t, "tool: echo_text", "tool: Echo"), ""} {
		raw, err := json.Marshal(lint(t, m))
		if err != nil {
			t.Fatal(err)
		}
		if f := document(t, "lint").Validate(raw); f != nil {
			t.Errorf("%s: %+v", raw, f)
		}
	}
}
