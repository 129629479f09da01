package luascripts

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// What is abandoned is told of with all that is needed for a copy of it, once.
func TestClaimTellsWhatItAbandons(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		cfg := testConfig()
		cfg.shebang = shebang
		h := newHarness(t, client, cfg).at(0)
		m := delaybridge.Message{
			ID: "a", Position: delaybridge.Position{Source: "nats:S", Offset: 1},
			Target:    delaybridge.Target{Sink: delaybridge.SinkKafka, Name: "t"},
			Scheduled: time.UnixMilli(epoch), Due: time.UnixMilli(epoch), Payload: []byte("p"),
		}
		if res := h.q.Store(t.Context(), []delaybridge.Request{{Message: m}})[0]; res.Err != nil {
			t.Fatal(res.Err)
		}
		for round := range cfg.MaxLostLeases + 2 {
			h.at(int64(round) * cfg.Lease.Milliseconds())
			g := h.q.Claim(t.Context(), "kafka", []delaybridge.Ask{{Limit: 10}})[0]
			switch {
			case g.Err != nil:
				t.Fatal(g.Err)
			case round < cfg.MaxLostLeases && (len(g.Claims) != 1 || g.Claims[0].LostLeases != round || len(g.Abandoned) != 0):
				t.Fatalf("round %d: %d claims, %d abandoned", round, len(g.Claims), len(g.Abandoned))
			case round == cfg.MaxLostLeases && (len(g.Claims) != 0 || len(g.Abandoned) != 1 || g.Buried != 1 ||
				string(g.Abandoned[0].Payload) != "p" || g.Abandoned[0].LostLeases != cfg.MaxLostLeases):
				t.Fatalf("round %d: %d claims, abandoned %+v, %d buried", round, len(g.Claims), g.Abandoned, g.Buried)
			case round > cfg.MaxLostLeases && (len(g.Claims) != 0 || len(g.Abandoned) != 0 || g.Buried != 0):
				t.Fatalf("round %d: told again", round)
			}
		}
	})
}
