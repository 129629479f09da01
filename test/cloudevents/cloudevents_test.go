// Package cloudevents_test has the CloudEvents SDK encode events for one broker
// and decode them from another, with the bridge between.
package cloudevents_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	"github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// delay is how long the bridge holds each event.
const delay = 300 * time.Millisecond

// TestEvents sends every event in every mode through every crossing. What the
// consumer's side of the SDK decodes is equal to what the producer's encoded.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	for name, e := range events(t) {
		for _, mode := range []binding.Encoding{binding.EncodingBinary, binding.EncodingStructured} {
			for _, from := range []string{"kafka", "nats"} {
				for _, to := range []string{"kafka", "nats"} {
					t.Run(fmt.Sprintf("%s/%s from %s to %s", name, mode, from, to), func(t *testing.T) {
						t.Parallel()
						w.pass(t, e, mode, from, to)
					})
				}
			}
		}
	}
}

// events are those that differ in what can get lost.
func events(t *testing.T) map[string]event.Event {
	t.Helper()
	made := func(set func(*event.Event) error) event.Event {
		e := event.New()
		e.SetID("A234-1234-1234")
		e.SetSource("https://shop.example/orders")
		e.SetType("example.shop.order.placed")
		if err := set(&e); err != nil {
			t.Fatal(err)
		}
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		return e
	}
	return map[string]event.Event{
		"all attributes": made(func(e *event.Event) error {
			e.SetSubject("order 7: 50% off, “now”")
			e.SetTime(time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC))
			e.SetDataSchema("https://shop.example/schemas/order.json")
			e.SetExtension("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
			e.SetExtension("sequence", "0042")
			e.SetExtension("partitionkey", "order-7")
			return e.SetData("application/json", map[string]any{"order": 7, "text": "größer"})
		}),
		"text": made(func(e *event.Event) error { return e.SetData("text/plain; charset=utf-8", "later\n") }),
		"binary": made(func(e *event.Event) error {
			return e.SetData("application/octet-stream", []byte("\x00\xff\xfe not text"))
		}),
		"only what is required": made(func(*event.Event) error { return nil }),
		"an older version of the specification": made(func(e *event.Event) error {
			e.SetSpecVersion("0.3")
			e.SetExtension("sequence", "1")
			return e.SetData("application/json", 7)
		}),
	}
}

// pass sends one event and holds what arrives to it.
func (w *world) pass(t *testing.T, e event.Event, mode binding.Encoding, from, to string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	switch mode {
	case binding.EncodingBinary:
		ctx = binding.WithForceBinary(ctx)
	case binding.EncodingStructured:
		ctx = binding.WithForceStructured(ctx)
	}
	target, receive := w.onNATS(t)
	if to == "kafka" {
		target, receive = w.onKafka(t)
	}
	sent := time.Now().Truncate(time.Millisecond)
	if from == "kafka" {
		w.sendKafka(ctx, t, e, target)
	} else {
		w.sendNATS(ctx, t, e, target)
	}
	m := receive(ctx)
	if early := time.Until(sent.Add(delay)); early > 0 {
		t.Errorf("it arrived %v early", early)
	}
	if m.ReadEncoding() != mode {
		t.Fatalf("it arrived in %s mode", m.ReadEncoding())
	}
	got, err := binding.ToEvent(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	// The Kafka side of the SDK adds where it read the event.
	for _, added := range []string{"kafkaoffset", "kafkapartition", "kafkatopic"} {
		got.SetExtension(added, nil)
	}
	// Whether the data would be base64 in JSON is not part of the event.
	got.DataBase64 = e.DataBase64
	if got.String() != e.String() || !bytes.Equal(got.Data(), e.Data()) {
		t.Errorf("it arrived as\n%s\nand was sent as\n%s", got, e)
	}
	if !got.Time().Equal(e.Time()) {
		t.Errorf("its time is %v, was %v", got.Time(), e.Time())
	}
}

// steering are the headers that a producer adds for the bridge.
func steering(target string) map[string]string {
	return map[string]string{"Bridge-Target": target, "Bridge-Delay": delay.String()}
}

func (w *world) sendKafka(ctx context.Context, t *testing.T, e event.Event, target string) {
	t.Helper()
	var m sarama.ProducerMessage
	if err := kafka_sarama.WriteProducerMessage(ctx, binding.ToMessage(&e), &m); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: w.topic}
	for _, part := range []struct {
		from sarama.Encoder
		to   *[]byte
	}{{m.Key, &r.Key}, {m.Value, &r.Value}} {
		if part.from == nil {
			continue
		}
		b, err := part.from.Encode()
		if err != nil {
			t.Fatal(err)
		}
		*part.to = b
	}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
	}
	for name, value := range steering(target) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if err := w.producer.ProduceSync(ctx, r).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) sendNATS(ctx context.Context, t *testing.T, e event.Event, target string) {
	t.Helper()
	var body bytes.Buffer
	header, err := nats_jetstream.WriteMsg(ctx, binding.ToMessage(&e), &body)
	if err != nil {
		t.Fatal(err)
	}
	m := &nats.Msg{Subject: "bridge.schedule", Data: body.Bytes(), Header: nats.Header{}}
	for name, values := range header {
		m.Header[name] = values
	}
	if len(header) == 0 {
		// This SDK leaves the media type of a structured event out, which the
		// binding for NATS allows; consumers on Kafka cannot do without.
		m.Header.Set("content-type", event.ApplicationCloudEventsJSON)
	}
	for name, value := range steering(target) {
		m.Header.Set(name, value)
	}
	if _, err := w.js.PublishMsg(ctx, m); err != nil {
		t.Fatal(err)
	}
}

// onNATS returns a target of the test's own, and what receives there.
func (w *world) onNATS(t *testing.T) (target string, receive func(context.Context) binding.Message) {
	t.Helper()
	subject := "events." + servers.TopicName(t)
	sub, err := w.nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return "nats://" + subject, func(ctx context.Context) binding.Message {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return nats_jetstream.NewMessage(m)
	}
}

// onKafka returns a target of the test's own, and what receives there.
func (w *world) onKafka(t *testing.T) (target string, receive func(context.Context) binding.Message) {
	t.Helper()
	topic := w.kafka.Topic(t, 1)
	c := w.kafka.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return "kafka://" + topic, func(ctx context.Context) binding.Message {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		r := fetches.Records()[0]
		m := &sarama.ConsumerMessage{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, &sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		return kafka_sarama.NewMessageFromConsumerMessage(m)
	}
}

// world is a bridge with both brokers.
type world struct {
	kafka    *servers.Kafka
	producer *kgo.Client
	topic    string // to schedule on
	nc       *nats.Conn
	js       jetstream.JetStream
}

func newWorld(t *testing.T) *world {
	t.Helper()
	redis, server, kafka := servers.NewRedis(t), servers.NewNATS(t), servers.SharedKafka(t)
	w := &world{kafka: kafka, producer: kafka.Client(t), topic: kafka.Topic(t, 1), nc: server.Connect(t), js: server.JetStream(t)}
	for stream, subject := range map[string]string{"EVENTS": "events.>", "BRIDGE_SCHEDULE": "bridge.schedule"} {
		if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	bridge := filepath.Join(t.TempDir(), "bridge")
	build := exec.Command("go", "build", "-o", bridge, "./cmd/bridge")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var said bytes.Buffer
	cmd := exec.Command(bridge, "serve")
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "BRIDGE_METRICS_ADDR=", "BRIDGE_REDIS_URL=" + redis.URL, "BRIDGE_NATS_URL=" + server.URL,
		"BRIDGE_KAFKA_BROKERS=" + strings.Join(kafka.Brokers, ","), "BRIDGE_KAFKA_INGEST_TOPICS=" + w.topic,
		"BRIDGE_KAFKA_INGEST_GROUP=" + servers.TopicName(t),
	}
	// The process must not outlive a test binary that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("bridge said:\n%s", said.String())
		}
	})
	return w
}
