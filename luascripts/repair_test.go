package luascripts

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// B25, B33 (asynq#55, node-resque#24): a record whose index entry is gone would
// wait for ever.
func TestRepair(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		now := time.UnixMilli(epoch)
		cfg := testConfig()
		cfg.shebang = shebang
		cfg.clock = func() time.Time { return now }
		cfg.hostClock = cfg.clock
		q, err := Open(ctx, client, cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := &q.keys[0]
		for i, id := range []string{"pending", "inflight", "lost from due", "lost from inflight", "unreadable"} {
			m := delaybridge.Message{
				ID: id, Position: delaybridge.Position{Source: "nats:S", Offset: uint64(i + 1)},
				Target:    delaybridge.Target{Sink: delaybridge.SinkKafka, Name: "t"},
				Scheduled: now, Due: now.Add(time.Hour), Payload: []byte(id),
			}
			if id == "inflight" || id == "lost from inflight" {
				m.Due = now
			}
			if res := q.Store(ctx, []delaybridge.Request{{Message: m}})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		if g := q.Claim(ctx, "kafka", []delaybridge.Ask{{Limit: 10}})[0]; len(g.Claims) != 2 {
			t.Fatalf("claimed %d, %v", len(g.Claims), g.Err)
		}
		client.ZRem(ctx, k.due[0], "lost from due", "unreadable")
		client.ZRem(ctx, k.inflight[0], "lost from inflight")
		client.HSet(ctx, k.msg, "unreadable", "?")
		repaired := 0
		for range 3 { // the scan may take several steps
			n, err := q.Repair(ctx, 0)
			if err != nil {
				t.Fatal(err)
			}
			repaired += n
		}
		if repaired != 3 {
			t.Errorf("%d repaired, want 3", repaired)
		}
		if g := q.Claim(ctx, "kafka", []delaybridge.Ask{{Limit: 10}})[0]; len(g.Claims) != 1 || g.Claims[0].ID != "lost from inflight" || g.Buried != 1 {
			t.Errorf("claimed %d, buried %d: %v; want what was in flight once more, and what cannot be read buried", len(g.Claims), g.Buried, g.Err)
		}
		now = now.Add(59 * time.Second)
		if g := q.Claim(ctx, "kafka", []delaybridge.Ask{{Limit: 10}})[0]; len(g.Claims) != 0 {
			t.Errorf("%q claimed early", g.Claims[0].ID)
		}
		now = now.Add(time.Hour)
		if g := q.Claim(ctx, "kafka", []delaybridge.Ask{{Limit: 10}})[0]; len(g.Claims) != 4 {
			t.Errorf("%d claimed in the end, want all four", len(g.Claims))
		}
	})
}

// B35 (blnk#336): a Redis that was emptied is noticed, and takes new messages.
func TestWiped(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.shebang = shebang
		open := func() *Queue {
			q, err := Open(ctx, client, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
		wiped := func(q *Queue) bool {
			t.Helper()
			w, err := q.Wiped(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		one, two := open(), open()
		if wiped(one) || wiped(two) {
			t.Error("wiped before anything happened")
		}
		if err := client.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		if !wiped(one) || !wiped(two) {
			t.Error("not noticed by both")
		}
		if wiped(one) || wiped(two) {
			t.Error("told twice")
		}
	})
}
