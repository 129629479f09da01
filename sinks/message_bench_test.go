package sinks

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"delaybridge"
)

func benchClaim() *delaybridge.Claim {
	p := delaybridge.Position{Source: "nats:BRIDGE_SCHEDULE", Offset: 1234567}
	return &delaybridge.Claim{Message: delaybridge.Message{
		ID: p.String(), Position: p, Target: delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "orders.timeout"},
		Scheduled: time.UnixMilli(1_790_000_000_123), Due: time.UnixMilli(1_790_000_090_123),
		Headers: []delaybridge.Header{
			{Name: "Content-Type", Value: []byte("application/json")},
			{Name: "Traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		},
		Payload: make([]byte, 256),
	}}
}

func BenchmarkJetStreamMessage(b *testing.B) {
	c := benchClaim()
	b.ReportAllocs()
	for b.Loop() {
		jetStreamMessage(c)
	}
}

func BenchmarkKafkaHeaders(b *testing.B) {
	c := benchClaim()
	b.ReportAllocs()
	for b.Loop() {
		kafkaHeaders(c)
	}
}

func BenchmarkAckError(b *testing.B) {
	m := &nats.Msg{Data: []byte(`{"stream":"ORDERS", "seq":1234567}`)}
	b.ReportAllocs()
	for b.Loop() {
		if err := ackError(m); err != nil {
			b.Fatal(err)
		}
	}
}
