package ingest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/test/servers"
)

// moodyQueue fails, is full, or never returns.
type moodyQueue struct {
	ingest.Queue
	mu    sync.Mutex
	mood  string
	hang  chan struct{}
	calls int // in a mood
}

func (q *moodyQueue) feel(mood string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mood, q.calls = mood, 0
}

// meet is each call's beginning: it returns the mood.
func (q *moodyQueue) meet() string {
	q.mu.Lock()
	q.calls++
	mood := q.mood
	q.mu.Unlock()
	if mood == "hangs" {
		<-q.hang
	}
	return mood
}

func (q *moodyQueue) Store(ctx context.Context, rs []delaybridge.Request) []delaybridge.Result {
	if q.meet() == "fails" {
		results := make([]delaybridge.Result, len(rs))
		for i := range results {
			results[i].Err = errors.New("connection refused")
		}
		return results
	}
	return q.Queue.Store(ctx, rs)
}

func (q *moodyQueue) Pressure(ctx context.Context) (delaybridge.Pressure, error) {
	switch q.meet() {
	case "fails":
		return delaybridge.Pressure{}, errors.New("connection refused")
	case "is full":
		return delaybridge.Pressure{MemoryRatio: 1}, nil
	}
	return q.Queue.Pressure(ctx)
}

// TestSourcesThatHangAreNamed has the queue behave badly: only a call that never
// returns is a loop that hangs.
func TestSourcesThatHangAreNamed(t *testing.T) {
	// No turn is this long in any mood but one: a closed gate is asked once a second.
	const bound = 5 * time.Second
	type looper interface {
		Stalled(d time.Duration) []string
	}
	watch := func(t *testing.T, s looper, q *moodyQueue, send func(n int), name string) {
		for n, mood := range []string{"", "fails", "is full"} {
			q.feel(mood)
			send(n)
			for end := time.Now().Add(bound + bound/10); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if got := s.Stalled(bound); got != nil {
					t.Fatalf("the queue %s, and these are said to hang: %v", mood, got)
				}
			}
			q.mu.Lock()
			calls := q.calls
			q.mu.Unlock()
			if calls == 0 {
				t.Errorf("the queue %s, and nobody noticed", mood)
			}
		}
		q.feel("hangs")
		send(3)
		if !servers.Eventually(func() bool { got := s.Stalled(bound); return len(got) == 1 && got[0] == name }) {
			t.Errorf("hanging: %v, want %s", s.Stalled(bound), name)
		}
		q.feel("")
		close(q.hang)
		if !servers.Eventually(func() bool { return s.Stalled(bound) == nil }) {
			t.Errorf("still hanging: %v", s.Stalled(bound))
		}
	}
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		n := servers.NewNATS(t)
		js := n.JetStream(t)
		q := &moodyQueue{Queue: newMemory(), hang: make(chan struct{})}
		s := run(t, n, q, quickNATS(), "")
		eventually(t, "the stream is there", func() bool { _, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE"); return err == nil })
		watch(t, s.nats, q, func(i int) { publishMany(t, js, i, i+1) }, "reading stream BRIDGE_SCHEDULE")
		if got := s.nats.Lag(); len(got) != 1 {
			t.Errorf("lag: %v", got)
		}
		if err := s.stop(); err != nil || s.nats.Stalled(0) != nil {
			t.Errorf("ended with %v, hanging: %v", err, s.nats.Stalled(0))
		}
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		q := &moodyQueue{Queue: newKafkaQueue(), hang: make(chan struct{})}
		m := read(t, k, q, topic, []string{topic})
		c := k.Client(t)
		watch(t, m, q, func(i int) { produceN(t, c, topic, 0, i, 1) }, "reading Kafka topics")
		m.stop()
		if got := m.Stalled(0); got != nil {
			t.Errorf("after it ended: %v", got)
		}
	})
}

// The lag is of most interest while it grows, and then nothing is pulled that
// would tell it.
func TestNATSLagGrowsWhileTheQueueIsFull(t *testing.T) {
	t.Parallel()
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	m := newMemory()
	m.full = true
	s := run(t, n, m, quickNATS(), "")
	eventually(t, "the gate is closed", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.refused > 0
	})
	publishMany(t, js, 0, 7)
	eventually(t, "the lag is known", func() bool { return s.nats.Lag()["nats:BRIDGE_SCHEDULE"] == 7 })
	m.set(func() { m.full = false })
	wantAll(t, m, 7)
	eventually(t, "the lag is gone", func() bool { return s.nats.Lag()["nats:BRIDGE_SCHEDULE"] == 0 })
}
