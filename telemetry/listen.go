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

// Endpoint serves metrics over HTTP.
type Endpoint struct {
	URL string // where they are

	server *http.Server
	served chan struct{}
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
func (m *Metrics) Listen(address string, log *slog.Logger) (*Endpoint, error) {
	if err := CheckListen(address); err != nil {
		return nil, err
	}
	lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", local(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})))
	e := &Endpoint{
		URL: "http://" + lis.Addr().String() + "/metrics", served: make(chan struct{}),
		server: &http.Server{
			Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}
	go func() {
		defer close(e.served)
		if err := e.server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the metrics are served no more", "error", err)
		}
	}()
	return e, nil
}

// Close ends serving, in the middle of an answer if need be.
func (e *Endpoint) Close() {
	_ = e.server.Close()
	<-e.served
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
