package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"delaybridge"
)

// streamReader reads one stream through the durable consumer.
type streamReader struct {
	*NATS
	stream  string
	filters []string
	log     *zap.Logger
	cancel  context.CancelFunc

	handler *Handler          // of NATS, with the pulse
	turn    delaybridge.Pulse // of run

	ackFloor atomic.Uint64 // all up to it, by stream sequence, is acknowledged
	lag      atomic.Int64

	// The goroutine of run alone uses these.
	graceful     context.Context // ends when what is in hand at the stop is given up
	life         life
	lastDelivery uint64 // consumer sequence of the last message, 0 if not known
}

func newStreamReader(n *NATS, stream string, filters []string) *streamReader {
	r := &streamReader{NATS: n, stream: stream, filters: filters, log: n.log.With(zap.String("stream", stream))}
	r.handler = n.handler.withPulse(&r.turn)
	return r
}

// api is that of NATS, for calls of this loop.
func (r *streamReader) api(ctx context.Context) (context.Context, context.CancelFunc) {
	r.turn.Beat()
	return context.WithTimeout(ctx, r.cfg.APITimeout)
}

// run reads until ctx ends or the stream is gone.
func (r *streamReader) run(ctx context.Context) {
	graceful, cancel := withGrace(ctx, r.handler.cfg.Grace)
	defer cancel()
	r.graceful = graceful
	defer r.turn.Rest()
	retry := backoff{min: 50 * time.Millisecond, max: 5 * time.Second}
	working := func() {
		if retry.tries >= loggedTry {
			r.log.Info("reading the stream again")
		}
		retry.tries = 0
	}
	for {
		r.turn.Beat()
		err := r.attach(ctx)
		if err == nil {
			err = r.pull(ctx, working)
		}
		switch {
		case ctx.Err() != nil || r.conn.IsClosed():
			return
		case errors.Is(err, jetstream.ErrStreamNotFound):
			r.log.Warn("the stream is gone")
			return
		}
		if retry.tries++; retry.tries == loggedTry {
			r.log.Warn("the stream cannot be read; trying again until it can", zap.Error(err))
		}
		if !retry.wait(ctx) {
			return
		}
	}
}

// pullSession is one inbox with the pulls that were sent for it.
//
// It speaks the pull protocol itself, for three reasons. The client library
// takes any message with an empty body and a Status header for a word of the
// server, so that one published by a user could end its loop, or be delivered
// again for ever; here a message is told from a word of the server by the reply
// subject that only a stored message has. The library prefetches far more than
// one batch, whose time to acknowledge it runs while they wait. And while a pull
// is open all the time, the server tells in the same channel when the consumer
// was deleted, before any message of a new one of that name can arrive, whose
// number would be taken for that of an old message.
type pullSession struct {
	*streamReader
	inbox string
	in    chan *nats.Msg
	up    chan nats.Status

	pulls    int       // sent so far
	credit   int       // messages that open pulls may still bring
	gap      bool      // for some time no pull was open: verify before the next one
	verified time.Time // or it was verified long ago
	measured time.Time // when the lag was asked for while nothing is pulled
	got      bool      // a message came since the last pull
	large    bool      // the next message is larger than BatchBytes
}

// pull reads until ctx ends, or something is wrong with the consumer. working
// is called when a word of the server shows that pulls are answered.
func (r *streamReader) pull(ctx context.Context, working func()) error {
	s := &pullSession{
		streamReader: r,
		inbox:        r.conn.NewInbox(),
		// Room for all that open pulls may bring, those lost sight of included:
		// the client drops what finds no room.
		in:       make(chan *nats.Msg, 8*r.cfg.Batch+256),
		up:       r.conn.StatusChanged(nats.CONNECTED),
		verified: time.Now(),
	}
	defer r.conn.RemoveStatusListener(s.up)
	sub, err := r.conn.ChanSubscribe(s.inbox+".*", s.in)
	if err != nil {
		return fmt.Errorf("subscribe to the inbox: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for {
		s.turn.Beat()
		if err := s.refill(ctx); err != nil {
			return err
		}
		batch, pullErr := s.next(ctx, working)
		if ctx.Err() != nil {
			return s.finish(ctx, sub, batch)
		}
		if len(batch) > 0 {
			// First the next pull, so that one is open while this is stored.
			if pullErr == nil {
				if err := s.refill(ctx); err != nil {
					return err
				}
			}
			if err := s.store(ctx, batch); err != nil {
				return err
			}
		}
		if pullErr != nil {
			return pullErr
		}
	}
}

// refill opens a pull when half a batch or more is free, unless the queue is
// full or away.
func (s *pullSession) refill(ctx context.Context) error {
	stale := time.Since(s.verified) > s.cfg.LookInterval // and so is what is known of its progress
	if s.credit > s.cfg.Batch/2 && !stale || ctx.Err() != nil {
		return nil
	}
	// A pull that waited in the client for a connection could reach another
	// life of the consumer.
	if !s.conn.IsConnected() {
		s.credit, s.gap = 0, true
		return nil
	}
	if !s.handler.Open(ctx) {
		s.gap = s.gap || s.credit == 0
		s.measure(ctx)
		return nil
	}
	if s.gap || stale {
		if err := s.verify(ctx); err != nil {
			return err
		}
		s.gap, s.verified = false, time.Now()
	}
	if s.credit > s.cfg.Batch/2 {
		return nil
	}
	request := struct {
		Expires   time.Duration `json:"expires"`
		Batch     int           `json:"batch"`
		MaxBytes  int           `json:"max_bytes,omitempty"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{s.cfg.PullExpires, s.cfg.Batch - s.credit, s.cfg.BatchBytes, s.cfg.Heartbeat}
	if s.large {
		request.Batch, request.MaxBytes = 1, 0
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	s.pulls++
	to := jsAPI + "CONSUMER.MSG.NEXT." + s.stream + "." + s.cfg.Durable
	if err := s.conn.PublishRequest(to, s.inbox+"."+strconv.Itoa(s.pulls), body); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	s.credit += request.Batch
	s.got = false
	return nil
}

// measure keeps the lag up to date while nothing is pulled, which is when it grows.
func (s *pullSession) measure(ctx context.Context) {
	if time.Since(s.measured) < s.cfg.LookInterval {
		return
	}
	s.measured = time.Now()
	api, cancel := s.api(ctx)
	defer cancel()
	consumer, err := s.js.Consumer(api, s.stream, s.cfg.Durable)
	if err == nil && consumer.CachedInfo().Created.Equal(s.life.consumer) {
		s.note(consumer.CachedInfo())
	}
}

// next returns what came: a batch, or what there is once Linger has passed since
// its first message. It returns nothing when it is time to look at the pulls.
func (s *pullSession) next(ctx context.Context, working func()) ([]*nats.Msg, error) {
	wait := gateInterval // with no pull open, it is for the queue or the connection
	if s.credit > 0 {
		wait = 2*s.cfg.Heartbeat + s.cfg.Heartbeat/2
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var batch []*nats.Msg
	for len(batch) < s.cfg.Batch {
		select {
		case m := <-s.in:
			if isStored(m) {
				s.credit, s.got, s.large = max(s.credit-1, 0), true, false
				if batch = append(batch, m); len(batch) == 1 {
					working()
					timer.Reset(s.cfg.Linger)
				}
				continue
			}
			if err := s.heed(m, working); err != nil {
				return batch, err
			}
			if len(batch) == 0 {
				if s.credit <= s.cfg.Batch/2 {
					return nil, nil
				}
				timer.Reset(wait)
			}
		case <-timer.C:
			if len(batch) == 0 && s.credit > 0 && s.conn.IsConnected() {
				return nil, errors.New("the server says nothing of the open pull")
			}
			return batch, nil
		case <-s.up:
			// Pulls do not outlive their connection for sure.
			s.credit, s.gap = 0, true
			return batch, nil
		case <-ctx.Done():
			return batch, nil
		}
	}
	return batch, nil
}

// isStored tells a message of the stream from a word of the server: only the
// former can be acknowledged.
func isStored(m *nats.Msg) bool { return strings.HasPrefix(m.Reply, "$JS.ACK.") }

// heed understands a word of the server about a pull.
func (s *pullSession) heed(m *nats.Msg, working func()) error {
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	unused := func() {
		if n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil && n > 0 {
			s.credit = max(s.credit-n, 0)
		} else {
			s.credit = 0 // which pulls too much at worst
		}
		s.gap = s.gap || s.credit == 0
	}
	switch status {
	case "": // nothing that the server would say
	case "100": // the pull is still open
		working()
	case "404", "408": // it has ended
		working()
		unused()
	case "409":
		switch {
		case description == "Consumer Deleted":
			return errors.New("the consumer was deleted")
		case description == "Batch Completed": // all that it asked for came, in fewer bytes
			working()
		case description == "Leadership Change", description == "Server Shutdown":
			s.credit, s.gap = 0, true
		case strings.HasPrefix(description, "Message Size Exceeds"):
			unused()
			s.large = !s.got
		default:
			return fmt.Errorf("pull refused: %s", description)
		}
	case "503":
		return errors.New("nobody answers the pull: no consumer, or no JetStream")
	default:
		return fmt.Errorf("pull refused: %s %s", status, description)
	}
	return nil
}

// store hands a batch to the queue and acknowledges what the queue has.
//
// A plain acknowledgement is enough, and costs no round trip: one that is lost
// means that the message is delivered again after AckWait, and the queue knows
// it by its position. That the server has it would be worth knowing only if
// something else depended on it.
func (s *pullSession) store(ctx context.Context, batch []*nats.Msg) error {
	records := make([]Record, 0, len(batch))
	ours := make([]*nats.Msg, 0, len(batch))
	suspect := s.conn.Stats().Reconnects != s.life.reconnects
	var pending uint64
	for _, m := range batch {
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("reply subject %q: %w", m.Reply, err)
		}
		// A consumer that counts from the start again is another one.
		suspect = suspect || meta.Sequence.Consumer <= s.lastDelivery
		s.lastDelivery, pending = meta.Sequence.Consumer, meta.NumPending
		if !slices.ContainsFunc(s.filters, func(f string) bool { return matchSubject(f, m.Subject) }) {
			// Another process, of another configuration, widened the consumer's
			// filter. Only one like it knows what to do with this message.
			_ = s.conn.Publish(m.Reply, []byte(`-NAK {"delay": 1000000000}`))
			continue
		}
		ours = append(ours, m)
		records = append(records, Record{
			Position: delaybridge.Position{Source: s.life.source, Offset: meta.Sequence.Stream},
			Origin:   delaybridge.Target{Sink: delaybridge.SinkNATS, Name: m.Subject},
			Time:     meta.Timestamp,
			Headers:  natsHeaders(m.Header),
			Payload:  m.Data,

			Unreadable: brokenHeaders(m),
		})
	}
	if suspect {
		// What is in hand when the stop comes is worth an answer, too.
		last := s.lastDelivery
		verifying, cancel := withGrace(ctx, s.cfg.APITimeout)
		err := s.verify(verifying)
		cancel()
		if err != nil {
			return err
		}
		s.lastDelivery = last
	}
	s.lag.Store(int64(pending) + int64(len(records)))
	// What is in hand when the stop comes is stored all the same.
	_ = s.handler.rates.await(ctx, "nats:"+s.stream, len(records))
	stored := s.handler.handle(s.graceful, "nats:"+s.stream, records)
	delaybridge.Failpoint("acking")
	for i, ok := range stored {
		if ok {
			_ = s.conn.Publish(ours[i].Reply, []byte("+ACK"))
		}
	}
	delaybridge.Failpoint("acked")
	s.lag.Store(int64(pending))
	return nil
}

// finish ends the session: what has arrived is stored and acknowledged.
func (s *pullSession) finish(ctx context.Context, sub *nats.Subscription, batch []*nats.Msg) error {
	batch = s.runDry(batch)
	if s.conn.IsConnected() && sub.Drain() == nil {
		// Once the server has answered, it sends no more.
		_ = s.conn.FlushTimeout(s.cfg.APITimeout)
	}
	for more := true; more; {
		select {
		case m := <-s.in:
			if isStored(m) {
				batch = append(batch, m)
			}
		default:
			more = false
		}
	}
	for chunk := range slices.Chunk(batch, s.cfg.Batch) {
		if err := s.store(ctx, chunk); err != nil {
			return err
		}
	}
	if s.conn.IsConnected() {
		_ = s.conn.FlushTimeout(s.cfg.APITimeout)
	}
	return nil
}

// runDry waits for what open pulls bring while more is coming: there is no
// taking back a pull, and what the server sends to an inbox that is gone comes
// again only after AckWait.
func (s *pullSession) runDry(batch []*nats.Msg) []*nats.Msg {
	const quiet, most = 20 * time.Millisecond, time.Second
	end := time.After(most)
	for s.credit > 0 && s.conn.IsConnected() {
		select {
		case m := <-s.in:
			if isStored(m) {
				batch, s.credit = append(batch, m), s.credit-1
			} else if s.heed(m, func() {}) != nil {
				return batch
			}
		case <-time.After(quiet):
			return batch
		case <-end:
			return batch
		}
	}
	return batch
}

// brokenHeaders returns an error if the message has headers that the client could
// not read. It hands such a message on as if it had none: what they ask for, such
// as a longer delay than a route's, must not be ignored.
func brokenHeaders(m *nats.Msg) *delaybridge.FieldError {
	if m.Header != nil || m.Size() == len(m.Subject)+len(m.Reply)+len(m.Data) {
		return nil
	}
	return &delaybridge.FieldError{Code: "invalid_headers", Field: "headers", Reason: "cannot be read: want NATS/1.0 and then lines of name: value"}
}

// natsHeaders lists a message's headers. The client keeps them in a map, so the
// order across names is lost: they are sorted by name, for stability.
func natsHeaders(h nats.Header) []delaybridge.Header {
	var headers []delaybridge.Header
	for name, values := range h {
		for _, v := range values {
			headers = append(headers, delaybridge.Header{Name: name, Value: []byte(v)})
		}
	}
	slices.SortStableFunc(headers, func(a, b delaybridge.Header) int { return strings.Compare(a.Name, b.Name) })
	return headers
}
