package luascripts

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/test/servers"
)

// epoch is the moment "+0" in the tests' texts.
const epoch = 1_790_000_000_000

// shebang makes Redis check the keys and slots of every script.
const shebang = "#!lua\n"

// harness is a queue of one shard with a clock that stands still, and a way to
// write the whole keyspace down as text.
type harness struct {
	t      testing.TB
	client redis.UniversalClient
	q      *Queue
	now    int64 // ms past epoch, Redis's clock
	host   int64 // ms past epoch, this host's clock

	names map[string]string // a message's bytes -> its name in bodies
}

// testConfig is small enough to see every limit.
func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Shards, cfg.MaxLostLeases, cfg.DeadRetention = 1, 3, time.Hour
	return cfg
}

func newHarness(t testing.TB, client redis.UniversalClient, cfg Config) *harness {
	t.Helper()
	h := &harness{t: t, client: client, names: map[string]string{}}
	for name, m := range bodies {
		h.name(name, m)
	}
	cfg.clock = func() time.Time { return time.UnixMilli(epoch + h.now) }
	cfg.hostClock = func() time.Time { return time.UnixMilli(epoch + h.host) }
	q, err := Open(context.Background(), client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.q = q
	return h
}

// name has a message written down as name.
func (h *harness) name(name string, m delaybridge.Message) {
	h.t.Helper()
	b, err := encodeMessage(&m)
	if err != nil {
		h.t.Fatal(err)
	}
	h.names[string(b)] = name
}

// at sets both clocks.
func (h *harness) at(ms int64) *harness {
	h.now, h.host = ms, ms
	return h
}

// onBoth runs a test on a real Redis that checks the scripts' keys, and on the
// miniredis of `bridge dev`.
func onBoth(t *testing.T, test func(t *testing.T, client redis.UniversalClient, shebang string)) {
	t.Run("redis", func(t *testing.T) { test(t, servers.NewRedis(t).Client(t), shebang) })
	t.Run("miniredis", func(t *testing.T) {
		c := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), MaxRetries: -1})
		t.Cleanup(func() { _ = c.Close() })
		test(t, c, "")
	})
}

// bodies are the messages that the tests' texts name, without id and position.
var bodies = map[string]delaybridge.Message{
	"hi":    body("nats://x", 1000, "hi"),
	"again": body("nats://y", 3000, "again"),
	"now":   body("nats://x", 0, "now"),
	"kaf":   body("kafka://t", 2000, "kaf"),
	"old":   body("nats://x", -epoch-5000, "old"),
	"far":   body("nats://x", 1<<60, "far"),
	"empty": body("nats://x", 0, ""),
}

func body(target string, due int64, payload string) delaybridge.Message {
	sink, name, _ := strings.Cut(target, "://")
	return delaybridge.Message{
		Target: delaybridge.Target{Sink: sink, Name: name}, Payload: []byte(payload),
		Scheduled: time.UnixMilli(epoch - 1000).UTC(), Due: time.UnixMilli(epoch + due).UTC(),
	}
}

// message returns a body with an id and a position, the first of marks.
func message(id, name, marks string) delaybridge.Message {
	m, ok := bodies[name]
	if !ok {
		panic("no body " + name)
	}
	m.ID = id
	var err error
	if m.Position, err = firstMark(id, marks); err != nil {
		// A test of odd positions.
		m.Position.Source, _, _ = strings.Cut(marks, " ")
	}
	return m
}

// schedule is a request to schedule, cancel one to cancel.
func schedule(id, name, position string) delaybridge.Request {
	return delaybridge.Request{Message: message(id, name, position)}
}

func cancel(id, position string) delaybridge.Request {
	return delaybridge.Request{Op: delaybridge.OpCancel, Message: message(id, "hi", position)}
}

// claimOf is the claim of a message that was leased until end, ms past epoch.
func claimOf(id, name, position string, end int64) delaybridge.Claim {
	m := message(id, name, position)
	return delaybridge.Claim{Message: m, Lease: delaybridge.Lease{
		Lane: m.Target.Sink, End: epoch + end, Marks: position,
	}}
}

// encoded returns a body's bytes as a record holds them.
func encoded(t testing.TB, name string) string {
	m := bodies[name]
	b, err := encodeMessage(&m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A keyspace is written down as one line for each entry:
//
//	due:nats a +1000             inflight:nats a +60000       dead a +0
//	msg a [nats:S 7] hi          msg a raw "bytes"
//	tries a 1 0
//	done:a since +0              done:a a d nats:S 7
//	deadmsg a permanent 2 1 "why" [nats:S 7] hi
//	deadmsg a corrupt 0 0 "why" raw "bytes"
//	deadcount permanent 1

// seed fills an emptied Redis with what lines say.
func (h *harness) seed(lines string) {
	h.t.Helper()
	ctx := context.Background()
	if err := h.client.FlushAll(ctx).Err(); err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		id, value, _ := strings.Cut(rest, " ")
		key := "{bridge:0}:" + name
		var err error
		switch {
		case strings.HasPrefix(name, "due") || strings.HasPrefix(name, "inflight") || name == "dead":
			err = h.client.ZAdd(ctx, key, redis.Z{Member: id, Score: float64(h.readTime(value))}).Err()
		case strings.HasPrefix(name, "done") && id == "since":
			err = h.client.HSet(ctx, key, "", h.readTime(value)).Err()
		case name == "msg":
			err = h.client.HSet(ctx, key, id, h.readRecord(value)).Err()
		case name == "deadmsg":
			head, tail, _ := strings.Cut(value, `"`)
			why, tail, _ := strings.Cut(tail, `" `)
			err = h.client.HSet(ctx, key, id, fmt.Sprintf("1 %s%d\n%s%s", head, len(why), why, h.readRecord(tail))).Err()
		default:
			err = h.client.HSet(ctx, key, id, value).Err()
		}
		if err != nil {
			h.t.Fatalf("seed %q: %v", line, err)
		}
	}
}

func (h *harness) readTime(s string) int64 {
	h.t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	if s[0] == '+' || s[0] == '-' {
		n += epoch
	}
	return n
}

func (h *harness) readRecord(s string) string {
	h.t.Helper()
	if raw, ok := strings.CutPrefix(s, "raw "); ok {
		text, err := strconv.Unquote(raw)
		if err != nil {
			h.t.Fatalf("seed %s: %v", s, err)
		}
		return text
	}
	marks, name, ok := strings.Cut(strings.TrimPrefix(s, "["), "] ")
	if !ok {
		h.t.Fatalf("seed: no record %q", s)
	}
	return "1 " + marks + "\n" + encoded(h.t, name)
}

// state writes the keyspace down, sorted, without the queue's meta key.
func (h *harness) state() string {
	h.t.Helper()
	ctx := context.Background()
	names, err := h.client.Keys(ctx, "*").Result()
	if err != nil {
		h.t.Fatal(err)
	}
	var lines []string
	for _, key := range names {
		if key == metaKey("bridge") {
			continue
		}
		name, ok := strings.CutPrefix(key, "{bridge:0}:")
		if !ok {
			h.t.Errorf("key %q is not of the shard", key)
		}
		if kind := h.client.Type(ctx, key).Val(); kind == "zset" {
			for _, z := range h.client.ZRangeWithScores(ctx, key, 0, -1).Val() {
				lines = append(lines, fmt.Sprintf("%s %s %s", name, z.Member, writeTime(int64(z.Score))))
			}
			continue
		}
		for id, value := range h.client.HGetAll(ctx, key).Val() {
			lines = append(lines, name+" "+h.writeField(name, id, value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func writeTime(ms int64) string {
	if ms < epoch/2 || ms > 2*epoch {
		return strconv.FormatInt(ms, 10)
	}
	return fmt.Sprintf("%+d", ms-epoch)
}

func (h *harness) writeField(name, id, value string) string {
	switch {
	case name == "msg":
		return id + " " + h.writeRecord(value)
	case strings.HasPrefix(name, "done") && id == "":
		return "since " + writeTime(atoi(value))
	case name == "deadmsg":
		head, rest, _ := strings.Cut(value, "\n")
		f := strings.Fields(head)
		n := atoi(f[4])
		return fmt.Sprintf("%s %s %s %s %q %s", id, f[1], f[2], f[3], rest[:n], h.writeRecord(rest[n:]))
	}
	return id + " " + replayed.ReplaceAllString(value, "api:replay ")
}

func (h *harness) writeRecord(record string) string {
	head, rest, _ := strings.Cut(record, "\n")
	if marks, ok := strings.CutPrefix(head, "1 "); ok && h.names[rest] != "" {
		return "[" + replayed.ReplaceAllString(marks, "api:replay ") + "] " + h.names[rest]
	}
	return fmt.Sprintf("raw %q", record)
}

// wantState compares the keyspace, and the count of letters by reason with the
// letters there are.
func (h *harness) wantState(lines string) {
	h.t.Helper()
	var want []string
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line != "" {
			want = append(want, line)
		}
	}
	slices.Sort(want)
	if got := h.state(); got != strings.Join(want, "\n") {
		h.t.Errorf("state:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	h.checkCounts()
}

// checkCounts compares the letters counted with the letters there are.
func (h *harness) checkCounts() {
	h.t.Helper()
	ctx := context.Background()
	letters, _, err := h.q.Dead(ctx, 1000, "")
	if err != nil {
		h.t.Fatal(err)
	}
	there := map[delaybridge.Reason]int64{}
	for _, l := range letters {
		there[l.Reason]++
	}
	s, err := h.q.Stats(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, reason := range delaybridge.Reasons {
		if s.Dead[reason] != there[reason] {
			h.t.Errorf("%d letters are counted as %s, there are %d", s.Dead[reason], reason, there[reason])
		}
	}
}

// replay replays a letter as body says.
func (h *harness) replay(letter Letter, body string, force bool) error {
	return h.q.Replay(context.Background(), letter, message(letter.ID, body, "nats:S 0"), force)
}

// replayed is the position that a replay makes up; it is written down as "api:replay 1".
var replayed = regexp.MustCompile(`api:[A-Z2-7]{26} `)

// store carries out requests and writes the results down.
func (h *harness) store(requests ...delaybridge.Request) string {
	var out []string
	for _, r := range h.q.Store(context.Background(), requests) {
		switch {
		case r.Err != nil:
			out = append(out, r.Err.Error())
		case r.State != "":
			out = append(out, fmt.Sprintf("%s %s", r.Outcome, r.State))
		default:
			out = append(out, r.Outcome.String())
		}
	}
	return strings.Join(out, ", ")
}

// claim claims from the lane and writes the grant down: each claim as
// "<id> <payload> <end> <failed>/<lost>", then what else the grant says.
func (h *harness) claim(lane string, limit int) string {
	h.t.Helper()
	text, _ := h.claims(lane, limit)
	return text
}

func (h *harness) claims(lane string, limit int) (string, []delaybridge.Claim) {
	h.t.Helper()
	g := h.q.Claim(context.Background(), lane, []delaybridge.Ask{{Limit: limit}})[0]
	if g.Err != nil {
		return g.Err.Error(), nil
	}
	if g.Now != time.UnixMilli(epoch+h.now) {
		h.t.Errorf("claimed at %v, want %v", g.Now, time.UnixMilli(epoch+h.now))
	}
	var out []string
	for _, c := range g.Claims {
		out = append(out, fmt.Sprintf("%s %s %s %d/%d", c.ID, c.Payload, writeTime(c.Lease.End), c.Failed, c.LostLeases))
		if p, err := firstMark(c.ID, c.Lease.Marks); err != nil || p != c.Position {
			h.t.Errorf("position %v, marks %q", c.Position, c.Lease.Marks)
		}
	}
	wait := "none"
	if g.Wait >= 0 {
		wait = g.Wait.String()
	}
	text := cmp.Or(strings.Join(out, ", "), "nothing") + "; wait " + wait
	if g.LeasesExpired > 0 {
		text += fmt.Sprintf(", %d expired", g.LeasesExpired)
	}
	if g.Buried > 0 {
		text += fmt.Sprintf(", %d buried", g.Buried)
	}
	return text, g.Claims
}

// settled writes settling errors down.
func settled(errs []error) string {
	var out []string
	for _, err := range errs {
		if err == nil {
			out = append(out, "ok")
		} else {
			out = append(out, err.Error())
		}
	}
	return strings.Join(out, ", ")
}
