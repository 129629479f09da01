package luascripts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/test/servers"
)

// oddIDs are ids that somebody could mistake for something else.
var oddIDs = []string{
	"a b", " ", "a\nb", "\n", "\x00", "a\x00b", strings.Repeat("\xff", 256), "nats:S 7", "d nats:S 7", "1 nats:S 7\n",
	"-inf", "+inf", "(1", "[", "0", "-1", "{bridge:0}", "é", "%s%d", "api:x 1", "since", "[a-z]*", strings.Repeat("x", 256),
}

// TestOddIDs takes every odd id through every transition.
func TestOddIDs(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.Shards, cfg.shebang = 4, shebang
		h := newHarness(t, client, cfg)
		for i, id := range oddIDs {
			position := fmt.Sprintf("nats:S@2 %d", 100*i)
			steps := 0
			want := func(got, want string) {
				t.Helper()
				if steps++; got != want {
					t.Fatalf("id %q, step %d: %s, want %s", id, steps, got, want)
				}
			}
			claim := func() []delaybridge.Claim {
				t.Helper()
				g := h.q.Claim(ctx, "nats", []delaybridge.Ask{{Shard: shardOf(id, 4), Limit: 9}})[0]
				if g.Err != nil || len(g.Claims) != 1 || g.Claims[0].ID != id {
					t.Fatalf("id %q: grant %+v", id, g)
				}
				return g.Claims
			}
			want(h.store(schedule(id, "now", position)), "scheduled")
			want(h.store(schedule(id, "now", position)), "duplicate")
			s, err := h.q.Get(ctx, id)
			want(fmt.Sprint(s.State, " ", err, s.Message.ID == id), "pending <nil> true")
			items, _, err := h.q.List(ctx, "", 10, "")
			want(fmt.Sprint(len(items), err, items[0].ID == id), "1 <nil> true")
			want(settled(h.q.Retry(ctx, []delaybridge.Retry{{Claim: claim()[0], Error: "1 2 no"}})), "ok")
			s, err = h.q.Get(ctx, id)
			want(fmt.Sprintf("%v %d/%d %q", err, s.Failed, s.LostLeases, s.LastError), `<nil> 1/0 "1 2 no"`)
			items, _, err = h.q.List(ctx, "", 10, "")
			want(fmt.Sprintf("%v %d/%d %q", err, items[0].Failed, items[0].LostLeases, items[0].LastError), `<nil> 1/0 "1 2 no"`)
			want(settled(h.q.Release(ctx, claim())), "ok")
			want(settled(h.q.Bury(ctx, []delaybridge.Burial{{Claim: claim()[0], Reason: delaybridge.ReasonExpired, Error: id}})), "ok")
			letters, _, err := h.q.Dead(ctx, 10, "")
			want(fmt.Sprint(len(letters), err, letters[0].ID == id, letters[0].Error == id), "1 <nil> true true")
			want(settled([]error{h.q.Replay(ctx, letters[0], letters[0].Message, false)}), "ok")
			want(settled(h.q.Ack(ctx, claim())), "ok")
			want(h.store(schedule(id, "now", position)), "duplicate")
			want(h.store(cancel(id, fmt.Sprintf("nats:S@2 %d", 100*i+2)), schedule(id, "now", fmt.Sprintf("nats:S@2 %d", 100*i+1))), "too_late delivered, duplicate")
			want(h.store(delaybridge.Request{Op: delaybridge.OpReject, Message: message(id, "now", fmt.Sprintf("nats:S@2 %d", 100*i+3)), Error: "no"}), "rejected")
			l, err := h.q.DeadLetter(ctx, id)
			want(fmt.Sprint(err), "<nil>")
			want(settled(h.q.Purge(ctx, []Letter{l})), "ok")
		}
	})
}

// TestPaging reads lists page by page, over shards, lanes and many equal times.
func TestPaging(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.Shards, cfg.shebang = 3, shebang
		h := newHarness(t, client, cfg)
		random := rand.New(rand.NewPCG(1, 2))
		type item struct {
			due      int64
			id, lane string
		}
		var want []item
		var requests []delaybridge.Request
		for i := range 150 {
			// Ids that a locale would order in another way than their bytes.
			id := fmt.Sprintf("%c%c-%d", "aBcÄ_~ "[random.IntN(7)], "Zyx"[random.IntN(3)], i)
			due := int64([]int{0, 1000, 1000, 1000, 2000, 3 + i}[random.IntN(6)])
			lane := delaybridge.Lanes[random.IntN(len(delaybridge.Lanes))]
			m := message(id, "hi", "nats:S 1")
			m.Target.Sink, m.Due, m.Position.Offset = lane, time.UnixMilli(epoch+due), uint64(i)
			requests = append(requests, delaybridge.Request{Message: m})
			want = append(want, item{due, id, lane})
		}
		for _, r := range h.q.Store(ctx, requests) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		slices.SortFunc(want, func(a, b item) int {
			if a.due != b.due {
				return int(a.due - b.due)
			}
			return strings.Compare(a.id, b.id)
		})
		for _, lane := range []string{"", "kafka", "nats-core"} {
			for _, limit := range []int{1, 2, 7, 100, 149, 150, 1000} {
				var got []item
				pages := 0
				for after := ""; ; {
					items, next, err := h.q.List(ctx, lane, limit, after)
					if err != nil {
						t.Fatal(err)
					}
					if next != "" && len(items) != limit || len(items) > limit {
						t.Fatalf("a page of %d, limit %d, next %q", len(items), limit, next)
					}
					for _, p := range items {
						got = append(got, item{p.Due.UnixMilli() - epoch, p.ID, p.Lane})
						if p.Message == nil || p.Message.ID != p.ID || p.Message.Target.Sink != p.Lane {
							t.Fatalf("item %+v", p)
						}
					}
					if pages++; next == "" {
						break
					}
					after = next
				}
				all := slices.Clone(want)
				if lane != "" {
					all = slices.DeleteFunc(all, func(i item) bool { return i.lane != lane })
				}
				if !slices.Equal(got, all) {
					t.Fatalf("lane %q, limit %d: %d items in %d pages, want %d:\n%v\nwant\n%v", lane, limit, len(got), pages, len(all), got, all)
				}
			}
		}

		// What is claimed between two pages, the cursor's own entry too, moves
		// none of the others.
		first, next, err := h.q.List(ctx, "", 40, "")
		if err != nil {
			t.Fatal(err)
		}
		h.at(0)
		for _, lane := range delaybridge.Lanes {
			h.q.Claim(ctx, lane, []delaybridge.Ask{{Shard: 0, Limit: 500}, {Shard: 1, Limit: 500}, {Shard: 2, Limit: 500}})
		}
		h.q.Store(ctx, []delaybridge.Request{cancel(first[39].ID, "nats:S 1000")})
		rest, _, err := h.q.List(ctx, "", 1000, next)
		if err != nil {
			t.Fatal(err)
		}
		var ids, left []string
		for _, p := range rest {
			ids = append(ids, p.ID)
		}
		for _, i := range want[40:] {
			if i.due > 0 {
				left = append(left, i.id)
			}
		}
		if !slices.Equal(ids, left) {
			t.Errorf("%d behind the cursor, want %d", len(ids), len(left))
		}

		for _, bad := range []string{"x", "!!", "MTIz", "MTIgIDM", "eCBh", "LSAx", "MDEgYQ"} {
			if _, _, err := h.q.List(ctx, "", 10, bad); err != nil && !errors.Is(err, ErrCursor) {
				t.Errorf("cursor %q: %v", bad, err)
			} else if err == nil && bad != "MTIgIDM" { // "12  3": an id may begin with a blank
				t.Errorf("cursor %q was taken", bad)
			}
		}
		if _, _, err := h.q.List(ctx, "smtp", 10, ""); err == nil {
			t.Error("a lane that there is not was listed")
		}
	})
}

// TestDeadPaging pages through letters of which many have died in one moment.
func TestDeadPaging(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.Shards, cfg.shebang = 4, shebang
		h := newHarness(t, client, cfg)
		want := map[string]bool{}
		for round := range 3 {
			h.at(int64(round))
			var requests []delaybridge.Request
			for i := range 50 {
				m := message(fmt.Sprintf("r-%d-%d", round, i), "hi", "nats:S 1")
				m.Position.Offset = uint64(100*round + i)
				requests = append(requests, delaybridge.Request{Op: delaybridge.OpReject, Message: m, Error: "no"})
				want[m.ID] = true
			}
			for _, r := range h.q.Store(ctx, requests) {
				if r.Err != nil || r.Outcome != delaybridge.Rejected {
					t.Fatal(r)
				}
			}
		}
		for _, limit := range []int{0, 1, 9, 50, 149, 150, 5000} {
			got := map[string]bool{}
			var last time.Time
			for after := ""; ; {
				letters, next, err := h.q.Dead(ctx, limit, after)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range letters {
					if got[l.ID] || l.Died.Before(last) || l.Corrupt || l.Reason != delaybridge.ReasonRejected {
						t.Fatalf("limit %d: letter %+v again, or out of order", limit, l)
					}
					got[l.ID], last = true, l.Died
				}
				if next == "" {
					break
				}
				after = next
			}
			if len(got) != len(want) {
				t.Errorf("limit %d: %d letters, want %d", limit, len(got), len(want))
			}
		}
	})
}

func TestGet(t *testing.T) {
	get := func(h *harness) string {
		s, err := h.q.Get(context.Background(), "a")
		if err != nil {
			if !errors.Is(err, ErrUnknown) {
				return err.Error()
			}
			return "unknown"
		}
		text := string(s.State)
		if s.Message != nil {
			text += " " + string(s.Message.Payload)
		}
		if !s.Due.IsZero() {
			text += " due " + writeTime(s.Due.UnixMilli())
		}
		if !s.LeaseEnd.IsZero() {
			text += " until " + writeTime(s.LeaseEnd.UnixMilli())
		}
		text += fmt.Sprintf(" %d/%d", s.Failed, s.LostLeases)
		if s.LastError != "" {
			text += fmt.Sprintf(" %q", s.LastError)
		}
		return text
	}
	letter := "dead a +5\ndeadmsg a attempts 12 2 \"no\" [nats:S 7] hi\ndeadcount attempts 1\n"
	var rows []transition
	for _, row := range []struct{ name, seed, want string }{
		{"nothing is known", "", "unknown"},
		{"pending", "due:nats a +1000\nmsg a [nats:S 7] hi", "pending hi due +1000 0/0"},
		{"pending after failures", "due:kafka a +9000\nmsg a [nats:S 7] kaf\ntries a 2 1", "pending kaf due +9000 2/1"},
		{"pending after failures, with the last error", "due:nats a +9000\nmsg a [nats:S 7] hi\ntries a 2 1 3 no  stream ", `pending hi due +9000 2/1 "3 no  stream"`},
		{"in flight after failures", "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 0 no", `in_flight hi until +60000 1/0 "no"`},
		{"pending with tries that cannot be read", "due:nats a +9000\nmsg a [nats:S 7] hi\ntries a x", "pending hi due +9000 0/0"},
		{"pending with a record that cannot be read", "due:nats a +1000\nmsg a raw \"?\"", "pending due +1000 0/0"},
		{"in flight", leased, "in_flight hi until +60000 1/2"},
		{"delivered", "done:a since +0\ndone:a a d nats:S 7", "delivered 0/0"},
		{"cancelled", "done:a since +0\ndone:a a c nats:S 7", "cancelled 0/0"},
		{"delivered, in the older hash", "done:a since +0\ndone:a a d nats:S 7\ndone:b since +1", "delivered 0/0"},
		{"delivered, then cancelled: the newer counts", "done:a since +0\ndone:a a d nats:S 7\ndone:b since +1\ndone:b a c nats:S 8", "cancelled 0/0"},
		{"cancelled, then delivered: the newer counts", "done:a since +1\ndone:a a d nats:S 8\ndone:b since +0\ndone:b a c nats:S 7", "delivered 0/0"},
		{"dead", letter + "done:a since +0\ndone:a a x nats:S 7", `dead hi 12/2 "no"`},
		{"dead, its tombstone gone", letter, `dead hi 12/2 "no"`},
		{"dead and corrupt", "dead a +5\ndeadmsg a corrupt 1 0 \"no\" raw \"?\"\ndeadcount corrupt 1", `dead 1/0 "no"`},
		{"dead, then pending anew", letter + "due:nats a +1000\nmsg a [nats:S 8] hi", "pending hi due +1000 0/0"},
		{"dead, then delivered", letter + "done:a since +0\ndone:a a d nats:S 8", "delivered 0/0"},
		{"dead, then purged", "done:a since +0\ndone:a a x nats:S 7", "unknown"},
	} {
		rows = append(rows, transition{name: row.name, seed: row.seed, do: get, want: row.want, state: same})
	}
	rows = append(rows, transition{
		name: "the empty id, which is a field of ours", seed: "done:a since +0", want: "unknown", state: same,
		do: func(h *harness) string {
			_, err := h.q.Get(context.Background(), "")
			if errors.Is(err, ErrUnknown) {
				return "unknown"
			}
			return fmt.Sprint(err)
		},
	})
	runTransitions(t, rows)
}

func TestStats(t *testing.T) {
	const hour = 3_600_000
	seed := fmt.Sprintf(`
		due:nats a -30000
		due:nats b +0
		due:nats c +1
		due:nats d +%d
		due:nats e +%d
		inflight:nats f +60000
		due:kafka g +7
		dead x +0
		dead y +0
		deadmsg x corrupt 0 0 "" raw ""
		deadmsg y corrupt 0 0 "" raw ""
		deadcount corrupt 2`, hour, hour+1)
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		seed += "\nmsg " + id + " [nats:S 7] hi"
	}
	seed += "\nmsg g [nats:S 7] kaf"
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.shebang = shebang
		h := newHarness(t, client, cfg)
		h.seed(seed)
		s, err := h.q.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]LaneStats{
			"nats": {
				Pending: 5, InFlight: 1, Overdue: 2, OverdueFor: 30 * time.Second, Far: 1, NextDue: time.UnixMilli(epoch - 30000),
			},
			"kafka":     {Pending: 1, NextDue: time.UnixMilli(epoch + 7)},
			"nats-core": {},
		}
		for lane, w := range want {
			if s.Lanes[lane] != w {
				t.Errorf("%s: %+v, want %+v", lane, s.Lanes[lane], w)
			}
		}
		if len(s.Dead) != len(delaybridge.Reasons) || s.Dead["corrupt"] != 2 || !s.Now.Equal(time.UnixMilli(epoch)) {
			t.Errorf("dead %v, now %v", s.Dead, s.Now)
		}
		p, err := h.q.Pressure(ctx)
		if err != nil || p.Pending != 7 {
			t.Errorf("pressure %+v %v, want 7 pending", p, err)
		}
	})
	t.Run("several shards add up", func(t *testing.T) {
		ctx := context.Background()
		cfg := testConfig()
		cfg.Shards = 5
		h := newHarness(t, servers.NewRedis(t, "--maxmemory", "100mb").Client(t), cfg)
		var requests []delaybridge.Request
		for i := range 40 {
			r := schedule(fmt.Sprintf("id-%d", i), "hi", "nats:S 1")
			r.Message.Due = time.UnixMilli(epoch + int64(i))
			requests = append(requests, r)
		}
		h.q.Store(ctx, requests)
		h.at(9)
		s, err := h.q.Stats(ctx)
		l := s.Lanes["nats"]
		if err != nil || l.Pending != 40 || l.Overdue != 10 || l.OverdueFor != 9*time.Millisecond || !l.NextDue.Equal(time.UnixMilli(epoch)) {
			t.Errorf("%+v %v", l, err)
		}
		p, err := h.q.Pressure(ctx)
		if err != nil || p.Pending != 40 || p.MemoryRatio <= 0 || p.MemoryRatio > 0.5 {
			t.Errorf("pressure %+v %v", p, err)
		}
	})
}

// TestPeek: it says what a claim would say, and changes nothing.
func TestPeek(t *testing.T) {
	rows := []struct {
		name, seed string
		now, host  int64
		want       time.Duration
	}{
		{"nothing there", "", 0, 0, -1},
		{"due later", "due:nats a +1000", 1, 1, 999 * time.Millisecond},
		{"due now", "due:nats a +1000", 1000, 1000, 0},
		{"overdue", "due:nats a -90000", 0, 0, 0},
		{"in flight", "inflight:nats a +60000", 0, 0, time.Minute},
		{"a lease that has run out", "inflight:nats a +60000", 60_000, 60_000, 0},
		{"in flight, and due before it ends", "inflight:nats a +60000\ndue:nats b +50000", 0, 0, 50 * time.Second},
		{"in flight, and due after it ends", "inflight:nats a +60000\ndue:nats b +70000", 0, 0, time.Minute},
		{"held back by this host's clock", "due:nats a +9000", 3_600_000, 0, 4 * time.Second},
		{"not hurried by this host's clock", "due:nats a +9000", 0, 3_600_000, 9 * time.Second},
		{"another lane's", "due:kafka a +0", 0, 0, -1},
		{"in the farthest future", "due:nats a 9007199254740991", 0, 0, 1<<63 - 1},
	}
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				cfg := testConfig()
				cfg.shebang = shebang
				h := newHarness(t, client, cfg)
				h.seed(row.seed)
				h.now, h.host = row.now, row.host
				waits, err := h.q.Peek(context.Background(), "nats", true)
				if err != nil || len(waits) != 1 {
					t.Fatalf("%v %v", waits, err)
				}
				h.wantState(row.seed)
				if waits[0] != row.want {
					t.Errorf("peek says %v, want %v", waits[0], row.want)
				}
				// A limit of nothing makes the claim only look.
				g := h.q.Claim(context.Background(), "nats", []delaybridge.Ask{{Limit: 0}})[0]
				if g.Err != nil || g.Wait != row.want {
					t.Errorf("claim says %v %v, peek %v", g.Wait, g.Err, waits[0])
				}
			})
		}
	})
	h := newHarness(t, servers.NewRedis(t).Client(t), testConfig())
	if _, err := h.q.Peek(context.Background(), "smtp", true); err == nil {
		t.Error("a lane that there is not was peeked at")
	}
}

func TestOpen(t *testing.T) {
	ctx := context.Background()
	client := servers.NewRedis(t).Client(t)
	cfg := testConfig()
	cfg.Shards = 4
	if _, err := Open(ctx, client, cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, client, cfg); err != nil {
		t.Fatal("again:", err)
	}
	cfg.Shards = 5
	_, err := Open(ctx, client, cfg)
	if !errors.Is(err, ErrShards) || !strings.Contains(err.Error(), "says 4") || !strings.Contains(err.Error(), "say 5") {
		t.Errorf("another number of shards: %v", err)
	}
	cfg.Namespace = "other"
	if _, err := Open(ctx, client, cfg); err != nil {
		t.Error("another namespace:", err)
	}
	for name, change := range map[string]func(*Config){
		"namespace":   func(c *Config) { c.Namespace = "" },
		"brace":       func(c *Config) { c.Namespace = "a{b}" },
		"shards":      func(c *Config) { c.Shards = 0 },
		"1025":        func(c *Config) { c.Shards = 1025 },
		"lease":       func(c *Config) { c.Lease = 0 },
		"window":      func(c *Config) { c.DedupWindow = time.Microsecond },
		"lost leases": func(c *Config) { c.MaxLostLeases = 0 },
		"retention":   func(c *Config) { c.DeadRetention = -1 },
		"tolerance":   func(c *Config) { c.ClockTolerance = -1 },
		"claim bytes": func(c *Config) { c.MaxClaimBytes = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error("the defaults:", err)
	}
}

func TestIncarnation(t *testing.T) {
	ctx := context.Background()
	q := newHarness(t, servers.NewRedis(t).Client(t), testConfig()).q
	for _, step := range []struct{ source, mark, want string }{
		{"nats:S", "2026-01-01T00:00:00Z", "nats:S"},
		{"nats:S", "2026-01-01T00:00:00Z", "nats:S"},
		{"nats:S", "2026-02-02T00:00:00Z", "nats:S@2026-02-02T00:00:00Z"},
		{"nats:S", "2026-01-01T00:00:00Z", "nats:S"},
		{"nats:T", "2026-02-02T00:00:00Z", "nats:T"},
		{"kafka:t:0", "q1w2-e3", "kafka:t:0"},
	} {
		if name, err := q.Incarnation(ctx, step.source, step.mark); err != nil || name != step.want {
			t.Errorf("%s, %s: %q %v, want %q", step.source, step.mark, name, err, step.want)
		}
	}
	for _, bad := range [][2]string{{"", "1"}, {"nats:S", ""}, {"nats:S", "a b"}, {"nats S", "1"}, {"nats:S", "\n"}} {
		if _, err := q.Incarnation(ctx, bad[0], bad[1]); !errors.Is(err, delaybridge.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestConnect(t *testing.T) {
	for _, mode := range []string{ModeSingle, ModeSentinel, ModeCluster} {
		c, err := Connect("redis://u:secret@127.0.0.1:1/0?read_timeout=7s&master_name=m", mode)
		if mode == ModeSingle {
			c, err = Connect("rediss://u:secret@127.0.0.1:1/3?read_timeout=7s", mode)
		} else if mode == ModeCluster {
			c, err = Connect("redis://u:secret@127.0.0.1:1?read_timeout=7s&addr=127.0.0.1:2", mode)
		}
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if o, ok := c.(*redis.Client); ok && (o.Options().MaxRetries != 0 || o.Options().ReadTimeout != 7*time.Second ||
			o.Options().DialTimeout != dialTimeout || !o.Options().ContextTimeoutEnabled) {
			t.Errorf("%s: options %+v", mode, o.Options())
		}
		_ = c.Close()
	}
	if _, err := Connect("redis://h", "raft"); err == nil || !strings.Contains(err.Error(), "raft") {
		t.Errorf("mode raft: %v", err)
	}
	for _, url := range []string{
		"redis://u:secret@h:bad/0", "redis://u:sec%secret@h", "redis://u:secret/secret@h", "redis://u:12/secret@h:1/0",
		"redis://u:1?secret=secret@h", "redis://u:1#secret@h", "u:secret@h", "secret@h", "redis://u:secret\x00@h", "rediss://:secret@[::1/0",
		"redis://u:secret@h:1/zero", "redis://u:secret@h:1/0?secrets=1&x=y",
	} {
		for _, mode := range []string{ModeSingle, ModeSentinel, ModeCluster} {
			if _, err := Connect(url, mode); err != nil && strings.Contains(strings.ReplaceAll(err.Error(), "secrets", ""), "secret") {
				t.Errorf("%s %s: the error shows the password: %v", mode, url, err)
			}
		}
	}
	_, err := Connect("redis://u:secret@h:1/0?pool_sise=1", ModeSingle)
	if err == nil || !strings.Contains(err.Error(), "pool_sise") {
		t.Errorf("an unknown option is not named: %v", err)
	}
}
