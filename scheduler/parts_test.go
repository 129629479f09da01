package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"delaybridge"
)

// partly is a sink that publishes the lane "nats" in parts: what is for "silent"
// has no answer for 10 s.
type partly struct {
	mu      sync.Mutex
	batches [][]string // targets of each batch
}

func (p *partly) InParts(lane string) bool { return lane == "nats" }

func (p *partly) Publish(ctx context.Context, batch []delaybridge.Claim) (errs []error) {
	errs = make([]error, len(batch))
	p.PublishParts(ctx, batch, func(indexes []int, some []error) {
		for n, i := range indexes {
			errs[i] = some[n]
		}
	})
	return errs
}

func (p *partly) PublishParts(_ context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error)) {
	var targets []string
	var first, rest []int
	for i := range batch {
		targets = append(targets, batch[i].Target.Name)
		if batch[i].Target.Name == "silent" {
			rest = append(rest, i)
		} else {
			first = append(first, i)
		}
	}
	p.mu.Lock()
	p.batches = append(p.batches, targets)
	p.mu.Unlock()
	part(first, make([]error, len(first)))
	if len(rest) > 0 {
		time.Sleep(10 * time.Second)
		errs := make([]error, len(rest))
		for i := range errs {
			errs[i] = errors.New("no answer")
		}
		part(rest, errs)
	}
}

func TestASinkThatPublishesInPartsGetsBatchesOfManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, sink := newFakeQueue(), &partly{}
		for i := range 300 {
			q.add("nats", fmt.Sprint("orders.", i), fmt.Sprint("n", i), time.Second)
			q.add("kafka", fmt.Sprint("topic", i%2), fmt.Sprint("k", i), time.Second)
		}
		q.add("nats", "silent", "s0", time.Second)
		cfg := DefaultConfig()
		cfg.Lanes = []string{"nats", "kafka"}
		s, err := New(cfg, q, sink)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(2 * time.Second)

		q.mu.Lock()
		if len(q.acked) != 600 || len(q.inflight["nats"]) != 1 {
			t.Errorf("%d acknowledged and %d in flight while one has no answer, want 600 and 1", len(q.acked), len(q.inflight["nats"]))
		}
		q.mu.Unlock()
		sink.mu.Lock()
		mixed, kafka := 0, 0
		for _, targets := range sink.batches {
			several := false
			for _, name := range targets {
				several = several || name != targets[0]
			}
			switch {
			case targets[0] == "topic0" || targets[0] == "topic1":
				if kafka++; several {
					t.Error("a lane that is not published in parts had a batch for several targets")
				}
			case several:
				mixed++
			}
		}
		if mixed == 0 || len(sink.batches)-kafka > 20 {
			t.Errorf("%d batches for 301 targets, %d of them for several", len(sink.batches)-kafka, mixed)
		}
		sink.batches = nil
		sink.mu.Unlock()

		// It had no answer: from now on it is kept apart.
		time.Sleep(10 * time.Second)
		for i := range 10 {
			q.add("nats", fmt.Sprint("orders.", i), fmt.Sprint("m", i), 0)
		}
		q.add("nats", "silent", "s1", 0)
		time.Sleep(time.Second)
		sink.mu.Lock()
		for _, targets := range sink.batches {
			for _, name := range targets {
				if name == "silent" && len(targets) > 2 {
					t.Errorf("what did not answer is in a batch with others: %q", targets)
				}
			}
		}
		sink.mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
