package sinks

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"delaybridge"
)

// errNotConnected marks that a broker could not be reached, or did not take a
// request as a whole.
var errNotConnected = errors.New("not connected to Kafka")

// isMisrouted reports whether a partition has, for now, another leader than the
// one that was asked, or none.
func isMisrouted(code kafka.Error) bool {
	switch code {
	case kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition,
		kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch:
		return true
	}
	return false
}

// isOfRecord reports whether a whole record batch was refused on account of
// some of its records, or of its size. Nothing of it was stored.
func isOfRecord(code kafka.Error) bool {
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord,
		kafka.InvalidTimestamp, kafka.PolicyViolation,
		// Old brokers say so of a record without a key for a compacted topic.
		kafka.InvalidMessage:
		return true
	}
	return false
}

// produceError judges what a broker says of a record batch.
func produceError(code kafka.Error, text string) error {
	err := fmt.Errorf("Kafka: %w", code)
	if text != "" {
		err = fmt.Errorf("%w (%s)", err, text)
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord,
		kafka.InvalidTimestamp, kafka.PolicyViolation,
		kafka.InvalidTopic, kafka.TopicAuthorizationFailed:
		return delaybridge.Permanent(err)
	case kafka.RequestTimedOut, kafka.NotEnoughReplicasAfterAppend, kafka.NetworkException, kafka.Unknown:
		// The leader has stored it, or may have; the replicas may follow yet.
		return err
	}
	return delaybridge.Transient(err)
}

// topicError judges what a broker says of a topic that it was asked about.
func topicError(name string, code kafka.Error) error {
	err := fmt.Errorf("topic %q: %w", name, code)
	switch code {
	case kafka.InvalidTopic, kafka.TopicAuthorizationFailed:
		return delaybridge.Permanent(err)
	}
	return delaybridge.Transient(err)
}
