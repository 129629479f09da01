package test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// TestKafkaToKafka delays a record with nothing but Kafka and Redis.
func TestKafkaToKafka(t *testing.T) {
	t.Parallel()
	redis, kafka := servers.NewRedis(t), servers.SharedKafka(t)
	in, out := kafka.Topic(t, 2), kafka.Topic(t, 2)
	Serve(t, Env{
		"REDIS_URL": redis.URL, "KAFKA_BROKERS": strings.Join(kafka.Brokers, ","),
		"KAFKA_INGEST_TOPICS": in, "KAFKA_INGEST_GROUP": servers.TopicName(t),
	})

	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	sent := time.Now()
	err := kafka.Client(t).ProduceSync(ctx, &kgo.Record{
		Topic: in, Key: []byte("order-7"), Value: []byte(`{"order":7}`),
		Headers: []kgo.RecordHeader{
			{Key: "Bridge-Target", Value: []byte("kafka://" + out)},
			{Key: "Bridge-Delay", Value: []byte("1s")},
			{Key: "trace", Value: []byte("one")}, {Key: "trace", Value: nil},
		},
	}).FirstErr()
	if err != nil {
		t.Fatal(err)
	}
	reader := kafka.Client(t, kgo.ConsumeTopics(out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	fetches := reader.PollFetches(ctx)
	at := time.Now()
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	r := fetches.Records()[0]
	if string(r.Key) != "order-7" || string(r.Value) != `{"order":7}` {
		t.Errorf("arrived: %q: %q", r.Key, r.Value)
	}
	// The record's time has no more than milliseconds.
	if early := sent.Truncate(time.Millisecond).Add(time.Second).Sub(at); early > 0 {
		t.Errorf("it arrived %v early", early)
	}
	var trace []string
	for _, h := range r.Headers {
		if h.Key == "trace" {
			if h.Value == nil {
				trace = append(trace, "null")
			} else {
				trace = append(trace, string(h.Value))
			}
		}
	}
	if strings.Join(trace, ",") != "one,null" {
		t.Errorf("header trace is %q", trace)
	}
}
