package test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"delaybridge/test/servers"
)

// kafkaWorld is a world with a part of the Kafka that all tests use: a topic to
// schedule on, one that is a target, and a group, all of the test's own.
type kafkaWorld struct {
	*world
	kafka          *servers.Kafka
	in, out, group string
	producer       *kgo.Client
}

// newKafkaWorld has no NATS.
func newKafkaWorld(t *testing.T, partitions int) *kafkaWorld {
	t.Helper()
	redis := servers.NewRedis(t)
	return withKafka(t, &world{redis: redis, env: Env{"REDIS_URL": redis.URL}}, partitions)
}

func withKafka(t *testing.T, w *world, partitions int) *kafkaWorld {
	t.Helper()
	k := servers.SharedKafka(t)
	kw := &kafkaWorld{world: w, kafka: k, in: k.Topic(t, partitions), out: k.Topic(t, partitions), group: servers.TopicName(t)}
	kw.producer = k.Client(t)
	w.env = w.env.With(Env{
		"KAFKA_BROKERS": strings.Join(k.Brokers, ","), "KAFKA_INGEST_TOPICS": kw.in, "KAFKA_INGEST_GROUP": kw.group,
	})
	return kw
}

// send has the broker confirm records, which go to the topic to schedule on
// unless they name another.
func (w *kafkaWorld) send(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, r := range records {
		if r.Topic == "" {
			r.Topic = w.in
		}
	}
	if err := w.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// request is a record with headers, each "Name: value".
func request(value string, headers ...string) *kgo.Record {
	r := &kgo.Record{Value: []byte(value)}
	for _, h := range headers {
		name, v, _ := strings.Cut(h, ": ")
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(v)})
	}
	return r
}

// header returns the value of a record's first header of that name, "" for none.
func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// headerTime returns the time in a header of the bridge's own.
func headerTime(t testing.TB, r *kgo.Record, name string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, header(r, name))
	if err != nil {
		t.Fatalf("%s: %s: %v", r.Value, name, err)
	}
	return at
}

// passed returns the headers of a delivered record but the bridge's own.
func passed(r *kgo.Record) []kgo.RecordHeader {
	return slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "Bridge-") })
}

// arrivedRecord is a record, and when its consumer had it.
type arrivedRecord struct {
	*kgo.Record
	at time.Time
}

// topicLog is everything that arrives on some topics.
type topicLog struct {
	mu      sync.Mutex
	records []arrivedRecord
	more    chan struct{}
}

// watch reads topics from their start until the test ends.
func (w *kafkaWorld) watch(t *testing.T, topics ...string) *topicLog {
	t.Helper()
	return watchTopics(t, w.kafka, topics)
}

func watchTopics(t *testing.T, k *servers.Kafka, topics []string, options ...kgo.Opt) *topicLog {
	t.Helper()
	l := &topicLog{more: make(chan struct{})}
	c := k.Client(t, append([]kgo.Opt{
		kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100 * time.Millisecond),
	}, options...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			fetches := c.PollFetches(ctx)
			at := time.Now()
			l.mu.Lock()
			fetches.EachRecord(func(r *kgo.Record) { l.records = append(l.records, arrivedRecord{r, at}) })
			close(l.more)
			l.more = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	return l
}

// all returns what has arrived so far.
func (l *topicLog) all() []arrivedRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// await waits until a record with that value has arrived, and returns the first.
func (l *topicLog) await(t testing.TB, value string) arrivedRecord {
	t.Helper()
	is := func(r arrivedRecord) bool { return string(r.Value) == value }
	var got []arrivedRecord
	if !l.until(func(all []arrivedRecord) bool { got = all; return slices.ContainsFunc(all, is) }) {
		t.Fatalf("%q did not arrive in time; %d others did: %.20q", value, len(got), valuesOf(got))
	}
	return got[slices.IndexFunc(got, is)]
}

// awaitCount waits until n records have arrived, and returns all.
func (l *topicLog) awaitCount(t testing.TB, n int) []arrivedRecord {
	t.Helper()
	var got []arrivedRecord
	if !l.until(func(all []arrivedRecord) bool { got = all; return len(all) >= n }) {
		t.Fatalf("%d records arrived in time, not %d", len(got), n)
	}
	return got
}

// until waits until ok, for as long as something arrives at least every two patiences.
func (l *topicLog) until(ok func([]arrivedRecord) bool) bool {
	last, limit := -1, time.Now()
	for {
		l.mu.Lock()
		all, more := slices.Clip(l.records), l.more // which only ever grow
		l.mu.Unlock()
		if ok(all) {
			return true
		}
		if len(all) != last {
			last, limit = len(all), time.Now().Add(2*patience)
		}
		if time.Now().After(limit) {
			return false
		}
		select {
		case <-more:
		case <-time.After(time.Second):
		}
	}
}

func valuesOf(records []arrivedRecord) []string {
	values := make([]string, len(records))
	for i, r := range records {
		values[i] = string(r.Value)
	}
	return values
}

// resetOffsets has a group that has no members begin at the topic's start, as
// an operator's tool does it.
func (w *kafkaWorld) resetOffsets(t *testing.T, topic string, partitions int) {
	t.Helper()
	// Later versions name the topic by its id.
	c := w.kafka.Client(t, kgo.MaxVersions(kversion.V3_0_0()))
	defer c.Close()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = w.group, -1
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = topic
	for p := range partitions {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset = int32(p), 0
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	var err error
	if !servers.Eventually(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var resp *kmsg.OffsetCommitResponse
		if resp, err = req.RequestWith(ctx, c); err != nil {
			return false
		}
		for _, p := range resp.Topics[0].Partitions {
			if err = kerr.ErrorForCode(p.ErrorCode); err != nil {
				return false
			}
		}
		return true
	}) {
		t.Fatalf("reset the offsets of group %s: %v", w.group, err)
	}
}

// run starts a bridge that knows no NATS.
func (w *kafkaWorld) run(t *testing.T, more Env) *Process {
	t.Helper()
	return Serve(t, w.env.With(more))
}

// awaitDead waits until an id is a dead letter, and holds it to its reason.
func (w *kafkaWorld) awaitDead(t *testing.T, id, reason string) {
	t.Helper()
	var last Ran
	if !servers.Eventually(func() bool { last = Run(t, w.env, "", "dead", "show", id, "-o", "json"); return last.Code == 0 }) {
		t.Fatalf("%s is no dead letter: %+v", id, last)
	}
	if got := decode(t, last.Stdout)["reason"]; got != reason {
		t.Errorf("%s is dead for the reason %v, not %s", id, got, reason)
	}
}
