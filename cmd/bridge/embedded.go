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
	"github.com/twmb/franz-go/pkg/kfake"
)

// embedded are the servers that "bridge dev" brings along. They listen on
// loopback only and keep nothing.
type embedded struct {
	redisURL, natsURL string
	brokers           []string // of Kafka, if it was asked for

	redis *miniredis.Miniredis
	nats  *server.Server
	kafka *kfake.Cluster
	dir   string
}

// devPorts are the ports of the embedded servers; 0 is any free one.
type devPorts struct {
	redis, nats, kafka, metrics, api int
	withKafka                        bool
	metricsAsked, apiAsked           bool // by the flag
}

// startEmbedded starts the servers. Stop them with close. Topics are those that
// the Kafka broker has from the start; others come with their first record.
func startEmbedded(ports devPorts, topics []string) (*embedded, error) {
	e := &embedded{}
	if err := e.start(ports, topics); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *embedded) start(ports devPorts, topics []string) error {
	err := errors.Join(claimPort("--redis-port", &ports.redis), claimPort("--nats-port", &ports.nats))
	if ports.withKafka {
		err = errors.Join(err, claimPort("--kafka-port", &ports.kafka))
	}
	if err != nil {
		return err
	}

	e.redis = miniredis.NewMiniRedis()
	if err := e.redis.StartAddr(loopback(ports.redis)); err != nil {
		e.redis = nil
		return fmt.Errorf("start the in-memory Redis: %w", err)
	}
	e.redisURL = "redis://" + loopback(ports.redis) + "/0"

	if e.dir, err = os.MkdirTemp("", "bridge-dev-"); err != nil {
		return fmt.Errorf("make a directory for NATS: %w", err)
	}
	e.nats, err = server.NewServer(&server.Options{
		ServerName: "bridge-dev", Host: "127.0.0.1", Port: ports.nats,
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
	e.natsURL = "nats://" + loopback(ports.nats)

	if ports.withKafka {
		e.kafka, err = kfake.NewCluster(
			kfake.NumBrokers(1), kfake.Ports(ports.kafka), kfake.SeedTopics(1, topics...), kfake.AllowAutoTopicCreation())
		if err != nil {
			return fmt.Errorf("start the Kafka broker: %w", err)
		}
		e.brokers = e.kafka.ListenAddrs()
	}
	return nil
}

func (e *embedded) close() {
	if e.kafka != nil {
		e.kafka.Close()
	}
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
