package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/metadata"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// collector is an OpenTelemetry Collector: its own code, built from its own modules,
// that receives OTLP and writes what it got to its standard output.
type collector struct {
	endpoint string

	mu    sync.Mutex
	spans []map[string]string // what it has printed of each, by name
	grown chan struct{}       // closed and replaced with each span
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "otelcol")
	build := exec.Command("go", "build", "-o", binary, ".") // minutes on a small machine, then seconds from Go's cache
	build.Dir = "../../tools/otelcol"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the collector: %v\n%s", err, out)
	}
	for range 5 {
		// The collector does not tell which port it was given, so it gets one that is free
		// now, and another if that is taken meanwhile.
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := lis.Addr().String()
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		if c := tryCollector(t, binary, dir, address); c != nil {
			return c
		}
	}
	t.Fatal("the collector does not start")
	return nil
}

func tryCollector(t *testing.T, binary, dir, address string) *collector {
	t.Helper()
	config := filepath.Join(dir, "config.yaml")
	(&daemon{t: t}).write(config, fmt.Sprintf(`
receivers: {otlp: {protocols: {grpc: {endpoint: %q}}}}
exporters: {debug: {verbosity: detailed, use_internal_logger: false}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
`, address))
	cmd := exec.Command(binary, "--config", config)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &collector{endpoint: "http://" + address, grown: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { c.read(stdout) })
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		reading.Wait()
		_ = cmd.Wait()
	}
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if strings.Contains(lines.Text(), "Everything is ready") {
			reading.Go(func() { _, _ = io.Copy(io.Discard, stderr) })
			t.Cleanup(stop)
			return c
		}
		t.Log(lines.Text())
	}
	stop()
	return nil
}

// read takes in what the collector prints: for each span "Span #", then its fields,
// and its attributes with an arrow.
func (c *collector) read(r io.Reader) {
	field := regexp.MustCompile(`^\s+(?:-> )?([\w. ]+?)\s*: (?:(?:Str|Int|Bool)\((.*)\)|(.*))$`)
	var span map[string]string
	links := false
	finish := func() {
		if span != nil {
			c.mu.Lock()
			c.spans = append(c.spans, span)
			close(c.grown)
			c.grown = make(chan struct{})
			c.mu.Unlock()
		}
		span, links = nil, false
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "Span #"):
			finish()
			span = map[string]string{}
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "ResourceSpans"):
			finish() // an empty line ends what came together
		case strings.HasPrefix(line, "Links:"):
			links = true
		case span != nil:
			if m := field.FindStringSubmatch(line); m != nil {
				name := m[1]
				if links {
					name = "link " + name
				}
				span[name] = m[2] + m[3]
			}
		}
	}
	finish()
}

// await returns the span for which ok holds, once it is there.
func (c *collector) await(ctx context.Context, t *testing.T, what string, ok func(map[string]string) bool) map[string]string {
	t.Helper()
	for {
		c.mu.Lock()
		spans, grown := c.spans, c.grown
		c.mu.Unlock()
		for _, s := range spans {
			if ok(s) {
				return s
			}
		}
		select {
		case <-grown:
		case <-ctx.Done():
			t.Fatalf("no span of %s came; there are:\n%v", what, spans)
		}
	}
}

// One trace joins a caller, the request, the job and the tool, as a real collector sees
// it; and a scrape shows the job's counters.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	c := startCollector(t)
	d := startDaemon(t, `metrics: {listen: "127.0.0.1:0"}`, fmt.Sprintf("tracing: {endpoint: %q}", c.endpoint), "log: {format: json, level: debug}")
	d.write(filepath.Join(d.state, "tools", "join.yaml"), `
tool: join
version: "2026-11-30"
title: Tell the trace
description: Tells which trace it was given, for a test.
effects: none
purposes: [production]
input: {type: object, additionalProperties: false, properties: {}}
output: {type: object, additionalProperties: false, required: [parent], properties: {parent: {type: string}}}
run:
  - platforms: [linux, darwin]
    programs: {printenv: {}}
    command: {program: printenv, argv: [TRACEPARENT], stdout: capture, parser: {kind: text}}
    timeout: 1m
    slot: one
result: "{'parent': tool}"
`)
	d.end(syscall.SIGTERM)
	d.start()

	ctx := metadata.AppendToOutgoingContext(d.context(), "traceparent", "00-"+trace+"-"+caller+"-01")
	resp, err := d.Jobs.SubmitJob(ctx, call("k", "join", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	id := resp.GetJob().GetId()
	if resp.GetJob().GetState() == macexecv1.JobState_JOB_STATE_AWAITING_APPROVAL {
		d.approve(resp.GetJob()) // this host cannot confine the tool
	}
	job := d.wait(id, macexecv1.JobState_JOB_STATE_COMPLETED)

	request := c.await(ctx, t, "the request", func(s map[string]string) bool {
		return s["Name"] == "macexec.v1.JobService/SubmitJob" && s["Parent ID"] == caller
	})
	whole := c.await(ctx, t, "the job", func(s map[string]string) bool { return s["macexec.job.id"] == id && s["Name"] == "job join" })
	run := c.await(ctx, t, "the run", func(s map[string]string) bool { return s["Name"] == "run" && s["Parent ID"] == whole["ID"] })
	for _, s := range []map[string]string{request, whole, run} {
		if s["Trace ID"] != trace {
			t.Errorf("the span %s is of the trace %s, not of the caller's %s", s["Name"], s["Trace ID"], trace)
		}
	}
	if whole["Parent ID"] != request["ID"] || whole["link ID"] != request["ID"] || whole["macexec.state"] != "completed" {
		t.Errorf("the job's span is %v; its request is %s", whole, request["ID"])
	}
	if run["process.exit.code"] != "0" {
		t.Errorf("the run's span is %v", run)
	}
	var result struct{ Parent string }
	if err := json.Unmarshal(job.GetResult(), &result); err != nil {
		t.Fatal(err)
	}
	if want := "00-" + trace + "-" + run["ID"] + "-01"; strings.TrimSpace(result.Parent) != want {
		t.Errorf("the tool was told %q, want its run %s", result.Parent, want)
	}

	log := d.process.log.String()
	for _, said := range []string{"a job was accepted", "a job ended"} {
		line := regexp.MustCompile(`(?m)^.*"` + said + `".*"trace_id":"` + trace + `".*$`).FindString(log)
		if !strings.Contains(line, id) || !strings.Contains(line, `"tool":"join"`) {
			t.Errorf("no line says that %s of job %s in the trace; the log:\n%s", said, id, log)
		}
	}
	text := scrape(ctx, t, d.metricsURL())
	for _, line := range []string{
		`macexec_submissions_total{answer="accepted",code=""} 1`,
		`macexec_jobs_ended_total{end_reason="ok",state="completed",tool="join"} 1`,
		`macexec_attempts_total{tool="join"} 1`,
		`macexec_keeper_starts_total{result="started"} 1`,
		`macexec_job_running_seconds_count{tool="join"} 1`,
		`macexec_rpc_requests_total{code="OK",method="macexec.v1.JobService/SubmitJob"} 1`,
		`macexec_jobs{state="running"} 0`,
		`macexec_journal_writable 1`,
		`macexec_host_mode{mode="open"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "owner") || strings.Contains(text, id) {
		t.Errorf("the metrics name a principal or a job:\n%s", text)
	}
}

// metricsURL is where the daemon says that its metrics are.
func (d *daemon) metricsURL() string {
	return regexp.MustCompile(`http://[^"\s]+/metrics`).FindString(d.process.log.String())
}

func scrape(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
