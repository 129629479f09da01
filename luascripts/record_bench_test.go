package luascripts

import (
	"testing"
	"time"

	"delaybridge"
)

func benchMessage() *delaybridge.Message {
	p := delaybridge.Position{Source: "nats:BRIDGE_SCHEDULE", Offset: 1234567}
	return &delaybridge.Message{
		ID: p.String(), Position: p, Target: delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "orders.timeout"},
		Scheduled: time.UnixMilli(epoch), Due: time.UnixMilli(epoch + 90_000),
		Headers: []delaybridge.Header{{Name: "Content-Type", Value: []byte("application/json")}},
		Payload: make([]byte, 256),
	}
}

func BenchmarkEncodeMessage(b *testing.B) {
	m := benchMessage()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encodeMessage(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	m := benchMessage()
	body, err := encodeMessage(m)
	if err != nil {
		b.Fatal(err)
	}
	record := "1 =\n" + string(body)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decodeRecord(m.ID, record); err != nil {
			b.Fatal(err)
		}
	}
}
