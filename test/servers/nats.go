package servers

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS is a nats-server of one test, with JetStream on disk.
type NATS struct {
	// URL is what BRIDGE_NATS_URL takes.
	URL string
	// Server is the running server.
	Server *server.Server

	opts *server.Options
}

// NewNATS starts a nats-server with JetStream in a directory of the test. Each
// option may change the server's settings before it starts.
func NewNATS(t testing.TB, options ...func(*server.Options)) *NATS {
	t.Helper()
	n := &NATS{opts: &server.Options{
		Host: "127.0.0.1", Port: FreePort(t), NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir(),
	}}
	for _, o := range options {
		o(n.opts)
	}
	t.Cleanup(n.Stop)
	n.Start(t)
	return n
}

// Start starts the server again after Stop, on the same port with the same streams.
func (n *NATS) Start(t testing.TB) {
	t.Helper()
	s, err := server.NewServer(n.opts)
	if err != nil {
		t.Fatalf("nats-server: %v", err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server was not ready in time")
	}
	n.Server, n.URL = s, s.ClientURL()
}

// Stop shuts the server down; connections to it break.
func (n *NATS) Stop() {
	if n.Server == nil {
		return
	}
	n.Server.Shutdown()
	n.Server.WaitForShutdown()
	n.Server = nil
}

// Connect returns a connection that is closed with the test.
func (n *NATS) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(n.URL, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatalf("connect to %s: %v", n.URL, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// JetStream returns a JetStream context on a connection of its own.
func (n *NATS) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(n.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	return js
}
