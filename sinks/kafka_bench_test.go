package sinks_test

import (
	"fmt"
	"strings"
	"testing"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/test/servers"
)

// BenchmarkKafkaPublish is the sink with batches of 200, one after the other.
func BenchmarkKafkaPublish(b *testing.B) {
	k := servers.SharedKafka(b)
	topic := k.Topic(b, 6)
	cfg := sinks.DefaultKafkaConfig()
	cfg.Brokers = k.Brokers
	sink, err := sinks.NewKafka(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	batch := make([]delaybridge.Claim, benchBatch)
	n := 0
	for b.Loop() {
		for i := range batch {
			n++
			batch[i] = kafkaClaim(topic, fmt.Sprint("message-", n))
			batch[i].Payload = []byte(strings.Repeat("x", 200))
		}
		for _, err := range sink.Publish(b.Context(), batch) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
}
