package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"delaybridge"
)

// tally is an Observer.
type tally struct {
	mu        sync.Mutex
	results   Results
	late      []time.Duration
	expired   int
	circuit   []bool
	wiped     int
	dead, put int
}

func (o *tally) Published(lane string, r Results) {
	o.do(func() {
		o.results.Confirmed += r.Confirmed
		for i := range r.Failed {
			o.results.Failed[i] += r.Failed[i]
			o.results.Retried[i] += r.Retried[i]
		}
	})
}
func (o *tally) Delivered(_ string, late []time.Duration) {
	o.do(func() { o.late = append(o.late, late...) })
}
func (o *tally) LeasesExpired(_ string, n int) { o.do(func() { o.expired += n }) }
func (o *tally) Circuit(_ string, open bool)   { o.do(func() { o.circuit = append(o.circuit, open) }) }
func (o *tally) Wiped()                        { o.do(func() { o.wiped++ }) }
func (o *tally) DeadTrimmed(n int)             { o.do(func() { o.dead += n }) }
func (o *tally) Repaired(n int)                { o.do(func() { o.put += n }) }
func (o *tally) do(f func())                   { o.mu.Lock(); defer o.mu.Unlock(); f() }

func TestObserverIsToldWhatBecameOfEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, o := newFakeQueue(), &tally{}
		began := time.Now()
		away := 60 * time.Second // the broker's
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			errs := make([]error, len(batch))
			for i, c := range batch {
				switch {
				case c.Target.Name == "wrong":
					errs[i] = delaybridge.Permanent(errors.New("wrong"))
				case c.Target.Name == "later" && c.Failed < 2:
					errs[i] = delaybridge.Transient(errors.New("later"))
				case c.Target.Name == "silent" && c.Failed < 1:
					errs[i] = errors.New("no answer")
				case c.Target.Sink == "kafka" && time.Since(began) < away:
					errs[i] = delaybridge.Unavailable(errors.New("away"))
				}
			}
			return errs
		}, func(c *Config) { c.Observe = o })
		q.add("nats", "x", "a1", 0)
		q.add("nats", "wrong", "b1", 0)
		q.add("nats", "later", "c1", 0)
		q.add("nats", "silent", "d1", 0)
		q.add("kafka", "x", "e1", 0)
		time.Sleep(10 * time.Minute)
		ok(t, stop)

		r := o.results
		if r.Confirmed != 4 || len(o.late) != 4 {
			t.Errorf("%d confirmed, %d latenesses, want 4", r.Confirmed, len(o.late))
		}
		want := [delaybridge.Classes]int{delaybridge.ClassTransient: 2, delaybridge.ClassUnknown: 1}
		if r.Retried != want {
			t.Errorf("retried by class: %v, want %v", r.Retried, want)
		}
		if r.Failed[delaybridge.ClassPermanent] != 1 || r.Failed[delaybridge.ClassUnavailable] < 2 {
			t.Errorf("failed by class: %v", r.Failed)
		}
		// Lateness counts from when a message was first due, over all retries.
		if most := slices.Max(o.late); most < away || most > away+3*time.Second {
			t.Errorf("the message whose broker was away for %v was late by %v", away, most)
		}
		if !slices.Equal(o.circuit, []bool{true, false}) {
			t.Errorf("the circuit was open: %v", o.circuit)
		}
	})
}

func TestObserverIsToldOfExpiredLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, o := newFakeQueue(), &tally{}
		q.add("nats", "x", "a1", 0)
		q.Claim(t.Context(), "nats", []delaybridge.Ask{{Shard: q.due["nats"]["a1"].c.Lease.Shard, Limit: 1}}) // by who crashes
		stop := start(t, q, answer(nil), func(c *Config) { c.Observe = o })
		time.Sleep(2 * time.Minute)
		ok(t, stop)
		if o.expired != 1 {
			t.Errorf("%d leases expired, want 1", o.expired)
		}
	})
}

// stuckQueue hangs where it is told to.
type stuckQueue struct {
	*fakeQueue
	claim, ack chan struct{}
}

func (q *stuckQueue) Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	if lane == "nats" && q.claim != nil {
		<-q.claim
	}
	return q.fakeQueue.Claim(ctx, lane, asks)
}

func (q *stuckQueue) Ack(ctx context.Context, claims []delaybridge.Claim) []error {
	if q.ack != nil {
		<-q.ack
	}
	return q.fakeQueue.Ack(ctx, claims)
}

func TestLoopsThatHangAreNamed(t *testing.T) {
	for _, row := range []struct {
		sentence string
		change   func(*stuckQueue)
		want     []string
	}{
		{"nothing hangs in an idle scheduler", func(*stuckQueue) {}, nil},
		{"a queue that is away is no loop that hangs", func(q *stuckQueue) { q.broken = errAway }, nil},
		{"settlements that fail are no loop that hangs", func(q *stuckQueue) { q.brokenSettle = errAway }, nil},
		{"a claim that never returns", func(q *stuckQueue) { q.claim = make(chan struct{}) }, []string{"claiming for nats"}},
		{"an ack that never returns", func(q *stuckQueue) { q.ack = make(chan struct{}) }, []string{"settling for nats"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &stuckQueue{fakeQueue: newFakeQueue()}
				row.change(q)
				q.add("nats", "x", "a1", 0)
				cfg := DefaultConfig()
				cfg.Lanes = []string{"nats", "kafka"}
				s, err := New(cfg, q, answer(nil))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				if got := s.Stalled(time.Minute); got != nil {
					t.Errorf("before it runs: %v", got)
				}
				go func() { ended <- s.Run(ctx) }()
				for range 10 {
					time.Sleep(40 * time.Second)
					if got := s.Stalled(time.Minute); row.want == nil && got != nil {
						t.Fatalf("stalled: %v", got)
					}
				}
				if got := s.Stalled(time.Minute); !slices.Equal(got, row.want) {
					t.Errorf("stalled: %v, want %v", got, row.want)
				}
				for _, c := range []chan struct{}{q.claim, q.ack} {
					if c != nil {
						close(c)
					}
				}
				time.Sleep(time.Second)
				if got := s.Stalled(time.Minute); got != nil {
					t.Errorf("still stalled: %v", got)
				}
				cancel()
				<-ended
				if got := s.Stalled(0); got != nil {
					t.Errorf("after it ended: %v", got)
				}
			})
		})
	}
}
