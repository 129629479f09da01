package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"delaybridge"
)

// BenchmarkSettle is what the scheduler itself does for each confirmed message,
// from the sink's answer until the queue is asked, in batches of 200.
func BenchmarkSettle(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Lanes = []string{"nats"}
	l := newLane("nats", &cfg, ackedQueue{newFakeQueue()}, answer(nil))
	batch := make([]delaybridge.Claim, 200)
	for i := range batch {
		batch[i].ID, batch[i].Target = fmt.Sprint("nats:BRIDGE_SCHEDULE:", i), delaybridge.Target{Sink: "nats", Name: "orders.timeout"}
		batch[i].Payload = make([]byte, 256)
	}
	until := time.Now().Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		l.mu.Lock()
		for i := range batch {
			l.targets.admit(batch[i].Target.Name, until)
		}
		l.held += len(batch)
		l.mu.Unlock()
		l.deliver(b.Context(), batch, until)
		if again := l.settle(b.Context(), <-l.outcomes); len(again) > 0 {
			b.Fatal(again[0].settleErr)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/message")
}

// ackedQueue takes every ack.
type ackedQueue struct{ *fakeQueue }

func (ackedQueue) Ack(_ context.Context, claims []delaybridge.Claim) []error {
	return make([]error, len(claims))
}
