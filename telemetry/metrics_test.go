package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// counted is a Metrics that has been told of everything that there is to tell.
func counted(t *testing.T) *Metrics {
	t.Helper()
	m := NewMetrics("v1")
	m.Watch(Sources{
		Engine: func() engine.Gauges {
			return engine.Gauges{Slots: []engine.Slot{{Class: "video", Size: 2, Used: 1}}, Held: 2, DiskFree: 12, Head: 34, Mode: jobs.ModePaused}
		},
		Store: func() (int64, int64) { return 1000, 400 },
	})
	done := newLife(t, "done", jobs.CallContext{})
	done.accept()
	done.begin()
	done.intend()
	done.requeue()
	done.begin()
	done.intend()
	done.exited(0)
	done.tell(m)
	lost := newLife(t, "lost", jobs.CallContext{})
	lost.accept()
	lost.begin()
	lost.intend()
	lost.lose()
	lost.tell(m)
	waits := newLife(t, "waits", jobs.CallContext{})
	waits.accept()
	m.Found(waits.job)
	m.Submitted(t.Context(), engine.Decided{Answer: engine.Accepted, Job: done.job, Took: 3 * time.Millisecond})
	m.Submitted(t.Context(), engine.Decided{Answer: engine.Refused, Code: jobs.CodeKeyConflict})
	m.Started(done.job, time.Millisecond, nil)
	m.Started(done.job, time.Millisecond, errors.New("no"))
	m.Probed(lost.job, engine.ProbeNoAnswer)
	m.Request("/macexec.v1.JobService/SubmitJob")("OK")
	_ = m.Request("/macexec.v1.JobService/WatchJobs")
	m.Committed(time.Millisecond, nil)
	m.Committed(time.Millisecond, jobs.Errorf(jobs.CodeDiskFull, "no room"))
	m.Spans("exported", 2)
	return m
}

// What is told is what a scrape shows.
func TestMetrics(t *testing.T) {
	t.Parallel()
	m := counted(t)
	e, err := m.Listen("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	status, text := get(t, e.URL(t.Context()), "")
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d %s", e.URL(t.Context()), status, text)
	}
	for _, line := range []string{
		`macexec_submissions_total{answer="accepted",code=""} 1`,
		`macexec_submissions_total{answer="refused",code="IDEMPOTENCY_KEY_CONFLICT"} 1`,
		`macexec_submission_duration_seconds_sum{answer="accepted"} 0.003`,
		`macexec_jobs{state="queued"} 1`,
		`macexec_jobs{state="running"} 0`,
		`macexec_jobs{state="unknown"} 1`,
		`macexec_jobs_ended_total{end_reason="ok",state="completed",tool="copy"} 1`,
		`macexec_jobs_unknown_total{tool="copy"} 1`,
		`macexec_attempts_total{tool="copy"} 3`,
		`macexec_attempts_lost_total{tool="copy"} 2`,
		`macexec_job_queue_seconds_count{tool="copy"} 3`,
		`macexec_job_queue_seconds_sum{tool="copy"} 3`,
		`macexec_job_staging_seconds_sum{tool="copy"} 3`,
		`macexec_job_running_seconds_sum{tool="copy"} 2`,
		`macexec_job_publishing_seconds_sum{tool="copy"} 1`,
		`macexec_job_cpu_seconds_total{mode="user",tool="copy"} 3`,
		`macexec_job_cpu_seconds_total{mode="system",tool="copy"} 1`,
		`macexec_job_peak_memory_bytes_sum{tool="copy"} 5.24288e+06`,
		`macexec_job_input_bytes_total{tool="copy"} 100`,
		`macexec_job_output_bytes_total{tool="copy"} 200`,
		`macexec_probes_total{answer="no_answer",tool="copy"} 1`,
		`macexec_keeper_starts_total{result="started"} 1`,
		`macexec_keeper_starts_total{result="failed"} 1`,
		`macexec_keeper_start_duration_seconds_count 1`,
		`macexec_slots{class="video"} 2`,
		`macexec_slots_used{class="video"} 1`,
		`macexec_host_mode{mode="paused"} 1`,
		`macexec_host_mode{mode="open"} 0`,
		`macexec_disk_free_bytes 12`,
		`macexec_journal_head 34`,
		`macexec_journal_writable 0`,
		`macexec_disk_full 1`,
		`macexec_jobs_held 2`,
		`macexec_store_size_bytes 1000`,
		`macexec_store_free_bytes 400`,
		`macexec_store_commit_duration_seconds_count 1`,
		`macexec_store_commit_failures_total 1`,
		`macexec_rpc_requests_total{code="OK",method="macexec.v1.JobService/SubmitJob"} 1`,
		`macexec_rpc_in_flight{method="macexec.v1.JobService/SubmitJob"} 0`,
		`macexec_rpc_in_flight{method="macexec.v1.JobService/WatchJobs"} 1`,
		`macexec_spans_total{result="exported"} 2`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	age := regexp.MustCompile(`\nmacexec_jobs_oldest_age_seconds\{state="queued"\} (\S+)\n`).FindStringSubmatch(text)
	if len(age) != 2 || age[1] == "0" {
		t.Errorf("the oldest queued job has the age %q", age)
	}
}

func get(t *testing.T, url, host string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// The metrics are for this host alone.
func TestMetricsAreForThisHost(t *testing.T) {
	t.Parallel()
	m, log := NewMetrics("v1"), slog.New(slog.DiscardHandler)
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:9464", "example.com:80", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ""} {
		if e, err := m.Listen(address, log); err == nil {
			e.Close()
			t.Errorf("%q was taken", address)
		}
	}
	e, err := m.Listen("localhost:0", log)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for host, want := range map[string]int{
		"": http.StatusOK, "localhost": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]:80": http.StatusOK, "::1": http.StatusOK,
		"evil.example": http.StatusForbidden, "127.0.0.1.evil.example:80": http.StatusForbidden,
	} {
		if got, text := get(t, e.URL(t.Context()), host); got != want {
			t.Errorf("Host %q: %d %s, want %d", host, got, text, want)
		}
	}
}

// An address that another program has keeps nothing from starting: it is tried for
// until it is free, ever more rarely, and said once.
func TestMetricsWaitForTheirAddress(t *testing.T) {
	t.Parallel()
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	waits, again := make(chan time.Duration), make(chan time.Time)
	after := func(d time.Duration) <-chan time.Time {
		waits <- d
		return again
	}
	var said bytes.Buffer
	e, err := NewMetrics("v1").listen(other.Addr().String(), slog.New(slog.NewTextHandler(&said, nil)), after)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if got, want := <-waits, min(time.Second<<i, time.Minute); got != want {
			t.Errorf("wait %d is %s, want %s", i, got, want)
		}
		if i == 9 {
			_ = other.Close()
		}
		again <- time.Time{}
	}
	if status, text := get(t, e.URL(t.Context()), ""); status != http.StatusOK || !strings.Contains(text, "macexec_build_info") {
		t.Errorf("%d %s", status, text)
	}
	e.Close()
	if n := strings.Count(said.String(), "cannot be served yet"); n != 1 || !strings.Contains(said.String(), "metrics are served") {
		t.Errorf("the log says:\n%s", said.String())
	}
}

// The end of a daemon does not wait for an address.
func TestMetricsEndWithoutTheirAddress(t *testing.T) {
	t.Parallel()
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	waiting := make(chan time.Duration, 1)
	e, err := NewMetrics("v1").listen(other.Addr().String(), slog.New(slog.DiscardHandler), func(d time.Duration) <-chan time.Time {
		waiting <- d
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	<-waiting
	e.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if url := e.URL(ctx); url != "" {
		t.Errorf("served at %s", url)
	}
}

// Changes of one job may be told in any order: what is open does not depend on it.
func TestOpenJobsInAnyOrder(t *testing.T) {
	t.Parallel()
	l := newLife(t, "j", jobs.CallContext{})
	l.accept()
	l.begin()
	l.requeue()
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		o := newOpenJobs()
		for _, i := range order {
			o.changed(l.changes[i])
		}
		for _, state := range openStates() {
			want := 0
			if state == jobs.StateQueued {
				want = 1
			}
			if n, _ := o.look(state); n != want {
				t.Errorf("told in order %v: %d jobs are %s, want %d", order, n, state, want)
			}
		}
	}
}

// family is a metric as the page describes it.
func family(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	types := map[string]string{}
	gathered, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(descs)
	close(descs)
	parts := regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: "(.*)", unit: "", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)
	rows := map[string]string{}
	for d := range descs {
		p := parts.FindStringSubmatch(d.String())
		if len(p) != 4 || !strings.HasPrefix(p[1], "macexec_") {
			continue // of Go and of the process: described as a whole
		}
		kind, ok := types[p[1]]
		if !ok {
			t.Errorf("%s was never counted, so nobody knows what it is", p[1])
		}
		rows[p[1]] = fmt.Sprintf("| %#q | %s | %s | %s |", p[1], kind, strings.ReplaceAll(p[3], ",", ", "), strings.ReplaceAll(p[2], `\"`, `"`))
	}
	return rows
}

// The page describes each metric that there is, and no other.
func TestPageOfMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `macexec_.*$").FindAllString(string(page), -1)
	want := slices.Sorted(maps.Values(family(t, counted(t))))
	slices.Sort(rows)
	if d := cmp.Diff(want, rows); d != "" {
		t.Errorf("docs/operations.md does not describe the metrics as they are (-want +got):\n%s\nThe whole table:\n%s", d, strings.Join(want, "\n"))
	}
}

// Each shipped alert asks for metrics that there are, and says what to do.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	known, seen := family(t, counted(t)), map[string]bool{}
	metric := regexp.MustCompile(`\b[a-z][a-z0-9]*_[a-z0-9_]+\b`)
	quoted := regexp.MustCompile(`"[^"]*"`)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || r.Alert == "" || g.Name == "" {
				t.Errorf("the alert %q of the group %q has no name of its own", r.Alert, g.Name)
			}
			seen[r.Alert] = true
			if d, err := time.ParseDuration(r.For); err != nil || d < 0 {
				t.Errorf("%s: for %q is no duration", r.Alert, r.For)
			}
			if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s needs a severity, a summary and a description: %v %v", r.Alert, r.Labels, r.Annotations)
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") || strings.Count(r.Expr, "{") != strings.Count(r.Expr, "}") {
				t.Errorf("%s: %q is not balanced", r.Alert, r.Expr)
			}
			asks := 0
			for _, name := range metric.FindAllString(quoted.ReplaceAllString(r.Expr, ""), -1) {
				base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
				switch {
				case known[name] != "" || known[base] != "":
					asks++
				case name == "histogram_quantile":
				default:
					t.Errorf("%s asks for %s, which is no metric", r.Alert, name)
				}
			}
			if asks == 0 && !strings.HasPrefix(r.Expr, "up{") {
				t.Errorf("%s asks for no metric: %q", r.Alert, r.Expr)
			}
			if !strings.Contains(string(page), "`"+r.Alert+"`") {
				t.Errorf("docs/operations.md does not say what to do about %s", r.Alert)
			}
		}
	}
	if len(seen) == 0 {
		t.Error("no alert ships")
	}
}
