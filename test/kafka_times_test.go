package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestKafkaTimestamps schedules by records whose own times are far off. The
// delay counts from them, except from one in the future, and what is delivered
// has the time of its delivery: an old one would be removed by retention at
// once, one far ahead is refused by Kafka 4.
//
// elastic/docs-content#2587, apache/kafka#18106 (B45).
func TestKafkaTimestamps(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	const month = 30 * 24 * time.Hour
	// The source has to take such times, and to keep them.
	w.in = w.kafka.Topic(t, 1, "message.timestamp.after.max.ms=9223372036854775807", "retention.ms=-1")
	w.run(t, Env{"KAFKA_INGEST_TOPICS": w.in, "MAX_DELAY": "60d"})
	log := w.watch(t, w.out)
	began := time.Now()
	for _, row := range []struct {
		about string
		ahead time.Duration // of the record's time from now
		delay time.Duration
		due   time.Duration // from now
	}{
		{"two hours ahead, which counts as now", 2 * time.Hour, time.Second, time.Second},
		{"a month ago, due a month ago", -month, time.Second, -month + time.Second},
		{"a month ago, due in a second", -month, month + time.Second, time.Second},
		{"a month ahead, due at once", month, 0, 0},
		{"a second ago", -time.Second, 2 * time.Second, time.Second},
	} {
		r := request(row.about, "Bridge-Target: kafka://"+w.out, fmt.Sprintf("Bridge-Delay: %dms", row.delay.Milliseconds()))
		r.Timestamp = time.Now().Add(row.ahead).Truncate(time.Millisecond)
		before := time.Now().Truncate(time.Millisecond)
		w.send(t, r)
		got := log.await(t, row.about)
		due, scheduled := headerTime(t, got.Record, "Bridge-Due-At"), headerTime(t, got.Record, "Bridge-Scheduled-At")
		if row.ahead < 0 && !scheduled.Equal(r.Timestamp) {
			t.Errorf("%s: the delay counts from %v, not from the record's time %v", row.about, scheduled, r.Timestamp)
		}
		if row.ahead > 0 && (scheduled.Before(before) || scheduled.After(got.at)) {
			t.Errorf("%s: the delay counts from %v, sent at %v", row.about, scheduled, before)
		}
		if due.Sub(scheduled) != row.delay || due.Before(before.Add(row.due)) || due.After(got.at.Add(row.due)) {
			t.Errorf("%s: due at %v, sent at %v", row.about, due, before)
		}
		if got.at.Before(due) {
			t.Errorf("%s: it arrived %v early", row.about, due.Sub(got.at))
		}
		if got.Timestamp.Before(began.Add(-time.Second)) || got.Timestamp.After(time.Now().Add(time.Second)) {
			t.Errorf("%s: it has the time %v, and now is %v", row.about, got.Timestamp, time.Now())
		}
	}
	// Too far ahead of its own time, though not of now.
	r := request("too far", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 61d")
	r.Timestamp = time.Now().Add(-month)
	w.send(t, r)
	w.awaitDead(t, fmt.Sprintf("rejected:kafka:%s:0:%d", w.in, r.Offset), "rejected")
}

// TestKafkaTopicThatAppearsLater has a bridge wait for one topic to read while
// it reads another, and take it in once it is there, with more partitions later.
func TestKafkaTopicThatAppearsLater(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	late := w.in + "-late"
	p := w.run(t, Env{"KAFKA_INGEST_TOPICS": w.in + "," + late})
	log := w.watch(t, w.out)
	p.Await(t, "waiting for the topics to read")
	w.send(t, request("before", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 0s"))
	log.await(t, "before")

	w.kafka.CreateTopic(t, late, 1)
	// It is written to before the bridge has heard of it.
	r := request("created", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 0s")
	r.Topic = late
	w.send(t, r)
	log.await(t, "created")

	w.kafka.AddPartitions(t, late, 3)
	r = request("new partition", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 0s")
	r.Topic, r.Partition = late, 2
	producer := w.kafka.Client(t)
	if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	log.await(t, "new partition")
	w.send(t, request("after", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 0s"))
	log.await(t, "after")
	if n := len(log.all()); n != 4 {
		t.Errorf("%d records arrived, not 4: %q", n, valuesOf(log.all()))
	}
}

// TestKafkaTargetThatAppearsLater sends to a topic that does not exist: the
// message is tried again, becomes a dead letter with its reason when attempts
// run out, delays nothing beside it, and goes out when it is replayed after the
// topic was made.
func TestKafkaTargetThatAppearsLater(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	missing := w.out + "-missing"
	w.run(t, Env{"MAX_ATTEMPTS": "3", "RETRY_BASE": "200ms", "RETRY_MAX": "400ms"})
	log := w.watch(t, w.out)
	lost := &kgo.Record{Key: []byte("k"), Value: []byte("lost"), Headers: request("",
		"Bridge-Target: kafka://"+missing, "Bridge-Delay: 100ms", "Bridge-Id: lost", "trace: one").Headers}
	w.send(t, lost)
	for i := range 20 {
		w.send(t, request(fmt.Sprint("beside-", i), "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 100ms"))
	}
	log.awaitCount(t, 20)
	w.awaitDead(t, "lost", "attempts")
	letter := decode(t, Run(t, w.env, "", "dead", "show", "lost", "-o", "json").Stdout)
	if reason, _ := letter["error"].(string); letter["attempts"] != float64(3) || letter["target"] != "kafka://"+missing || !strings.Contains(reason, "Unknown Topic") {
		t.Errorf("the dead letter is %v", letter)
	}
	for _, r := range log.all() {
		if header(r.Record, "Bridge-Attempt") != "1" {
			t.Errorf("%s took %s attempts", r.Value, header(r.Record, "Bridge-Attempt"))
		}
	}

	w.kafka.CreateTopic(t, missing, 1)
	if r := Run(t, w.env, "", "dead", "replay", "lost"); r.Code != 0 {
		t.Fatalf("replay: %+v", r)
	}
	got := w.watch(t, missing).await(t, "lost")
	if string(got.Key) != "k" || header(got.Record, "trace") != "one" || header(got.Record, "Bridge-Id") != "lost" {
		t.Errorf("it arrived as %q: %q", got.Key, got.Headers)
	}
	w.awaitEmpty(t)
}
