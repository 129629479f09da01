package luascripts_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/sinks/sinktest"
	"delaybridge/test/servers"
)

func openDurable(t *testing.T, url, mode string, replicas int) *luascripts.Queue {
	t.Helper()
	client, err := luascripts.Connect(url, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	cfg := luascripts.DefaultConfig()
	cfg.Shards, cfg.WaitReplicas = 24, replicas
	q, err := luascripts.Open(t.Context(), client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func dueNow(id string, offset int) delaybridge.Request {
	now := time.Now().Truncate(time.Millisecond)
	return delaybridge.Request{Message: delaybridge.Message{
		ID: id, Position: delaybridge.Position{Source: "nats:S", Offset: uint64(offset)},
		Target:    delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "x"},
		Scheduled: now, Due: now, Payload: []byte("p"),
	}}
}

func TestStoreWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master := servers.NewRedis(t, servers.RedisTCP)
	replica := servers.NewRedis(t, servers.RedisTCP, "--replicaof", "127.0.0.1 "+strconv.Itoa(master.Port))
	rc := replica.Client(t)
	if !servers.Eventually(func() bool {
		return strings.Contains(rc.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}) {
		t.Fatal("the replica does not follow")
	}
	q := openDurable(t, master.URL, luascripts.ModeSingle, 1)
	store := func(r delaybridge.Request) delaybridge.Result {
		return q.Store(t.Context(), []delaybridge.Request{r})[0]
	}
	if res := store(dueNow("a", 1)); res.Err != nil || res.Outcome != delaybridge.Scheduled {
		t.Fatalf("with a replica: %v %v", res.Outcome, res.Err)
	}
	if res := store(delaybridge.Request{}); !errors.Is(res.Err, delaybridge.ErrInvalid) {
		t.Fatalf("no request: %v", res.Err)
	}
	// Newer servers have WAIT ask about a connection's last write only, so that a
	// repeated request, which changes nothing, would wait for nothing.
	mc := master.Client(t)
	writes := func() string {
		_, stats, _ := strings.Cut(mc.Info(t.Context(), "commandstats").Val(), "cmdstat_set:")
		calls, _, _ := strings.Cut(stats, ",")
		return calls
	}
	before := writes()
	if res := store(dueNow("a", 1)); res.Err != nil || res.Outcome != delaybridge.Duplicate || writes() == before {
		t.Fatalf("repeated: %v %v, and there was a write to wait for: %v", res.Outcome, res.Err, writes() != before)
	}
	replica.Pause()
	for try := range 2 {
		// The second time the write is there already, and must be waited for all the same.
		if res := store(dueNow("b", 2)); !errors.Is(res.Err, luascripts.ErrReplicas) {
			t.Fatalf("try %d with a replica that hangs: %v %v", try, res.Outcome, res.Err)
		}
	}
	replica.Resume()
	if !servers.Eventually(func() bool { return store(dueNow("b", 2)).Err == nil }) {
		t.Fatal("not stored though the replica is back")
	}
}

// A master of three is killed under load, its replica takes over, and it comes
// back as that one's replica: nothing that was confirmed is lost, nothing is
// claimed twice, and the client recovers by itself. In between, what belongs to
// the new master's slots is not confirmed, since nobody else has it.
func TestClusterLosesNoConfirmedWriteWithItsMaster(t *testing.T) {
	t.Parallel()
	c := servers.NewRedisCluster(t)
	q := openDurable(t, c.URL, luascripts.ModeCluster, 1)
	confirmed := map[string]bool{}
	const count = 3000
	down := false
	for i := range count {
		if i == count/3 {
			c.Masters[1].Kill()
			down = true
		}
		r := dueNow(fmt.Sprint("m", i), i+1)
		if down && q.Store(t.Context(), []delaybridge.Request{r})[0].Err != nil {
			down = false
			heir := c.Replicas[1].Client(t)
			if !servers.Eventually(func() bool {
				return strings.Contains(heir.Info(t.Context(), "replication").Val(), "role:master")
			}) {
				t.Fatal("the replica does not take over")
			}
			c.Masters[1].Start(t)
		}
		if !servers.Eventually(func() bool { return q.Store(t.Context(), []delaybridge.Request{r})[0].Err == nil }) {
			t.Fatalf("%s cannot be stored any more", r.Message.ID)
		}
		confirmed[r.Message.ID] = true
	}
	asks := make([]delaybridge.Ask, q.Shards())
	for i := range asks {
		asks[i] = delaybridge.Ask{Shard: i, Limit: 500}
	}
	got := map[string]bool{}
	if !servers.Eventually(func() bool {
		for _, g := range q.Claim(t.Context(), delaybridge.SinkNATS, asks) {
			for _, claim := range g.Claims {
				if got[claim.ID] {
					t.Fatalf("%s claimed twice", claim.ID)
				}
				got[claim.ID] = true
			}
			for _, err := range q.Ack(t.Context(), g.Claims) {
				if err != nil {
					t.Errorf("ack: %v", err)
				}
			}
		}
		return len(got) == count
	}) {
		for id := range confirmed {
			if !got[id] {
				t.Errorf("%s was confirmed and is lost", id)
			}
		}
	}
}

// TestAddressThatMovesIsFollowed makes the master a replica of another server,
// to which its address points from then on, while connections to it stay open.
//
// B31 (redis/go-redis#790, envoyproxy/ratelimit#1191): writers stayed on the read-only node.
func TestAddressThatMovesIsFollowed(t *testing.T) {
	t.Parallel()
	old, heir := servers.NewRedis(t, servers.RedisTCP), servers.NewRedis(t, servers.RedisTCP)
	at := func(r *servers.Redis) string { return "127.0.0.1:" + strconv.Itoa(r.Port) }
	link := sinktest.NewLink(t, at(old))
	q := openDurable(t, "redis://"+link.Addr()+"/0", luascripts.ModeSingle, 0)
	store := func(offset int) error {
		return q.Store(t.Context(), []delaybridge.Request{dueNow(fmt.Sprint("m", offset), offset)})[0].Err
	}
	var several sync.WaitGroup // connections
	for i := range 8 {
		several.Go(func() {
			if err := store(i + 1); err != nil {
				t.Error(err)
			}
		})
	}
	several.Wait()

	hc, oc := heir.Client(t), old.Client(t)
	if err := hc.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(old.Port)).Err(); err != nil {
		t.Fatal(err)
	}
	if !servers.Eventually(func() bool {
		return strings.Contains(hc.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}) {
		t.Fatal("the heir does not follow")
	}
	if err := hc.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	link.Retarget(at(heir))
	if err := oc.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(heir.Port)).Err(); err != nil {
		t.Fatal(err)
	}
	// Each connection fails once at the most, and the next one finds the heir.
	failed := 0
	for offset := 9; offset < 40; {
		if err := store(offset); err != nil {
			if failed++; failed > 20 {
				t.Fatalf("failed %d times: %v", failed, err)
			}
			continue
		}
		offset++
	}
	claimed := 0
	for shard := range q.Shards() {
		for _, g := range q.Claim(t.Context(), delaybridge.SinkNATS, []delaybridge.Ask{{Shard: shard, Limit: 100}}) {
			if g.Err != nil {
				t.Error(g.Err)
			}
			claimed += len(g.Claims)
		}
	}
	if claimed != 39 {
		t.Errorf("claimed %d from the heir, want 39", claimed)
	}
}

// B31 (redis/go-redis#790): the new master behind Sentinel is found without a restart.
func TestSentinelFailOverIsFollowed(t *testing.T) {
	t.Parallel()
	s := servers.NewRedisSentinel(t)
	q := openDurable(t, s.URL, luascripts.ModeSentinel, 1)
	if res := q.Store(t.Context(), []delaybridge.Request{dueNow("a", 1)})[0]; res.Err != nil {
		t.Fatal(res.Err)
	}
	// With the only replica promoted there is none left to wait for.
	q = openDurable(t, s.URL, luascripts.ModeSentinel, 0)
	s.Master.Kill()
	var err error
	if !servers.Eventually(func() bool {
		err = q.Store(t.Context(), []delaybridge.Request{dueNow("b", 2)})[0].Err
		return err == nil
	}) {
		t.Fatalf("the new master is not found: %v", err)
	}
	var ids []string
	for shard := range q.Shards() {
		for _, g := range q.Claim(t.Context(), delaybridge.SinkNATS, []delaybridge.Ask{{Shard: shard, Limit: 9}}) {
			for _, c := range g.Claims {
				ids = append(ids, c.ID)
			}
		}
	}
	if len(ids) != 2 {
		t.Errorf("claimed %q from the new master, want a and b", ids)
	}
}
