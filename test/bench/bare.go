package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// The bare loop: the least that takes what is due out of Redis and publishes it.
// It keeps no lease, no record, no tombstone and no count; a crash loses what it
// has claimed. It is what speed without safety is, on the same machine.
const (
	bareDue = "bare:due"
	bareMsg = "bare:msg"

	bareBatch   = 200
	bareWorkers = 4 // batches in flight
)

var (
	bareStore = redis.NewScript(`
for i = 1, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
  redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i])
end`)
	bareClaim = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #ids == 0 then return {} end
redis.call('ZREM', KEYS[1], unpack(ids))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}`)
	bareAck = redis.NewScript(`return redis.call('HDEL', KEYS[2], unpack(ARGV))`)
	// With a lease for each message it would at least come again after a crash.
	leasedClaim = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #ids == 0 then return {} end
local records = {}
for i, id in ipairs(ids) do
  redis.call('ZADD', KEYS[1], now + 60000, id)
  records[i] = redis.call('HGET', KEYS[2], id)
end
return {ids, records}`)
	leasedAck = redis.NewScript(`
for i, id in ipairs(ARGV) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end`)
)

// bare is the bare loop as a process of its own.
type bare struct{ leases bool }

func (k bare) run(ctx context.Context, w *world, p *plan, processes int) (values, error) {
	for range processes {
		worker, err := startSelf("bare", w.redisAddr, w.natsURL, strconv.Itoa(p.subjects), strconv.FormatBool(k.leases))
		if err != nil {
			return nil, err
		}
		w.others = append(w.others, worker)
		if _, err := worker.await("running"); err != nil {
			return nil, err
		}
	}
	p.ahead(50_000, w.lead)
	began := time.Now()
	if err := bareStoreAll(ctx, w.client, p, "bench:"); err != nil {
		return nil, err
	}
	v := values{"store_per_s": float64(p.n) / time.Since(began).Seconds()}
	if time.Now().After(p.first) {
		return nil, errTooSlow
	}
	return v, w.awaitTarget(ctx, p.n)
}

// bareStoreAll puts the messages of a plan where the bare loop finds them.
func bareStoreAll(ctx context.Context, client *redis.Client, p *plan, prefix string) error {
	payload := p.payload()
	if err := bareStore.Load(ctx, client).Err(); err != nil {
		return err
	}
	return inBatches(ctx, p.n, 500, 3, func(ctx context.Context, from, to int) error {
		args := make([]any, 0, 3*(to-from))
		for i := from; i < to; i++ {
			args = append(args, prefix+strconv.Itoa(i), p.due(i).UnixMilli(), payload)
		}
		return ignoreNil(bareStore.EvalSha(ctx, client, []string{bareDue, bareMsg}, args...).Err())
	})
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// bareWorker is this program as the bare loop.
func bareWorker(args []string) error {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: args[0], MaxRetries: -1, DisableIdentity: true})
	nc, err := nats.Connect(args[1])
	if err != nil {
		return err
	}
	subjects, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		return err
	}
	claim, ack := bareClaim, bareAck
	if args[3] == "true" {
		claim, ack = leasedClaim, leasedAck
	}
	for _, s := range []*redis.Script{claim, ack} {
		if err := s.Load(ctx, client).Err(); err != nil {
			return err
		}
	}
	fmt.Println("running")
	var g errgroup.Group
	for range bareWorkers {
		g.Go(func() error {
			for {
				n, err := bareTurn(ctx, client, js, claim, ack, max(subjects, 1))
				if err != nil {
					return err
				}
				if n == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	return g.Wait()
}

// bareTurn claims, publishes and acknowledges one batch.
func bareTurn(ctx context.Context, client *redis.Client, js jetstream.JetStream, claim, ack *redis.Script, subjects int) (int, error) {
	reply, err := claim.EvalSha(ctx, client, []string{bareDue, bareMsg}, bareBatch).Slice()
	if err != nil || len(reply) == 0 {
		return 0, err
	}
	ids, payloads := reply[0].([]any), reply[1].([]any)
	futures := make([]jetstream.PubAckFuture, len(ids))
	for i := range ids {
		id := ids[i].(string)
		n := 0
		for j := len("bench:"); j < len(id); j++ {
			n = 10*n + int(id[j]-'0')
		}
		m := &nats.Msg{Subject: "out." + strconv.Itoa(n%subjects), Header: nats.Header{"Nats-Msg-Id": {id}}, Data: []byte(payloads[i].(string))}
		if futures[i], err = js.PublishMsgAsync(m); err != nil {
			return 0, err
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return 0, err
		}
	}
	return len(ids), ignoreNil(ack.EvalSha(ctx, client, []string{bareDue, bareMsg}, ids...).Err())
}
