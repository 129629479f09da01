package luascripts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"
)

// watched collects wake-ups as "<lane> <shard>".
type watched struct {
	wakes chan string
	ended chan error
	stop  context.CancelFunc
}

// watch runs Watch, again and again after errors, until the test or stop ends it.
func watch(t *testing.T, q *Queue) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{wakes: make(chan string, 1000), ended: make(chan error, 1), stop: cancel}
	go func() {
		for {
			err := q.Watch(ctx, func(lane string, shard int) { w.wakes <- fmt.Sprintf("%s %d", lane, shard) })
			if ctx.Err() != nil {
				w.ended <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(cancel)
	await(t, w.wakes, " -1")
	return w
}

// none fails if there was a wake-up. A marker that is sent behind it shows that
// there was time for one.
func (w *watched) none(t *testing.T, q *Queue) {
	t.Helper()
	if err := q.client.Publish(context.Background(), wakeChannel("bridge"), "3 0").Err(); err != nil {
		t.Fatal(err)
	}
	if got := <-w.wakes; got != "nats-core 0" {
		t.Errorf("woken by %q", got)
	}
}

func TestWatch(t *testing.T) {
	ctx := context.Background()
	cfg := testConfig()
	cfg.Shards = 4
	r := servers.NewRedis(t, "--appendonly", "yes")
	h := newHarness(t, r.Client(t), cfg)
	w := watch(t, h.q)
	const id = "a"
	here := shardOf(id, 4)
	nats, kafka := fmt.Sprintf("nats %d", here), fmt.Sprintf("kafka %d", here)

	h.store(schedule(id, "again", "nats:S 1"))
	await(t, w.wakes, nats) // the first of its lane and shard
	h.store(schedule(id, "hi", "nats:S 2"))
	await(t, w.wakes, nats) // it moved forward
	h.store(schedule(id, "again", "nats:S 3"))
	w.none(t, h.q) // it moved back
	h.store(schedule(id, "again", "nats:S 3"))
	w.none(t, h.q) // a duplicate
	h.store(schedule(id, "kaf", "nats:S 4"))
	await(t, w.wakes, kafka)
	h.at(2000)
	g := h.q.Claim(ctx, "kafka", []delaybridge.Ask{{Shard: here, Limit: 9}})[0]
	w.none(t, h.q)
	if got := settled(h.q.Release(ctx, g.Claims)); got != "ok" {
		t.Fatal(got)
	}
	await(t, w.wakes, kafka)
	if got := settled(h.q.Release(ctx, g.Claims)); got != "lease lost" {
		t.Fatal(got)
	}
	w.none(t, h.q)
	g = h.q.Claim(ctx, "kafka", []delaybridge.Ask{{Shard: here, Limit: 9}})[0]
	if got := settled(h.q.Bury(ctx, []delaybridge.Burial{{Claim: g.Claims[0], Reason: delaybridge.ReasonAttempts}})); got != "ok" {
		t.Fatal(got)
	}
	w.none(t, h.q)
	letter, err := h.q.DeadLetter(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.q.Replay(ctx, letter, message(id, "hi", "nats:S 4"), false); err != nil {
		t.Fatal(err)
	}
	await(t, w.wakes, nats)

	// What others say on the channel is nothing, and no harm.
	for _, noise := range []string{"", "1", "1 4", "1 -1", "0 0", "4 0", "x y", "1 99999999999999999999", "1 0 0"} {
		if err := h.q.client.Publish(ctx, wakeChannel("bridge"), noise).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.none(t, h.q)

	// A restart ends the subscription; the next one says that something may have
	// been missed, and goes on.
	r.Kill()
	r.Start(t)
	await(t, w.wakes, " -1")
	h.store(schedule("b", "now", "nats:S 9"))
	await(t, w.wakes, fmt.Sprintf("nats %d", shardOf("b", 4)))

	w.stop()
	select {
	case err := <-w.ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not end with its context")
	}
}

// TestWatchEnds: an end of the context ends it wherever it is, and an error of
// Redis ends it too.
func TestWatchEnds(t *testing.T) {
	r := servers.NewRedis(t)
	q := newHarness(t, r.Client(t), testConfig()).q
	end := func(name string, prepare func()) {
		t.Helper()
		w := watch(t, q)
		prepare()
		w.stop()
		select {
		case err := <-w.ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: ended with %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: it did not end with its context", name)
		}
	}
	end("a live Redis", func() {})
	end("a Redis that hangs", r.Pause)
	r.Resume()
	r.Kill()
	ended := make(chan error, 1)
	go func() { ended <- q.Watch(context.Background(), func(string, int) {}) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without an error, and without Redis")
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not end, without Redis")
	}
}

// TestWatchIdle: silence is no harm, and a Redis that has become deaf shows.
func TestWatchIdle(t *testing.T) {
	r := servers.NewRedis(t)
	cfg := testConfig()
	cfg.watchIdle = 50 * time.Millisecond
	h := newHarness(t, r.Client(t), cfg)
	wakes, ended := make(chan string, 100), make(chan error)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// Again and again: on a busy machine a Redis that is well may be silent for so
	// long, too.
	go func() {
		for ctx.Err() == nil {
			err := h.q.Watch(ctx, func(lane string, shard int) {
				select {
				case wakes <- lane:
				case <-ctx.Done():
				}
			})
			select {
			case ended <- err:
			case <-ctx.Done():
			default:
			}
		}
	}()
	await(t, wakes, "")
	// Redis counts the pings that keep the subscription: some silences long.
	pings := func() int64 {
		value := h.q.infos(ctx, "commandstats")[0].fields["cmdstat_ping"]
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		return atoi(calls)
	}
	before := pings()
	if !servers.Eventually(func() bool { return pings() >= before+3 }) {
		t.Fatal("a silent subscription was not asked whether it lives")
	}
	if !servers.Eventually(func() bool {
		if err := h.client.Publish(ctx, wakeChannel("bridge"), "2 0").Err(); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case lane := <-wakes:
				if lane == "nats" {
					return true
				}
			case <-time.After(100 * time.Millisecond):
				return false
			}
		}
	}) {
		t.Fatal("it does not hear any more")
	}
	r.Pause()
	defer r.Resume()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not end, though nobody answers")
	}
}
