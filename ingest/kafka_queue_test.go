package ingest_test

import (
	"sync"
	"testing"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// With the real queue: a topic that is read again from its start, by another
// group, schedules nothing again; one that was made anew does, though its
// offsets are the same.
func TestKafkaIntoTheQueue(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		client, err := luascripts.Connect(servers.NewRedis(t).URL, "single")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		queue, err := luascripts.Open(t.Context(), client, luascripts.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		seen := &outcomes{n: map[delaybridge.Outcome]int{}}
		source := func(group, topic string) *member {
			return readObserved(t, k, queue, group, []string{topic}, seen.see)
		}

		topic := k.Topic(t, 2)
		produceN(t, k.Client(t), topic, 0, 0, 50)
		produceN(t, k.Client(t), topic, 1, 0, 50)
		m := source(topic, topic)
		seen.await(t, delaybridge.Scheduled, 100)
		m.stop()
		m = source(topic+"-again", topic)
		seen.await(t, delaybridge.Duplicate, 100)
		m.stop()
		k.DeleteTopic(t, topic)
		k.CreateTopic(t, topic, 2)
		produceN(t, k.Client(t), topic, 0, 0, 50)
		source(topic, topic)
		seen.await(t, delaybridge.Scheduled, 150)
	})
}

type outcomes struct {
	mu sync.Mutex
	n  map[delaybridge.Outcome]int
}

func (o *outcomes) see(_ string, outcome delaybridge.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n[outcome]++
}

func (o *outcomes) await(t *testing.T, outcome delaybridge.Outcome, n int) {
	t.Helper()
	if !servers.Eventually(func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.n[outcome] >= n }) || o.n[outcome] != n {
		t.Fatalf("outcomes %v, want %d %v", o.n, n, outcome)
	}
}
