package luascripts

import (
	"context"
	"errors"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// TestLifeOfAMessage walks one message through every transition, on real Redis
// with its key checks on, and on the miniredis that `bridge dev` uses.
func TestLifeOfAMessage(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		walk(t, servers.NewRedis(t).Client(t), "#!lua\n")
	})
	t.Run("miniredis", func(t *testing.T) {
		m := miniredis.RunT(t)
		c := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1})
		t.Cleanup(func() { _ = c.Close() })
		walk(t, c, "")
	})
}

func walk(t *testing.T, client redis.UniversalClient, shebang string) {
	ctx := context.Background()
	now := time.UnixMilli(1_790_000_000_123)
	cfg := DefaultConfig()
	cfg.Shards, cfg.shebang = 2, shebang
	cfg.clock = func() time.Time { return now }
	cfg.hostClock = cfg.clock
	q, err := Open(ctx, client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	msg := delaybridge.Message{
		ID: "a", Position: delaybridge.Position{Source: "nats:S", Offset: 7},
		Target:    delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "x"},
		Scheduled: now, Due: now.Add(time.Second), Payload: []byte("hi"), Key: []byte{},
		Headers: []delaybridge.Header{{Name: "n", Value: nil}, {Name: "n", Value: []byte{}}},
	}
	store := func(want delaybridge.Outcome, r delaybridge.Request) {
		t.Helper()
		got := q.Store(ctx, []delaybridge.Request{r})[0]
		if got.Err != nil || got.Outcome != want {
			t.Fatalf("store: got %v %v, want %v", got.Outcome, got.Err, want)
		}
	}
	claim := func(want int) []delaybridge.Claim {
		t.Helper()
		g := q.Claim(ctx, "nats", []delaybridge.Ask{{Shard: shardOf("a", 2), Limit: 10}})[0]
		if g.Err != nil || len(g.Claims) != want {
			t.Fatalf("claim: got %d %v, want %d", len(g.Claims), g.Err, want)
		}
		return g.Claims
	}
	store(delaybridge.Scheduled, delaybridge.Request{Message: msg})
	store(delaybridge.Duplicate, delaybridge.Request{Message: msg})
	claim(0)
	now = now.Add(time.Second)
	c := claim(1)
	if c[0].Key == nil || len(c[0].Key) != 0 || c[0].Headers[0].Value != nil || c[0].Headers[1].Value == nil {
		t.Fatalf("nil and empty got lost: %+v", c[0].Message)
	}
	if errs := q.Retry(ctx, []delaybridge.Retry{{Claim: c[0], After: time.Second}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if errs := q.Ack(ctx, c); !errors.Is(errs[0], delaybridge.ErrLeaseLost) {
		t.Fatalf("a lease that was settled settled again: %v", errs[0])
	}
	now = now.Add(time.Second)
	c = claim(1)
	if c[0].Attempt() != 2 {
		t.Fatalf("attempt %d, want 2", c[0].Attempt())
	}
	if errs := q.Release(ctx, c); errs[0] != nil {
		t.Fatal(errs[0])
	}
	c = claim(1)
	if errs := q.Bury(ctx, []delaybridge.Burial{{Claim: c[0], Reason: delaybridge.ReasonPermanent, Error: "no", Failed: 2}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	s, err := q.Get(ctx, "a")
	if err != nil || s.State != delaybridge.StateDead {
		t.Fatalf("state %v %v, want dead", s.State, err)
	}
	letter, err := q.DeadLetter(ctx, "a")
	if err != nil || letter.Error != "no" || letter.Attempts != 2 || string(letter.Payload) != "hi" {
		t.Fatalf("letter %+v %v", letter, err)
	}
	if err := q.Replay(ctx, letter, letter.Message, false); err != nil {
		t.Fatal(err)
	}
	c = claim(1)
	now = now.Add(cfg.Lease)
	c2 := claim(1)
	if c2[0].Attempt() != 2 || c2[0].LostLeases != 1 {
		t.Fatalf("attempt %d, lost %d", c2[0].Attempt(), c2[0].LostLeases)
	}
	if errs := q.Ack(ctx, c); !errors.Is(errs[0], delaybridge.ErrLeaseLost) {
		t.Fatalf("an old lease settled: %v", errs[0])
	}
	if errs := q.Ack(ctx, c2); errs[0] != nil {
		t.Fatal(errs[0])
	}
	store(delaybridge.Duplicate, delaybridge.Request{Message: msg})
	msg.Position.Offset = 8
	store(delaybridge.Scheduled, delaybridge.Request{Message: msg})
	msg.Position.Offset = 9
	store(delaybridge.Cancelled, delaybridge.Request{Op: delaybridge.OpCancel, Message: msg})
	msg.Position.Offset = 8
	store(delaybridge.Duplicate, delaybridge.Request{Message: msg})
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil || len(keys) != 2 {
		t.Fatalf("left behind: %v %v", keys, err)
	}
	for shard := range 2 {
		if _, err := q.Sweep(ctx, shard); err != nil {
			t.Fatal(err)
		}
	}
	st, err := q.Stats(ctx)
	if err != nil || st.Dead[delaybridge.ReasonPermanent] != 0 {
		t.Fatal(st, err)
	}
}
