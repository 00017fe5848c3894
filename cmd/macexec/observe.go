package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/server"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/telemetry"
)

// observers tell the outside what a daemon does: the log always, metrics and traces
// if the configuration asks for them.
type observers struct {
	logs     *telemetry.Logs
	metrics  *telemetry.Metrics  // nil: off
	traces   *telemetry.Traces   // nil: off
	endpoint *telemetry.Endpoint // of the metrics
}

// observe begins to log, and to count if that is asked for.
func observe(conf config, version string, w io.Writer) (*observers, error) {
	options := telemetry.LogOptions{JSON: conf.Log.Format == "json"}
	if err := options.Level.UnmarshalText([]byte(cmp.Or(conf.Log.Level, "info"))); err != nil {
		return nil, err
	}
	o := &observers{logs: telemetry.NewLogs(w, options)}
	if conf.Metrics.Listen != "" {
		o.metrics = telemetry.NewMetrics(version)
	}
	return o, nil
}

// trace begins to send traces, if that is asked for.
func (o *observers) trace(ctx context.Context, conf config, version, hostID string) (err error) {
	if conf.Tracing.Endpoint == "" {
		return nil
	}
	options := telemetry.TracesOptions{
		Endpoint: conf.Tracing.Endpoint, Sample: 1, Version: version, Host: hostID, Log: o.logs.Logger,
	}
	if conf.Tracing.Sample != nil {
		options.Sample = *conf.Tracing.Sample
	}
	if o.metrics != nil {
		options.Count = o.metrics.Spans
	}
	o.traces, err = telemetry.NewTraces(ctx, options)
	return err
}

// listen serves the metrics, if that is asked for.
func (o *observers) listen(conf config, eng *engine.Engine, records *store.Store) (err error) {
	if o.metrics == nil {
		return nil
	}
	o.metrics.Watch(telemetry.Sources{Engine: eng.Gauges, Store: records.Size})
	o.endpoint, err = o.metrics.Listen(conf.Metrics.Listen, o.logs.Logger)
	return err
}

// farewell is how long spans that wait may hold up the daemon's end.
const farewell = 3 * time.Second

// close ends serving and sends the spans that wait.
func (o *observers) close() {
	if o.endpoint != nil {
		o.endpoint.Close()
	}
	if o.traces != nil {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		o.traces.Close(ctx)
	}
}

func (o *observers) log() *slog.Logger { return o.logs.Logger }

// engine is who the engine tells.
func (o *observers) engine() engine.Observer {
	all := []engine.Observer{o.logs}
	if o.metrics != nil {
		all = append(all, o.metrics)
	}
	if o.traces != nil {
		all = append(all, o.traces)
	}
	return telemetry.Join(all...)
}

// committed is who the store tells; nil: nobody.
func (o *observers) committed() func(time.Duration, error) {
	if o.metrics == nil {
		return nil
	}
	return o.metrics.Committed
}

// requests is who the face tells; nil: nobody.
func (o *observers) requests() server.Observe {
	if o.metrics == nil && o.traces == nil {
		return nil
	}
	return func(ctx context.Context, r server.Request) (context.Context, func(string)) {
		counted, traced := func(string) {}, func(string) {}
		if o.metrics != nil {
			counted = o.metrics.Request(r.Method)
		}
		if o.traces != nil {
			ctx, traced = o.traces.Request(ctx, r.Method, r.TraceParent, r.TraceState)
		}
		return ctx, func(code string) { counted(code); traced(code) }
	}
}
