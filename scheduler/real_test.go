package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/scheduler"
	"delaybridge/test/servers"
)

// Three schedulers on the real queue share 6,000 messages: each is published
// once, none early, though Redis loses its scripts and connections on the way.
func TestSchedulersShareARealQueue(t *testing.T) {
	const count = 6000
	r := servers.NewRedis(t, servers.RedisTCP)
	admin := r.Client(t)
	open := func() *luascripts.Queue {
		client, err := luascripts.Connect(r.URL, luascripts.ModeSingle)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		q, err := luascripts.Open(t.Context(), client, luascripts.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		return q
	}

	var mu sync.Mutex
	got := map[string]int{}
	all := make(chan struct{})
	sink := delaybridge.SinkFunc(func(_ context.Context, batch []delaybridge.Claim) []error {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range batch {
			if early := time.Until(c.Due); early > time.Millisecond {
				t.Errorf("%s was published %v early", c.ID, early)
			}
			if got[c.ID]++; got[c.ID] == 1 && len(got) == count {
				close(all)
			}
		}
		return make([]error, len(batch))
	})

	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	for range 3 {
		cfg := scheduler.DefaultConfig()
		cfg.Lanes = delaybridge.Lanes[:]
		s, err := scheduler.New(cfg, open(), sink)
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error { return s.Run(ctx) })
	}
	q := open()
	now := time.Now().Truncate(time.Millisecond)
	for i := 0; i < count; i += 100 {
		requests := make([]delaybridge.Request, 100)
		for j := range requests {
			n := i + j
			requests[j].Message = delaybridge.Message{
				ID: fmt.Sprint("m", n), Position: delaybridge.Position{Source: "test", Offset: uint64(n)},
				Target:    delaybridge.Target{Sink: delaybridge.Lanes[n%3], Name: fmt.Sprint("t", n%5)},
				Scheduled: now, Due: now.Add(time.Duration(n%2000) * time.Millisecond), Payload: []byte("x"),
			}
		}
		for j, res := range q.Store(ctx, requests) {
			if res.Err != nil || res.Outcome != delaybridge.Scheduled {
				t.Fatalf("%s: %v %v", requests[j].Message.ID, res.Outcome, res.Err)
			}
		}
	}
	if err := admin.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ClientKillByFilter(ctx, "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-all:
	case <-time.After(time.Minute):
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != count {
		t.Errorf("%d of %d published", len(got), count)
	}
	for id, n := range got {
		if n > 1 {
			t.Errorf("%s published %d times", id, n)
		}
	}
	stats, err := q.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for lane, s := range stats.Lanes {
		if s.Pending != 0 || s.InFlight != 0 {
			t.Errorf("lane %s: %+v left", lane, s)
		}
	}
}
