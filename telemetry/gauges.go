package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// openCollector reads how many jobs are open, and for how long.
type openCollector struct {
	open     *openJobs
	now, age *prometheus.Desc
}

func newOpenCollector(open *openJobs) openCollector {
	return openCollector{
		open: open,
		now:  prometheus.NewDesc("macexec_jobs", "Open jobs, by state.", []string{"state"}, nil),
		age:  prometheus.NewDesc("macexec_jobs_oldest_age_seconds", "How long the job has been in its state that came into it first; 0 without any.", []string{"state"}, nil),
	}
}

func (c openCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.now
	to <- c.age
}

func (c openCollector) Collect(to chan<- prometheus.Metric) {
	for _, state := range openStates() {
		n, oldest := c.open.look(state)
		to <- prometheus.MustNewConstMetric(c.now, prometheus.GaugeValue, float64(n), string(state))
		var old time.Duration
		if !oldest.IsZero() {
			old = max(time.Since(oldest), 0)
		}
		to <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, old.Seconds(), string(state))
	}
}

// Sources are asked whenever somebody looks at the metrics.
type Sources struct {
	Engine func() engine.Gauges
	// Store returns the bytes of the store's file, and how many of them are free for
	// new records.
	Store func() (size, free int64)
}

// Watch adds what can only be asked of a running daemon. It is called once.
func (m *Metrics) Watch(s Sources) { m.registry.MustRegister(newSourceCollector(s)) }

type sourceCollector struct {
	sources Sources

	slots, used, disk, held, mode, head, size, free, failing, failures, pruned *prometheus.Desc
}

func newSourceCollector(s Sources) sourceCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return sourceCollector{
		sources: s,
		slots:   desc("macexec_slots", "Jobs that may run at once, by slot class.", "class"),
		used:    desc("macexec_slots_used", "Jobs that run now, by slot class.", "class"),
		disk:    desc("macexec_disk_free_bytes", "Free room on the disk of the state folder."),
		held:    desc("macexec_jobs_held", "Queued jobs that wait for somebody's word, since the store was restored and may have forgotten what it did."),
		mode:    desc("macexec_host_mode", "1 for the mode that the host is in, 0 for the others.", "mode"),
		head:    desc("macexec_journal_head", "Sequence number of the journal's newest entry."),
		size:    desc("macexec_store_size_bytes", "Size of the store's file."),
		free:    desc("macexec_store_free_bytes", "Room in the store's file for new records, before it grows."),

		failing:  desc("macexec_retention_failing", "1 while what is kept for too long cannot all be removed."),
		failures: desc("macexec_retention_failures_total", "Passes that could not remove all that is kept for too long."),
		pruned:   desc("macexec_retention_removed_jobs_total", "Jobs whose records were removed, since they ended long ago."),
	}
}

func (c sourceCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.slots, c.used, c.disk, c.held, c.mode, c.head, c.size, c.free, c.failing, c.failures, c.pruned} {
		to <- desc
	}
}

func (c sourceCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	g := c.sources.Engine()
	for _, slot := range g.Slots {
		gauge(c.slots, float64(slot.Size), slot.Class)
		gauge(c.used, float64(slot.Used), slot.Class)
	}
	for _, mode := range jobs.Modes() {
		is := 0.0
		if mode == g.Mode {
			is = 1
		}
		gauge(c.mode, is, string(mode))
	}
	if g.DiskFree >= 0 {
		gauge(c.disk, float64(g.DiskFree))
	}
	gauge(c.held, float64(g.Held))
	gauge(c.head, float64(g.Head))
	size, free := c.sources.Store()
	gauge(c.size, float64(size))
	gauge(c.free, float64(free))
	failing := 0.0
	if g.Retention.Failing != "" {
		failing = 1
	}
	gauge(c.failing, failing)
	to <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(g.Retention.Failures))
	to <- prometheus.MustNewConstMetric(c.pruned, prometheus.CounterValue, float64(g.Retention.Removed.Jobs))
}
