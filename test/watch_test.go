package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"

	"delaybridge/test/servers"
)

// TestCountersAddUp has one of everything happen to messages, and holds the
// metrics to it.
func TestCountersAddUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, Env{"MAX_ATTEMPTS": "1", "EXPIRES_AFTER": "1h"})
	var before Series
	// The lag is known once the stream is there.
	if !servers.Eventually(func() bool { before = p.Scrape(t); return before.Has("bridge_ingest_lag") }) {
		t.Error("no lag at the start")
	}
	for series, v := range before {
		for _, counter := range []string{"bridge_ingested_total", "bridge_published_total", "bridge_retries_total", "bridge_dead{", "bridge_pending"} {
			if strings.HasPrefix(series, counter) && v != 0 {
				t.Errorf("at the start, %s is %v", series, v)
			}
		}
	}
	if before.Has("bridge_published_total{sink=\"kafka\"") {
		t.Error("a sink without a broker has series")
	}

	send := func(id string, headers ...string) {
		publish(t, w.js, "bridge.schedule", id, append(headers, "Bridge-Id: "+id)...)
	}
	const to, soon, far = "Bridge-Target: nats://orders.a", "Bridge-Delay: 100ms", "Bridge-Delay: 2h"
	for i := range 5 {
		send(fmt.Sprint("delivered-", i), to, soon)
	}
	send("again", to, far)
	send("again", to, soon)                                                                 // replaced
	send("taken-back", to, far)                                                             // cancelled
	send("taken-back", "Bridge-Op: cancel")                                                 // cancels it
	send("nobody", "Bridge-Op: cancel")                                                     // unknown
	send("bad", to, "Bridge-Delay: 5")                                                      // rejected
	send("homeless", "Bridge-Target: nats://nowhere.x", soon)                               // dead: attempts
	send("late", to, "Bridge-Deliver-At: 2020-01-01T00:00:00Z", "Bridge-Expires-After: 1s") // dead: expired
	send("far", to, far)
	for _, id := range []string{"delivered-4", "again"} {
		w.awaitState(t, id, "delivered")
	}
	w.awaitState(t, "homeless", "dead")
	w.awaitState(t, "late", "dead")
	send("delivered-0", "Bridge-Op: cancel") // too late
	send("end", to, soon)
	w.awaitState(t, "end", "delivered")

	const source = `source="nats://bridge.schedule"`
	var s Series
	ingested := func(result string) float64 { return s.Sum("bridge_ingested_total", source, `result="`+result+`"`) }
	published := func(result string) float64 { return s.Sum("bridge_published_total", `result="`+result+`"`) }
	if !servers.Eventually(func() bool {
		s = p.Scrape(t)
		time.Sleep(50 * time.Millisecond)
		// What is asked of Redis may be a second old.
		return s.Sum("bridge_inflight") == 0 && s.Sum("bridge_pending") == 1 && s.Sum("bridge_dead") == 3 && ingested("too_late") == 1 && published("ok") == 7
	}) {
		t.Error("the metrics do not settle")
	}
	for _, row := range []struct {
		what      string
		got, want float64
	}{
		{"scheduled", ingested("scheduled"), 11},
		{"replaced", ingested("replaced"), 1},
		{"cancelled", ingested("cancelled"), 1},
		{"unknown", ingested("unknown"), 1},
		{"rejected", ingested("rejected"), 1},
		{"duplicate", ingested("duplicate"), 0},
		{"from other sources", s.Sum("bridge_ingested_total", `source="other"`), 0},
		{"not taken by the broker", published("transient"), 1},
		{"lateness", s.Sum("bridge_lateness_seconds_count", `sink="nats"`), 7},
		{"retries", s.Sum("bridge_retries_total"), 0},
		{"pending", s.Sum("bridge_pending"), 1},
		{"pending far", s.Sum("bridge_pending_far", `sink="nats"`), 1},
		{"dead, rejected", s.Sum("bridge_dead", `reason="rejected"`), 1},
		{"dead, attempts", s.Sum("bridge_dead", `reason="attempts"`), 1},
		{"dead, expired", s.Sum("bridge_dead", `reason="expired"`), 1},
		{"Redis is up", s.Sum("bridge_redis_up"), 1},
		{"circuits", s.Sum("bridge_circuit_open"), 0},
		{"what is left to take in", s.Sum("bridge_ingest_lag", `source="nats:BRIDGE_SCHEDULE"`), 0},
	} {
		if row.got != row.want {
			t.Errorf("%s: %v, want %v", row.what, row.got, row.want)
		}
	}
	in := ingested("scheduled") + ingested("replaced")
	out := published("ok") + s.Sum("bridge_dead") - s.Sum("bridge_dead", `reason="rejected"`) +
		ingested("cancelled") + ingested("replaced") + s.Sum("bridge_pending") + s.Sum("bridge_inflight")
	if in != out {
		t.Errorf("%v messages came in, and %v are accounted for", in, out)
	}
	if skew := s.Sum("bridge_clock_skew_seconds"); !s.Has("bridge_clock_skew_seconds") || skew > 0.5 || skew < -0.5 {
		t.Errorf("Redis and the bridge have one clock, and the skew is %v s", skew)
	}
	// Of seven deliveries none may have been early, and none was due for minutes.
	if sum := s.Sum("bridge_lateness_seconds_sum"); sum <= 0 || sum > 600 {
		t.Errorf("they were late by %v s together", sum)
	}
	if s.Ours() != before.Ours() {
		t.Errorf("%d series, %d at the start", s.Ours(), before.Ours())
	}
}

// TestSeriesAreBounded sends to ten thousand targets, from a thousand subjects.
//
// nats-io/prometheus-nats-exporter#376: labels from messages filled memory (B56).
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	const targets = 10_000
	w := newWorld(t)
	p := w.serve(t, Env{"ROUTES": "nats://later.> -> nats://orders.route delay=1h"})
	if !servers.Eventually(func() bool { return p.Scrape(t).Sum("bridge_redis_up") == 1 }) {
		t.Fatal("Redis is not up")
	}
	before := p.Scrape(t)
	for i := range targets {
		m := nats.NewMsg(fmt.Sprint("later.", i%1000))
		m.Data = []byte("x")
		m.Header.Set("Bridge-Target", fmt.Sprint("nats://orders.", i))
		if i%100 == 0 {
			m.Header.Set("Bridge-Delay", "1ms") // it is published, too
		}
		if _, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(patience)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-w.js.PublishAsyncComplete():
	case <-time.After(patience):
		t.Fatalf("the broker has not taken %d messages", w.js.PublishAsyncPending())
	}
	var s Series
	arrived := func() bool {
		s = p.Scrape(t)
		return s.Sum("bridge_ingested_total", `source="nats://later.>"`, `result="scheduled"`) == targets &&
			s.Sum("bridge_published_total", `result="ok"`) == targets/100
	}
	// For as long as there are more of them.
	for last, at := 0.0, time.Now(); !arrived() && time.Since(at) < patience; time.Sleep(50 * time.Millisecond) {
		if n := s.Sum("bridge_ingested_total") + s.Sum("bridge_published_total"); n != last {
			last, at = n, time.Now()
		}
	}
	if !arrived() {
		source, err := w.js.Stream(context.Background(), "BRIDGE_SCHEDULE")
		if err != nil {
			t.Fatal(err)
		}
		t.Fatalf("%v were scheduled, %v published; the stream: %+v", s.Sum("bridge_ingested_total"), s.Sum("bridge_published_total"), source.CachedInfo().State)
	}
	// The lag of the stream is known now, if it was not at the start.
	if n := s.Ours() - len(lags(s)); n != before.Ours()-len(lags(before)) {
		t.Errorf("%d series, %d at the start", n, before.Ours()-len(lags(before)))
	}
}

func lags(s Series) (names []string) {
	for series := range s {
		if strings.HasPrefix(series, "bridge_ingest_lag{") {
			names = append(names, series)
		}
	}
	return names
}

// TestLatenessMetricOfAnOutage has a broker away while a message falls due.
//
// riverqueue/river#1185: it was measured from the wrong time (B57).
func TestLatenessMetricOfAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, nil)
	const delay = 20 * time.Second // in which to stop the broker
	due := publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats-core://orders.a", "Bridge-Delay: "+delay.String(), "Bridge-Id: one").Add(delay)
	w.awaitState(t, "one", "pending")
	w.nats.Stop()
	time.Sleep(time.Until(due) + 2*time.Second) // how long the broker is away is what this is about
	var s Series
	if !servers.Eventually(func() bool {
		s = p.Scrape(t)
		return s.Sum("bridge_circuit_open", `sink="nats-core"`) == 1 && s.Sum("bridge_published_total", `result="unavailable"`) > 0
	}) {
		t.Errorf("the circuit is %v, unavailable %v", s.Sum("bridge_circuit_open"), s.Sum("bridge_published_total", `result="unavailable"`))
	}
	p.AwaitReady(t, "brokers: none is connected: nats (")
	away := time.Since(due)
	w.nats.Start(t)
	if !servers.Eventually(func() bool {
		s = p.Scrape(t)
		return s.Sum("bridge_lateness_seconds_count", `sink="nats-core"`) == 1
	}) {
		t.Fatal("it was not delivered")
	}
	if late := s.Sum("bridge_lateness_seconds_sum"); late < away.Seconds()-1 { // it was stored a little after it was sent
		t.Errorf("it was late by %v s, and its broker away for %v of that", late, away)
	}
	if s.Sum("bridge_circuit_open") != 0 || s.Sum("bridge_retries_total") != 0 {
		t.Errorf("circuits %v, retries %v", s.Sum("bridge_circuit_open"), s.Sum("bridge_retries_total"))
	}
	p.AwaitReady(t, "")
}

// TestProbesTellWhatIsWrong breaks one thing after the other, and mends it.
func TestProbesTellWhatIsWrong(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorldOn(t, servers.NewRedis(t, "--appendonly", "yes", "--appendfsync", "always"))
	w.redis.Kill()
	// So many shards that each is looked after once a second.
	p := Start(t, w.env.With(Env{"READY_MAX_OVERDUE": "1s", "SHARDS": "60"}), "serve")
	p.AwaitReady(t, "starting: waiting for Redis")
	alive := func(when string) {
		t.Helper()
		if status, body := p.Ask(t, "/healthz"); status != http.StatusOK {
			t.Errorf("%s: /healthz says %d %q", when, status, body)
		}
	}
	alive("before Redis is there")
	if s := p.Scrape(t); s.Sum("bridge_redis_up") != 0 || !s.Has("bridge_ingested_total") || !s.Has("go_goroutines") || !s.Has("process_open_fds") {
		t.Errorf("before Redis is there: %v", s)
	}
	w.redis.Start(t)
	p.AwaitReady(t, "")
	w.awaitStream(t)
	c := w.redis.Client(t)

	// It answers PING, and runs nothing.
	ping := func() {
		t.Helper()
		if err := c.Ping(ctx).Err(); err != nil {
			t.Errorf("PING: %v", err)
		}
	}
	if err := c.Do(ctx, "ACL", "SETUSER", "default", "-evalsha", "-eval").Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "redis: it runs no script: probe: NOPERM")
	ping()
	alive("without scripts")
	if s := p.Scrape(t); s.Sum("bridge_redis_up") != 0 {
		t.Error("bridge_redis_up is 1 on a Redis that runs no scripts")
	}
	if err := c.Do(ctx, "ACL", "SETUSER", "default", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "")

	if err := c.ReplicaOf(ctx, "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "redis: it runs no script: probe: READONLY")
	ping()
	alive("on a replica")
	if err := c.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "")

	// No script in its cache is no trouble: Openpanel-dev/groupmq#16 (B28).
	if err := c.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if status, body := p.Ask(t, "/readyz"); status != http.StatusOK {
		t.Errorf("with an empty script cache: %d %q", status, body)
	}

	// A shard that cannot be claimed from: what is due stays, though its broker is there.
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 20s", "Bridge-Id: stuck")
	w.env = w.env.With(Env{"SHARDS": "60"})
	w.awaitState(t, "stuck", "pending")
	var key string
	for _, k := range w.keyspace(t) {
		if strings.HasSuffix(k, ":msg") {
			key = k
		}
	}
	if err := c.Rename(ctx, key, "aside").Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Set(ctx, key, "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "overdue: the oldest message for nats has been due for")
	alive("with something overdue")
	if s := p.Scrape(t); s.Sum("bridge_overdue_seconds", `sink="nats"`) < 1 {
		t.Errorf("overdue by %v s", s.Sum("bridge_overdue_seconds"))
	}
	if err := c.Del(ctx, key).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Rename(ctx, "aside", key).Err(); err != nil {
		t.Fatal(err)
	}
	p.AwaitReady(t, "")

	// It stops, without a word.
	w.redis.Pause()
	p.AwaitReady(t, "redis: no answer within")
	alive("while Redis does not answer")
	w.redis.Resume()
	p.AwaitReady(t, "")

	w.redis.Kill()
	p.AwaitReady(t, "redis: ")
	alive("without Redis")
	if s := p.Scrape(t); s.Sum("bridge_redis_up") != 0 || s.Has("bridge_pending") || s.Has("bridge_dead") || !s.Has("bridge_published_total") {
		t.Error("without Redis, what is not known is not left out, or what is known is")
	}
	w.redis.Start(t)
	p.AwaitReady(t, "")

	// It is emptied: blnkfinance/blnk#336 (B35).
	if err := c.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if !servers.Eventually(func() bool { return p.Scrape(t).Sum("bridge_redis_wiped_total") == 1 }) {
		t.Error("nobody noticed that Redis was emptied")
	}
	sent := publish(t, w.js, "bridge.schedule", "new", "Bridge-Target: nats://orders.a", "Bridge-Delay: 100ms", "Bridge-Id: new")
	w.table.Expect("new", sent.Add(100*time.Millisecond))
	w.table.Await(t, "new")
	p.AwaitReady(t, "")
	if n := strings.Count(p.Output(), `"msg":"not ready"`); n < 4 || n > 40 {
		t.Errorf("it said %d times that it is not ready", n)
	}
}

// TestBrokerThatWasNeverReached has one of two brokers come late, and go again.
func TestBrokerThatWasNeverReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	port := servers.FreePort(t)
	p := w.serve(t, Env{"KAFKA_BROKERS": net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
	p.AwaitReady(t, "broker kafka: not reached since the start (")
	if s := p.Scrape(t); !s.Has("bridge_kafka_skipped_total") || s.Sum("bridge_published_total", `sink="kafka"`) != 0 {
		t.Error("Kafka's series are not there")
	}
	kafka := servers.NewKfake(t, kfake.Ports(port), kfake.SeedTopics(1, "bridge.schedule"))
	p.AwaitReady(t, "")
	kafka.Stop()
	for range 3 {
		time.Sleep(time.Second) // so old an answer may be
		if status, body := p.Ask(t, "/readyz"); status != http.StatusOK {
			t.Errorf("a broker that was reached before is away, another is there, and /readyz says %q", body)
		}
	}
}

// TestMetricsAddress is refused where it is taken, and may be none.
func TestMetricsAddress(t *testing.T) {
	t.Parallel()
	ns, redis := servers.NewNATS(t), servers.NewRedis(t)
	env := Env{"REDIS_URL": redis.URL, "NATS_URL": ns.URL}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken := l.Addr().String()
	r := Run(t, env.With(Env{"METRICS_ADDR": taken}), "", "serve")
	if r.Code != 1 || r.Stderr != `bridge: BRIDGE_METRICS_ADDR="`+taken+`": cannot be listened on, since the address is taken: takes another host:port, or nothing for no metrics and probes`+"\n" {
		t.Errorf("%+v", r)
	}
	p := Serve(t, env.With(Env{"METRICS_ADDR": ""}))
	if strings.Contains(p.Output(), "serving metrics") {
		t.Error("it serves metrics, and was told not to")
	}
	_, port, _ := net.SplitHostPort(taken)
	if r := Run(t, Env{}, "", "dev", "--redis-port", "0", "--nats-port", "0", "--metrics-port", port); r.Code != 1 ||
		r.Stderr != "bridge: port "+port+" is taken; choose another with --metrics-port (0 takes any free one)\n" {
		t.Errorf("dev: %+v", r)
	}
}

// TestOnlyReadingIsServed asks for what there is not.
func TestOnlyReadingIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, nil)
	p.AwaitReady(t, "")
	base := "http://" + metricsAddress.FindStringSubmatch(p.Output())[1]
	for _, row := range []struct {
		method, path string
		want         int
	}{
		{"HEAD", "/readyz", 200}, {"HEAD", "/metrics", 200}, {"POST", "/readyz", 405}, {"DELETE", "/metrics", 405}, {"GET", "/", 404},
	} {
		req, err := http.NewRequest(row.method, base+row.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != row.want {
			t.Errorf("%s %s: %d, want %d", row.method, row.path, res.StatusCode, row.want)
		}
	}
}
