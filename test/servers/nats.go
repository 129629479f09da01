package servers

import (
	"fmt"
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
// Somebody else may have had the port meanwhile: then it is tried again.
func (n *NATS) Start(t testing.TB) {
	t.Helper()
	var log complaints
	for range 3 {
		s, err := server.NewServer(n.opts)
		if err != nil {
			t.Fatalf("nats-server: %v", err)
		}
		s.SetLoggerV2(&log, false, false, false)
		s.Start()
		if s.ReadyForConnections(patience / 2) {
			n.Server, n.URL = s, s.ClientURL()
			return
		}
		s.Shutdown()
		s.WaitForShutdown()
	}
	t.Fatalf("nats-server was not ready in time; it said:\n%s", log.String())
}

// complaints keeps what a nats-server says that is no notice: it fails to start
// without any other word.
type complaints struct{ lockedBuffer }

func (c *complaints) add(format string, v []any) { fmt.Fprintf(c, format+"\n", v...) }

func (c *complaints) Noticef(string, ...any)         {}
func (c *complaints) Warnf(format string, v ...any)  { c.add(format, v) }
func (c *complaints) Fatalf(format string, v ...any) { c.add(format, v) }
func (c *complaints) Errorf(format string, v ...any) { c.add(format, v) }
func (c *complaints) Debugf(string, ...any)          {}
func (c *complaints) Tracef(string, ...any)          {}

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
