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

// TestCrossings carries key, value and headers from Kafka to NATS by one bridge,
// and back by another that knows nothing of the first. The way over NATS keeps
// what NATS cannot express.
func TestCrossings(t *testing.T) {
	t.Parallel()
	w, kafka := newWorld(t), servers.SharedKafka(t)
	in, out := kafka.Topic(t, 1), kafka.Topic(t, 1)
	stream(t, w.js, "BACK", "back.>")
	brokers := strings.Join(kafka.Brokers, ",")
	w.serve(t, Env{"KAFKA_BROKERS": brokers, "KAFKA_INGEST_TOPICS": in, "KAFKA_INGEST_GROUP": servers.TopicName(t)})
	w.serve(t, Env{
		"NAMESPACE": "second", "KAFKA_BROKERS": brokers, "KAFKA_INGEST_TOPICS": "none-such", "KAFKA_INGEST_GROUP": servers.TopicName(t),
		"NATS_INGEST_SUBJECTS": "back.>", "ROUTES": "nats://back.> -> kafka://" + out + " delay=50ms",
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()

	bytes := map[string][]byte{"null": nil, "empty": {}, "present": []byte("p\x00\xff")}
	producer := kafka.Client(t)
	for key, k := range bytes {
		for value, v := range bytes {
			err := producer.ProduceSync(ctx, &kgo.Record{Topic: in, Key: k, Value: v, Headers: []kgo.RecordHeader{
				{Key: "Bridge-Target", Value: []byte("nats://back." + key + "." + value)},
				{Key: "Bridge-Delay", Value: []byte("50ms")},
				{Key: "a header", Value: []byte(key + "/" + value)}, // no name for NATS
				{Key: "gone", Value: nil},
			}}).FirstErr()
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	reader := kafka.Client(t, kgo.ConsumeTopics(out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	seen := map[string]bool{}
	for len(seen) < len(bytes)*len(bytes) {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("only %d arrived: %v", len(seen), err)
		}
		for _, r := range fetches.Records() {
			name, gone := "", false
			for _, h := range r.Headers {
				switch h.Key {
				case "a header":
					name = string(h.Value)
				case "gone":
					gone = h.Value == nil
				}
			}
			key, value, _ := strings.Cut(name, "/")
			seen[name] = true
			if !same(r.Key, bytes[key]) || !same(r.Value, bytes[value]) || !gone {
				t.Errorf("%s came as key %q (null %v), value %q (null %v), null header kept: %v",
					name, r.Key, r.Key == nil, r.Value, r.Value == nil, gone)
			}
		}
	}
}

// same tells null from empty.
func same(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }
