package sinks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"delaybridge"
)

// NATSConfig holds the settings of NATS and NATSCore.
type NATSConfig struct {
	// PublishTimeout is the whole budget of one Publish. Defaults to 10 s.
	PublishTimeout time.Duration
}

// DefaultNATSConfig returns the defaults.
func DefaultNATSConfig() NATSConfig {
	return NATSConfig{PublishTimeout: DefaultPublishTimeout}
}

// Validate reports the first setting that cannot be used.
func (c NATSConfig) Validate() error {
	if c.PublishTimeout <= 0 {
		return fmt.Errorf("PublishTimeout: %v is not positive", c.PublishTimeout)
	}
	return nil
}

// NATSOptions returns how the connection of a NATS sink has to be set: it never
// gives up, notices a dead peer within half a minute, and above all keeps no
// message back while it is reconnecting, to be sent when nobody reckons with it
// any more. The caller adds name, TLS and credentials. The handlers only log
// changes of state; log may be nil.
func NATSOptions(log *zap.Logger) []nats.Option {
	if log == nil {
		log = zap.NewNop()
	}
	return []nats.Option{
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(500 * time.Millisecond),
		// Credentials that are refused may be mended by their owner.
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		// A server that takes no bytes holds the connection's lock for as long
		// as a write may last.
		nats.FlusherTimeout(5 * time.Second),
		nats.ReconnectOnFlusherError(),
		nats.ConnectHandler(func(nc *nats.Conn) {
			log.Info("connected to NATS", zap.String("server", nc.ConnectedUrlRedacted()))
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("disconnected from NATS", zap.Error(err))
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("reconnected to NATS", zap.String("server", nc.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			// A refused publish is the outcome of its message.
			if _, ok := refused(err, "Publish"); !ok {
				log.Warn("NATS reports an error", zap.Error(err))
			}
		}),
	}
}

// natsBatch is a batch that is under way.
type natsBatch struct {
	*outcomes
	claims []delaybridge.Claim
}

// natsConn is what the sinks on a NATS connection have in common: it knows the
// batches under way, sends their messages, and settles those that the server
// refuses to take for want of a permission, which it says without saying of
// which message it speaks.
type natsConn struct {
	nc      *nats.Conn
	timeout time.Duration

	mu      sync.Mutex
	last    uint64
	batches map[uint64]*natsBatch
	// refusal is the last permission error that was heard of; heard is closed
	// and replaced whenever it changes.
	refusal error
	heard   chan struct{}
	// refusedSubs holds the subscriptions that the server has refused, with the
	// number of reconnects before: each connection asks for them again.
	refusedSubs map[string]uint64
}

func newNATSConn(nc *nats.Conn, cfg NATSConfig) *natsConn {
	c := &natsConn{
		nc: nc, timeout: cfg.PublishTimeout,
		batches: map[uint64]*natsBatch{}, heard: make(chan struct{}), refusedSubs: map[string]uint64{},
	}
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		c.onError(err)
		if before != nil {
			before(nc, sub, err)
		}
	})
	// The handler before this one has heard of what was said so far.
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		c.onRefusal(err)
	}
	return c
}

// open registers a batch under a number of its own.
func (c *natsConn) open(claims []delaybridge.Claim) (uint64, *natsBatch) {
	b := &natsBatch{outcomes: newOutcomes(len(claims)), claims: claims}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.batches[c.last] = b
	return c.last, b
}

func (c *natsConn) close(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.batches, n)
}

// batch returns the batch of that number, nil once it is closed.
func (c *natsConn) batch(n uint64) *natsBatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.batches[n]
}

// await lets run carry out a batch and returns its outcomes within the publish
// timeout. run may be held up by a connection that takes no bytes. A part that is
// not nil is told of some while others take longer.
func (c *natsConn) await(ctx context.Context, b *natsBatch, run func(ctx context.Context), part func(indexes []int, errs []error)) []error {
	return b.awaitParts(ctx, c.timeout, run, func() (sentErr, unsentErr error) {
		return fmt.Errorf("NATS did not confirm within %v", c.timeout),
			delaybridge.Unavailable(fmt.Errorf("NATS took no more messages within %v", c.timeout))
	}, part)
}

// send publishes the batch's messages, each made by message, and settles those
// that could not be. Nothing is confirmed by that.
func (c *natsConn) send(b *natsBatch, message func(i int) *nats.Msg) {
	var checked delaybridge.Target // the last one that was found to be valid
	for i := range b.claims {
		// Targets were checked when they were stored. But a subject such as
		// $JS.API.STREAM.DELETE.X deletes a stream, so they are checked here too.
		if t := b.claims[i].Target; t != checked {
			if _, err := delaybridge.ParseTarget(t.String()); err != nil {
				b.settle(i, delaybridge.Permanent(fmt.Errorf("target: %w", err)))
				continue
			}
			checked = t
		}
		m := message(i)
		if !b.send(i) {
			return
		}
		if err := c.nc.PublishMsg(m); err != nil {
			b.settle(i, classifySend(err))
		}
	}
}

// classifySend judges an error of the client itself.
func classifySend(err error) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		return delaybridge.Permanent(err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrHeadersNotSupported):
		// The buffer has no room at all (NATSOptions), and before the first
		// connection the client knows of no server with headers: so it says that
		// it is not connected.
		return delaybridge.Unavailable(errors.New("not connected to NATS"))
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrInvalidConnection):
		return delaybridge.Unavailable(fmt.Errorf("not connected to NATS: %w", err))
	}
	// The socket failed in the middle of a write.
	return fmt.Errorf("send to NATS: %w", err)
}

// onError hears what the server says about the connection.
func (c *natsConn) onError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	hear := func() { c.onRefusal(err) }
	// The acks that arrived before it come first.
	if c.nc.Barrier(hear) != nil {
		hear()
	}
}

// onRefusal settles the messages for a subject that the server refuses, and
// notes a refused subscription.
func (c *natsConn) onRefusal(err error) {
	reconnects := c.nc.Stats().Reconnects
	c.mu.Lock()
	defer c.mu.Unlock()
	if subject, ok := refused(err, "Subscription"); ok {
		c.refusedSubs[subject] = reconnects
	}
	if subject, ok := refused(err, "Publish"); ok {
		cause := delaybridge.Permanent(fmt.Errorf("no permission to publish to %q", subject))
		for _, b := range c.batches {
			for i := range b.claims {
				if b.claims[i].Target.Name == subject {
					b.refuse(i, cause)
				}
			}
		}
	}
	c.refusal = err
	close(c.heard)
	c.heard = make(chan struct{})
}

// refuse settles message i if it was sent: one that was not may be refused too,
// but is not known to be.
func (b *natsBatch) refuse(i int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step[i] == sent {
		b.settleLocked(i, err)
	}
}

// hear returns when onError has been told of all that the server said before
// this call. The client sets LastError while it reads, and runs its handlers
// later, in order.
func (c *natsConn) hear(ctx context.Context) bool {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return true
	}
	for {
		c.mu.Lock()
		refusal, heard := c.refusal, c.heard
		c.mu.Unlock()
		if refusal == last {
			return true
		}
		select {
		case <-heard:
		case <-ctx.Done():
			return false
		}
	}
}

// isRefused reports whether the server refuses a subscription of ours.
func (c *natsConn) isRefused(subject string) bool {
	reconnects := c.nc.Stats().Reconnects
	c.mu.Lock()
	defer c.mu.Unlock()
	when, ok := c.refusedSubs[subject]
	return ok && when == reconnects
}

// refused takes the subject of a refused "Publish" or "Subscription" out of an
// error's text, the only place where the server names it.
func refused(err error, what string) (string, bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, quoted, ok := strings.Cut(err.Error(), "Permissions Violation for "+what+" to ")
	if !ok {
		return "", false
	}
	quoted, qerr := strconv.QuotedPrefix(quoted)
	if qerr != nil {
		return "", false
	}
	subject, qerr := strconv.Unquote(quoted)
	return subject, qerr == nil
}
