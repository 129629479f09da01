package luascripts

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/test/servers"
)

// A batch leaves what its requests leave one by one, in its answers too: whatever it
// has twice, and whatever it finds pending, leased, delivered or dead.
func TestBatchesAreAsOneByOne(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		cfg := testConfig()
		cfg.shebang = shebang
		batches, ones := newHarness(t, client, cfg), newHarness(t, servers.NewRedis(t).Client(t), testConfig())
		random := rand.New(rand.NewPCG(1, 2))
		offset := uint64(0)
		names := []string{"hi", "kaf", "now"}
		ctx := context.Background()
		for round := range 20 {
			ids := 1 + random.IntN(600)
			var requests []delaybridge.Request
			for range 1 + random.IntN(MaxBatch) {
				offset++
				at := offset
				if random.IntN(4) == 0 {
					at -= min(at-1, uint64(random.IntN(400))) // again, or late
				}
				id := fmt.Sprint("id", random.IntN(ids))
				m := message(id, names[random.IntN(len(names))], fmt.Sprintf("%s %d", [...]string{"nats:S", "kafka:t:0"}[random.IntN(2)], at))
				if random.IntN(5) == 0 {
					m.ID = m.Position.String()
				}
				r := delaybridge.Request{Op: [...]delaybridge.Op{0, 0, 0, 0, 0, 0, 0, 0, delaybridge.OpCancel, delaybridge.OpReject}[random.IntN(10)], Message: m, Error: "no"}
				if round%2 == 0 {
					r.Op = delaybridge.OpSchedule // the largest there can be
				}
				requests = append(requests, r)
			}
			together := batches.q.Store(ctx, requests)
			for i, r := range requests {
				if alone := ones.q.Store(ctx, []delaybridge.Request{r})[0]; together[i] != alone {
					t.Fatalf("round %d, request %d of %d, %s %s at %s: %+v, alone %+v", round, i, len(requests), r.Op, r.Message.ID, r.Message.Position, together[i], alone)
				}
			}
			for _, h := range []*harness{batches, ones} {
				h.at(h.now + 1000)
				for _, lane := range []string{delaybridge.SinkNATS, delaybridge.SinkKafka} {
					_, claims := h.claims(lane, 200)
					if len(claims) > 3 {
						h.q.Ack(ctx, claims[:len(claims)/2])
						h.q.Bury(ctx, []delaybridge.Burial{{Claim: claims[len(claims)-1], Reason: "permanent", Error: "no"}})
					}
				}
			}
			if a, b := batches.state(), ones.state(); a != b {
				t.Fatalf("round %d:\n%s\none by one:\n%s", round, a, b)
			}
		}
	})
}
