package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"delaybridge"
)

// NATSConfig says what is read from JetStream, and how.
type NATSConfig struct {
	// Stream is the bridge's own stream. Default: BRIDGE_SCHEDULE.
	Stream string
	// Subjects are read, those of the routes included; they may hold wildcards.
	// Each is read from the streams that hold it, whatever their names.
	// Default: bridge.schedule.
	Subjects []string
	// Durable is the name of the consumer that all processes share, on each
	// stream. Default: bridge.
	Durable string
	// Create lets subjects that no stream holds be added to the bridge's own
	// stream, and that be created if it is missing. Default: true.
	Create bool

	// Batch is how many messages are handed to the queue at once, and the most
	// that are pulled ahead. Default: 256.
	Batch int
	// BatchBytes bounds what one pull brings; a larger message is brought all
	// the same. Default: 8 MiB.
	BatchBytes int
	// Linger is how long a batch waits to be filled. Default: 1ms.
	Linger time.Duration
	// AckWait is how long the server waits for an acknowledgement before it
	// delivers a message again, to any process. Default: 30s.
	AckWait time.Duration
	// MaxAckPending is how many messages all processes together may have in
	// hand. Each has up to two batches. Default: 10000.
	MaxAckPending int
	// PullExpires is how long a pull stays open while nothing comes.
	// Default: 30s.
	PullExpires time.Duration
	// Heartbeat is how often the server says that a pull is still open; one of
	// which it says nothing twice is lost. At most half of PullExpires.
	// Default: 5s.
	Heartbeat time.Duration
	// LookInterval is how often the streams that hold the subjects are looked
	// for again. Default: 30s.
	LookInterval time.Duration
	// APITimeout bounds each call to the JetStream API. Default: 5s.
	APITimeout time.Duration

	// Log is for changes of state. Default: none.
	Log *zap.Logger
}

// DefaultNATSConfig returns the defaults.
func DefaultNATSConfig() NATSConfig {
	return NATSConfig{
		Stream:        "BRIDGE_SCHEDULE",
		Subjects:      []string{"bridge.schedule"},
		Durable:       "bridge",
		Create:        true,
		Batch:         256,
		BatchBytes:    8 << 20,
		Linger:        time.Millisecond,
		AckWait:       30 * time.Second,
		MaxAckPending: 10_000,
		PullExpires:   30 * time.Second,
		Heartbeat:     5 * time.Second,
		LookInterval:  30 * time.Second,
		APITimeout:    5 * time.Second,
		Log:           zap.NewNop(),
	}
}

// Validate checks the settings.
func (c *NATSConfig) Validate() error {
	for what, name := range map[string]string{"stream": c.Stream, "durable": c.Durable} {
		if name == "" || strings.ContainsAny(name, " \t\r\n.*>/\\\x00") {
			return fmt.Errorf("nats: %s %q: want a name without blanks and . * > / \\", what, name)
		}
	}
	if len(c.Subjects) == 0 {
		return errors.New("nats: no subjects")
	}
	for _, s := range c.Subjects {
		if reason := checkSubjectPattern(s); reason != "" {
			return fmt.Errorf("nats: subject %q: %s", s, reason)
		}
	}
	switch {
	case c.Batch < 1 || c.BatchBytes < 1:
		return fmt.Errorf("nats: Batch is %d and BatchBytes %d, want at least 1", c.Batch, c.BatchBytes)
	case c.MaxAckPending < 2*c.Batch:
		return fmt.Errorf("nats: MaxAckPending is %d, want at least two batches (%d)", c.MaxAckPending, 2*c.Batch)
	case c.Linger < 0 || c.Linger >= c.AckWait || c.AckWait < time.Second:
		return fmt.Errorf("nats: Linger is %v and AckWait %v, want an AckWait of at least 1s and less to linger", c.Linger, c.AckWait)
	case c.Heartbeat < 100*time.Millisecond || 2*c.Heartbeat > c.PullExpires:
		return fmt.Errorf("nats: Heartbeat is %v and PullExpires %v, want at least 100ms and at most half of PullExpires", c.Heartbeat, c.PullExpires)
	case c.LookInterval <= 0 || c.APITimeout <= 0:
		return fmt.Errorf("nats: LookInterval is %v and APITimeout %v, want above 0", c.LookInterval, c.APITimeout)
	}
	return nil
}

// NATS reads JetStream streams through durable pull consumers, which any number
// of processes share, and acknowledges what the queue has.
//
// One goroutine looks for the streams that hold the subjects, and one reads each.
type NATS struct {
	cfg     NATSConfig
	conn    *nats.Conn
	js      jetstream.JetStream
	handler *Handler
	log     *zap.Logger

	looking delaybridge.Pulse // of Run

	mu      sync.Mutex
	readers map[string]*streamReader // by stream
	planned bool                     // it is known what there is to read
	said    map[string]string        // what the log was told last, by topic
}

// NewNATS returns a source that reads by conn and hands its records to handler.
// The connection stays the caller's; it should reconnect for ever.
func NewNATS(cfg NATSConfig, conn *nats.Conn, handler *Handler) (*NATS, error) {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if r := handler.cfg.Rate; r > 0 {
		// What waits for its turn here must be acknowledged within AckWait.
		cfg.Batch = min(cfg.Batch, r)
	}
	return &NATS{
		cfg: cfg, conn: conn, js: js, handler: handler, log: cfg.Log,
		readers: make(map[string]*streamReader), said: make(map[string]string),
	}, nil
}

// Connected reports whether the connection to the server stands.
func (n *NATS) Connected() bool { return n.conn.IsConnected() }

// Lag returns how many messages of each stream that this process reads
// ("nats:<stream>") wait to be taken in, as the server last said.
func (n *NATS) Lag() map[string]int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	lag := make(map[string]int64, len(n.readers))
	for name, r := range n.readers {
		lag["nats:"+name] = r.lag.Load()
	}
	return lag
}

// Stalled names the loops that have made no turn for that long, none if all is
// well. Waiting for a server, or for the queue, is no stall.
func (n *NATS) Stalled(d time.Duration) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.looking.Missed(d + n.cfg.LookInterval) {
		names = append(names, "looking for NATS streams")
	}
	for _, stream := range slices.Sorted(maps.Keys(n.readers)) {
		if n.readers[stream].turn.Missed(d) {
			names = append(names, "reading stream "+stream)
		}
	}
	return names
}

// Run reads until ctx ends. Then it pulls no more, stores what it has in hand
// (within the handler's grace), acknowledges it, and returns nil. Nothing that
// the server, its streams or the queue do ends it earlier, except that the
// connection was closed for good: that is an error.
func (n *NATS) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	closed := n.conn.StatusChanged(nats.CLOSED)
	defer n.conn.RemoveStatusListener(closed)
	if n.conn.IsClosed() {
		return nats.ErrConnectionClosed
	}

	ended := make(chan string)
	retry := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	look := time.NewTimer(0)
	defer look.Stop()
	defer n.looking.Rest()
	for {
		n.looking.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-closed:
			return nats.ErrConnectionClosed
		case name := <-ended:
			// Its stream is gone, or is to be read in another way.
			n.mu.Lock()
			delete(n.readers, name)
			n.mu.Unlock()
			look.Reset(retry.min)
			continue
		case <-look.C:
		}
		plan, err := n.plan(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if retry.tries++; retry.tries == loggedTry {
				n.log.Warn("JetStream cannot be asked for streams; trying again until it can", zap.Error(err))
			}
			look.Reset(retry.pause())
			continue
		}
		if retry.tries >= loggedTry {
			n.log.Info("JetStream answers again")
		}
		retry.tries = 0
		n.follow(ctx, plan, &wg, ended)
		look.Reset(n.cfg.LookInterval)
	}
}

// follow makes the readers those of the plan.
func (n *NATS) follow(ctx context.Context, plan map[string][]string, wg *sync.WaitGroup, ended chan<- string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.planned = true
	for name, r := range n.readers {
		if !slices.Equal(r.filters, plan[name]) {
			r.cancel() // it is started anew once it has ended
		}
	}
	for _, name := range slices.Sorted(maps.Keys(plan)) {
		if n.readers[name] != nil {
			continue
		}
		r := newStreamReader(n, name, plan[name])
		var readerCtx context.Context
		readerCtx, r.cancel = context.WithCancel(ctx)
		n.readers[name] = r
		wg.Go(func() {
			defer r.cancel()
			r.run(readerCtx)
			select {
			case ended <- name:
			case <-ctx.Done():
			}
		})
	}
}

// sayOnce logs a warning about a topic unless it is the one of last time. An
// empty text ends the matter.
func (n *NATS) sayOnce(topic, text string, fields ...zap.Field) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said[topic] == text {
		return
	}
	n.said[topic] = text
	if text != "" {
		n.log.Warn(text, fields...)
	}
}

// api returns a context for one call to the JetStream API.
func (n *NATS) api(ctx context.Context) (context.Context, context.CancelFunc) {
	n.looking.Beat() // many subjects take many calls
	return context.WithTimeout(ctx, n.cfg.APITimeout)
}
