package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// Limits of the API's listener.
const (
	apiHeaderTimeout = 5 * time.Second
	apiReadTimeout   = 30 * time.Second // a whole request
	apiWriteTimeout  = time.Minute      // from the request's header on
	apiIdleTimeout   = 2 * time.Minute
	apiHeaderBytes   = 32 << 10
	// How many requests of each kind are worked on at a time; others wait. Those with
	// a body have places of their own, since a slow sender keeps its place; lists and
	// whole messages have few, since each holds megabytes.
	apiAtOnce      = 64
	apiBodyAtOnce  = 32
	apiLargeAtOnce = 16
	// apiAskTimeout is for what is asked of Redis.
	apiAskTimeout = 10 * time.Second
)

// apiServer serves the HTTP API and the console. It answers from before Redis is
// there, with 503, until the program has ended.
type apiServer struct {
	token   string
	bodyMax int64
	metrics *metrics
	started time.Time
	console http.Handler
	log     *zap.Logger

	// ops is nil until Redis is there; room says whether the queue takes more.
	ops  atomic.Pointer[operations]
	room atomic.Pointer[ingest.Handler]

	atOnce [routeKinds]chan struct{}
	server *http.Server
	served chan struct{} // is closed when the server has ended
}

// startAPI serves the API at l; with no l it returns nil, whose methods do nothing.
// Call open once the queue is there, and close at the end.
func startAPI(s *Settings, l net.Listener, m *metrics, log *zap.Logger) *apiServer {
	if l == nil {
		return nil
	}
	a := newAPI(s, m, log)
	a.server = &http.Server{
		Handler: a, MaxHeaderBytes: apiHeaderBytes,
		ReadHeaderTimeout: apiHeaderTimeout, ReadTimeout: apiReadTimeout, WriteTimeout: apiWriteTimeout, IdleTimeout: apiIdleTimeout,
		ErrorLog: zap.NewStdLog(log),
	}
	log.Info("serving the API and the console", zap.Stringer("address", l.Addr()), zap.Bool("token", a.token != ""))
	go func() {
		defer close(a.served)
		if err := a.server.Serve(limitConnections(l, apiConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the API is not served any more", zap.Error(err))
		}
	}()
	return a
}

func newAPI(s *Settings, m *metrics, log *zap.Logger) *apiServer {
	return &apiServer{
		token: string(s.API.Token),
		// In JSON a payload may take more room: a third in base64, twice as text
		// that has many quotes. What needs still more is sent in base64.
		bodyMax: 2*int64(s.MaxPayload) + 64<<10,
		metrics: m, started: time.Now(), console: consoleHandler(), log: log,
		atOnce: [routeKinds]chan struct{}{
			routeShort: make(chan struct{}, apiAtOnce), routeBody: make(chan struct{}, apiBodyAtOnce), routeLarge: make(chan struct{}, apiLargeAtOnce),
		},
		served: make(chan struct{}),
	}
}

// open has requests answered from now on.
func (a *apiServer) open(s *Settings, queue *luascripts.Queue) error {
	if a == nil {
		return nil
	}
	decoder, err := s.newDecoder()
	if err != nil {
		return err
	}
	room, err := s.newRoom(queue, decoder, sourceAPI, a.log)
	if err != nil {
		return err
	}
	a.room.Store(room)
	a.ops.Store(&operations{
		queue: queue, decoder: decoder, count: func(o delaybridge.Outcome) { a.metrics.Ingested(sourceAPI, o) },
		replayed: a.metrics.Replayed, purged: a.metrics.Purged,
	})
	return nil
}

// newRoom returns what knows whether the queue is full, by the limits that hold
// for what comes from brokers. source is for the log.
func (s *Settings) newRoom(queue *luascripts.Queue, decoder *ingest.Decoder, source string, log *zap.Logger) (*ingest.Handler, error) {
	c := ingest.DefaultConfig()
	c.Queue, c.Decoder, c.MaxPending, c.Log = queue, decoder, int64(s.MaxPending), log.With(zap.String("source", source))
	return ingest.NewHandler(c)
}

// sourceAPI and sourceNATSAPI are the labels of what was asked for by request.
const (
	sourceAPI     = "api"
	sourceNATSAPI = "nats-api"
)

// run waits for ctx to end, and then stops the server: it accepts no more, and
// what has been asked is answered within the given time.
func (a *apiServer) run(ctx context.Context, most time.Duration) error {
	<-ctx.Done()
	a.stop(most)
	return nil
}

func (a *apiServer) stop(most time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if err := a.server.Shutdown(ctx); err != nil {
		a.log.Warn("not every API request was answered in time", zap.Error(err))
		_ = a.server.Close()
	}
	<-a.served
}

// close ends the server at once, if run has not done so.
func (a *apiServer) close() {
	if a == nil {
		return
	}
	_ = a.server.Close()
	<-a.served
}
