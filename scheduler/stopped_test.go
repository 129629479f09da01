package scheduler

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"delaybridge"
)

// stoppedQueue stands for a process that is stopped just behind its first claim.
type stoppedQueue struct {
	*fakeQueue
	stop time.Duration
}

func (q *stoppedQueue) Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	grants := q.fakeQueue.Claim(ctx, lane, asks)
	for _, g := range grants {
		if len(g.Claims) > 0 {
			time.Sleep(q.stop)
			q.stop = 0
		}
	}
	return grants
}

// A process that was stopped (SIGSTOP, a suspended machine) wakes up with claims
// whose leases may be over. It must not publish what another has published since.
func TestWhatWasClaimedBeforeAStopIsPublishedOnlyUnderItsLease(t *testing.T) {
	for _, row := range []struct {
		sentence      string
		stop          time.Duration
		others        bool // another process works meanwhile
		mine, another int  // publishes
		lost          int  // log lines; -1: its own next claim may be ahead of giving up, or not
	}{
		{"it was not stopped for long", 59 * time.Second, true, 1, 0, 0},
		{"until the lease ends, to the moment", time.Minute, false, 1, 0, -1},
		{"for longer, and another has taken over", 2 * time.Minute, true, 0, 1, 1},
		{"for longer, and there is no other: it claims anew", 2 * time.Minute, false, 1, 0, -1},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFakeQueue()
				begin := time.Now()
				core, logged := observer.New(zap.WarnLevel)
				var mu sync.Mutex // two schedulers publish
				published := map[string]int{}
				var attempts []time.Duration
				run := func(name string, q Queue) (stop func()) {
					cfg := DefaultConfig()
					cfg.Lanes, cfg.Log = []string{"nats"}, zap.New(core)
					s, err := New(cfg, q, delaybridge.SinkFunc(func(_ context.Context, batch []delaybridge.Claim) []error {
						mu.Lock()
						defer mu.Unlock()
						published[name] += len(batch)
						attempts = append(attempts, time.Since(begin))
						return make([]error, len(batch))
					}))
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { ended <- s.Run(ctx) }()
					return func() {
						cancel()
						if err := <-ended; err != nil {
							t.Error(err)
						}
					}
				}
				stopMine := run("mine", &stoppedQueue{fakeQueue: q, stop: row.stop})
				synctest.Wait()
				q.add("nats", "x", "a1", 0)
				synctest.Wait()
				stopOther := func() {}
				if row.others {
					stopOther = run("another", q)
				}
				time.Sleep(10 * time.Minute)
				stopMine()
				stopOther()
				if published["mine"] != row.mine || published["another"] != row.another {
					t.Errorf("published %v after %v, want %d and %d", published, attempts, row.mine, row.another)
				}
				if q.ackedAt("a1").IsZero() {
					t.Error("it was not delivered")
				}
				if n := logged.FilterMessageSnippet("leases were lost").Len(); row.lost >= 0 && n != row.lost {
					t.Errorf("%d log lines of lost leases, want %d: %v", n, row.lost, logged.All())
				}
			})
		})
	}
}

// What is given up takes up no room, and says nothing of its target.
func TestWhatIsGivenUpLeavesNothingBehind(t *testing.T) {
	cfg := DefaultConfig()
	l := newLane("nats", &cfg, newFakeQueue(), nil)
	until := l.leaseUntil()
	batch := []delaybridge.Claim{{Message: delaybridge.Message{ID: "a", Target: delaybridge.Target{Sink: "nats", Name: "x"}}}}
	if l.targets.admit("x", time.Now()); l.tooLate(batch, until) {
		t.Fatal("given up in time")
	}
	if !l.tooLate(batch, until.Add(-cfg.Lease)) {
		t.Fatal("not given up at the end of its lease")
	}
	if out := <-l.outcomes; len(out) != 1 || out[0].verdict != giveBack || len(l.targets) != 0 {
		t.Errorf("outcomes %+v, targets %v", out, l.targets)
	}
}
