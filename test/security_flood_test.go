package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// A flood is more than the bridge may keep in memory, in messages of almost 1 MiB.
const (
	floodMessages = 700
	floodPayload  = 1<<20 - 4<<10
	// floodBound is what docs/security.md promises for one source and one lane,
	// with the room that Go's collector takes.
	floodBound = 512 << 20
)

// residentMemory keeps the most memory that a process has had, as its system
// counts it.
type residentMemory struct {
	most atomic.Int64
	stop chan struct{}
}

func watchMemory(t *testing.T, p *Process) *residentMemory {
	t.Helper()
	m := &residentMemory{stop: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Pid())); err == nil {
				if f := strings.Fields(string(b)); len(f) > 1 {
					pages, _ := strconv.ParseInt(f[1], 10, 64)
					m.most.Store(max(m.most.Load(), pages*int64(os.Getpagesize())))
				}
			}
			select {
			case <-m.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(m.stop); <-done })
	return m
}

func (m *residentMemory) check(t *testing.T) {
	t.Helper()
	most := m.most.Load()
	t.Logf("at most %d MiB resident, for %d MiB of messages", most>>20, floodMessages*floodPayload>>20)
	if most == 0 {
		t.Skip("this system does not tell how much memory a process has")
	}
	if most > floodBound {
		t.Errorf("%d MiB were resident, want at most %d", most>>20, floodBound>>20)
	}
}

// TestFloodOverNATS has a backlog of large messages, more than fits into the
// bound: taken in, kept and delivered.
func TestFloodOverNATS(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t)}
	w.js = w.nats.JetStream(t)
	ctx := context.Background()
	stream(t, w.js, "BRIDGE_SCHEDULE", "bridge.schedule")
	// The target need not keep what was counted.
	target, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgs: 4, Discard: jetstream.DiscardOld})
	if err != nil {
		t.Fatal(err)
	}
	payload := bytes.Repeat([]byte("x"), floodPayload)
	for i := range floodMessages {
		m := nats.NewMsg("bridge.schedule")
		m.Header.Set("Bridge-Target", "nats://orders."+strconv.Itoa(i%10))
		m.Header.Set("Bridge-Delay", "0s")
		m.Data = payload
		if _, err := w.js.PublishMsg(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	p := Serve(t, Env{"REDIS_URL": w.redis.URL, "NATS_URL": w.nats.URL})
	memory := watchMemory(t, p)
	awaitFlood(t, func() uint64 {
		info, err := target.Info(ctx)
		if err != nil {
			return 0
		}
		return info.State.LastSeq
	})
	memory.check(t)
}

// TestFloodOverKafka is the same from topic to topic, compressed by the producer
// to next to nothing.
func TestFloodOverKafka(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	k := servers.SharedKafka(t)
	in, out := k.Topic(t, 2, "max.message.bytes=40000000"), k.Topic(t, 2, "retention.bytes=20000000", "segment.bytes=10000000")
	producer := k.Client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerBatchCompression(kgo.GzipCompression()),
		kgo.ProducerBatchMaxBytes(32<<20), kgo.MaxBufferedBytes(128<<20), kgo.ProducerLinger(20*time.Millisecond))
	payload := bytes.Repeat([]byte("x"), floodPayload)
	for range floodMessages {
		producer.Produce(context.Background(), &kgo.Record{Topic: in, Value: payload, Headers: []kgo.RecordHeader{
			{Key: "Bridge-Target", Value: []byte("kafka://" + out)}, {Key: "Bridge-Delay", Value: []byte("0s")},
		}}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := producer.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	p := Serve(t, Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_BROKERS": strings.Join(k.Brokers, ","),
		"KAFKA_INGEST_TOPICS": in, "KAFKA_INGEST_GROUP": servers.TopicName(t)})
	memory := watchMemory(t, p)
	consumer := k.Client(t, kgo.ConsumeTopics(out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(4<<20))
	var arrived atomic.Uint64
	go func() {
		for {
			fetches := consumer.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			arrived.Add(uint64(fetches.NumRecords()))
		}
	}()
	awaitFlood(t, arrived.Load)
	memory.check(t)
}

// awaitFlood waits for all messages, for as long as more of them arrive.
func awaitFlood(t *testing.T, arrived func() uint64) {
	t.Helper()
	last, since := uint64(0), time.Now()
	for {
		n := arrived()
		if n >= floodMessages {
			return
		}
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > patience {
			t.Fatalf("%d of %d messages arrived, and none for %v", n, floodMessages, patience)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
