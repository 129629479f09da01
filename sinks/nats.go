package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"delaybridge"
)

// NATS publishes to JetStream. A message is confirmed by the PubAck of the
// stream that holds its subject. It is safe for concurrent use.
//
// A batch is sent as a whole and its acks are awaited together, so a subject
// that nobody confirms holds up the return of its own batch, by the publish
// timeout at most, and nothing else; with PublishParts, only its own messages.
// The client's own asynchronous publisher is not used: it retries behind our
// back, stalls when its window is full, and keeps what is never acknowledged.
type NATS struct {
	conn  *natsConn
	inbox string // ends in a dot
}

var _ delaybridge.Sink = (*NATS)(nil)

// NewNATS returns a sink on a connection that was made with NATSOptions. The
// connection need not be up yet, may be shared, and stays the caller's to close,
// after the last Publish. The sink listens to the connection's error handler: one
// that is set later must call the one it replaces.
func NewNATS(nc *nats.Conn, cfg NATSConfig) (*NATS, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sinks.NATSConfig: %w", err)
	}
	s := &NATS{conn: newNATSConn(nc, cfg), inbox: nc.NewInbox() + "."}
	if _, err := nc.Subscribe(s.inbox+"*", s.onAck); err != nil {
		return nil, fmt.Errorf("subscribe to the acknowledgements of JetStream: %w", err)
	}
	return s, nil
}

// Publish implements delaybridge.Sink.
func (s *NATS) Publish(ctx context.Context, batch []delaybridge.Claim) []error {
	n, b := s.conn.open(batch)
	defer s.conn.close(n)
	return s.conn.await(ctx, b, func(context.Context) { s.run(n, b) }, nil)
}

// PublishParts is Publish, which tells the outcomes of messages in parts: a subject
// that nobody confirms holds up nothing of its own batch either. See Mux.
func (s *NATS) PublishParts(ctx context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error)) {
	n, b := s.conn.open(batch)
	defer s.conn.close(n)
	s.conn.await(ctx, b, func(context.Context) { s.run(n, b) }, part)
	part(b.hand())
}

// run sends the batch and stays until it is settled, to hear of a disconnect:
// acks that were on their way then never come.
func (s *NATS) run(n uint64, b *natsBatch) {
	nc := s.conn.nc
	if s.conn.isRefused(s.inbox + "*") {
		// Published, it might be stored, but never confirmed.
		err := delaybridge.Unavailable(fmt.Errorf("no permission to subscribe to %q, where JetStream acknowledges", s.inbox+"*"))
		b.finish(err, err)
		return
	}
	broken := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(broken)
	reply := s.inbox + strconv.FormatUint(n, 36) + "-"
	s.conn.send(b, func(i int) *nats.Msg {
		m := jetStreamMessage(&b.claims[i])
		m.Reply = reply + strconv.Itoa(i)
		return m
	})
	delaybridge.Failpoint("sent")
	select {
	case <-b.done:
	case <-broken:
		lost := func() { b.settleSent(errors.New("the connection to NATS broke before the message was confirmed")) }
		// The acks that have arrived come first.
		if nc.Barrier(lost) != nil {
			lost()
		}
	}
}

// onAck settles the message that an answer is for. The answer's subject says
// which it is.
func (s *NATS) onAck(m *nats.Msg) {
	delaybridge.Failpoint("published")
	batch, index, ok := strings.Cut(m.Subject[len(s.inbox):], "-")
	if !ok {
		return
	}
	n, err := strconv.ParseUint(batch, 36, 64)
	if err != nil {
		return
	}
	i, err := strconv.Atoi(index)
	b := s.conn.batch(n)
	if err != nil || b == nil || i < 0 || i >= len(b.claims) {
		return
	}
	b.settle(i, ackError(m))
}

// pubAck is JetStream's answer to a publish.
type pubAck struct {
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"` // every stored message has one, the first is 1
	Error  *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// Errors of JetStream that are told apart from others of the same code.
const (
	jsAccountFull = 10002 // the account's storage is used up
	jsNoLimits    = 10120 // the account has no storage, yet
)

// stored reports whether an answer is, byte for byte, one that a stream gives which
// has the message, as nearly all are. Any other is to be read as JSON: what is only
// nearly such an answer may be a refusal, or nobody's word.
func stored(answer []byte) bool {
	rest, ok := cutName(answer, `{"stream":"`)
	if !ok {
		return false
	}
	for _, opening := range [...]string{`,"domain":"`, `, "domain":"`} { // some servers write a blank
		if inDomain, ok := cutName(rest, opening); ok {
			rest = inDomain
			break
		}
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(`,`)); !ok {
		return false
	}
	if rest, ok = bytes.CutPrefix(bytes.TrimPrefix(rest, []byte(` `)), []byte(`"seq":`)); !ok {
		return false
	}
	digits := 0
	for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
		digits++
	}
	// One of twenty digits may be none that fits.
	if digits == 0 || digits > 19 || rest[0] == '0' {
		return false
	}
	switch string(rest[digits:]) {
	case `}`, `,"duplicate": true}`, `,"duplicate":true}`:
		return true
	}
	return false
}

// cutName cuts off what opens a JSON string, the string, which is not empty and of
// plain characters, and its end.
func cutName(s []byte, opening string) (rest []byte, ok bool) {
	s, ok = bytes.CutPrefix(s, []byte(opening))
	if !ok {
		return nil, false
	}
	for i, c := range s {
		switch {
		case c == '"':
			return s[i+1:], i > 0
		case c < ' ' || c > '~' || c == '\\':
			return nil, false
		}
	}
	return nil, false
}

// ackError returns nil for a message that the stream has, now or from an earlier
// attempt.
func ackError(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return delaybridge.Transient(errors.New("no stream holds the subject"))
	}
	if stored(m.Data) {
		return nil
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Error == nil && (ack.Stream == "" || ack.Seq == 0) {
		// Somebody else listens there and has answered; the next attempt would
		// reach him again.
		return delaybridge.Permanent(errors.New("the subject is not JetStream's: what answered is no stream"))
	}
	if ack.Error == nil {
		return nil
	}
	err := fmt.Errorf("JetStream: %s (code %d, error %d)", ack.Error.Description, ack.Error.Code, ack.Error.ErrCode)
	// 400 says that the message, or its subject's stream, is wrong: too large,
	// sealed, made for counters. The rest passes: full, no leader, too busy.
	if ack.Error.Code == 400 && ack.Error.ErrCode != jsAccountFull && ack.Error.ErrCode != jsNoLimits {
		return delaybridge.Permanent(err)
	}
	return delaybridge.Transient(err)
}
