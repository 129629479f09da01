package test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// fill stores messages as ingest does, and returns their due times by id.
func (w *world) fill(t *testing.T, shards, n int, due func(i int) time.Time) map[string]time.Time {
	t.Helper()
	return w.fillFrom(t, shards, 0, n, due)
}

// fillFrom is fill for the messages from number first on.
func (w *world) fillFrom(t *testing.T, shards, first, n int, due func(i int) time.Time) map[string]time.Time {
	t.Helper()
	client, err := luascripts.Connect(w.env["REDIS_URL"], luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	cfg := luascripts.DefaultConfig()
	cfg.Shards = shards
	q, err := luascripts.Open(context.Background(), client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]time.Time{}
	var batch []delaybridge.Request
	for i := first; i < first+n; i++ {
		m := delaybridge.Message{
			ID: fmt.Sprint("m-", i), Position: delaybridge.Position{Source: "nats:FILLED", Offset: uint64(i + 1)},
			Target:    delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "orders.x"},
			Scheduled: due(i).Add(-time.Minute), Due: due(i), Payload: []byte(strconv.Itoa(i)),
		}
		all[m.ID] = m.Due
		batch = append(batch, delaybridge.Request{Op: delaybridge.OpSchedule, Message: m})
	}
	for i, r := range q.Store(context.Background(), batch) {
		if r.Err != nil || r.Outcome != delaybridge.Scheduled {
			t.Fatalf("store %d: %+v", i, r)
		}
	}
	return all
}

// checkOnce waits until each id has arrived, and holds every arrival to once, in
// time, and as a first attempt.
func (w *world) checkOnce(t *testing.T, due map[string]time.Time) {
	t.Helper()
	if !servers.Eventually(func() bool { return len(w.table.Arrivals()) >= len(due) }) {
		t.Errorf("%d of %d arrived", len(w.table.Arrivals()), len(due))
	}
	w.awaitEmpty(t)
	seen := map[string]int{}
	for _, a := range w.table.Arrivals() {
		at, known := due[a.ID]
		seen[a.ID]++
		if !known || seen[a.ID] > 1 || a.At.Before(at) || a.Header.Get("Bridge-Attempt") != "1" {
			t.Errorf("%s arrived at %v, copy %d, attempt %s; it was due at %v", a.ID, a.At, seen[a.ID], a.Header.Get("Bridge-Attempt"), at)
		}
	}
	if len(seen) != len(due) {
		t.Errorf("%d different messages of %d arrived", len(seen), len(due))
	}
}

// TestDueNowArrivesOnceAcrossARestart asks for times that are just past. Each is
// delivered at once, and not again by the next process.
//
// B1 (etf1/kafka-message-scheduler#28): what was just past was refused, and delivered after a restart.
func TestDueNowArrivesOnceAcrossARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, nil)
	send := func(id, when string) {
		publish(t, w.js, "bridge.schedule", id, "Bridge-Target: nats://orders.x", when, "Bridge-Id: "+id)
		w.table.Expect(id, time.Time{})
	}
	ago := func(d time.Duration) string { return fmt.Sprint("Bridge-Deliver-At: ", time.Now().Add(-d).UnixMilli()) }
	send("a-millisecond-ago", ago(time.Millisecond))
	send("a-second-ago", ago(time.Second))
	send("now", "Bridge-Delay: 0s")
	for _, id := range []string{"a-millisecond-ago", "a-second-ago", "now"} {
		w.table.Await(t, id)
		w.awaitState(t, id, "delivered")
	}
	p.Kill()
	w.serve(t, nil)
	send("after-the-restart", ago(time.Millisecond))
	for _, id := range []string{"a-millisecond-ago", "a-second-ago", "now", "after-the-restart"} {
		w.awaitState(t, id, "delivered")
		if a := w.table.Await(t, id); a.Header.Get("Bridge-Attempt") != "1" {
			t.Errorf("%s arrived as attempt %s", id, a.Header.Get("Bridge-Attempt"))
		}
	}
	w.awaitEmpty(t)
	if n := len(w.table.Arrivals()); n != 4 {
		t.Errorf("%d messages arrived, want 4: %s", n, w.table.describe())
	}
}

// TestSourceMayForget has the source's stream drop its messages by age long
// before they are due.
//
// B15 (apache/pulsar#21898): what lived shorter than its delay was gone.
func TestSourceMayForget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	source, err := w.js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "BRIDGE_SCHEDULE", Subjects: []string{"bridge.schedule"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const delay = 3 * time.Second
	w.serve(t, nil)
	sent := publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: x")
	w.table.Expect("x", sent.Add(delay))
	w.awaitStored(t, "x") // what a stream drops before anyone reads it is lost
	config := source.CachedInfo().Config
	config.MaxAge, config.Duplicates = 100*time.Millisecond, 100*time.Millisecond
	if source, err = w.js.UpdateStream(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	if !servers.Eventually(func() bool {
		info, err := source.Info(context.Background())
		return err == nil && info.State.Msgs == 0
	}) {
		t.Fatal("the stream keeps its message")
	}
	w.table.Check(t)
	w.awaitEmpty(t)
}

// TestRejectedThatIsTooLargeToSend has messages that fill a limit of their broker,
// whole or by their headers, be refused: with what tells of that they are too
// large for any target. They stay as dead letters, and hold up nothing.
//
// B43 (Particular/NServiceBus#3023, rebus-org/Rebus.RabbitMq#82): error headers pushed it over the limit, and it looped.
func TestRejectedThatIsTooLargeToSend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"REJECT_TARGET": "nats://orders.rejected", "DEAD_TARGET": "nats://orders.dead"})
	// The error quotes the target, which is far longer than an error may be.
	long := "mqtt://" + strings.Repeat("x", 60<<10)
	head := func(target string) int {
		return len("NATS/1.0\r\nBridge-Target: " + target + "\r\nBridge-Delay: 0s\r\n\r\n")
	}
	// A stream takes headers of less than 64 KiB.
	longest := "mqtt://" + strings.Repeat("x", 1<<16-1-head("mqtt://"))
	payloads := []string{strings.Repeat("p", 1<<20-head(long)), "small"}
	for i, target := range []string{long, longest} {
		publish(t, w.js, "bridge.schedule", payloads[i], "Bridge-Target: "+target, "Bridge-Delay: 0s")
	}
	publish(t, w.js, "bridge.schedule", "good", "Bridge-Target: nats://orders.x", "Bridge-Delay: 0s", "Bridge-Id: good")
	for i, payload := range payloads {
		id := fmt.Sprint("rejected:nats:BRIDGE_SCHEDULE:", i+1)
		w.awaitState(t, id, "dead")
		letter := decode(t, Run(t, w.env, "", "dead", "show", id, "-o", "json").Stdout)
		if letter["reason"] != "permanent" {
			t.Errorf("%s: its reason is %v, %v", id, letter["reason"], letter["error"])
		}
		if text := letter["error"].(string); len(text) > delaybridge.MaxErrorBytes {
			t.Errorf("%s: its error has %d bytes", id, len(text))
		}
		if text := letter["payload"].(map[string]any)["text"]; text != payload {
			t.Errorf("%s: its payload is not what it was", id)
		}
		// Its copy for the dead target is as large, and has none itself.
		w.awaitState(t, "dead:"+id, "dead")
	}
	// What subscribers hear of what a stream refuses does not matter here.
	w.table.Await(t, "good")
}

// TestManySchedulers has eight processes wait for the same 20,000 messages, all
// due at one moment. Each is published once.
//
// RichardKnop/machinery#633: two workers took the same item (B21).
func TestManySchedulers(t *testing.T) {
	t.Parallel()
	messages, processes := 20_000, 8
	if raceEnabled {
		messages = 4000 // which take as long
	}
	w := newWorld(t)
	// What is not worked off within its lease would be delivered twice, by right.
	env := w.env.With(Env{"ROLES": "scheduler", "PUBLISH_TIMEOUT": "30s", "LEASE": "120s"})
	var started sync.WaitGroup
	for range processes {
		p := Start(t, env, "serve")
		started.Go(func() { p.Await(t, `"msg":"running"`) })
	}
	started.Wait()
	at := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	due := w.fill(t, 8, messages, func(int) time.Time { return at })
	w.checkOnce(t, due)
	last := w.table.Arrivals()[messages-1].At
	t.Logf("%d messages by %d processes, %v after they were due", messages, processes, last.Sub(at).Round(time.Millisecond))
}

// TestCatchUp has messages fall due while no scheduler runs. The first to start
// delivers all of them, oldest first.
//
// sky-uk/kafka-message-scheduler#35: nobody knew whether they fire or vanish (B14).
func TestCatchUp(t *testing.T) {
	t.Parallel()
	const messages = 5000
	w := newWorld(t)
	began := time.Now().Add(-2 * time.Minute).Truncate(time.Millisecond)
	// In another order than they are due in.
	due := w.fill(t, 1, messages, func(i int) time.Time {
		return began.Add(time.Duration(i*7919%messages) * 12 * time.Millisecond)
	})
	// One batch in hand at a time: what is promised is the order of claims.
	Serve(t, w.env.With(Env{"ROLES": "scheduler", "SHARDS": "1", "BATCH": "100", "MAX_INFLIGHT": "100"}))
	w.checkOnce(t, due)
	arrivals, older := w.table.Arrivals(), 0
	for i := 1; i < len(arrivals); i++ {
		if arrivals[i].Due(t).Before(arrivals[i-1].Due(t)) {
			older++
		}
	}
	// A broker that takes a second to answer has some of them put off. Without any
	// order it would be every other one.
	if older > messages/4 {
		t.Errorf("%d of %d arrived after a younger one", older, messages)
	}
}

// TestLatenessCountsFromTheFirstDueTime has a target be missing when its message
// is due. The retries do not move the time from which lateness counts.
//
// riverqueue/river#1185: lateness was measured from a time of another state (B57).
func TestLatenessCountsFromTheFirstDueTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"RETRY_BASE": "100ms", "RETRY_MAX": "100ms"})
	sent := publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://later.x", "Bridge-Delay: 0s", "Bridge-Id: x")
	var known map[string]any
	if !servers.Eventually(func() bool {
		r := Run(t, w.env, "", "get", "x", "-o", "json")
		if r.Code == 0 {
			known = decode(t, r.Stdout)
		}
		attempts, _ := known["attempts"].(float64)
		return attempts >= 3
	}) {
		t.Fatalf("it was not tried again: %v", known)
	}
	made := time.Now()
	stream(t, w.js, "LATER", "later.>")
	w.awaitState(t, "x", "delivered")
	s, err := w.js.Stream(context.Background(), "LATER")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(context.Background(), "later.x")
	if err != nil {
		t.Fatal(err)
	}
	a := Arrival{ID: "x", Header: m.Header, At: m.Time}
	if n, _ := strconv.Atoi(m.Header.Get("Bridge-Attempt")); n < 4 {
		t.Errorf("it arrived as attempt %d", n)
	}
	if a.Due(t).Before(sent.Truncate(time.Millisecond)) || a.Due(t).After(made) {
		t.Errorf("sent at %v, it says that it was due at %v, and the target was made at %v", sent, a.Due(t), made)
	}
	if m.Header.Get("Bridge-Scheduled-At") != m.Header.Get("Bridge-Due-At") {
		t.Errorf("without a delay, it was scheduled at %s and due at %s", m.Header.Get("Bridge-Scheduled-At"), m.Header.Get("Bridge-Due-At"))
	}
	if n := s.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("the stream holds %d copies", n)
	}
}

// TestRedisClockJumps has Redis's clock jump an hour ahead, and back. Nothing is
// early by the host's clock, and nothing waits for an hour.
//
// sidekiq-scheduler/sidekiq-scheduler#283: a jump ahead ran everything, one back stopped everything (B12).
func TestRedisClockJumps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, jump := newClockRedis(t)
	w.env["REDIS_URL"] = r
	w.table.MayRepeat()
	w.serve(t, Env{"CLOCK_TOLERANCE": "0s", "LEASE": "2s", "PUBLISH_TIMEOUT": "1s"})
	send := func(id string, delay time.Duration) {
		t.Helper()
		sent := publish(t, w.js, "bridge.schedule", id, "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay.String(), "Bridge-Id: "+id)
		w.table.Expect(id, sent.Add(delay))
		w.awaitStored(t, id)
	}
	publish(t, w.js, "bridge.schedule", "never", "Bridge-Target: nats://orders.x", "Bridge-Delay: 30m", "Bridge-Id: in-half-an-hour")
	send("over-the-jump", 3*time.Second)
	jump(time.Hour)
	send("ahead", 2*time.Second)
	w.table.Check(t)
	send("over-the-way-back", 3*time.Second)
	jump(0)
	send("back", 2*time.Second)
	w.table.Check(t)
	w.awaitState(t, "in-half-an-hour", "pending")
}

// newClockRedis starts a Redis whose clock the test sets: miniredis, since a
// redis-server takes its host's.
func newClockRedis(t *testing.T) (url string, jump func(offset time.Duration)) {
	t.Helper()
	m := miniredis.RunT(t)
	var mu sync.Mutex
	var offset time.Duration
	tick := func() {
		mu.Lock()
		defer mu.Unlock()
		m.SetTime(time.Now().Add(offset))
	}
	tick()
	ctx, cancel := context.WithCancel(context.Background())
	var ticking sync.WaitGroup
	ticking.Go(func() {
		for pause(ctx, time.Millisecond) {
			tick()
		}
	})
	t.Cleanup(func() { cancel(); ticking.Wait() })
	return "redis://" + m.Addr() + "/0", func(d time.Duration) {
		mu.Lock()
		offset = d
		mu.Unlock()
		tick()
	}
}
