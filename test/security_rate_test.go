package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"delaybridge/test/servers"
)

// TestIngestRate has more messages than a process may take in at once: they stay
// in their source, none is lost, and none comes twice. Two processes have twice the
// rate, and one that comes later has the partitions dealt out anew.
func TestIngestRate(t *testing.T) {
	t.Parallel()
	const perSecond, messages = 20, 100
	ids := make([]string, messages)
	for i := range ids {
		ids[i] = fmt.Sprint("paced-", i)
	}
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		stream(t, w.js, "BRIDGE_SCHEDULE", "bridge.schedule")
		for _, id := range ids {
			publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: "+id)
		}
		began := time.Now()
		Serve(t, w.env.With(Env{"INGEST_RATE": fmt.Sprint(perSecond)}))
		for _, id := range ids {
			w.table.Await(t, id)
		}
		// The first second's worth comes at once.
		if took := time.Since(began); took < time.Second*(messages-perSecond)/perSecond {
			t.Errorf("%d messages took %v", messages, took)
		}
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		k := servers.SharedKafka(t)
		in, out := k.Topic(t, 4), k.Topic(t, 1)
		w := &kafkaWorld{kafka: k, in: in, producer: k.Client(t)}
		for i, id := range ids {
			r := request(id, "Bridge-Target: kafka://"+out, "Bridge-Delay: 0s", "Bridge-Id: "+id)
			r.Partition = int32(i % 4)
			w.send(t, r)
		}
		env := Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_BROKERS": strings.Join(k.Brokers, ","), "KAFKA_INGEST_TOPICS": in,
			"KAFKA_INGEST_GROUP": servers.TopicName(t), "INGEST_RATE": fmt.Sprint(perSecond / 2)}
		table := w.watch(t, out)
		began := time.Now()
		Serve(t, env)
		table.await(t, ids[0])
		Serve(t, env)
		for _, id := range ids {
			table.await(t, id)
		}
		if took := time.Since(began); took < time.Second*(messages-perSecond)/perSecond {
			t.Errorf("%d messages took %v", messages, took)
		}
	})
}
