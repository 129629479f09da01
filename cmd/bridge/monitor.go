package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// monitor serves metrics and probes, and traces, from before the rest begins until
// after it has ended.
type monitor struct {
	metrics *metrics
	health  *health
	tracing *tracing // nil: off

	ctx    context.Context // ends what probes and scrapes have on its way
	cancel context.CancelFunc
	server *http.Server
	served chan struct{} // is closed when the server has ended
	ready  stateLog
}

// What the probes say before and after the program runs.
const (
	phaseRedis    = "starting: waiting for Redis"
	phaseStarting = "starting"
	phaseStopping = "stopping"
)

// startMonitor counts, and serves at l what it knows; with no l it only counts.
// Call close at the end.
func startMonitor(s *Settings, l net.Listener, log *zap.Logger) (*monitor, error) {
	d, err := s.newDecoder()
	if err != nil {
		return nil, err
	}
	m := &monitor{metrics: newMetrics(s.observedSources(d), s.observedSinks()), served: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.health = &health{metrics: m.metrics, maxOverdue: time.Duration(s.ReadyMaxOverdue), phase: phaseRedis}
	m.metrics.registry.MustRegister(newQueueMetrics(m.ctx, m.health.queueLook), newSourceMetrics(m.health.allSources))
	m.ready.log = log
	if m.tracing, err = startTracing(log); err != nil {
		m.cancel()
		return nil, err
	}
	if l == nil {
		close(m.served)
		return m, nil
	}
	m.server = &http.Server{
		Handler: m.handler(), MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: zap.NewStdLog(log),
	}
	log.Info("serving metrics and probes", zap.Stringer("address", l.Addr()))
	go func() {
		defer close(m.served)
		if err := m.server.Serve(limitConnections(l, metricsConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics and probes are not served any more", zap.Error(err))
		}
	}()
	return m, nil
}

// close ends the server, and lets a scrape that is under way finish.
func (m *monitor) close() {
	if m.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if m.server.Shutdown(ctx) != nil {
			_ = m.server.Close()
		}
	}
	<-m.served
	m.cancel()
	m.health.settle()
	m.tracing.close()
}

func (m *monitor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 8,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, m.health.alive())
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		reasons, running := m.health.ready(m.ctx)
		if running {
			m.ready.note(reasons)
		}
		answerProbe(w, reasons)
	})
	return mux
}

// answerProbe says ok, or what is wrong, a reason a line.
func answerProbe(w http.ResponseWriter, reasons []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if len(reasons) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, r := range reasons {
		fmt.Fprintln(w, oneLine(r))
	}
}

// listenMetrics listens on BRIDGE_METRICS_ADDR; it returns nil where that is empty.
func (s *Settings) listenMetrics() (net.Listener, error) {
	if s.MetricsAddr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", string(s.MetricsAddr))
	if err == nil {
		return l, nil
	}
	why := err.Error()
	if errors.Is(err, syscall.EADDRINUSE) {
		why = "the address is taken"
	}
	return nil, errors.New(wrong("METRICS_ADDR", s.MetricsAddr, "cannot be listened on, since "+why+": takes another host:port, or nothing for no metrics and probes").Error())
}
