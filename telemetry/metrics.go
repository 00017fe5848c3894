package telemetry

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Metrics counts what happens on a host, for Prometheus. It is an engine.Observer.
type Metrics struct {
	untraced

	registry *prometheus.Registry
	open     *openJobs

	submissions *prometheus.CounterVec
	deciding    *prometheus.HistogramVec

	ended, lostOutcome      *prometheus.CounterVec
	queueing, staging       *prometheus.HistogramVec
	running, publishing     *prometheus.HistogramVec
	attempts, attemptsLost  *prometheus.CounterVec
	cpu                     *prometheus.CounterVec
	memory                  *prometheus.HistogramVec
	bytesRead, bytesWritten *prometheus.CounterVec
	probes                  *prometheus.CounterVec

	keepers        *prometheus.CounterVec
	keeperStarting prometheus.Histogram

	requests   *prometheus.CounterVec
	requesting *prometheus.HistogramVec
	inFlight   *prometheus.GaugeVec

	commits       prometheus.Histogram
	commitsFailed prometheus.Counter
	writable      prometheus.Gauge
	full          prometheus.Gauge

	spans *prometheus.CounterVec
}

// NewMetrics makes the metrics of a daemon of a version. They count from the start;
// what a daemon found open is told by Found.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), open: newOpenJobs()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(g)
		return g
	}
	answers := []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	work := []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600}

	m.submissions = counter("macexec_submissions_total", "Calls that were answered, by answer, and by error code if refused.", "answer", "code")
	m.deciding = histogram("macexec_submission_duration_seconds", "Time from a call's arrival to its stored answer.", answers, "answer")

	m.ended = counter("macexec_jobs_ended_total", "Jobs that came to an end, by the state and the reason of it.", "tool", "state", "end_reason")
	m.lostOutcome = counter("macexec_jobs_unknown_total", "Jobs that became unknown.", "tool")
	m.queueing = histogram("macexec_job_queue_seconds", "Time from queued to the begin of an attempt.", work, "tool")
	m.staging = histogram("macexec_job_staging_seconds", "Time that a job staged its inputs, over its attempts.", work, "tool")
	m.running = histogram("macexec_job_running_seconds", "Time that a job's tool ran, over its attempts.", work, "tool")
	m.publishing = histogram("macexec_job_publishing_seconds", "Time that a job's outputs were verified and published.", work, "tool")
	m.attempts = counter("macexec_attempts_total", "Attempts that were begun.", "tool")
	m.attemptsLost = counter("macexec_attempts_lost_total", "Attempts that were given up without a proof of how their tool ended.", "tool")
	m.cpu = counter("macexec_job_cpu_seconds_total", "CPU time of tools and what they started.", "tool", "mode")
	m.memory = histogram("macexec_job_peak_memory_bytes", "Largest resident memory of one process of a job.", prometheus.ExponentialBuckets(4<<20, 4, 8), "tool")
	m.bytesRead = counter("macexec_job_input_bytes_total", "Bytes of the files that jobs were given.", "tool")
	m.bytesWritten = counter("macexec_job_output_bytes_total", "Bytes of the artifacts that jobs made.", "tool")
	m.probes = counter("macexec_probes_total", "Probes of unknown jobs, by what they proved.", "tool", "answer")

	m.keepers = counter("macexec_keeper_starts_total", "Keepers that were started, or could not be.", "result")
	m.keeperStarting = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "macexec_keeper_start_duration_seconds", Help: "Time until a keeper that was started holds its attempt.", Buckets: answers,
	})
	m.registry.MustRegister(m.keeperStarting)

	m.requests = counter("macexec_rpc_requests_total", "gRPC requests that were answered, by method and status code.", "method", "code")
	m.requesting = histogram("macexec_rpc_duration_seconds", "Time from a gRPC request to the end of its answer; for a stream, of the whole stream.", answers, "method")
	m.inFlight = gauge("macexec_rpc_in_flight", "gRPC requests and streams that are open now: of WatchJobs the watchers, of UploadFile the uploads.", "method")

	m.commits = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "macexec_store_commit_duration_seconds", Help: "Time of a commit, until it is on stable storage.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5},
	})
	m.commitsFailed = prometheus.NewCounter(prometheus.CounterOpts{Name: "macexec_store_commit_failures_total", Help: "Commits that failed, such as on a full disk."})
	m.writable = prometheus.NewGauge(prometheus.GaugeOpts{Name: "macexec_journal_writable", Help: "1 if the last commit succeeded, else 0: then every call is refused."})
	m.full = prometheus.NewGauge(prometheus.GaugeOpts{Name: "macexec_disk_full", Help: "1 if the last commit found no room on the disk of the store, else 0."})
	m.registry.MustRegister(m.commits, m.commitsFailed, m.writable, m.full)
	m.writable.Set(1) // a store that cannot be written does not open

	m.spans = counter("macexec_spans_total", "Spans by what became of them: exported, failed (not taken by the collector), dropped (the queue was full).", "result")

	info := gauge("macexec_build_info", "1; the labels say which build runs.", "version", "go_version", "os", "arch")
	info.WithLabelValues(version, runtime.Version(), runtime.GOOS, runtime.GOARCH).Set(1)
	m.registry.MustRegister(newOpenCollector(m.open), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Submitted counts a call.
func (m *Metrics) Submitted(_ context.Context, d engine.Decided) {
	m.submissions.WithLabelValues(string(d.Answer), string(d.Code)).Inc()
	m.deciding.WithLabelValues(string(d.Answer)).Observe(d.Took.Seconds())
}

// Found counts a job that an earlier daemon left open.
func (m *Metrics) Found(j *jobs.Job) { m.open.found(j) }

// Changed counts what a change of a job is.
func (m *Metrics) Changed(c engine.Change) {
	m.open.changed(c)
	j, tool := c.Job, c.Job.Tool.Name
	last, tried := j.LastAttempt()
	if c.Event == jobs.EventStart {
		m.attempts.WithLabelValues(tool).Inc()
		m.queueing.WithLabelValues(tool).Observe(max(last.BegunAt.Sub(j.QueuedAt), 0).Seconds())
	}
	if c.Event != "" && c.From == jobs.StateRunning {
		if tried && last.Lost != "" {
			m.attemptsLost.WithLabelValues(tool).Inc()
		}
		if j.State != jobs.StateQueued {
			m.used(tool, j)
		}
	}
	switch {
	case c.Event == "":
	case j.State.Terminal():
		m.ended.WithLabelValues(tool, string(j.State), string(j.EndReason)).Inc()
	case j.State == jobs.StateUnknown:
		m.lostOutcome.WithLabelValues(tool).Inc()
	}
}

// used counts what a job cost that runs no more.
func (m *Metrics) used(tool string, j *jobs.Job) {
	u := j.Usage
	m.staging.WithLabelValues(tool).Observe(u.Staging.Seconds())
	if u.Running > 0 {
		m.running.WithLabelValues(tool).Observe(u.Running.Seconds())
		m.cpu.WithLabelValues(tool, "user").Add(u.CPUUser.Seconds())
		m.cpu.WithLabelValues(tool, "system").Add(u.CPUSystem.Seconds())
		m.memory.WithLabelValues(tool).Observe(float64(u.PeakMemory))
	}
	if u.Publishing > 0 {
		m.publishing.WithLabelValues(tool).Observe(u.Publishing.Seconds())
	}
	m.bytesRead.WithLabelValues(tool).Add(float64(u.BytesIn))
	m.bytesWritten.WithLabelValues(tool).Add(float64(u.BytesOut))
}

// Started counts a keeper.
func (m *Metrics) Started(_ *jobs.Job, took time.Duration, err error) {
	if err != nil {
		m.keepers.WithLabelValues("failed").Inc()
		return
	}
	m.keepers.WithLabelValues("started").Inc()
	m.keeperStarting.Observe(took.Seconds())
}

// Probed counts a probe.
func (m *Metrics) Probed(j *jobs.Job, answer engine.ProbeAnswer) {
	m.probes.WithLabelValues(j.Tool.Name, string(answer)).Inc()
}

// Request counts a gRPC request, from now until the function that it returns is
// called with the status code's name.
func (m *Metrics) Request(method string) (end func(code string)) {
	began := time.Now()
	method = strings.TrimPrefix(method, "/")
	m.inFlight.WithLabelValues(method).Inc()
	return func(code string) {
		m.inFlight.WithLabelValues(method).Dec()
		m.requests.WithLabelValues(method, code).Inc()
		m.requesting.WithLabelValues(method).Observe(time.Since(began).Seconds())
	}
}

// Committed counts a commit of the store.
func (m *Metrics) Committed(took time.Duration, err error) {
	full := 0.0
	if jobs.CodeOf(err) == jobs.CodeDiskFull {
		full = 1
	}
	m.full.Set(full)
	if err != nil {
		m.commitsFailed.Inc()
		m.writable.Set(0)
		return
	}
	m.commits.Observe(took.Seconds())
	m.writable.Set(1)
}

// Spans counts what became of spans.
func (m *Metrics) Spans(result string, n int) { m.spans.WithLabelValues(result).Add(float64(n)) }
