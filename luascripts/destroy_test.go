package luascripts

import (
	"context"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"
)

func TestDestroyLeavesNothingOfItsNamespaceAndAllOfOthers(t *testing.T) {
	ctx := context.Background()
	client := servers.NewRedis(t).Client(t)
	store := func(namespace string) *Queue {
		c := DefaultConfig()
		c.Namespace = namespace
		q, err := Open(ctx, client, c)
		if err != nil {
			t.Fatal(err)
		}
		var requests []delaybridge.Request
		for n := range uint64(50) {
			p := delaybridge.Position{Source: "nats:S", Offset: n + 1}
			r := delaybridge.Request{Message: delaybridge.Message{
				ID: p.String(), Position: p, Due: time.Now(), Target: delaybridge.Target{Sink: delaybridge.Lanes[n%3], Name: "x"},
			}}
			if n%10 == 0 {
				r.Op, r.Error = delaybridge.OpReject, "no"
			}
			requests = append(requests, r)
		}
		for _, r := range q.Store(ctx, requests) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		for shard := range q.Shards() {
			g := q.Claim(ctx, "nats", []delaybridge.Ask{{Shard: shard, Limit: 2}})[0]
			if g.Err != nil {
				t.Fatal(g.Err)
			}
			q.Ack(ctx, g.Claims[:len(g.Claims)/2])
		}
		return q
	}
	store("kept")
	kept, err := client.DBSize(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	q := store("gone")
	for range 2 { // the second finds nothing, which is no error
		if err := q.Destroy(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := client.DBSize(ctx).Result(); err != nil || n != kept {
		t.Errorf("%d keys are left, want the %d of the other namespace: %v", n, kept, err)
	}
}
