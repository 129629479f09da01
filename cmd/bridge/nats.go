package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"delaybridge/sinks"
)

// connectNATS opens a connection for one use. It returns at once, also where no
// server answers: the connection goes on trying for ever, and says in the log
// when that begins and when it ends. Only wrong settings are errors. lost is
// called if the connection is ever closed for good by anything but the program;
// l is told of the first connect.
func connectNATS(s *Settings, l *link, log *zap.Logger, lost func(error)) (*nats.Conn, error) {
	n, use := &s.NATS, l.use
	log = log.With(zap.String("use", use))
	var said atomic.Value // the last failure that was logged
	said.Store("")
	var refused atomic.Bool // since the last connect
	var conn atomic.Pointer[nats.Conn]
	failed := func(err error) {
		if text := err.Error(); said.Swap(text) != text {
			log.Warn("cannot connect to NATS, trying again until it can", zap.Error(err))
		}
	}
	options := append(sinks.NATSOptions(log),
		nats.Name("delaybridge "+use),
		nats.Timeout(natsDialTimeout),
		nats.CustomReconnectDelay(func(int) time.Duration {
			// The handler of failed connects does not hear of handshakes that fail.
			if nc := conn.Load(); nc != nil {
				if err := nc.LastError(); err != nil {
					failed(err)
				}
			}
			return natsReconnectWait + rand.N(natsReconnectWait)
		}),
		// Not the URL: a token in it is not masked by the client.
		nats.ConnectHandler(func(nc *nats.Conn) {
			l.reached.Store(true)
			log.Info("connected to NATS", zap.String("server", nc.ConnectedAddr()))
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			said.Store("")
			refused.Store(false)
			log.Info("reconnected to NATS", zap.String("server", nc.ConnectedAddr()))
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // else it was closed on purpose
				log.Warn("disconnected from NATS", zap.Error(err))
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			logNATSError(log, use, &refused, err)
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if err := nc.LastError(); err != nil {
				lost(fmt.Errorf("nats %s: connection closed: %w", use, err))
			}
		}),
	)
	auth, err := s.natsAuth()
	if err != nil {
		return nil, err
	}
	options = append(options, auth...)
	nc, err := nats.Connect(string(n.URL), options...)
	if err != nil {
		// The client's text may repeat the URL.
		return nil, *wrong("NATS_URL", n.URL, "cannot be used: "+strings.ReplaceAll(maskURLs(err.Error()), string(n.URL), n.URL.String()))
	}
	conn.Store(nc)
	if seed, ok := nc.Opts.CustomDialer.(*natsSeed); ok {
		seed.conn.Store(nc)
	}
	if !nc.IsConnected() {
		log.Warn("no NATS server answers yet, trying again until one does", zap.Stringer("url", n.URL), zap.Error(nc.LastError()))
	}
	return nc, nil
}

// natsReconnectWait is the least time between two tries to connect.
const natsReconnectWait = 500 * time.Millisecond

// natsAuth returns how to sign in, and how to encrypt; the error is a settingError.
func (s *Settings) natsAuth() (options []nats.Option, err error) {
	n := &s.NATS
	if n.Creds != "" {
		options = append(options, nats.UserCredentials(string(n.Creds)))
	}
	if n.Nkey != "" {
		seed, err := s.newNATSSeed()
		if err != nil {
			return nil, err
		}
		options = append(options, seed.option)
	}
	if link := s.natsTLS(); link.isSet() {
		// Any of them makes TLS a must: a server without it is refused.
		options = append(options, nats.Secure(&tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: string(link.serverName), InsecureSkipVerify: bool(link.insecure),
		}), func(o *nats.Options) error {
			// Called for each connection.
			if link.ca != "" {
				o.RootCAsCB = func() (*x509.CertPool, error) { return settled(link.authorities()) }
			}
			if link.cert != "" {
				o.TLSCertCB = func() (tls.Certificate, error) { return settled(link.certificate()) }
			}
			return nil
		})
	}
	return options, nil
}

// settled turns a settingError, which may be none, into an error.
func settled[T any](v T, e *settingError) (T, error) {
	if e != nil {
		return v, *e
	}
	return v, nil
}

// logNATSError logs what the server, or the client, reports out of the blue.
// Nothing is said of single messages, which have their own outcome: what the sink
// may not publish, and headers that cannot be read. But what the source may not
// publish are acknowledgements, or its requests to JetStream: without them every
// message comes again and again. refused is set once that was said.
func logNATSError(log *zap.Logger, use string, refused *atomic.Bool, err error) {
	switch {
	case errors.Is(err, nats.ErrBadHeaderMsg):
	case errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "for Publish to "):
		if use == useIngest && !refused.Swap(true) {
			log.Error("no permission to publish what taking messages in needs: allow $JS.API.> and $JS.ACK.>", zap.Error(err))
		}
	default:
		log.Warn("NATS reports an error", zap.Error(err))
	}
}

// The uses of a connection.
const (
	useIngest = "ingest"
	useSink   = "sink"
)
