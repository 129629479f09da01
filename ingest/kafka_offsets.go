package ingest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
)

// topicPartition names one partition.
type topicPartition struct {
	topic     string
	partition int32
}

// byTopic groups partitions as requests want them.
func byTopic(parts []topicPartition) map[string][]int32 {
	topics := make(map[string][]int32)
	for _, p := range parts {
		topics[p.topic] = append(topics[p.topic], p.partition)
	}
	return topics
}

// committedOffset is what a group has committed for a partition.
type committedOffset struct {
	offset int64 // -1: nothing
	epoch  int32 // of the leader that wrote the last record before offset, -1 if not known
	// mark is the incarnation of the topic that the offset belongs to, kept in
	// the commit's metadata; empty if who committed it wrote none.
	mark string
}

// logRange is what a partition holds: offsets from first up to, not including, end.
type logRange struct {
	first, end int64
}

// listRanges asks a leader what its partitions hold. Partitions that it does
// not answer for are left out.
func (k *Kafka) listRanges(ctx context.Context, leader int32, parts []topicPartition) (map[topicPartition]logRange, error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	// A request may name a partition but once, so the two ends are asked for apart.
	first, err := k.listOffsets(ctx, leader, parts, kafka.FirstOffset)
	if err != nil {
		return nil, err
	}
	end, err := k.listOffsets(ctx, leader, parts, kafka.LastOffset)
	if err != nil {
		return nil, err
	}
	ranges := make(map[topicPartition]logRange)
	for p, offset := range first {
		if e, ok := end[p]; ok {
			ranges[p] = logRange{offset, e}
		}
	}
	return ranges, nil
}

func (k *Kafka) listOffsets(ctx context.Context, leader int32, parts []topicPartition, which int64) (map[topicPartition]int64, error) {
	return k.listOffsetsAs(ctx, leader, parts, which, &listoffsets.Request{ReplicaID: -1})
}

// listOffsetsAs adds the partitions to a request and sends it.
func (k *Kafka) listOffsetsAs(ctx context.Context, leader int32, parts []topicPartition, which int64, req *listoffsets.Request) (map[topicPartition]int64, error) {
	for topic, partitions := range byTopic(parts) {
		t := listoffsets.RequestTopic{Topic: topic}
		for _, p := range partitions {
			t.Partitions = append(t.Partitions, listoffsets.RequestPartition{Partition: p, CurrentLeaderEpoch: -1, Timestamp: which})
		}
		req.Topics = append(req.Topics, t)
	}
	m, err := k.transport.RoundTrip(ctx, k.addr, &onBroker{brokerCall: k.call(leader), Message: req})
	if err != nil {
		return nil, fmt.Errorf("kafka offsets: %w", err)
	}
	res, ok := m.(*listoffsets.Response)
	if !ok {
		return nil, fmt.Errorf("kafka offsets: answered by %T", m)
	}
	offsets := make(map[topicPartition]int64)
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				offsets[topicPartition{t.Topic, p.Partition}] = p.Offset
			}
		}
	}
	return offsets, nil
}

// fetchCommitted asks the group's coordinator what the group has committed.
func (k *Kafka) fetchCommitted(ctx context.Context, parts []topicPartition) (map[topicPartition]committedOffset, error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	req := &offsetfetch.Request{GroupID: k.cfg.Group}
	for topic, partitions := range byTopic(parts) {
		req.Topics = append(req.Topics, offsetfetch.RequestTopic{Name: topic, PartitionIndexes: partitions})
	}
	m, err := k.transport.RoundTrip(ctx, k.addr, req)
	if err != nil {
		return nil, fmt.Errorf("kafka committed offsets: %w", err)
	}
	res, ok := m.(*offsetfetch.Response)
	if !ok {
		return nil, fmt.Errorf("kafka committed offsets: answered by %T", m)
	}
	if res.ErrorCode != 0 {
		return nil, fmt.Errorf("kafka committed offsets: %w", kafka.Error(res.ErrorCode))
	}
	committed := make(map[topicPartition]committedOffset)
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return nil, fmt.Errorf("kafka committed offset of %s/%d: %w", t.Name, p.PartitionIndex, kafka.Error(p.ErrorCode))
			}
			committed[topicPartition{t.Name, p.PartitionIndex}] = committedOffset{p.CommittedOffset, p.ComittedLeaderEpoch, p.Metadata}
		}
	}
	for _, p := range parts {
		if _, ok := committed[p]; !ok {
			return nil, fmt.Errorf("kafka committed offsets: no answer for %s/%d", p.topic, p.partition)
		}
	}
	return committed, nil
}

// commit has the group's coordinator take offsets down, in the name of one
// generation's member: those of a former owner are refused. The errors are by
// partition.
func (k *Kafka) commit(ctx context.Context, gen *kafka.Generation, offsets map[topicPartition]committedOffset) (map[topicPartition]error, error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	req := &offsetcommit.Request{GroupID: k.cfg.Group, GenerationID: gen.ID, MemberID: gen.MemberID, RetentionTimeMs: -1}
	for topic, partitions := range byTopic(slices.Collect(maps.Keys(offsets))) {
		t := offsetcommit.RequestTopic{Name: topic}
		for _, p := range partitions {
			c := offsets[topicPartition{topic, p}]
			t.Partitions = append(t.Partitions, offsetcommit.RequestPartition{
				PartitionIndex: p, CommittedOffset: c.offset, CommittedMetadata: c.mark, CommittedLeaderEpoch: c.epoch,
			})
		}
		req.Topics = append(req.Topics, t)
	}
	m, err := k.transport.RoundTrip(ctx, k.addr, req)
	if err != nil {
		return nil, fmt.Errorf("kafka commit: %w", err)
	}
	res, ok := m.(*offsetcommit.Response)
	if !ok {
		return nil, fmt.Errorf("kafka commit: answered by %T", m)
	}
	errs := make(map[topicPartition]error)
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			errs[topicPartition{t.Name, p.PartitionIndex}] = kafkaError(p.ErrorCode)
		}
	}
	return errs, nil
}
