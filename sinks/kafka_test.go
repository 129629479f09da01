package sinks_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/sinks/sinktest"
	"delaybridge/test/servers"
)

// newKafkaSink returns a sink whose connections all go to addr, if it is given,
// whatever address the broker calls itself by.
func newKafkaSink(t *testing.T, brokers []string, addr string, change ...func(*sinks.KafkaConfig)) *sinks.Kafka {
	t.Helper()
	cfg := sinks.DefaultKafkaConfig()
	cfg.Brokers = brokers
	if addr != "" {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := sinks.NewKafka(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func kafkaClaim(topic, id string) delaybridge.Claim {
	return sinktest.Claim(delaybridge.Target{Sink: delaybridge.SinkKafka, Name: topic}, id)
}

// readTopic returns all records of a topic, of one partition after the other.
func readTopic(t *testing.T, k *servers.Kafka, topic string) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := k.Client(t)
	defer admin.Close()
	about := kmsg.NewMetadataRequestTopic()
	about.Topic = &topic
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = append(meta.Topics, about)
	layout, err := meta.RequestWith(ctx, admin)
	if err != nil {
		t.Fatal(err)
	}
	offsets := kmsg.NewPtrListOffsetsRequest()
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	from := map[int32]kgo.Offset{}
	for _, p := range layout.Topics[0].Partitions {
		a := kmsg.NewListOffsetsRequestTopicPartition()
		a.Partition, a.Timestamp = p.Partition, -1
		asked.Partitions = append(asked.Partitions, a)
		from[p.Partition] = kgo.NewOffset().At(0)
	}
	offsets.Topics = append(offsets.Topics, asked)
	left := int64(0)
	for _, shard := range admin.RequestSharded(ctx, offsets) {
		if shard.Err != nil {
			t.Fatal(shard.Err)
		}
		for _, p := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
			left += p.Offset
		}
	}
	consumer := k.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	defer consumer.Close()
	var out []*kgo.Record
	for int64(len(out)) < left {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), left, err)
		}
		out = append(out, fetches.Records()...)
	}
	slices.SortStableFunc(out, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	return out
}

func deliveredRecord(t *testing.T, r *kgo.Record) sinktest.Delivered {
	t.Helper()
	d := sinktest.Delivered{Key: r.Key, Payload: r.Value, Bridge: map[string]string{}}
	for _, h := range r.Headers {
		switch h.Key {
		case "Bridge-Id", "Bridge-Scheduled-At", "Bridge-Due-At", "Bridge-Attempt", "Bridge-Hops":
			if d.Bridge[h.Key] != "" {
				t.Errorf("%s stands there twice", h.Key)
			}
			d.Bridge[h.Key] = string(h.Value)
		default:
			d.Headers = append(d.Headers, delaybridge.Header{Name: h.Key, Value: h.Value})
		}
	}
	return d
}

func kafkaFixture(broker *servers.Kafka) func(*testing.T, time.Duration) sinktest.Fixture {
	return func(t *testing.T, timeout time.Duration) sinktest.Fixture {
		link := sinktest.NewLink(t, broker.Brokers[0])
		return sinktest.Fixture{
			Features: sinktest.Features{HeaderOrder: true},
			Sink: newKafkaSink(t, broker.Brokers, link.Addr(), func(c *sinks.KafkaConfig) {
				c.PublishTimeout = timeout
			}),
			Link: link, TooLarge: 2 << 20,
			Missing: delaybridge.Target{Sink: delaybridge.SinkKafka, Name: servers.TopicName(t)},
			NewTarget: func() delaybridge.Target {
				return delaybridge.Target{Sink: delaybridge.SinkKafka, Name: broker.Topic(t, 4)}
			},
			Delivered: func(target delaybridge.Target) (out []sinktest.Delivered) {
				for _, r := range readTopic(t, broker, target.Name) {
					out = append(out, deliveredRecord(t, r))
				}
				return out
			},
		}
	}
}

// TestKafkaSuite runs on Apache Kafka where it can be had.
func TestKafkaSuite(t *testing.T) {
	sinktest.Run(t, kafkaFixture(servers.SharedKafka(t)))
}

func TestKfakeSuite(t *testing.T) {
	sinktest.Run(t, kafkaFixture(servers.NewKfake(t)))
}

func TestKafkaPartitionsAsJavaDoes(t *testing.T) {
	k := servers.NewKfake(t)
	const partitions = 7
	topic := k.Topic(t, partitions)
	sink := newKafkaSink(t, k.Brokers, "")
	keys := []string{"", "21", "foobar", "a-little-bit-long-string", "abc", "Schlüssel", "\x00\xff", " "}
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("key-%d-%s", i, strings.Repeat("x", i%9)))
	}
	var batch []delaybridge.Claim
	for _, key := range keys {
		c := kafkaClaim(topic, key)
		c.Key = []byte(key)
		batch = append(batch, c)
	}
	const nulls = 100
	for i := range nulls {
		batch = append(batch, kafkaClaim(topic, fmt.Sprint(i)))
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		want(t, batch[i].ID, err, "", "")
	}
	// The partitioner of another client, made after the Java producer's.
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	got, spread := 0, map[int32]int{}
	for _, r := range readTopic(t, k, topic) {
		if r.Key == nil {
			spread[r.Partition]++
			continue
		}
		got++
		if p := java.Partition(&kgo.Record{Key: r.Key}, partitions); int(r.Partition) != p {
			t.Errorf("key %q is in partition %d, a Java producer puts it into %d", r.Key, r.Partition, p)
		}
	}
	if got != len(keys) {
		t.Errorf("%d messages with keys arrived of %d", got, len(keys))
	}
	if len(spread) < 3 {
		t.Errorf("%d messages without a key went to partitions %v only", nulls, spread)
	}
}

func TestKafkaCloudEvents(t *testing.T) {
	h := func(pairs ...string) (out []delaybridge.Header) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, delaybridge.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
		}
		return out
	}
	k := servers.NewKfake(t)
	topic := k.Topic(t, 1)
	sink := newKafkaSink(t, k.Brokers, "")
	cases := []struct {
		sentence   string
		sent, want []delaybridge.Header
	}{
		{
			"an event from NATS gets the prefix of Kafka, and its media type as the content type",
			h("ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-myext", "ü 50%", "ce-datacontenttype", "text/plain", "other", "o"),
			h("ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_myext", "ü 50%", "other", "o", "content-type", "text/plain"),
		},
		{
			"an event that has come from Kafka over NATS is as it was",
			h("ce-specversion", "1.0", "content-type", "text/plain", "ce-datacontenttype", "text/plain"),
			h("ce_specversion", "1.0", "content-type", "text/plain"),
		},
		{
			"the attribute wins over a content type, however that is written",
			h("ce-specversion", "1.0", "Content-Type", "text/html", "ce-datacontenttype", "text/plain"),
			h("ce_specversion", "1.0", "content-type", "text/plain"),
		},
		{
			"a content type alone stays",
			h("ce-specversion", "1.0", "content-type", "text/plain"),
			h("ce_specversion", "1.0", "content-type", "text/plain"),
		},
		{
			"an event from Kafka stays as it is",
			h("ce_specversion", "1.0", "ce_datacontenttype", "x", "content-type", "text/plain"),
			h("ce_specversion", "1.0", "ce_datacontenttype", "x", "content-type", "text/plain"),
		},
		{
			"names of attributes become lower case",
			h("Ce-Specversion", "1.0", "CE-ID", "1"),
			h("ce_specversion", "1.0", "ce_id", "1"),
		},
		{
			"without a specversion it is no event",
			h("ce-id", "1"),
			h("ce-id", "1"),
		},
		{
			"structured mode passes",
			h("Content-Type", "application/cloudevents+json"),
			h("Content-Type", "application/cloudevents+json"),
		},
	}
	for i, c := range cases {
		claim := kafkaClaim(topic, fmt.Sprint(i))
		claim.Headers = c.sent
		want(t, c.sentence, sink.Publish(t.Context(), []delaybridge.Claim{claim})[0], "", "")
	}
	for i, r := range readTopic(t, k, topic) {
		if got := deliveredRecord(t, r).Headers; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", cases[i].want) {
			t.Errorf("%s: got %q, want %q", cases[i].sentence, got, cases[i].want)
		}
	}
}
