package test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge/test/servers"
)

// sourceEnd is where a test's requests go in.
type sourceEnd interface {
	// send returns once the broker has the request, with the earliest moment at
	// which its delay can have begun.
	send(t *testing.T, payload string, headers ...string) time.Time
	// forgetReader has the broker give at once to the next process what the last
	// one, which is dead, did not acknowledge: no test waits for its time-outs.
	forgetReader(t *testing.T)
	// drained says whether everything is acknowledged.
	drained(t *testing.T) bool
}

// targetEnd is where they come out.
type targetEnd interface {
	// target is the Bridge-Target of a name.
	target(name string) string
	// missing is a target that the broker does not have.
	missing() string
	// arrivals are all publishes so far, in order.
	arrivals() []Arrival
	// keeps returns how many copies of an id the broker keeps for its consumers.
	keeps(t *testing.T, id string) int
}

// natsEnd is both ends on NATS.
type natsEnd struct {
	js    jetstream.JetStream
	table *Timetable
	sink  string
}

func newNATSEnd(t *testing.T, server *servers.NATS, sink string) *natsEnd {
	t.Helper()
	js := server.JetStream(t)
	stream(t, js, "ORDERS", "orders.>")
	return &natsEnd{js: js, table: NewTimetable(t, server.Connect(t), "orders.>"), sink: sink}
}

func (e *natsEnd) send(t *testing.T, payload string, headers ...string) time.Time {
	return publish(t, e.js, "bridge.schedule", payload, headers...)
}

// forgetReader deletes the consumer. The stream is a work queue: it still holds
// what was not acknowledged, and only that.
func (e *natsEnd) forgetReader(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.js.DeleteConsumer(ctx, "BRIDGE_SCHEDULE", "bridge"); err != nil {
		t.Fatalf("delete the consumer: %v", err)
	}
}

func (e *natsEnd) drained(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := e.js.Stream(ctx, "BRIDGE_SCHEDULE")
	return err == nil && s.CachedInfo().State.Msgs == 0
}

func (e *natsEnd) target(name string) string { return e.sink + "://orders." + name }
func (e *natsEnd) missing() string           { return e.sink + "://nowhere.x" }
func (e *natsEnd) arrivals() []Arrival       { return e.table.Arrivals() }

func (e *natsEnd) keeps(t *testing.T, id string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := e.js.Stream(ctx, "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		if m, err := s.GetMsg(ctx, seq); err == nil && m.Header.Get("Bridge-Id") == id {
			n++
		}
	}
	return n
}

// kafkaEnd is both ends on Kafka: a topic of one partition to go in, which has
// an order, and one to come out.
type kafkaEnd struct {
	kafka          *servers.Kafka
	in, out, group string
	producer       *kgo.Client
	sent           int64
	table          *Timetable
}

func newKafkaEnd(t *testing.T, kafka *servers.Kafka) *kafkaEnd {
	t.Helper()
	e := &kafkaEnd{
		kafka: kafka, in: kafka.Topic(t, 1), out: kafka.Topic(t, 1), group: servers.TopicName(t),
		table: &Timetable{more: make(chan struct{}), expected: map[string]interval{}},
	}
	e.producer = kafka.Client(t)
	readTopic(t, kafka, e.out, e.table.add)
	return e
}

// readTopic hands on everything that a topic holds and gets, until the test ends.
func readTopic(t *testing.T, kafka *servers.Kafka, topic string, add func(Arrival)) {
	t.Helper()
	reader := kafka.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(250*time.Millisecond))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			fetches := reader.PollFetches(ctx)
			at := time.Now()
			fetches.EachRecord(func(r *kgo.Record) {
				a := Arrival{Subject: r.Topic, Header: nats.Header{}, Payload: string(r.Value), At: at}
				for _, h := range r.Headers {
					a.Header.Add(h.Key, string(h.Value))
				}
				a.ID = a.Header.Get("Bridge-Id")
				add(a)
			})
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (e *kafkaEnd) send(t *testing.T, payload string, headers ...string) time.Time {
	t.Helper()
	r := &kgo.Record{Topic: e.in, Value: []byte(payload)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sent := time.Now()
	if err := e.producer.ProduceSync(ctx, r).FirstErr(); err != nil {
		t.Fatalf("produce to %s: %v", e.in, err)
	}
	e.sent++
	// The record's time has no more than milliseconds.
	return sent.Truncate(time.Millisecond)
}

// forgetReader takes the dead member out of its group.
func (e *kafkaEnd) forgetReader(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ask := kmsg.NewPtrDescribeGroupsRequest()
	ask.Groups = []string{e.group}
	groups, err := ask.RequestWith(ctx, e.producer)
	if err != nil {
		t.Fatalf("describe group %s: %v", e.group, err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = e.group
	for _, g := range groups.Groups {
		for _, m := range g.Members {
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			leave.Members = append(leave.Members, member)
		}
	}
	if _, err := leave.RequestWith(ctx, e.producer); err != nil {
		t.Fatalf("empty group %s: %v", e.group, err)
	}
}

func (e *kafkaEnd) drained(t *testing.T) bool {
	t.Helper()
	return e.kafka.Committed(t, e.group, e.in, 0) == e.sent
}

func (e *kafkaEnd) target(name string) string { return "kafka://" + e.out }
func (e *kafkaEnd) missing() string           { return "kafka://" + e.out + "-missing" }
func (e *kafkaEnd) arrivals() []Arrival       { return e.table.Arrivals() }

func (e *kafkaEnd) keeps(_ *testing.T, id string) int {
	n := 0
	for _, a := range e.arrivals() {
		if a.ID == id {
			n++
		}
	}
	return n
}
