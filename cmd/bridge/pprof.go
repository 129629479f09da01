package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"go.uber.org/zap"
)

// checkPprof refuses an address that others than this host could reach: profiles
// show what is in memory.
func (s *Settings) checkPprof() *settingError {
	if s.PprofAddr == "" {
		return nil
	}
	if e := listens("PPROF_ADDR", s.PprofAddr); e != nil {
		return e
	}
	if !isLoopbackAddress(string(s.PprofAddr)) {
		return wrong("PPROF_ADDR", s.PprofAddr, "takes a loopback address only, such as 127.0.0.1:6060: profiles show what is in memory")
	}
	return nil
}

// servePprof serves profiles of this process at BRIDGE_PPROF_ADDR until the
// returned function is called; with no address it does nothing.
func (s *Settings) servePprof(log *zap.Logger) (stop func(), err error) {
	if s.PprofAddr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", string(s.PprofAddr))
	if err != nil {
		return nil, *wrong("PPROF_ADDR", s.PprofAddr, "cannot be listened on: "+err.Error())
	}
	if !isOnLoopback(l) {
		_ = l.Close()
		return nil, *wrong("PPROF_ADDR", s.PprofAddr, "takes a loopback address only, and this name is none")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	server := &http.Server{
		Handler:           onlyLoopback(mux),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("profiles are not served any more", zap.Error(err))
		}
	}()
	log.Info("serving profiles", zap.Stringer("address", l.Addr()))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a profile under way
		}
		<-ended
	}, nil
}

// onlyLoopback refuses requests that a browser was led to by another name for
// this host.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isForLoopback(r) {
			http.Error(w, "only by a loopback address", http.StatusForbidden)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
