package luascripts

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"
)

// TestClaimersRace: many claimers, each with a client of its own, share the
// shards out; each of many due ids is claimed exactly once, though Redis forgets
// its scripts on the way.
func TestClaimersRace(t *testing.T) {
	const claimers, total = 8, 20_000
	ctx := context.Background()
	r := servers.NewRedis(t)
	cfg := testConfig()
	cfg.Shards = 4
	open := func() *Queue {
		q, err := Open(ctx, r.Client(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := open()
	now := time.Now()
	for i := 0; i < total; i += 1000 {
		requests := make([]delaybridge.Request, 1000)
		for n := range requests {
			m := message(fmt.Sprintf("id-%d", i+n), "hi", "nats:S 1")
			m.Position.Offset, m.Due = uint64(i+n), now
			requests[n].Message = m
		}
		for _, result := range q.Store(ctx, requests) {
			if result.Err != nil || result.Outcome != delaybridge.Scheduled {
				t.Fatal(result)
			}
		}
	}
	flusher := r.Client(t)

	var mu sync.Mutex
	claimed := make(map[string]int, total)
	var wg sync.WaitGroup
	for n := range claimers {
		q := open()
		wg.Go(func() {
			var asks []delaybridge.Ask
			for s := range cfg.Shards {
				asks = append(asks, delaybridge.Ask{Shard: (s + n) % cfg.Shards, Limit: 37})
			}
			for {
				var batch []delaybridge.Claim
				for _, g := range q.Claim(ctx, "nats", asks) {
					if g.Err != nil {
						t.Error(g.Err)
						return
					}
					batch = append(batch, g.Claims...)
				}
				mu.Lock()
				for _, c := range batch {
					claimed[c.ID]++
				}
				half := len(claimed) >= total/2 && len(claimed)-len(batch) < total/2
				mu.Unlock()
				if half {
					if err := flusher.ScriptFlush(ctx).Err(); err != nil {
						t.Error(err)
					}
				}
				if len(batch) == 0 {
					return
				}
				for _, err := range q.Ack(ctx, batch) {
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for id, n := range claimed {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(claimed) != total {
		t.Errorf("%d ids were claimed, want %d", len(claimed), total)
	}
	s, err := q.Stats(ctx)
	if l := s.Lanes["nats"]; err != nil || l.Pending+l.InFlight != 0 {
		t.Errorf("left over: %+v %v", l, err)
	}
}

// TestReplaysRace: of many who replay one letter at once, one does.
func TestReplaysRace(t *testing.T) {
	ctx := context.Background()
	r := servers.NewRedis(t)
	h := newHarness(t, r.Client(t), testConfig())
	for round := range 20 {
		h.store(delaybridge.Request{Op: delaybridge.OpReject, Message: message(fmt.Sprintf("r-%d", round), "hi", fmt.Sprintf("nats:S %d", round))})
		letters, _, err := h.q.Dead(ctx, 10, "")
		if err != nil || len(letters) != 1 {
			t.Fatal(letters, err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for n := range 8 {
			wg.Go(func() {
				var err error
				if n%2 == 0 {
					err = h.replay(letters[0], "now", true)
				} else {
					err = h.q.Purge(ctx, letters)[0]
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d of 8 had the letter", won)
		}
		h.checkCounts()
	}
}

// TestDuplicatesInOneBatch: one id a thousand times in one call.
func TestDuplicatesInOneBatch(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, servers.NewRedis(t).Client(t), testConfig())
	requests := make([]delaybridge.Request, 1000)
	for i := range requests {
		requests[i] = schedule("a", "hi", fmt.Sprintf("nats:S %d", 1+i/2))
	}
	got := map[delaybridge.Outcome]int{}
	for _, r := range h.q.Store(ctx, requests) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		got[r.Outcome]++
	}
	if got[delaybridge.Scheduled] != 1 || got[delaybridge.Replaced] != 499 || got[delaybridge.Duplicate] != 500 {
		t.Errorf("outcomes %v", got)
	}
	h.wantState("due:nats a +1000\nmsg a [nats:S 500] hi")
	h.at(1000)
	_, claims := h.claims("nats", 10)
	if len(claims) != 1 {
		t.Fatalf("%d claims", len(claims))
	}
	many := make([]delaybridge.Claim, 1000)
	for i := range many {
		many[i] = claims[0]
	}
	for i, err := range h.q.Ack(ctx, many) {
		if (err == nil) != (i < MaxBatch) { // all of one run say so
			t.Fatalf("claim %d: %v", i, err)
		}
	}
	h.wantState("done:b since +1000\ndone:b a d nats:S 500")
	// More than a batch of everything.
	requests = requests[:0]
	for i := range 2*MaxBatch + 1 {
		requests = append(requests, schedule(fmt.Sprintf("id-%d", i), "now", fmt.Sprintf("nats:T %d", i)))
	}
	for _, r := range h.q.Store(ctx, requests) {
		if r.Err != nil || r.Outcome != delaybridge.Scheduled {
			t.Fatal(r)
		}
	}
	g := h.q.Claim(ctx, "nats", []delaybridge.Ask{{Limit: 1 << 30}})[0]
	if g.Err != nil || len(g.Claims) != MaxBatch || g.Wait != 0 {
		t.Errorf("%d claims, wait %v, %v", len(g.Claims), g.Wait, g.Err)
	}
}
