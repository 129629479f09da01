package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"delaybridge"
)

// kafkaTimeout bounds every call to a broker, beyond the time that the broker
// is asked to wait.
const kafkaTimeout = 10 * time.Second

// KafkaConfig says what is read from Kafka, and how.
type KafkaConfig struct {
	// Brokers are the addresses (host:port) of some brokers. Required.
	Brokers []string
	// Topics are read. One that does not exist is waited for. Required.
	Topics []string
	// Group is the consumer group that all processes share. Required.
	Group string

	// Transport carries everything but the group's membership. It is a
	// *kafka.Transport with the brokers' TLS and SASL; MetadataTopics set to
	// Topics spares it the metadata of the whole cluster. Default: a plain one.
	Transport *kafka.Transport
	// Dialer carries the group's membership, with the same TLS and SASL.
	// Default: a plain one.
	Dialer *kafka.Dialer
	// ClientID names this program to the brokers. Default: delaybridge.
	ClientID string

	// MaxWait is how long a broker may hold a fetch back while there is nothing
	// new; what comes in ends the wait. At most 1s. Default: 500ms.
	MaxWait time.Duration
	// PartitionBytes and MaxBytes are how much a fetch brings of one partition,
	// and of all of one leader. A larger message is brought all the same.
	// Default: 1 MiB and 8 MiB.
	PartitionBytes, MaxBytes int
	// Batch is how many records are handed to the queue at once. Default: 500.
	Batch int
	// CommitInterval is the least time between two commits. Default: 200ms.
	CommitInterval time.Duration
	// WatchInterval is how often topics are looked at for new partitions, and
	// for having been created, deleted or created anew. Default: 5s.
	WatchInterval time.Duration

	// SessionTimeout is how long the group waits for a member that says nothing
	// before it gives its partitions to others. Default: 10s.
	SessionTimeout time.Duration
	// HeartbeatInterval is how often a member says something, and the time
	// within which it learns that others came or went. Default: 1s.
	HeartbeatInterval time.Duration
	// RebalanceTimeout is how long the group waits for members to finish what
	// they have in hand. Default: 30s.
	RebalanceTimeout time.Duration
	// JoinBackoff is the pause after a failed try to join. Default: 1s.
	JoinBackoff time.Duration
	// StopTimeout bounds how long leaving the group may take. Default: 5s.
	StopTimeout time.Duration

	// Log is for changes of state. Default: none.
	Log *zap.Logger
}

// DefaultKafkaConfig returns the defaults; Brokers, Topics and Group have none.
func DefaultKafkaConfig() KafkaConfig {
	return KafkaConfig{
		ClientID:          "delaybridge",
		MaxWait:           500 * time.Millisecond,
		PartitionBytes:    1 << 20,
		MaxBytes:          8 << 20,
		Batch:             500,
		CommitInterval:    200 * time.Millisecond,
		WatchInterval:     5 * time.Second,
		SessionTimeout:    10 * time.Second,
		HeartbeatInterval: time.Second,
		RebalanceTimeout:  30 * time.Second,
		JoinBackoff:       time.Second,
		StopTimeout:       5 * time.Second,
		Log:               zap.NewNop(),
	}
}

// Validate checks the settings.
func (c *KafkaConfig) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka: no brokers")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("kafka: broker %q: want host:port", b)
		}
	}
	if len(c.Topics) == 0 {
		return errors.New("kafka: no topics")
	}
	seen := make(map[string]bool)
	for _, t := range c.Topics {
		if t == "" || seen[t] {
			return fmt.Errorf("kafka: topic %q is empty or named twice", t)
		}
		seen[t] = true
	}
	switch {
	case c.Group == "":
		return errors.New("kafka: no consumer group")
	case c.MaxWait <= 0 || c.MaxWait > time.Second:
		return fmt.Errorf("kafka: MaxWait is %v, want above 0 and at most 1s", c.MaxWait)
	case c.PartitionBytes <= 0 || c.MaxBytes < c.PartitionBytes || c.MaxBytes > kafkaMaxResponse/2:
		return fmt.Errorf("kafka: PartitionBytes %d and MaxBytes %d, want 0 < PartitionBytes <= MaxBytes <= %d", c.PartitionBytes, c.MaxBytes, kafkaMaxResponse/2)
	case c.Batch <= 0:
		return fmt.Errorf("kafka: Batch is %d, want at least 1", c.Batch)
	case c.CommitInterval < 0 || c.WatchInterval <= 0 || c.JoinBackoff <= 0 || c.StopTimeout <= 0:
		return fmt.Errorf("kafka: CommitInterval %v, WatchInterval %v, JoinBackoff %v, StopTimeout %v: none may be negative, and but the first none 0",
			c.CommitInterval, c.WatchInterval, c.JoinBackoff, c.StopTimeout)
	case c.HeartbeatInterval <= 0 || c.SessionTimeout < 3*c.HeartbeatInterval:
		return fmt.Errorf("kafka: SessionTimeout is %v, want at least three HeartbeatIntervals (%v)", c.SessionTimeout, c.HeartbeatInterval)
	case c.RebalanceTimeout < c.SessionTimeout:
		return fmt.Errorf("kafka: RebalanceTimeout is %v, want at least the SessionTimeout (%v)", c.RebalanceTimeout, c.SessionTimeout)
	}
	return nil
}

// Kafka reads topics as a member of a consumer group, and commits what the queue
// has. Records of aborted transactions and control records are left out.
type Kafka struct {
	cfg       KafkaConfig
	handler   *Handler
	transport *kafka.Transport
	addr      net.Addr
	log       *zap.Logger

	turn      delaybridge.Pulse // of Run and what it calls
	connected atomic.Bool
	skipped   atomic.Int64
	mu        sync.Mutex
	lag       map[topicPartition]int64
}

// NewKafka returns a source that hands its records to handler.
func NewKafka(cfg KafkaConfig, handler *Handler) (*Kafka, error) {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k := &Kafka{
		cfg: cfg, transport: cfg.Transport, addr: kafka.TCP(cfg.Brokers...), log: cfg.Log,
		lag: make(map[topicPartition]int64),
	}
	k.handler = handler.withPulse(&k.turn)
	if k.transport == nil {
		k.transport = &kafka.Transport{ClientID: cfg.ClientID, MetadataTopics: cfg.Topics}
	}
	return k, nil
}

// Run reads until ctx ends. Then it fetches no more, stores what it has in hand
// (within the handler's grace), commits, leaves the group, and returns nil. A
// broker that fails, a topic that is missing or a queue that is away never ends
// it: it tries again until they are back.
func (k *Kafka) Run(ctx context.Context) error {
	if k.cfg.Transport == nil {
		defer k.transport.CloseIdleConnections()
	}
	defer k.turn.Rest()
	for {
		topics := k.awaitTopics(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := k.subscribe(ctx, topics); err != nil {
			return err
		}
	}
}

// Lag returns how many records this process's partitions hold that the queue
// does not have yet, by source ("kafka://<topic>"); topics that this process
// reads no partition of just now have none.
func (k *Kafka) Lag() map[string]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	lag := make(map[string]int64, len(k.cfg.Topics))
	for _, t := range k.cfg.Topics {
		lag[originOf(t).String()] = 0
	}
	for p, n := range k.lag {
		lag[originOf(p.topic).String()] += n
	}
	return lag
}

func (k *Kafka) setLag(p topicPartition, n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lag[p] = max(n, 0)
}

func (k *Kafka) clearLag() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.lag)
}

// Skipped returns how many offsets were deleted by Kafka before they were read.
func (k *Kafka) Skipped() int64 { return k.skipped.Load() }

// Stalled names the loop if it has made no turn for that long. Waiting for
// brokers, for the group, or for the queue is no stall.
func (k *Kafka) Stalled(d time.Duration) []string {
	if k.turn.Missed(d) {
		return []string{"reading Kafka topics"}
	}
	return nil
}

// Connected reports whether the brokers answered when they were last asked.
func (k *Kafka) Connected() bool { return k.connected.Load() }

// originOf names a topic as routes and metrics do.
func originOf(topic string) delaybridge.Target {
	return delaybridge.Target{Sink: delaybridge.SinkKafka, Name: topic}
}

func (k *Kafka) call(broker int32) brokerCall {
	return brokerCall{broker: broker, clientID: k.cfg.ClientID}
}

// awaitTopics waits until at least one topic exists, and returns those that do.
// The group is joined for these alone: a member that asks for a missing topic
// gets nothing, and asks its group to start over again and again.
func (k *Kafka) awaitTopics(ctx context.Context) map[string]*kafkaTopic {
	retry := backoff{min: 250 * time.Millisecond, max: min(k.cfg.WatchInterval, 5*time.Second)}
	told := ""
	for {
		k.turn.Beat()
		topics, err := k.describeTopics(ctx, k.cfg.Topics)
		k.connected.Store(err == nil)
		present := make(map[string]*kafkaTopic)
		for _, name := range k.cfg.Topics {
			if t := topics[name]; t != nil && t.err == nil && len(t.leaders) > 0 {
				present[name] = t
			} else if t != nil && err == nil {
				err = fmt.Errorf("topic %s: %w", name, t.err)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && told != err.Error() {
			told = err.Error()
			k.log.Warn("waiting for the topics to read", zap.Strings("topics", k.cfg.Topics), zap.Int("count", len(present)), zap.Error(err))
		}
		if len(present) > 0 {
			return present
		}
		retry.tries++
		if !retry.wait(ctx) {
			return nil
		}
	}
}
