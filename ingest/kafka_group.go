package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
)

// subscribe joins the group for topics, and reads what it is given until ctx
// ends or the topics to join for have changed.
func (k *Kafka) subscribe(ctx context.Context, topics map[string]*kafkaTopic) error {
	conns := &groupConns{}
	balancer := &evenBalancer{}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                k.cfg.Group,
		Brokers:           k.cfg.Brokers,
		Dialer:            conns.dialer(k.cfg.Dialer, k.cfg.ClientID),
		Topics:            slices.Sorted(maps.Keys(topics)),
		GroupBalancers:    []kafka.GroupBalancer{balancer, kafka.RangeGroupBalancer{}},
		HeartbeatInterval: k.cfg.HeartbeatInterval,
		SessionTimeout:    k.cfg.SessionTimeout,
		RebalanceTimeout:  k.cfg.RebalanceTimeout,
		JoinGroupBackoff:  k.cfg.JoinBackoff,
		StartOffset:       kafka.FirstOffset,
		// Its own watch for new partitions would create a topic that was deleted.
		WatchPartitionChanges: false,
		Logger:                kafka.LoggerFunc(func(f string, a ...any) { k.log.Debug("kafka group: " + fmt.Sprintf(f, a...)) }),
	})
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	var inHand time.Duration // how long what is in hand may still take
	defer func() {
		// Leaving may wait for a broker that does not answer, above all a join,
		// which waits for members that are no more.
		cut := time.AfterFunc(k.cfg.StopTimeout+inHand, conns.cut)
		_ = group.Close() // ends the generation, and waits for its end
		cut.Stop()
		k.clearLag()
	}()

	told := ""
	for {
		k.turn.Rest() // others may take as long as they like to join
		gen, err := group.Next(ctx)
		if ctx.Err() != nil || errors.Is(err, kafka.ErrGroupClosed) {
			return nil
		}
		if err != nil {
			k.connected.Store(errors.As(err, new(kafka.Error)))
			if told != err.Error() && !errors.Is(err, kafka.RebalanceInProgress) {
				told = err.Error()
				k.log.Warn("cannot join the consumer group; trying again until it works", zap.String("group", k.cfg.Group), zap.Error(err))
			}
			continue
		}
		if told != "" {
			told = ""
			k.log.Info("joined the consumer group again", zap.String("group", k.cfg.Group))
		}
		g := newGeneration(k, gen, topics, balancer.take())
		done := make(chan struct{})
		gen.Start(func(ctx context.Context) {
			defer close(done)
			g.run(ctx)
		})
		inHand = k.handler.cfg.Grace
		select {
		case <-done: // on to the next generation
			inHand = 0
		case <-g.leave:
			return nil
		case <-ctx.Done():
			return nil
		}
		topics = g.known
	}
}

// groupConns are the connections of a group's membership, kept so that they can
// be cut: kafka-go waits for a broker's answer to a join for up to half a minute.
type groupConns struct {
	mu    sync.Mutex
	over  bool
	conns map[net.Conn]bool
}

// dialer returns a copy of d, nil for a plain one, whose connections are kept.
func (c *groupConns) dialer(d *kafka.Dialer, clientID string) *kafka.Dialer {
	own := kafka.Dialer{ClientID: clientID}
	if d != nil {
		own = *d
	}
	own.ClientID = cmp.Or(own.ClientID, clientID)
	own.Timeout = cmp.Or(own.Timeout, kafkaTimeout)
	dial := own.DialFunc
	if dial == nil {
		dial = (&net.Dialer{LocalAddr: own.LocalAddr, FallbackDelay: own.FallbackDelay, KeepAlive: own.KeepAlive}).DialContext
	}
	own.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return c.keep(conn)
	}
	return &own
}

func (c *groupConns) keep(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if c.conns == nil {
		c.conns = make(map[net.Conn]bool)
	}
	c.conns[conn] = true
	return &groupConn{Conn: conn, of: c}, nil
}

// cut closes all connections, and lets no new one be made.
func (c *groupConns) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for conn := range c.conns {
		_ = conn.Close()
	}
}

type groupConn struct {
	net.Conn
	of *groupConns
}

// Close closes the connection, which then need not be kept.
func (c *groupConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// evenBalancer deals the partitions of all topics out evenly. kafka-go's own
// balancers deal out each topic by itself, so that the first member gets all of
// many topics with one partition each.
type evenBalancer struct {
	mu    sync.Mutex
	dealt map[string]int
}

// take returns the numbers of partitions by topic that were dealt out since the
// last time, nil if none were: then another member did it.
func (b *evenBalancer) take() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	dealt := b.dealt
	b.dealt = nil
	return dealt
}

// ProtocolName names the balancer in the group.
func (*evenBalancer) ProtocolName() string { return "delaybridge-even" }

// UserData returns nothing: no member has a say.
func (*evenBalancer) UserData() ([]byte, error) { return nil, nil }

// AssignGroups gives each partition to the member that has the fewest of those
// that read its topic.
func (b *evenBalancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	members, partitions = slices.Clone(members), slices.Clone(partitions)
	slices.SortFunc(members, func(a, b kafka.GroupMember) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(partitions, func(a, b kafka.Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
	})
	assigned := make(kafka.GroupMemberAssignments)
	counts, dealt := make(map[string]int), make(map[string]int)
	for _, m := range members {
		assigned[m.ID] = make(map[string][]int)
	}
	for _, p := range partitions {
		dealt[p.Topic]++
		best := ""
		for _, m := range members {
			if slices.Contains(m.Topics, p.Topic) && (best == "" || counts[m.ID] < counts[best]) {
				best = m.ID
			}
		}
		if best != "" {
			assigned[best][p.Topic] = append(assigned[best][p.Topic], p.ID)
			counts[best]++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dealt = dealt
	return assigned
}
