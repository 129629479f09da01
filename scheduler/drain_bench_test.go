package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/scheduler"
	"delaybridge/sinks"
	"delaybridge/test/servers"
)

// BenchmarkDrain delivers what is all due at once, from Redis with its AOF to
// JetStream, with everything that the bridge does between them; for profiles.
// Storing is not measured. The sink "nowhere" confirms at once: what is left is
// Redis and the scheduler.
func BenchmarkDrain(b *testing.B) {
	for _, row := range []struct {
		name     string
		subjects int // 0: one for each message
		nowhere  bool
	}{
		{"subjects=1", 1, false},
		{"subjects=100", 100, false},
		{"subjects=all", 0, false},
		{"nowhere/subjects=1", 1, true},
		{"nowhere/subjects=all", 0, true},
	} {
		b.Run(row.name, func(b *testing.B) { benchDrain(b, row.subjects, row.nowhere) })
	}
}

func benchDrain(b *testing.B, subjects int, nowhere bool) {
	const least = 20_000 // a drain of a few messages measures the start
	n := max(b.N, least)
	r := servers.NewRedis(b, "--appendonly", "yes", "--appendfsync", "everysec")
	client, err := luascripts.Connect(r.URL, luascripts.ModeSingle)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	q, err := luascripts.Open(b.Context(), client, luascripts.DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	if subjects == 0 {
		subjects = n
	}
	payload := []byte(strings.Repeat("x", 256))
	due := time.Now().Truncate(time.Millisecond)
	for from := 0; from < n; from += 1000 {
		requests := make([]delaybridge.Request, min(1000, n-from))
		for j := range requests {
			i := from + j
			p := delaybridge.Position{Source: "nats:BRIDGE_SCHEDULE", Offset: uint64(i)}
			requests[j].Message = delaybridge.Message{
				ID: p.String(), Position: p, Target: delaybridge.Target{Sink: "nats", Name: fmt.Sprint("orders.", i%subjects)},
				Scheduled: due, Due: due, Payload: payload,
			}
		}
		for _, res := range q.Store(b.Context(), requests) {
			if res.Err != nil {
				b.Fatal(res.Err)
			}
		}
	}

	var sink delaybridge.Sink = delaybridge.SinkFunc(func(_ context.Context, batch []delaybridge.Claim) []error {
		return make([]error, len(batch))
	})
	if !nowhere {
		s := servers.NewNATS(b)
		nc, err := nats.Connect(s.URL, sinks.NATSOptions(nil)...)
		if err != nil {
			b.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
			b.Fatal(err)
		}
		n, err := sinks.NewNATS(nc, sinks.DefaultNATSConfig())
		if err != nil {
			b.Fatal(err)
		}
		sink = sinks.Mux{delaybridge.SinkNATS: n} // as the program has it
	}
	done := make(chan struct{})
	cfg := scheduler.DefaultConfig()
	cfg.Lanes = []string{"nats"}
	counting := &countingQueue{Queue: q, left: n, done: done}
	s, err := scheduler.New(cfg, counting, sink)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	began := time.Now()
	go func() { ended <- s.Run(ctx) }()
	<-done
	took := time.Since(began)
	b.StopTimer()
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	b.ReportMetric(float64(n)/took.Seconds(), "messages/s")
	b.ReportMetric(float64(counting.claims)/float64(counting.runs), "claims/run")
}

// countingQueue tells when all is acknowledged. Claims come from one goroutine,
// acks from another.
type countingQueue struct {
	scheduler.Queue
	left         int
	runs, claims int
	done         chan struct{}
}

func (q *countingQueue) Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	grants := q.Queue.Claim(ctx, lane, asks)
	q.runs += len(asks)
	for _, g := range grants {
		q.claims += len(g.Claims)
	}
	return grants
}

func (q *countingQueue) Ack(ctx context.Context, claims []delaybridge.Claim) []error {
	errs := q.Queue.Ack(ctx, claims)
	for _, err := range errs {
		if err == nil {
			q.left--
		}
	}
	if q.left == 0 {
		close(q.done)
	}
	return errs
}
