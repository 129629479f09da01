package luascripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/test/servers"
)

// TestFullRedis: at maxmemory, what empties the queue runs, and what fills it is
// refused without a trace.
func TestFullRedis(t *testing.T) {
	ctx := context.Background()
	// Without the "#!lua" line, as in production: it would have Redis refuse
	// every script that does not say otherwise.
	client := servers.NewRedis(t).Client(t)
	h := newHarness(t, client, testConfig())
	maxmemory := func(bytes string) {
		t.Helper()
		if err := client.ConfigSet(ctx, "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	const oom = "OOM"
	letter := "dead d +0\ndeadmsg d permanent 1 0 \"no\" [nats:S 5] hi\ndeadcount permanent 1\n"
	one := []delaybridge.Claim{claimOf("a", "hi", "nats:S 7", 60_000)}
	for _, row := range []transition{
		{
			name: "a new message is refused",
			do:   storing(schedule("a", "hi", "nats:S 7"), schedule("b", "hi", "nats:S 8")), want: oom, state: same,
		}, {
			name: "so is a replacement, even though it frees what it replaces", seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: storing(schedule("a", "kaf", "nats:S 8"), schedule("b", "hi", "nats:S 9")), want: oom, state: same,
		}, {
			name: "so is a replacement of what is in flight", seed: leased,
			do: storing(schedule("a", "kaf", "nats:S 8"), schedule("b", "hi", "nats:S 9")), want: oom, state: same,
		}, {
			name: "so is a rejected one",
			do:   storing(delaybridge.Request{Op: delaybridge.OpReject, Message: message("r", "hi", "nats:S 7")}), want: oom, state: same,
		}, {
			name: "a duplicate is seen all the same", seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: storing(schedule("a", "hi", "nats:S 7")), want: "duplicate", state: same,
		}, {
			name: "so is one known by its tombstone", seed: "done:a since +0\ndone:a a d nats:S 7",
			do: storing(schedule("a", "hi", "nats:S 7")), want: "duplicate", state: same,
		}, {
			name: "but for one whose tombstone there is no room to keep: its source waits", now: 600_000,
			seed: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000",
			do:   storing(schedule("a", "hi", "nats:S 7")), want: oom, state: same,
		}, {
			name: "a cancel that is redelivered keeps its tombstone", now: 600_000,
			seed: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000",
			do:   storing(cancel("a", "nats:S 7")), want: "duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000\ndone:b a d nats:S 7",
		}, {
			name: "claims run", seed: "due:nats a +0\nmsg a [nats:S 7] now\ninflight:nats b +0\nmsg b [nats:S 8] now",
			do: func(h *harness) string { return h.claim("nats", 10) }, want: "b now +60000 0/1, a now +60000 0/0; wait 1m0s, 1 expired",
			state: "inflight:nats a +60000\nmsg a [nats:S 7] now\ninflight:nats b +60000\nmsg b [nats:S 8] now\ntries b 0 1",
		}, {
			name: "claims bury", seed: "due:nats a +0\ninflight:nats b +0\nmsg b [nats:S 8] now\ntries b 0 9\ndue:nats c +0\nmsg c raw \"1 nats:S 9\\n\"",
			do: func(h *harness) string { return h.claim("nats", 10) }, want: "nothing; wait 1m0s, 1 expired, 3 buried",
			state: "dead a +0\ndead b +0\ndead c +0\ndeadcount abandoned 1\ndeadcount corrupt 2\n" +
				"deadmsg a corrupt 0 0 \"the message has no record\" raw \"\"\n" +
				"deadmsg b abandoned 0 10 \"its lease ran out 10 times\" [nats:S 8] now\n" +
				"deadmsg c corrupt 0 0 \"corrupt record: it ends too early\" raw \"1 nats:S 9\\n\"\n" +
				"done:b since +0\ndone:b b x nats:S 8\ndone:b c x nats:S 9",
		}, {
			name: "ack runs", seed: leased,
			do: func(h *harness) string { return settled(h.q.Ack(ctx, one)) }, want: "ok", state: "done:b since +0\ndone:b a d nats:S 7",
		}, {
			name: "retry runs", seed: leased,
			do: func(h *harness) string {
				return settled(h.q.Retry(ctx, []delaybridge.Retry{{Claim: one[0], After: time.Minute}}))
			}, want: "ok", state: "due:nats a +60000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "release runs", seed: leased,
			do: func(h *harness) string { return settled(h.q.Release(ctx, one)) }, want: "ok", state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 2",
		}, {
			name: "bury runs", seed: leased,
			do: func(h *harness) string {
				return settled(h.q.Bury(ctx, []delaybridge.Burial{{Claim: one[0], Reason: "attempts", Error: "no", Failed: 12}}))
			}, want: "ok",
			state: "dead a +0\ndeadmsg a attempts 12 0 \"no\" [nats:S 7] hi\ndeadcount attempts 1\ndone:b since +0\ndone:b a x nats:S 7",
		}, {
			name: "cancel runs", seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: storing(cancel("a", "nats:S 8")), want: "cancelled", state: "done:b since +0\ndone:b a c nats:S 8",
		}, {
			name: "cancel of what is unknown runs",
			do:   storing(cancel("a", "nats:S 8")), want: "unknown", state: "done:b since +0\ndone:b a c nats:S 8",
		}, {
			name: "replay runs", seed: letter,
			do: func(h *harness) string {
				l, err := h.q.DeadLetter(ctx, "d")
				return settled([]error{err, h.replay(l, "hi", false)})
			}, want: "ok, ok", state: "due:nats d +1000\nmsg d [api:replay 1 nats:S 5] hi",
		}, {
			name: "purge runs", seed: letter,
			do: func(h *harness) string {
				l, err := h.q.DeadLetter(ctx, "d")
				return settled(append(h.q.Purge(ctx, []Letter{l}), err))
			}, want: "ok, ok", state: "",
		}, {
			name: "sweep runs", seed: letter + "done:a since +0\ndone:a z d nats:S 1", now: 3_600_001,
			do: func(h *harness) string {
				n, err := h.q.Sweep(ctx, 0)
				return strconv.Itoa(n) + settled([]error{err})
			}, want: "1ok", state: "",
		}, {
			name: "what reads runs", seed: letter + "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: func(h *harness) string {
				items, _, err := h.q.List(ctx, "", 10, "")
				s, err2 := h.q.Get(ctx, "a")
				p, err3 := h.q.Pressure(ctx)
				return fmt.Sprintf("%d %s %d %v %s", len(items), s.State, p.Pending, p.MemoryRatio > 1, settled([]error{err, err2, err3}))
			}, want: "1 pending 1 true ok, ok, ok", state: same,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			h.t = t
			h.at(row.now)
			maxmemory("0")
			h.seed(row.seed)
			// Scripts that Redis has to learn first run as well.
			if err := client.ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			maxmemory("100kb")
			got := row.do(h)
			if row.want == oom {
				if !strings.HasPrefix(got, "schedule: OOM") && !strings.HasPrefix(got, "reject: OOM") || strings.Contains(got, "duled") {
					t.Errorf("answer: %s, want errors of %s", got, oom)
				}
			} else if got != row.want {
				t.Errorf("answer: %s\nwant:   %s", got, row.want)
			}
			if row.state == same {
				row.state = row.seed
			}
			h.wantState(row.state)
		})
	}
	t.Run("a queue and a source that are known open, others do not", func(t *testing.T) {
		maxmemory("0")
		h.seed("")
		mustOpen := func(cfg Config) *Queue {
			t.Helper()
			q, err := Open(ctx, client, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
		q := mustOpen(testConfig())
		if _, err := q.Incarnation(ctx, "nats:S", "1"); err != nil {
			t.Fatal(err)
		}
		maxmemory("100kb")
		q = mustOpen(testConfig())
		if name, err := q.Incarnation(ctx, "nats:S", "2"); err != nil || name != "nats:S@2" {
			t.Errorf("incarnation %q %v", name, err)
		}
		if _, err := q.Incarnation(ctx, "nats:T", "1"); err == nil || !strings.Contains(err.Error(), oom) {
			t.Errorf("a new source in a full Redis: %v", err)
		}
		cfg := testConfig()
		cfg.Namespace = "other"
		if _, err := Open(ctx, client, cfg); err == nil || !strings.Contains(err.Error(), oom) {
			t.Errorf("a new queue in a full Redis: %v", err)
		}
		maxmemory("0")
		mustOpen(cfg)
	})
}

// everyScript runs each transition and each question on some ids of every
// shard, and fails at the first error.
func everyScript(t *testing.T, h *harness) {
	t.Helper()
	ctx := context.Background()
	q := h.q
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	h.at(0)
	var requests []delaybridge.Request
	for i := range 8 * q.Shards() {
		m := message(fmt.Sprintf("id-%d", i), "now", "nats:S 1")
		m.Position.Offset = uint64(i)
		requests = append(requests, delaybridge.Request{Message: m})
	}
	gone := len(requests)
	for i := range 8 * q.Shards() {
		m := message(fmt.Sprintf("gone-%d", i), "hi", "nats:S 1")
		m.Position.Offset = uint64(gone + i)
		requests = append(requests, delaybridge.Request{Message: m})
	}
	for i := range 8 * q.Shards() {
		m := message(fmt.Sprintf("gone-%d", i), "hi", "nats:S 1")
		m.Position.Offset = uint64(2*gone + i)
		requests = append(requests, delaybridge.Request{Op: delaybridge.OpCancel, Message: m})
	}
	requests = append(requests, delaybridge.Request{Op: delaybridge.OpReject, Message: message("bad", "now", "nats:S 0"), Error: "no"})
	for i, r := range q.Store(ctx, requests) {
		want := delaybridge.Scheduled
		if i >= 2*gone {
			want = delaybridge.Cancelled
		}
		if i == 3*gone {
			want = delaybridge.Rejected
		}
		if r.Err != nil || r.Outcome != want {
			t.Fatalf("request %d: %v %v, want %v", i, r.Outcome, r.Err, want)
		}
	}
	claimAll := func(want int) (claims []delaybridge.Claim) {
		t.Helper()
		var asks []delaybridge.Ask
		for shard := range q.Shards() {
			asks = append(asks, delaybridge.Ask{Shard: shard, Limit: 100})
		}
		for _, g := range q.Claim(ctx, "nats", asks) {
			must(g.Err)
			claims = append(claims, g.Claims...)
		}
		if len(claims) != want {
			t.Fatalf("%d claims, want %d", len(claims), want)
		}
		return claims
	}
	retryAll := func(claims []delaybridge.Claim) (all []delaybridge.Retry) {
		for _, c := range claims {
			all = append(all, delaybridge.Retry{Claim: c})
		}
		return all
	}
	buryAll := func(claims []delaybridge.Claim) (all []delaybridge.Burial) {
		for _, c := range claims {
			all = append(all, delaybridge.Burial{Claim: c, Reason: delaybridge.ReasonAttempts, Error: "no", Failed: 12})
		}
		return all
	}
	must(q.Retry(ctx, retryAll(claimAll(gone)))...)
	must(q.Release(ctx, claimAll(gone))...)
	must(q.Bury(ctx, buryAll(claimAll(gone)))...)
	letters, next, err := q.Dead(ctx, 1000, "")
	must(err)
	if len(letters) != gone+1 || next != "" {
		t.Fatalf("%d letters, next %q", len(letters), next)
	}
	for i, l := range letters {
		if l.ID == "bad" {
			must(q.Purge(ctx, letters[i:i+1])...)
			continue
		}
		if i%2 == 0 {
			must(q.Replay(ctx, l, l.Message, false))
		}
	}
	for shard := range q.Shards() {
		h.at(2 * 3_600_000)
		_, err := q.Sweep(ctx, shard)
		must(err)
		h.at(0)
	}
	items, _, err := q.List(ctx, "nats", 1000, "")
	must(err)
	must(q.Ack(ctx, claimAll(len(items)))...)
	stats, err := q.Stats(ctx)
	must(err)
	if n := stats.Dead[delaybridge.ReasonAttempts]; n != 0 || stats.Lanes["nats"].Pending != 0 {
		t.Errorf("left over: %+v", stats)
	}
	_, err = q.Pressure(ctx)
	must(err)
	_, err = q.Peek(ctx, "nats", true)
	must(err)
	s, err := q.Get(ctx, items[0].ID)
	if must(err); s.State != delaybridge.StateDelivered {
		t.Errorf("state %v", s.State)
	}
}

// TestCluster runs everything on a cluster of one node, with the "#!lua" line:
// there Redis refuses a second slot, and everywhere a key that is not of the
// script's slot.
//
// B32 (asynq#138, taskforcesh/bullmq#459): keys of one script lay in several slots.
func TestCluster(t *testing.T) {
	ctx := context.Background()
	r := servers.NewRedis(t, servers.RedisTCP, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(servers.FreePort(t)))
	node := r.Client(t)
	if err := node.ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	if !servers.Eventually(func() bool {
		return strings.Contains(node.ClusterInfo(ctx).Val(), "cluster_state:ok")
	}) {
		t.Fatal("the cluster did not form in time")
	}
	client, err := Connect(r.URL, ModeCluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	cfg := testConfig()
	cfg.Shards, cfg.shebang = 8, shebang
	h := newHarness(t, client, cfg)

	slots := map[int64]bool{}
	for i := range h.q.keys {
		k := &h.q.keys[i]
		all := k.lanes(k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB)
		slot := node.ClusterKeySlot(ctx, all[0]).Val()
		for _, key := range all {
			if s := node.ClusterKeySlot(ctx, key).Val(); s != slot {
				t.Errorf("%s is in slot %d, %s in %d", all[0], slot, key, s)
			}
		}
		slots[slot] = true
	}
	if len(slots) != cfg.Shards {
		t.Errorf("%d shards lie in %d slots", cfg.Shards, len(slots))
	}

	woken := make(chan string, 1000)
	watching, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- h.q.Watch(watching, func(lane string, shard int) {
			select {
			case woken <- lane:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	await(t, woken, "")
	everyScript(t, h)
	await(t, woken, "nats")
}

// await waits until a channel gives a value.
func await[T comparable](t *testing.T, c <-chan T, want T) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case got := <-c:
			if got == want {
				return
			}
		case <-limit:
			t.Fatalf("%v did not come in time", want)
		}
	}
}

// TestScriptFlush: forgetting the scripts at any moment makes no call fail.
//
// B28 (groupmq#16, jesque#100): NOSCRIPT stopped everything.
func TestScriptFlush(t *testing.T) {
	ctx := context.Background()
	r := servers.NewRedis(t)
	h := newHarness(t, r.Client(t), testConfig())
	h.q.cfg.clock, h.q.cfg.hostClock = nil, nil
	flusher := r.Client(t)
	stop, flushed := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := flusher.ScriptFlush(ctx).Err(); err != nil {
					t.Error(err)
					return
				}
				flushed++
			}
		}
	})
	for round := range 200 {
		var requests []delaybridge.Request
		for i := range 10 {
			m := message(fmt.Sprintf("%d-%d", round, i), "old", "nats:S 1")
			m.Position.Offset = uint64(10*round + i)
			requests = append(requests, delaybridge.Request{Message: m})
		}
		requests = append(requests, cancel("nobody", fmt.Sprintf("nats:C %d", round)))
		for i, r := range h.q.Store(ctx, requests) {
			if r.Err != nil || i < 10 && r.Outcome != delaybridge.Scheduled {
				t.Fatalf("round %d: %v %v", round, r.Outcome, r.Err)
			}
		}
		g := h.q.Claim(ctx, "nats", []delaybridge.Ask{{Limit: 100}})[0]
		if g.Err != nil || len(g.Claims) != 10 {
			t.Fatalf("round %d: %d claims %v", round, len(g.Claims), g.Err)
		}
		for _, err := range h.q.Ack(ctx, g.Claims) {
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	close(stop)
	wg.Wait()
	if flushed < 100 {
		t.Errorf("the scripts were flushed %d times only", flushed)
	}
}

// TestWrongTypes: a key that is not what it should be is an error, and no panic.
func TestWrongTypes(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		cfg := testConfig()
		cfg.shebang = shebang
		h := newHarness(t, client, cfg)
		k := &h.q.keys[0]
		for _, key := range k.lanes(k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB) {
			h.seed("due:nats a -1\nmsg a [nats:S 7] now\ninflight:nats b +1\nmsg b [nats:S 8] now\ndead d +0\ndeadmsg d corrupt 0 0 \"\" raw \"\"")
			letter, err := h.q.DeadLetter(ctx, "d")
			if err != nil {
				t.Fatal(err)
			}
			client.Del(ctx, key)
			if err := client.Set(ctx, key, "no", 0).Err(); err != nil {
				t.Fatal(err)
			}
			var errs []error
			note := func(more ...error) { errs = append(errs, more...) }
			for _, lane := range delaybridge.Lanes {
				g := h.q.Claim(ctx, lane, []delaybridge.Ask{{Limit: 9}})[0]
				note(g.Err)
				_, err := h.q.Peek(ctx, lane, true)
				note(err)
				c := claimOf("b", "now", "nats:S 8", 1)
				c.Lease.Lane = lane
				note(h.q.Retry(ctx, []delaybridge.Retry{{Claim: c}})...)
				note(h.q.Release(ctx, []delaybridge.Claim{c})...)
				note(h.q.Bury(ctx, []delaybridge.Burial{{Claim: c, Reason: delaybridge.ReasonAttempts}})...)
				note(h.q.Ack(ctx, []delaybridge.Claim{c})...)
			}
			for _, r := range h.q.Store(ctx, []delaybridge.Request{
				schedule("a", "kaf", "nats:S 9"), cancel("a", "nats:S 10"), schedule("c", "hi", "nats:S 9"),
				{Op: delaybridge.OpReject, Message: message("r", "hi", "nats:S 11")},
			}) {
				note(r.Err)
			}
			note(h.q.Replay(ctx, letter, message("d", "hi", "nats:S 1"), true))
			note(h.q.Purge(ctx, []Letter{letter})...)
			_, err = h.q.Sweep(ctx, 0)
			note(err)
			_, err = h.q.Stats(ctx)
			note(err)
			_, err = h.q.Pressure(ctx)
			note(err)
			_, _, err = h.q.List(ctx, "", 10, "")
			note(err)
			_, _, err = h.q.Dead(ctx, 10, "")
			note(err)
			_, err = h.q.DeadLetter(ctx, "d")
			note(err)
			_, err = h.q.Get(ctx, "a")
			note(err)
			if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				// Get asks every key but the count.
				if key != k.deadcount {
					t.Errorf("%s: get says %v", key, err)
				}
			}
			wrong := 0
			for _, err := range errs {
				if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
					wrong++
				}
			}
			if wrong == 0 {
				t.Errorf("%s is no such type, and nobody says so", key)
			}
		}
	})
}

// cutter stands between a client and a Redis, and can lose a reply.
type cutter struct {
	net.Listener
	target string
	armed  atomic.Bool
	cut    atomic.Int64
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, target: target}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return c
}

// serve passes bytes on both ways; armed, it closes the connection in place of
// the next reply, which the server has given by then.
func (c *cutter) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	defer func() { _ = server.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		if c.armed.CompareAndSwap(true, false) {
			c.cut.Add(1)
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestRepliesLost: Redis carries a call out, and its reply never arrives. The
// caller sees an error, the call has been carried out once, and to repeat it
// changes nothing more.
func TestRepliesLost(t *testing.T) {
	ctx := context.Background()
	r := servers.NewRedis(t, servers.RedisTCP)
	c := newCutter(t, "127.0.0.1:"+strconv.Itoa(r.Port))
	client, err := Connect("redis://"+c.Addr().String(), ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	direct := newHarness(t, r.Client(t), testConfig())
	h := newHarness(t, client, testConfig())
	one := []delaybridge.Claim{claimOf("a", "hi", "nats:S 7", 60_000)}
	letter := "dead a +0\ndeadmsg a permanent 1 0 \"no\" [nats:S 7] hi\ndeadcount permanent 1\n"
	for _, row := range []struct {
		transition
		again string // the answer to the repetition
	}{
		{transition{
			name: "schedule", do: storing(schedule("a", "hi", "nats:S 7"), schedule("b", "hi", "nats:S 8")),
			state: "due:nats a +1000\nmsg a [nats:S 7] hi\ndue:nats b +1000\nmsg b [nats:S 8] hi",
		}, "duplicate, duplicate"},
		{transition{
			name: "replace", seed: leased, do: storing(schedule("a", "again", "nats:S 8")),
			state: "due:nats a +3000\nmsg a [nats:S 8] again",
		}, "duplicate"},
		{transition{
			name: "cancel", seed: "due:nats a +1000\nmsg a [nats:S 7] hi", do: storing(cancel("a", "nats:S 8")),
			state: "done:b since +0\ndone:b a c nats:S 8",
		}, "duplicate"},
		{transition{
			name: "reject", do: storing(delaybridge.Request{Op: delaybridge.OpReject, Message: message("a", "hi", "nats:S 7"), Error: "no"}),
			state: "dead a +0\ndeadmsg a rejected 0 0 \"no\" [nats:S 7] hi\ndeadcount rejected 1\ndone:b since +0\ndone:b a x nats:S 7",
		}, "duplicate"},
		{transition{
			name: "claim", seed: "due:nats a +0\nmsg a [nats:S 7] hi\ndue:nats b +0\nmsg b [nats:S 8] hi",
			do:    func(h *harness) string { return h.claim("nats", 10) },
			state: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ninflight:nats b +60000\nmsg b [nats:S 8] hi",
		}, "nothing; wait 1m0s"},
		{transition{
			name: "ack", seed: leased, do: func(h *harness) string { return settled(h.q.Ack(ctx, one)) },
			state: "done:b since +0\ndone:b a d nats:S 7",
		}, "lease lost"},
		{transition{
			name: "retry", seed: leased,
			do: func(h *harness) string {
				return settled(h.q.Retry(ctx, []delaybridge.Retry{{Claim: one[0], After: time.Minute}}))
			},
			state: "due:nats a +60000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, "lease lost"},
		{transition{
			name: "release", seed: leased, do: func(h *harness) string { return settled(h.q.Release(ctx, one)) },
			state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 2",
		}, "lease lost"},
		{transition{
			name: "bury", seed: leased,
			do: func(h *harness) string {
				return settled(h.q.Bury(ctx, []delaybridge.Burial{{Claim: one[0], Reason: "attempts", Error: "no", Failed: 12}}))
			},
			state: "dead a +0\ndeadmsg a attempts 12 0 \"no\" [nats:S 7] hi\ndeadcount attempts 1\ndone:b since +0\ndone:b a x nats:S 7",
		}, "lease lost"},
		{transition{
			name: "replay", seed: letter,
			do: func(h *harness) string {
				l := Letter{DeadLetter: delaybridge.DeadLetter{Message: message("a", "hi", "nats:S 7"), Died: time.UnixMilli(epoch)}, marks: "nats:S 7"}
				return settled([]error{h.replay(l, "hi", false)})
			},
			state: "due:nats a +1000\nmsg a [api:replay 1 nats:S 7] hi",
		}, `replay "a": unknown id`},
		{transition{
			name: "purge", seed: letter,
			do: func(h *harness) string {
				l := Letter{DeadLetter: delaybridge.DeadLetter{Message: message("a", "hi", "nats:S 7"), Died: time.UnixMilli(epoch)}}
				return settled(h.q.Purge(ctx, []Letter{l}))
			},
			state: "",
		}, `purge "a": unknown id`},
	} {
		t.Run(row.name, func(t *testing.T) {
			direct.t, h.t = t, t
			direct.seed(row.seed)
			// Once more on the side, so that the script is known and the
			// connection made before the reply that counts.
			_ = row.do(direct)
			direct.seed(row.seed)
			if _, err := h.q.Peek(ctx, "nats", true); err != nil {
				t.Fatal(err)
			}
			before := c.cut.Load()
			c.armed.Store(true)
			answer := row.do(h)
			for _, one := range strings.Split(answer, ", ") {
				if !strings.Contains(one, "EOF") && !strings.Contains(one, "reset") {
					t.Errorf("the reply was lost, and the answer is %q", answer)
				}
			}
			if c.cut.Load() != before+1 {
				t.Fatal("no reply was lost")
			}
			direct.wantState(row.state)
			if again := row.do(h); again != row.again {
				t.Errorf("repeated: %s\nwant:     %s", again, row.again)
			}
			direct.wantState(row.state)
		})
	}
	t.Run("claims come back after the lease", func(t *testing.T) {
		direct.t, h.t = t, t
		direct.seed("due:nats a +0\nmsg a [nats:S 7] hi\ndue:nats b +0\nmsg b [nats:S 8] hi")
		if _, err := h.q.Peek(ctx, "nats", true); err != nil {
			t.Fatal(err)
		}
		c.armed.Store(true)
		if g := h.q.Claim(ctx, "nats", []delaybridge.Ask{{Limit: 10}})[0]; !errors.Is(g.Err, io.EOF) && g.Err == nil {
			t.Fatal("the reply was not lost")
		}
		h.at(59_999)
		if got := h.claim("nats", 10); got != "nothing; wait 1ms" {
			t.Error(got)
		}
		h.at(60_000)
		if got := h.claim("nats", 10); got != "a hi +120000 0/1, b hi +120000 0/1; wait 1m0s, 2 expired" {
			t.Error(got)
		}
	})
}

// What looks at many large messages does not hold all of them in Redis's memory at
// once: that of scripts counts for no limit of Redis's own.
func TestLargeMessagesTakeLittleOfScripts(t *testing.T) {
	const count, size = 128, 1 << 20
	client := servers.NewRedis(t).Client(t)
	q, err := Open(t.Context(), client, testConfig())
	if err != nil {
		t.Fatal(err)
	}
	send := func(from int, payload []byte, each int) {
		t.Helper()
		var requests []delaybridge.Request
		for i := range count {
			r := schedule(fmt.Sprint("id", i), "hi", fmt.Sprintf("nats:S %d", from+i))
			r.Message.Payload = payload
			requests = append(requests, r)
		}
		for batch := range slices.Chunk(requests, each) {
			for _, result := range q.Store(t.Context(), batch) {
				if result.Err != nil {
					t.Fatal(result.Err)
				}
			}
		}
	}
	send(1, make([]byte, size), 1)
	if err := client.ScriptFlush(t.Context()).Err(); err != nil { // what scripts took goes with them
		t.Fatal(err)
	}
	for range 2 * count {
		if n, err := q.Repair(t.Context(), 0); n != 0 || err != nil {
			t.Fatalf("repaired %d, %v", n, err)
		}
	}
	if taken := scriptMemory(t, client); taken > count*size/4 {
		t.Errorf("scripts hold %d MiB after looking at %d MiB", taken>>20, count*size>>20)
	}
	send(1000, []byte("small"), count)
	if taken := scriptMemory(t, client); taken > count*size/4 {
		t.Errorf("scripts hold %d MiB, of the %d MiB that were replaced", taken>>20, count*size>>20)
	}
}

// scriptMemory returns how much memory Redis's scripts hold.
func scriptMemory(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(info, "used_memory_vm_eval:")
	text, _, _ = strings.Cut(text, "\r\n")
	taken, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}
