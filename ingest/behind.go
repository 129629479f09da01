package ingest

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// errLooking says that a source does not know yet what it reads.
var errLooking = errors.New("the streams to read are still being looked for")

// Behind asks the server how many messages wait to be taken in, by any process:
// what another has in hand and has not acknowledged counts. Other than Lag, which
// says what was last heard, 0 means that all of it is in the queue. It is an
// error before the streams to read are known.
func (n *NATS) Behind(ctx context.Context) (int64, error) {
	n.mu.Lock()
	planned := n.planned
	streams := make([]string, 0, len(n.readers))
	for name := range n.readers {
		streams = append(streams, name)
	}
	n.mu.Unlock()
	if !planned {
		return 0, errLooking
	}
	var behind int64
	for _, name := range streams {
		api, cancel := context.WithTimeout(ctx, n.cfg.APITimeout)
		consumer, err := n.js.Consumer(api, name, n.cfg.Durable)
		cancel()
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return 0, errLooking // it is about to be created
		}
		if err != nil {
			return 0, fmt.Errorf("look up consumer %s on stream %s: %w", n.cfg.Durable, name, err)
		}
		info := consumer.CachedInfo()
		behind += int64(info.NumPending) + int64(info.NumAckPending)
	}
	return behind, nil
}

// Behind asks the brokers how many offsets of the topics the group has not
// committed, whoever reads them; records of open transactions do not count.
// Topics that do not exist hold nothing.
func (k *Kafka) Behind(ctx context.Context) (int64, error) {
	topics, err := k.describeTopics(ctx, k.cfg.Topics)
	if err != nil {
		return 0, err
	}
	byLeader := make(map[int32][]topicPartition)
	var all []topicPartition
	for name, t := range topics {
		switch {
		case errors.Is(t.err, kafka.UnknownTopicOrPartition):
			continue
		case t.err != nil:
			return 0, fmt.Errorf("topic %s: %w", name, t.err)
		}
		for partition, leader := range t.leaders {
			tp := topicPartition{name, partition}
			if leader.broker < 0 {
				return 0, fmt.Errorf("topic %s, partition %d: %w", name, partition, kafka.LeaderNotAvailable)
			}
			byLeader[leader.broker] = append(byLeader[leader.broker], tp)
			all = append(all, tp)
		}
	}
	if len(all) == 0 {
		return 0, nil
	}
	committed, err := k.fetchCommitted(ctx, all)
	if err != nil {
		return 0, err
	}
	var behind int64
	for leader, parts := range byLeader {
		first, err := k.listOffsets(ctx, leader, parts, kafka.FirstOffset)
		if err != nil {
			return 0, err
		}
		end, err := k.listStable(ctx, leader, parts)
		if err != nil {
			return 0, err
		}
		for _, tp := range parts {
			from, ok1 := first[tp]
			to, ok2 := end[tp]
			if !ok1 || !ok2 {
				return 0, fmt.Errorf("topic %s, partition %d: the leader does not say what it holds", tp.topic, tp.partition)
			}
			c := committed[tp]
			sameTopic := c.mark == "" || topics[tp.topic].mark() == "" || topicOf(c.mark) == topics[tp.topic].mark()
			if sameTopic && c.offset >= from && c.offset <= to {
				from = c.offset
			}
			behind += max(0, to-from)
		}
	}
	return behind, nil
}

// listStable asks a leader for the ends of its partitions as a reader of
// committed records sees them.
func (k *Kafka) listStable(ctx context.Context, leader int32, parts []topicPartition) (map[topicPartition]int64, error) {
	return k.listOffsetsAs(ctx, leader, parts, kafka.LastOffset, &listoffsets.Request{ReplicaID: -1, IsolationLevel: 1})
}
