package sinks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/sinks/sinktest"
	"delaybridge/test/servers"
)

const benchBatch = 200

// BenchmarkNATSPublish is the sink with batches of 200; messages/s of it and of
// BenchmarkPublishMsgAsync are to be compared.
func BenchmarkNATSPublish(b *testing.B) {
	_, nc := benchStream(b)
	sink, err := sinks.NewNATS(nc, sinks.DefaultNATSConfig())
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]delaybridge.Claim, benchBatch)
	var n int
	for b.Loop() {
		for i := range batch {
			n++
			batch[i] = benchClaim(n)
		}
		for _, err := range sink.Publish(b.Context(), batch) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkPublishMsgAsync is the bare loop of the client: the same messages,
// nothing checked but that all are acknowledged.
func BenchmarkPublishMsgAsync(b *testing.B) {
	js, _ := benchStream(b)
	var n int
	for b.Loop() {
		for range benchBatch {
			n++
			c := benchClaim(n)
			m := &nats.Msg{Subject: c.Target.Name, Data: c.Payload, Header: nats.Header{
				"Bridge-Id": {c.ID}, "Nats-Msg-Id": {c.ID + ".0123456789abcdef"}, "Bridge-Attempt": {"1"},
				"Bridge-Scheduled-At": {"2031-02-03T04:04:06.007Z"}, "Bridge-Due-At": {"2031-02-03T04:05:06.007Z"},
				"content-type": {"text/plain"},
			}}
			if _, err := js.PublishMsgAsync(m); err != nil {
				b.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
}

func benchClaim(n int) delaybridge.Claim {
	c := sinktest.Claim(delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "bench.target"}, fmt.Sprint("message-", n))
	c.Position.Offset = uint64(n)
	c.Payload = []byte(strings.Repeat("x", 200))
	c.Headers = []delaybridge.Header{{Name: "content-type", Value: []byte("text/plain")}}
	return c
}

func benchStream(b *testing.B) (jetstream.JetStream, *nats.Conn) {
	s := servers.NewNATS(b)
	nc, err := nats.Connect(s.URL, sinks.NATSOptions(nil)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "BENCH", Subjects: []string{"bench.>"}, MaxMsgs: 100_000, Duplicates: 10 * time.Second,
	}); err != nil {
		b.Fatal(err)
	}
	return js, nc
}
