package sinks

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"delaybridge"
)

// NATSCore publishes to core NATS. A message is confirmed when the server has
// read it, which a flush after the batch proves; whether anybody listened is not
// known. It is safe for concurrent use.
type NATSCore struct {
	conn *natsConn
}

var _ delaybridge.Sink = (*NATSCore)(nil)

// NewNATSCore returns a sink on a connection that was made with NATSOptions. The
// connection need not be up yet, may be shared, and stays the caller's to close,
// after the last Publish. The sink listens to the connection's error handler: one
// that is set later must call the one it replaces.
func NewNATSCore(nc *nats.Conn, cfg NATSConfig) (*NATSCore, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sinks.NATSConfig: %w", err)
	}
	return &NATSCore{conn: newNATSConn(nc, cfg)}, nil
}

// Publish implements delaybridge.Sink.
func (s *NATSCore) Publish(ctx context.Context, batch []delaybridge.Claim) []error {
	n, b := s.conn.open(batch)
	defer s.conn.close(n)
	return s.conn.await(ctx, b, func(ctx context.Context) { s.run(ctx, b) }, nil)
}

// PublishParts is Publish, which tells the outcomes of messages in parts. See Mux.
func (s *NATSCore) PublishParts(ctx context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error)) {
	n, b := s.conn.open(batch)
	defer s.conn.close(n)
	s.conn.await(ctx, b, func(ctx context.Context) { s.run(ctx, b) }, part)
	part(b.hand())
}

func (s *NATSCore) run(ctx context.Context, b *natsBatch) {
	nc := s.conn.nc
	broken := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(broken)
	s.conn.send(b, func(i int) *nats.Msg { return natsMessage(&b.claims[i]) })
	delaybridge.Failpoint("sent")
	if b.isDone() {
		return
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		b.settleSent(fmt.Errorf("flush to NATS: %w", err))
		return
	}
	delaybridge.Failpoint("published")
	select {
	case <-broken:
		// The flush may be the next connection's, which has not seen the messages.
		b.settleSent(errors.New("the connection to NATS broke before the messages were flushed"))
		return
	default:
	}
	// What the server refused, it has said before it answered the flush.
	if s.conn.hear(ctx) {
		b.settleSent(nil)
	}
}
