package ingest

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// kafkaTopic is what a cluster says of a topic.
type kafkaTopic struct {
	// id is the topic's own, another one after it was deleted and created
	// again; zero on brokers of before Kafka 2.8.
	id [16]byte
	// leaders are by partition; err says why there are none.
	leaders map[int32]kafkaLeader
	err     error
}

// kafkaLeader is who leads a partition: broker -1 is nobody just now.
type kafkaLeader struct {
	broker, epoch int32
}

// mark is the topic id as it is written down, empty if there is none.
func (t *kafkaTopic) mark() string {
	if t.id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(t.id[:])
}

// metadataRequest asks for topics. Other than kafka-go's, it is never answered
// from a cache, creates no topic, and brings topic ids where the broker has them.
type metadataRequest struct {
	brokerCall
	topics  []string
	version int16 // as negotiated by kafka-go, for brokers without topic ids
}

// metadataIDs is the version of metadata that we read topic ids from.
const metadataIDs = 12

type metadataResponse struct {
	topics map[string]*kafkaTopic
}

func (*metadataRequest) ApiKey() protocol.ApiKey  { return protocol.Metadata }
func (*metadataResponse) ApiKey() protocol.ApiKey { return protocol.Metadata }

// Prepare learns the version that kafka-go has negotiated.
func (q *metadataRequest) Prepare(version int16) { q.version = version }

// RawExchange asks one broker.
func (q *metadataRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	highest, err := maxVersion(rw, protocol.Metadata, q.clientID)
	if err != nil {
		return nil, err
	}
	if highest < metadataIDs {
		return q.withoutIDs(rw)
	}
	r, err := exchange(rw, protocol.Metadata, metadataIDs, true, q.clientID, func(w *wireWriter) {
		w.array(len(q.topics))
		for _, name := range q.topics {
			w.id([16]byte{})
			w.string(name)
			w.tags()
		}
		w.int8(0) // allow auto topic creation
		w.int8(0) // include authorized operations
		w.tags()
	})
	if err != nil {
		return nil, err
	}
	res := &metadataResponse{topics: make(map[string]*kafkaTopic)}
	r.int32()                         // throttle time
	for n := r.array(8); n > 0; n-- { // brokers
		r.int32()
		_ = r.string()
		r.int32()
		_ = r.string()
		r.tags()
	}
	_ = r.string() // cluster id
	r.int32()      // controller
	for n := r.array(16); n > 0; n-- {
		code := r.int16()
		name := r.string()
		t := &kafkaTopic{id: r.id(), err: kafkaError(code), leaders: make(map[int32]kafkaLeader)}
		r.int8() // is internal
		for n := r.array(12); n > 0; n-- {
			r.int16() // that there is no leader, which the leader's id says too
			id := r.int32()
			t.leaders[id] = kafkaLeader{broker: r.int32(), epoch: r.int32()}
			for range 3 { // replicas, in sync, offline
				r.take(4 * r.array(4))
			}
			r.tags()
		}
		r.int32() // authorized operations
		r.tags()
		res.topics[name] = t
	}
	return res, r.err
}

// withoutIDs asks in kafka-go's way.
func (q *metadataRequest) withoutIDs(rw io.ReadWriter) (protocol.Message, error) {
	m, err := protocol.RoundTrip(rw, q.version, 1, q.clientID, &metadata.Request{TopicNames: q.topics})
	if err != nil {
		return nil, err
	}
	in, ok := m.(*metadata.Response)
	if !ok {
		return nil, fmt.Errorf("kafka: %T answers a question for metadata", m)
	}
	res := &metadataResponse{topics: make(map[string]*kafkaTopic)}
	for _, t := range in.Topics {
		topic := &kafkaTopic{err: kafkaError(t.ErrorCode), leaders: make(map[int32]kafkaLeader)}
		for _, p := range t.Partitions {
			epoch := p.LeaderEpoch
			if q.version < 7 {
				epoch = -1
			}
			topic.leaders[p.PartitionIndex] = kafkaLeader{broker: p.LeaderID, epoch: epoch}
		}
		res.topics[t.Name] = topic
	}
	return res, nil
}

// kafkaError returns the error of a code, nil for none.
func kafkaError(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}

// describeTopics asks the cluster for topics. Each that was asked for is in the
// answer, with an error if it is not there.
func (k *Kafka) describeTopics(ctx context.Context, names []string) (map[string]*kafkaTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	m, err := k.transport.RoundTrip(ctx, k.addr, &metadataRequest{brokerCall: k.call(-1), topics: names})
	if err != nil {
		return nil, fmt.Errorf("kafka metadata: %w", err)
	}
	res, ok := m.(*metadataResponse)
	if !ok {
		return nil, fmt.Errorf("kafka metadata: answered by %T", m)
	}
	for _, name := range names {
		if res.topics[name] == nil {
			res.topics[name] = &kafkaTopic{err: kafka.UnknownTopicOrPartition}
		}
	}
	return res.topics, nil
}
