package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs/engine"
)

// Every field of the schema is read, and nothing else is.
func TestConfigReadsWhatItsSchemaSays(t *testing.T) {
	t.Parallel()
	_, fields, err := configSchema()
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, f := range fields {
		want = append(want, f.pointer)
	}
	var walk func(reflect.Type, string)
	walk = func(typ reflect.Type, pointer string) {
		for f := range typ.Fields() {
			if !f.IsExported() {
				continue
			}
			at := pointer + "/" + f.Tag.Get("json")
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, at)
			} else {
				got = append(got, at)
			}
		}
	}
	walk(reflect.TypeFor[config](), "")
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-schema +config):\n%s", diff)
	}
}

// The defaults that the schema states are those of the rooms.
func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	_, fields, err := configSchema()
	if err != nil {
		t.Fatal(err)
	}
	limits := engine.Limits{}.WithDefaults()
	want := map[string]any{
		"/confinement":                     "best_effort",
		"/limits/approval_expires_seconds": int64(limits.ApprovalExpiry / time.Second),
		"/limits/log_bytes":                limits.LogBytes,
		"/limits/max_attempts":             limits.MaxAttempts,
		"/limits/upload_bytes":             limits.UploadBytes,
		"/limits/upload_unused_seconds":    int64(limits.BlobUnused / time.Second),
		"/tool_path":                       programs.DefaultPath(),
	}
	for _, f := range fields {
		if value, ok := want[f.pointer]; ok {
			text, err := json.Marshal(value)
			if err != nil || string(text) != string(oneForm(f.standard)) {
				t.Errorf("%s: the schema says %s, the room %s, %v", f.pointer, f.standard, text, err)
			}
			delete(want, f.pointer)
		}
	}
	if len(want) > 0 {
		t.Errorf("the schema has no %v", want)
	}
}

func TestConfigValuesInOneForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"slots: {b: 2, a: 1}":                      `{"a":1,"b":2}`,
		"slots:\n  a: 1\n  b: 2\n":                 `{"a":1,"b":2}`,
		"limits: {upload_bytes: 9007199254740993}": "",
		"":               "",
		"# nothing\n---": "",
	} {
		c, report, err := judgeConfig([]byte(text), "config.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(text, "#") {
			continue // it is for the report to say
		}
		if got := string(c.given("/slots")); !report.OK || got != want {
			t.Errorf("%q: %q, %v", text, got, report.Problems)
		}
	}
}

// Whatever the file says, it is a configuration or has problems that are told, and
// what it gives is no surprise for the rest.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{"", "slots: {video: 1}", "limits: {upload_bytes: 1e3}", "projects: {a: /x}\ntool_path: [/bin]", "---\n", "limits: null", "a: &x [*x]", "limits: {approval_expires_seconds: 3153600000}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, report, err := judgeConfig(raw, "config.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if !report.OK {
			if len(report.Problems) == 0 {
				t.Fatal("it is not good, and nothing says why")
			}
			return
		}
		limits := c.limits().WithDefaults()
		if limits.ApprovalExpiry <= 0 || limits.UploadBytes <= 0 || limits.LogBytes <= 0 || limits.MaxAttempts <= 0 || limits.BlobUnused <= 0 {
			t.Fatalf("%s gives %+v", raw, limits)
		}
		for _, field := range c.fields {
			if value := c.given(field.pointer); value != nil && !json.Valid(value) {
				t.Fatalf("%s is %q", field.pointer, value)
			}
		}
	})
}

// A default is one line, however the schema is laid out: config show prints it in a row.
func TestDefaultsAreOneLine(t *testing.T) {
	t.Parallel()
	_, fields, err := configSchema()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		if strings.ContainsAny(string(f.standard), "\n\t") {
			t.Errorf("%s is %q", f.pointer, f.standard)
		}
		if f.pointer == "/tool_path" && !strings.HasPrefix(string(f.standard), `["/opt/homebrew/bin","/usr/local/bin",`) {
			t.Errorf("%s is %s", f.pointer, f.standard)
		}
	}
}

// Values that the schema takes and no daemon could use are found before one tries.
func TestConfigOfTelemetryIsJudged(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`metrics: {listen: "127.0.0.1:0"}`:               "",
		`metrics: {listen: "[::1]:9464"}`:                "",
		`metrics: {listen: "0.0.0.0:9464"}`:              "is not a loopback address",
		`metrics: {listen: "127.0.0.1"}`:                 "is no host:port",
		`tracing: {endpoint: "https://collector:4317"}`:  "",
		`tracing: {endpoint: "http://"}`:                 "is no http or https address",
		`tracing: {endpoint: "http://c:1", sample: 1.5}`: "/tracing/sample",
		`log: {format: json, level: debug}`:              "",
		`log: {level: loud}`:                             "/log/level",
	} {
		_, report, err := judgeConfig([]byte(text+"\n"), "config.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var said string
		for _, p := range report.Problems {
			said += p.Pointer + ": " + p.Message + "\n"
		}
		if report.OK != (want == "") || !strings.Contains(said, want) {
			t.Errorf("%s: ok %t, %s", text, report.OK, said)
		}
	}
}

// TestConfigIsARegularFile: what hangs, or has no end, is refused at once.
func TestConfigIsARegularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, endless, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "endless"), filepath.Join(dir, "large")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", endless), os.WriteFile(large, make([]byte, maxConfig+1), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, endless, large, dir} {
		if _, err := readConfig(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
