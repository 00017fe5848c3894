package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Endpoint serves metrics over HTTP, as soon as it has its address.
type Endpoint struct {
	bind   func() (net.Listener, error)
	log    *slog.Logger
	server *http.Server
	after  func(time.Duration) <-chan time.Time

	serving chan struct{} // closed once url is there
	url     string
	closing chan struct{}
	ended   chan struct{}
}

// CheckListen says what is wrong with an address to serve metrics at.
func CheckListen(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no host:port, such as 127.0.0.1:9464", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port between 0 and 65535", address)
	}
	if !isLoopback(host) {
		return fmt.Errorf("%q is not a loopback address; metrics are served without asking who reads them, so only to this host: take 127.0.0.1 or [::1], and let an agent on this host carry them on", address)
	}
	return nil
}

// Listen serves the metrics at a host:port of this host, at /metrics, until Close.
// Port 0 is any free one. Whoever can connect may read them, so no other address than
// a loopback one is taken.
//
// Metrics are not worth a host that takes no calls: if the address cannot be had now,
// because another program has it, that is said in the log, and it is tried again and
// again.
func (m *Metrics) Listen(address string, log *slog.Logger) (*Endpoint, error) {
	return m.listen(address, log, time.After)
}

func (m *Metrics) listen(address string, log *slog.Logger, after func(time.Duration) <-chan time.Time) (*Endpoint, error) {
	if err := CheckListen(address); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", local(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})))
	e := &Endpoint{
		bind: func() (net.Listener, error) {
			return new(net.ListenConfig).Listen(context.Background(), "tcp", address)
		},
		log: log, after: after,
		serving: make(chan struct{}), closing: make(chan struct{}), ended: make(chan struct{}),
		server: &http.Server{
			Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}
	go e.serve()
	return e, nil
}

// The address is tried for again after shortestWait, and then ever more rarely.
const (
	shortestWait = time.Second
	longestWait  = time.Minute
)

func (e *Endpoint) serve() {
	defer close(e.ended)
	lis, err := e.bind()
	for wait := shortestWait; err != nil; wait = min(2*wait, longestWait) {
		if wait == shortestWait {
			e.log.Warn("the metrics cannot be served yet; it is tried again until they can", "error", err)
		}
		select {
		case <-e.after(wait):
		case <-e.closing:
			return
		}
		lis, err = e.bind()
	}
	e.url = "http://" + lis.Addr().String() + "/metrics"
	close(e.serving)
	e.log.Info("metrics are served", "url", e.url)
	if err := e.server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		e.log.Error("the metrics are served no more", "error", err)
	}
}

// URL waits until the metrics are served and says where; empty if ctx ends first.
func (e *Endpoint) URL(ctx context.Context) string {
	select {
	case <-e.serving:
		return e.url
	case <-ctx.Done():
		return ""
	}
}

// Close ends serving, in the middle of an answer if need be. It is called once.
func (e *Endpoint) Close() {
	close(e.closing)
	_ = e.server.Close()
	<-e.ended
}

// local refuses a request that names another host: a web page whose name was made to
// lead here, say.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !isLoopback(host) {
			http.Error(w, "the metrics are for this host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
