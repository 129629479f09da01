package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"

	"delaybridge"
)

// idleTime is how long a connection is kept unused. Brokers cut after 10 minutes.
const idleTime = time.Minute

// kafkaConn is a connection to a broker. It is used by one request at a time.
type kafkaConn struct {
	addr  string
	conn  *answeredConn
	proto *protocol.Conn
	// until is when the broker ends the connection for want of a new
	// authentication; zero means never.
	until time.Time
	// spoilt says that the connection cannot be used again.
	spoilt bool
	// asleep gets what ended the wait of an idle connection.
	asleep chan error
}

// answeredConn tells whether an answer has been waited for.
type answeredConn struct {
	net.Conn
	waited bool
	// publishing says that the request is a produce request.
	publishing bool
}

func (c *answeredConn) Read(b []byte) (int, error) {
	if c.publishing && !c.waited {
		delaybridge.Failpoint("published")
	}
	c.waited = true
	return c.Conn.Read(b)
}

// roundTrip sends a request and waits for the answer, until ctx ends. When it
// fails, delivered says whether the broker may have the request: it has not as
// long as some of the request's bytes could not be written. A connection that
// has failed is to be closed.
func (c *kafkaConn) roundTrip(ctx context.Context, req protocol.Message) (res protocol.Message, delivered bool, err error) {
	c.conn.waited = false
	_, c.conn.publishing = req.(*produce.Request)
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	res, err = c.proto.RoundTrip(req)
	if !stop() {
		// The deadline may be set at any time from now on.
		c.spoilt = true
	}
	if err != nil && !c.conn.waited {
		err = fmt.Errorf("%w: write to broker %s: %w", errNotConnected, c.addr, err)
	}
	return res, c.conn.waited, err
}

func (c *kafkaConn) close() { _ = c.conn.Close() }

func (c *kafkaConn) expired() bool { return !c.until.IsZero() && time.Now().After(c.until) }

// sleep watches the connection while it is idle, since only a read notices that
// the broker has closed it. One that ends, or that is unused for too long, is
// closed if remove says that nobody has taken it.
func (c *kafkaConn) sleep(remove func() bool) {
	c.asleep = make(chan error, 1)
	_ = c.conn.SetDeadline(time.Now().Add(idleTime))
	go func() {
		_, err := c.proto.Peek(1)
		if remove() {
			c.close()
			return
		}
		c.asleep <- err
	}()
}

// wake ends sleep, and reports whether the connection can be used. It is called
// by who has taken the connection out of the idle ones.
func (c *kafkaConn) wake() bool {
	_ = c.conn.SetDeadline(time.Unix(1, 0))
	// A broker says nothing unasked: the only good end is the deadline's.
	return errors.Is(<-c.asleep, os.ErrDeadlineExceeded) && !c.expired()
}

// dialKafka opens a connection that is ready for requests.
func dialKafka(ctx context.Context, cfg KafkaConfig, addr string) (_ *kafkaConn, err error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	nc, err := cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = nc.Close()
		}
	}()
	if cfg.TLS != nil {
		t := cfg.TLS
		if t.ServerName == "" {
			t = t.Clone()
			t.ServerName = host
		}
		encrypted := tls.Client(nc, t)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		nc = encrypted
	}
	c := &kafkaConn{addr: addr, conn: &answeredConn{Conn: nc}}
	c.proto = protocol.NewConn(c.conn, cfg.ClientID)

	res, _, err := c.roundTrip(ctx, new(apiversions.Request))
	if err != nil {
		return nil, fmt.Errorf("ask for API versions: %w", err)
	}
	if code := res.(*apiversions.Response).ErrorCode; code != 0 {
		return nil, fmt.Errorf("ask for API versions: %w", kafka.Error(code))
	}
	versions := map[protocol.ApiKey]int16{}
	for _, r := range res.(*apiversions.Response).ApiKeys {
		key := protocol.ApiKey(r.ApiKey)
		versions[key] = key.SelectVersion(r.MinVersion, r.MaxVersion)
	}
	c.proto.SetVersions(versions)
	if cfg.SASL != nil {
		ctx := sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: port})
		if err := c.authenticate(ctx, cfg.SASL); err != nil {
			return nil, fmt.Errorf("authenticate by %s: %w", cfg.SASL.Name(), err)
		}
	}
	if c.spoilt {
		return nil, ctx.Err()
	}
	return c, nil
}

// authenticate goes through SASL, and notes how long it is good for.
func (c *kafkaConn) authenticate(ctx context.Context, mechanism sasl.Mechanism) error {
	res, _, err := c.roundTrip(ctx, &saslhandshake.Request{Mechanism: mechanism.Name()})
	if err != nil {
		return err
	}
	if h := res.(*saslhandshake.Response); h.ErrorCode != 0 {
		return fmt.Errorf("%w: the broker has %v", kafka.Error(h.ErrorCode), h.Mechanisms)
	}
	session, state, err := mechanism.Start(ctx)
	if err != nil {
		return err
	}
	for done := false; !done; {
		start := time.Now()
		res, _, err := c.roundTrip(ctx, &saslauthenticate.Request{AuthBytes: state})
		if err != nil {
			return err
		}
		a := res.(*saslauthenticate.Response)
		if a.ErrorCode != 0 {
			return fmt.Errorf("%w: %s", kafka.Error(a.ErrorCode), a.ErrorMessage)
		}
		if a.SessionLifetimeMs > 0 {
			// Some time before, so that no request meets the end.
			c.until = start.Add(time.Duration(a.SessionLifetimeMs) * time.Millisecond * 8 / 10)
		}
		done, state, err = session.Next(ctx, a.AuthBytes)
		if err != nil {
			return err
		}
	}
	return nil
}
