package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// embedded are the servers that "bridge dev" brings along. They listen on
// loopback only and keep nothing.
type embedded struct {
	redisURL, natsURL string

	redis *miniredis.Miniredis
	nats  *server.Server
	dir   string
}

// startEmbedded starts the servers on the given ports; port 0 is any free one.
// Stop them with close.
func startEmbedded(redisPort, natsPort int) (*embedded, error) {
	e := &embedded{}
	if err := e.start(redisPort, natsPort); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *embedded) start(redisPort, natsPort int) error {
	for _, p := range []struct {
		flag string
		port *int
	}{{"--redis-port", &redisPort}, {"--nats-port", &natsPort}} {
		if err := claimPort(p.flag, p.port); err != nil {
			return err
		}
	}

	e.redis = miniredis.NewMiniRedis()
	if err := e.redis.StartAddr(loopback(redisPort)); err != nil {
		e.redis = nil
		return fmt.Errorf("start the in-memory Redis: %w", err)
	}
	e.redisURL = "redis://" + loopback(redisPort) + "/0"

	var err error
	if e.dir, err = os.MkdirTemp("", "bridge-dev-"); err != nil {
		return fmt.Errorf("make a directory for NATS: %w", err)
	}
	e.nats, err = server.NewServer(&server.Options{
		ServerName: "bridge-dev", Host: "127.0.0.1", Port: natsPort,
		JetStream: true, StoreDir: e.dir,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return fmt.Errorf("start the NATS server: %w", err)
	}
	e.nats.Start()
	if !e.nats.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server was not ready within 10 s")
	}
	e.natsURL = "nats://" + loopback(natsPort)
	return nil
}

func (e *embedded) close() {
	if e.nats != nil {
		e.nats.Shutdown()
		e.nats.WaitForShutdown()
	}
	if e.redis != nil {
		e.redis.Close()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
}

// claimPort makes sure that a port can be listened on, since the servers' own
// errors do not say what to do about one that is taken. It puts a free port in
// place of 0.
func claimPort(flag string, port *int) error {
	l, err := net.Listen("tcp", loopback(*port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is taken; choose another with %s (0 takes any free one)", *port, flag)
	}
	if err != nil {
		return fmt.Errorf("%s %d: %w", flag, *port, err)
	}
	*port = l.Addr().(*net.TCPAddr).Port
	return l.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
