package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/test/servers"
)

// trouble is one way in which Redis does not do what it is asked to.
type trouble struct {
	about string
	args  []string // of redis-server
	hold  time.Duration
	// begin brings the trouble about and returns what ends it.
	begin func(t *testing.T, r *servers.Redis, c *redis.Client) (end func())
	// says is part of what the bridge logs of it.
	says string
}

const (
	// troubleHold is how long a trouble lasts, longTrouble one that shows only
	// when a client gives up waiting for its answer, after 3 s.
	troubleHold = 2500 * time.Millisecond
	longTrouble = 4 * time.Second
)

// TestRedisTrouble has Redis fail in one way after the other while messages come
// in and fall due. The loops live through it, do not spin, and go on by
// themselves: nothing new has to come in for it.
//
// OptimalBits/bull#2015 and taskforcesh/bullmq#2534: one failed call stopped the loop for good (B27).
func TestRedisTrouble(t *testing.T) {
	t.Parallel()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	rows := []trouble{
		{"BUSY: a script runs for ever", []string{"--busy-reply-threshold", "100"}, troubleHold, func(t *testing.T, r *servers.Redis, c *redis.Client) func() {
			ended := make(chan struct{})
			looping := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(r.Dir, "redis.sock"), MaxRetries: -1, ReadTimeout: -1, DisableIdentity: true})
			go func() {
				defer close(ended)
				_ = looping.Eval(ctx, "while true do end", nil).Err() // SCRIPT KILL is its end
			}()
			if !servers.Eventually(func() bool { return redis.HasErrorPrefix(c.Ping(ctx).Err(), "BUSY") }) {
				t.Fatal("Redis is not busy")
			}
			return func() { must(t, c.ScriptKill(ctx).Err()); <-ended; _ = looping.Close() }
		}, "BUSY"},
		{"MISCONF: a snapshot has failed", []string{"--save", "3600 1"}, troubleHold, func(t *testing.T, r *servers.Redis, c *redis.Client) func() {
			// A directory in the place of the file cannot be replaced by it.
			file := filepath.Join(r.Dir, "dump.rdb")
			must(t, os.Mkdir(file, 0o755))
			must(t, c.BgSave(ctx).Err())
			if !servers.Eventually(func() bool { return redis.HasErrorPrefix(c.Set(ctx, "x", "x", 0).Err(), "MISCONF") }) {
				t.Fatal("Redis is not misconfigured")
			}
			return func() {
				must(t, os.Remove(file))
				must(t, c.BgSave(ctx).Err())
			}
		}, "MISCONF"},
		{"READONLY: it has become a replica", nil, troubleHold, func(t *testing.T, _ *servers.Redis, c *redis.Client) func() {
			must(t, c.ReplicaOf(ctx, "127.0.0.1", "1").Err())
			return func() { must(t, c.ReplicaOf(ctx, "NO", "ONE").Err()) }
		}, "READONLY"},
		{"LOADING: it has started again and reads its file", []string{"--appendonly", "yes", "--key-load-delay", "100"}, time.Second,
			func(t *testing.T, r *servers.Redis, c *redis.Client) func() {
				// So many keys, at 100 us each.
				for range 25 {
					_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
						for range 1000 {
							p.SAdd(ctx, "ballast", "x")
						}
						for n := range 1000 {
							p.Set(ctx, fmt.Sprint("ballast-", n), "x", 0)
						}
						return nil
					})
					must(t, err)
				}
				r.Kill()
				var started sync.WaitGroup
				started.Go(func() { r.Start(t) })
				if !servers.Eventually(func() bool { return redis.HasErrorPrefix(c.Ping(ctx).Err(), "LOADING") }) {
					t.Fatal("Redis is not loading")
				}
				return started.Wait
			}, ""},
		{"time-outs: its process does not run", nil, longTrouble, func(_ *testing.T, r *servers.Redis, _ *redis.Client) func() {
			r.Pause()
			return r.Resume
		}, "timeout"},
		{"paused clients", nil, longTrouble, func(t *testing.T, _ *servers.Redis, c *redis.Client) func() {
			must(t, c.Do(ctx, "CLIENT", "PAUSE", longTrouble.Milliseconds(), "ALL").Err())
			return func() {}
		}, "timeout"},
		{"WRONGTYPE: keys hold something else", nil, troubleHold, func(t *testing.T, _ *servers.Redis, c *redis.Client) func() {
			each := func(do func(key string)) {
				for shard := range 8 {
					do(fmt.Sprintf("{bridge:%d}:due:%s", shard, delaybridge.SinkNATS))
				}
			}
			each(func(key string) {
				_ = c.Rename(ctx, key, key+":aside").Err() // most are not there
				must(t, c.Set(ctx, key, "nonsense", 0).Err())
			})
			return func() {
				each(func(key string) {
					must(t, c.Del(ctx, key).Err())
					_ = c.Rename(ctx, key+":aside", key).Err()
				})
			}
		}, "WRONGTYPE"},
		{"gone, and back", []string{"--appendonly", "yes", "--appendfsync", "always"}, troubleHold, func(t *testing.T, r *servers.Redis, _ *redis.Client) func() {
			r.Kill()
			return func() { r.Start(t) }
		}, "connect"},
	}

	// They wait most of the time.
	var all sync.WaitGroup
	for _, row := range rows {
		all.Go(func() {
			t.Run(row.about, func(t *testing.T) {
				w := newWorldOn(t, servers.NewRedis(t, row.args...))
				c := w.redis.Client(t)
				// A claim whose reply was lost comes back soon.
				w.table.MayRepeat()
				p := w.serve(t, Env{"LEASE": "2s", "PUBLISH_TIMEOUT": "1s"})
				send := func(id string, delay time.Duration) {
					sent := publish(t, w.js, "bridge.schedule", id, "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: "+id)
					w.table.Expect(id, sent.Add(delay))
				}
				send("before", 0)
				w.table.Await(t, "before")
				send("due-meanwhile", 1500*time.Millisecond)
				w.awaitStored(t, "due-meanwhile")
				// Not in the middle of a settlement.
				w.awaitState(t, "before", "delivered")

				end := row.begin(t, w.redis, c)
				said, used, began := len(p.Output()), cpuTime(t, p.Pid()), time.Now()
				send("sent-meanwhile", 100*time.Millisecond)
				time.Sleep(row.hold) // the span of the trouble is what this is about
				// It may have had no processor to notice it with.
				servers.Eventually(func() bool { return strings.Contains(p.Output()[said:], row.says) })
				lines := strings.Count(p.Output()[said:], "\n")
				used, held := cpuTime(t, p.Pid())-used, time.Since(began)
				end()

				w.table.Check(t)
				w.awaitEmptyBut(t, "ballast", "x")
				if ended, _ := p.Ended(); ended {
					t.Error("the bridge has ended")
				}
				if lines > 40 || used > time.Second+held/4 {
					t.Errorf("while it lasted, the bridge said %d lines and used %v of CPU time", lines, used)
				}
				if !strings.Contains(p.Output()[said:], row.says) {
					t.Errorf("the bridge said nothing of %s:\n%s", row.says, tail(p.Output()[said:]))
				}
			})
		})
	}
	all.Wait()
}

// newWorldOn is newWorld on a Redis with settings of its own.
func newWorldOn(t *testing.T, r *servers.Redis) *world {
	t.Helper()
	w := &world{redis: r, nats: servers.NewNATS(t)}
	w.js = w.nats.JetStream(t)
	w.env = Env{"REDIS_URL": r.URL, "NATS_URL": w.nats.URL}
	stream(t, w.js, "ORDERS", "orders.>")
	w.table = NewTimetable(t, w.nats.Connect(t), "orders.>")
	return w
}

// awaitEmptyBut is awaitEmpty, but for keys of the test's own.
func (w *world) awaitEmptyBut(t *testing.T, prefixes ...string) {
	t.Helper()
	var left []string
	if !servers.Eventually(func() bool {
		left = nil
	keys:
		for _, key := range w.keyspace(t) {
			for _, p := range prefixes {
				if strings.HasPrefix(key, p) {
					continue keys
				}
			}
			left = append(left, key)
		}
		return len(left) == 0
	}) {
		t.Errorf("Redis still holds %v", left)
	}
}

// TestScriptsForgotten flushes Redis's script cache all the time. No call fails
// for it.
//
// Openpanel-dev/groupmq#16 and gresrun/jesque#100: NOSCRIPT stopped everything (B28).
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	const messages = 1000
	w := newWorld(t)
	p := w.serve(t, nil)
	c := w.redis.Client(t)
	ctx, cancel := context.WithCancel(context.Background())
	flushes := 0
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for ; ctx.Err() == nil; flushes++ {
			if err := c.ScriptFlush(context.Background()).Err(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	for i := range messages {
		id := fmt.Sprint("m-", i)
		delay := time.Duration(i/2) * time.Millisecond
		sent := publish(t, w.js, "bridge.schedule", id, "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: "+id)
		w.table.Expect(id, sent.Add(delay))
	}
	w.table.Check(t)
	w.awaitEmpty(t)
	cancel()
	flushing.Wait()
	t.Logf("%d flushes", flushes)
	for _, bad := range []string{"does not answer", "cannot settle", "does not take records", "NOSCRIPT"} {
		if strings.Contains(p.Output(), bad) {
			t.Errorf("the bridge said %q:\n%s", bad, tail(p.Output()))
		}
	}
}

// TestRedisEmptied deletes everything while a bridge runs. What is scheduled
// afterwards is delivered as if nothing had been.
//
// blnkfinance/blnk#336: timers vanished with an ephemeral Redis, unnoticed (B35).
func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)
	publish(t, w.js, "bridge.schedule", "lost", "Bridge-Target: nats://orders.x", "Bridge-Delay: 1h", "Bridge-Id: lost")
	w.awaitState(t, "lost", "pending")
	if err := w.redis.Client(t).FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	sent := publish(t, w.js, "bridge.schedule", "new", "Bridge-Target: nats://orders.x", "Bridge-Delay: 500ms", "Bridge-Id: new")
	w.table.Expect("new", sent.Add(500*time.Millisecond))
	w.table.Check(t)
	w.awaitEmpty(t)
	// A command finds a queue that it can open, and a second bridge, too.
	w.awaitState(t, "new", "delivered")
	w.serve(t, Env{"ROLES": "scheduler"})
}

// TestRedisFull fills Redis to its maxmemory. What is due still leaves, what
// fails is put off and buried, what is pending can be cancelled; what comes in
// waits at its source, and is taken in once there is room.
//
// apache/pulsar#16763 and celery/celery#9849: messages of the far future used up all memory (B55).
func TestRedisFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, ctx := w.redis.Client(t), context.Background()
	w.serve(t, Env{"MAX_ATTEMPTS": "2", "RETRY_BASE": "100ms"})
	const delay = 4 * time.Second
	for i := range 200 {
		id := fmt.Sprint("due-", i)
		sent := publish(t, w.js, "bridge.schedule", id, "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: "+id)
		w.table.Expect(id, sent.Add(delay))
	}
	publish(t, w.js, "bridge.schedule", "dying", "Bridge-Target: nats://nowhere.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: dying")
	publish(t, w.js, "bridge.schedule", "far", "Bridge-Target: nats://orders.x", "Bridge-Delay: 1h", "Bridge-Id: far")
	w.awaitState(t, "far", "pending")

	// So far below what it uses that leaving messages make no room.
	limit := func(value string) {
		t.Helper()
		if err := c.ConfigSet(ctx, "maxmemory", value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("600kb")
	if err := c.Set(ctx, "ballast", "x", 0).Err(); !redis.HasErrorPrefix(err, "OOM") {
		t.Fatalf("Redis is not full: %v", err)
	}
	publish(t, w.js, "bridge.schedule", "waits", "Bridge-Target: nats://orders.x", "Bridge-Delay: 0s", "Bridge-Id: waits")
	if r := Run(t, w.env, "", "cancel", "far"); r.Code != 0 {
		t.Errorf("cancel: %+v", r)
	}
	w.table.Check(t)
	w.awaitState(t, "dying", "dead")
	source, err := w.js.Stream(ctx, "BRIDGE_SCHEDULE")
	if err != nil || source.CachedInfo().State.Msgs != 1 {
		t.Errorf("the source holds %d messages while Redis is full (%v)", source.CachedInfo().State.Msgs, err)
	}
	limit("0")
	w.table.Await(t, "waits")
	w.awaitState(t, "waits", "delivered")
}
