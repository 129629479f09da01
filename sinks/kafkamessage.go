package sinks

import (
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"delaybridge"
)

// kafkaHeaders returns a message's headers as Kafka is to have them.
func kafkaHeaders(c *delaybridge.Claim) []protocol.Header {
	pass := cloudEventForKafka(c.Headers)
	headers := make([]protocol.Header, 0, len(pass)+5)
	for _, h := range pass {
		if passes(h.Name) {
			headers = append(headers, protocol.Header{Key: h.Name, Value: h.Value})
		}
	}
	for _, h := range ownHeaders(c) {
		headers = append(headers, protocol.Header{Key: h.Name, Value: h.Value})
	}
	return headers
}

// kafkaRecord returns a message as a record, which can be sent once. Its time is
// left to be that of sending: a due time may be refused for lying in the future,
// and a source's time be old enough for retention to remove the message at once.
func kafkaRecord(c *delaybridge.Claim, headers []protocol.Header) protocol.Record {
	return protocol.Record{Key: protocol.NewBytes(c.Key), Value: protocol.NewBytes(c.Payload), Headers: headers}
}

// recordSize returns the most that a record may take up in a request, the fields
// of a batch included.
func recordSize(c *delaybridge.Claim, headers []protocol.Header) int {
	const (
		varint = 5
		batch  = 61
		// Attributes, and length, time, offset, key's and value's length, and the
		// number of headers.
		fixed = 1 + 6*varint
	)
	n := batch + fixed + len(c.Key) + len(c.Payload)
	for _, h := range headers {
		n += 2*varint + len(h.Key) + len(h.Value)
	}
	return n
}

// partitionOf returns the partition for a message: by its key as Java producers
// do it, with no key any one that has a leader.
func (t *kafkaTopic) partitionOf(c *delaybridge.Claim) int {
	choice := t.partitions
	if c.Key == nil && len(t.led) > 0 {
		choice = t.led
	}
	return kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: c.Key}, choice...)
}
