package ingest_test

import (
	"testing"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

// BenchmarkDecode reads one request: from headers, as an envelope, and one that a
// route completes.
func BenchmarkDecode(b *testing.B) {
	cfg := ingest.DefaultDecoderConfig()
	var err error
	if cfg.Routes, err = ingest.ParseRoutes("nats://later -> nats://orders.timeout delay=30s; nats://json format=json"); err != nil {
		b.Fatal(err)
	}
	d, err := ingest.NewDecoder(cfg)
	if err != nil {
		b.Fatal(err)
	}
	record := func(subject string, payload []byte, headers ...delaybridge.Header) ingest.Record {
		return ingest.Record{
			Position: delaybridge.Position{Source: "nats:BRIDGE_SCHEDULE", Offset: 1234567},
			Origin:   delaybridge.Target{Sink: delaybridge.SinkNATS, Name: subject},
			Time:     time.Now(), Headers: headers, Payload: payload,
		}
	}
	for _, row := range []struct {
		name string
		r    ingest.Record
	}{
		{"headers", record("bridge.schedule", make([]byte, 256),
			delaybridge.Header{Name: "Bridge-Target", Value: []byte("nats://orders.timeout")},
			delaybridge.Header{Name: "Bridge-Delay", Value: []byte("1h30m")},
			delaybridge.Header{Name: "Content-Type", Value: []byte("application/json")})},
		{"envelope", record("json", []byte(`{"target":"nats://orders.timeout","delay":"90s","payload":{"order":7,"items":[1,2,3]}}`))},
		{"route", record("later", make([]byte, 256))},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Parse(row.r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
