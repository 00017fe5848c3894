package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// openCollector reads how many jobs are open, and for how long.
type openCollector struct{ open *openJobs }

func openDescs() (now, age *prometheus.Desc) {
	return prometheus.NewDesc("macexec_jobs", "Open jobs, by state.", []string{"state"}, nil),
		prometheus.NewDesc("macexec_jobs_oldest_age_seconds", "How long the job has been in its state that came into it first; 0 without any.", []string{"state"}, nil)
}

func (openCollector) Describe(to chan<- *prometheus.Desc) {
	now, age := openDescs()
	to <- now
	to <- age
}

func (c openCollector) Collect(to chan<- prometheus.Metric) {
	now, age := openDescs()
	for _, state := range openStates() {
		n, oldest := c.open.look(state)
		to <- prometheus.MustNewConstMetric(now, prometheus.GaugeValue, float64(n), string(state))
		var old time.Duration
		if !oldest.IsZero() {
			old = max(time.Since(oldest), 0)
		}
		to <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, old.Seconds(), string(state))
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
func (m *Metrics) Watch(s Sources) { m.registry.MustRegister(sourceCollector{s}) }

type sourceCollector struct{ sources Sources }

type sourceDescs struct {
	slots, used, disk, mode, head, size, free *prometheus.Desc
}

func newSourceDescs() sourceDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return sourceDescs{
		slots: desc("macexec_slots", "Jobs that may run at once, by slot class.", "class"),
		used:  desc("macexec_slots_used", "Jobs that run now, by slot class.", "class"),
		disk:  desc("macexec_disk_free_bytes", "Free room on the disk of the state folder."),
		mode:  desc("macexec_host_mode", "1 for the mode that the host is in, 0 for the others.", "mode"),
		head:  desc("macexec_journal_head", "Sequence number of the journal's newest entry."),
		size:  desc("macexec_store_size_bytes", "Size of the store's file."),
		free:  desc("macexec_store_free_bytes", "Room in the store's file for new records, before it grows."),
	}
}

func (sourceCollector) Describe(to chan<- *prometheus.Desc) {
	d := newSourceDescs()
	for _, desc := range []*prometheus.Desc{d.slots, d.used, d.disk, d.mode, d.head, d.size, d.free} {
		to <- desc
	}
}

func (c sourceCollector) Collect(to chan<- prometheus.Metric) {
	d := newSourceDescs()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	g := c.sources.Engine()
	for _, slot := range g.Slots {
		gauge(d.slots, float64(slot.Size), slot.Class)
		gauge(d.used, float64(slot.Used), slot.Class)
	}
	for _, mode := range jobs.Modes() {
		is := 0.0
		if mode == g.Mode {
			is = 1
		}
		gauge(d.mode, is, string(mode))
	}
	if g.DiskFree >= 0 {
		gauge(d.disk, float64(g.DiskFree))
	}
	gauge(d.head, float64(g.Head))
	size, free := c.sources.Store()
	gauge(d.size, float64(size))
	gauge(d.free, float64(free))
}
