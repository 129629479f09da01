package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// drained runs "bridge drain" to its end and returns what it says it did.
func (w *world) drained(t *testing.T, more Env, code int, args ...string) drainReport {
	t.Helper()
	p := Start(t, w.env.With(more), append([]string{"drain", "-o", "json"}, args...)...)
	return drainOf(t, p, code)
}

// drainReport is what a drain prints as JSON.
type drainReport struct {
	t    *testing.T
	all  map[string]any
	Said string
}

// drainOf waits for the end of a process with "drain -o json".
func drainOf(t *testing.T, p *Process, code int) drainReport {
	t.Helper()
	if got := p.Exit(t); got != code {
		t.Errorf("exit code %d, want %d; it said:\n%s", got, code, tail(p.Output()))
	}
	for line := range strings.Lines(p.Output()) {
		if strings.HasPrefix(line, `{"result"`) {
			return drainReport{t, decode(t, line), p.Output()}
		}
	}
	t.Fatalf("no summary; it said:\n%s", tail(p.Output()))
	return drainReport{}
}

// at returns a number by its path, such as left.due.
func (r drainReport) at(path string) int {
	r.t.Helper()
	var v any = r.all
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	n, ok := v.(float64)
	if !ok {
		r.t.Fatalf("no number %s in %v", path, r.all)
	}
	return int(n)
}

// want compares numbers by their paths.
func (r drainReport) want(result string, numbers map[string]int) {
	r.t.Helper()
	if r.all["result"] != result {
		r.t.Errorf("result %v, want %s: %v", r.all["result"], result, r.all)
	}
	for path, n := range numbers {
		if got := r.at(path); got != n {
			r.t.Errorf("%s is %d, want %d: %v", path, got, n, r.all)
		}
	}
}

// due is a time for fillFrom that has passed.
func due(int) time.Time { return time.Now().Add(-time.Second) }

// copiesByID counts the arrivals of each id.
func copiesByID(tt *Timetable) map[string]int {
	copies := map[string]int{}
	for _, a := range tt.Arrivals() {
		copies[a.ID]++
	}
	return copies
}

// awaitCopies waits until n ids have arrived.
func awaitCopies(t *testing.T, tt *Timetable, n int) map[string]int {
	t.Helper()
	var copies map[string]int
	if !servers.Eventually(func() bool { copies = copiesByID(tt); return len(copies) >= n }) {
		t.Fatalf("%d of %d ids have arrived", len(copies), n)
	}
	return copies
}

// TestDrainDeliversWhatIsDue: all of it, once, and nothing of what is due later.
func TestDrainDeliversWhatIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 10_000
	w.fillFrom(t, 8, 0, n, due)
	far := time.Now().Add(time.Hour)
	w.fillFrom(t, 8, n, 50, func(int) time.Time { return far })

	r := w.drained(t, nil, 0)
	r.want("drained", map[string]int{"delivered": n, "retried": 0, "dead": 0, "left.due": 0, "left.in_flight": 0, "left.later": 50})
	if next, _ := r.all["left"].(map[string]any)["next_due"].(string); !strings.HasPrefix(next, far.UTC().Format("2006-01-02T15:04")) {
		t.Errorf("the next is due at %q, want %v", next, far.UTC())
	}
	copies := awaitCopies(t, w.table, n)
	for id, times := range copies {
		if times != 1 {
			t.Errorf("%s arrived %d times", id, times)
		}
	}
	if len(copies) != n {
		t.Errorf("%d ids arrived, want %d", len(copies), n)
	}
	t.Logf("it took %v s", r.all["seconds"])
}

// TestDrainWithNothingDue needs no broker: there is nothing to tell one.
func TestDrainWithNothingDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	far := time.Now().Add(time.Hour)
	w.fillFrom(t, 8, 0, 3, func(int) time.Time { return far })
	w.nats.Stop()
	w.drained(t, nil, 0).want("drained", map[string]int{"delivered": 0, "left.due": 0, "left.later": 3})

	text := Run(t, w.env, "", "drain")
	if text.Code != 0 || !strings.Contains(text.Stdout, "drained in") || !strings.Contains(text.Stdout, "left for later") {
		t.Errorf("%+v", text)
	}
}

// TestDrainWaitsWithin: with --within it waits for what is due that soon, and for
// no more; without, it leaves both.
func TestDrainWaitsWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Add(20 * time.Second) // in which to run the first
	w.fillFrom(t, 8, 0, 5, func(int) time.Time { return at })
	w.fillFrom(t, 8, 5, 5, func(int) time.Time { return at.Add(time.Hour) })
	w.drained(t, nil, 0).want("drained", map[string]int{"delivered": 0, "left.later": 10})
	w.drained(t, nil, 0, "--within", "25s").want("drained", map[string]int{"delivered": 5, "left.later": 5})
	for _, a := range w.table.Arrivals() {
		if a.At.Before(at.Truncate(time.Millisecond)) {
			t.Errorf("%s arrived %v early", a.ID, at.Sub(a.At))
		}
	}
}

// TestDrainsShareTheWork: two side by side deliver each message once, and each
// ends when nothing is left to do.
func TestDrainsShareTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 10_000
	w.fillFrom(t, 8, 0, n, due)
	a := Start(t, w.env, "drain", "-o", "json")
	b := Start(t, w.env, "drain", "-o", "json")
	ra, rb := drainOf(t, a, 0), drainOf(t, b, 0)
	if got := ra.at("delivered") + rb.at("delivered"); got != n {
		t.Errorf("they have delivered %d, want %d", got, n)
	}
	for id, times := range awaitCopies(t, w.table, n) {
		if times != 1 {
			t.Errorf("%s arrived %d times", id, times)
		}
	}
	t.Logf("one delivered %d, the other %d", ra.at("delivered"), rb.at("delivered"))
	w.awaitEmpty(t)
}

// TestDrainAfterACrash: what a killed drain held is said to be in flight, and is
// delivered by a drain that waits for the leases' end.
func TestDrainAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 2_000
	w.fillFrom(t, 8, 0, n, due)
	// A lease that outlasts the next drain, but not the test.
	lease := Env{"LEASE": "30s", "PUBLISH_TIMEOUT": "10s"}
	env := w.env.With(lease)
	p := start(t, armed.get(t, "-tags", "failpoints"), env.With(Env{"FAILPOINT": "confirmed:3"}), "drain")
	if !servers.Eventually(func() bool { ended, _ := p.Ended(); return ended }) {
		t.Fatal("the drain did not reach its failpoint")
	}
	if _, killed := p.Ended(); !killed {
		t.Fatalf("the drain ended before its failpoint: %s", p.Output())
	}
	r := w.drained(t, lease, 0)
	held := r.at("left.in_flight")
	if held == 0 || r.at("left.due") != 0 {
		t.Fatalf("%d are in flight and %d due, want what the killed one held, and none: %v", held, r.at("left.due"), r.all)
	}
	if !strings.Contains(r.Said, "in flight with other processes") {
		t.Errorf("it does not say what is in flight: %s", r.Said)
	}
	r = w.drained(t, lease, 0, "--within", "35s")
	r.want("drained", map[string]int{"delivered": held, "left.in_flight": 0, "left.due": 0})
	copies := awaitCopies(t, w.table, n)
	if len(copies) != n {
		t.Errorf("%d ids arrived, want %d", len(copies), n)
	}
	w.awaitEmpty(t)
}

// TestDrainWithoutItsBroker fails, says why, and loses nothing; the lanes of other
// brokers are delivered all the same.
func TestDrainWithoutItsBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 300
	w.fillFrom(t, 8, 0, n, due)
	url := w.env["NATS_URL"]
	w.nats.Stop()
	more := Env{"PUBLISH_TIMEOUT": "1s"}
	r := w.drained(t, more, 1)
	r.want("incomplete", map[string]int{"delivered": 0, "dead": 0, "retried": 0, "left.due": n, "left.in_flight": 0})
	if !strings.Contains(r.Said, fmt.Sprintf("bridge: %d due for nats are left: its broker cannot be reached", n)) {
		t.Errorf("it does not say why: %s", r.Said)
	}
	w.nats.Start(t)
	if w.nats.URL != url {
		t.Fatalf("the server is at %s now", w.nats.URL)
	}
	w.drained(t, more, 0).want("drained", map[string]int{"delivered": n, "left.due": 0})
}

// TestDrainFinishesOtherLanes: a broker that is away keeps nothing from another.
func TestDrainFinishesOtherLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 100
	w.fillFrom(t, 8, 0, n, due)
	for _, id := range []string{"k-1", "k-2"} {
		if r := Run(t, w.env, "", "schedule", "--target", "kafka://orders", "--delay", "0s", "--id", id, "x"); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	// Where no broker of it is configured, they are another process's, which is said.
	r := w.drained(t, nil, 0)
	r.want("drained", map[string]int{"delivered": n, "left.due": 2, "left.lanes.kafka.due": 2})
	if !strings.Contains(r.Said, "2 due for kafka are left to a process that publishes to it") {
		t.Errorf("it does not say what it leaves: %s", r.Said)
	}
	w.fillFrom(t, 8, n, n, due)
	more := Env{"PUBLISH_TIMEOUT": "1s", "KAFKA_BROKERS": fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))}
	r = w.drained(t, more, 1)
	r.want("incomplete", map[string]int{"delivered": n, "left.lanes.kafka.due": 2, "left.lanes.nats.due": 0})
	if !strings.Contains(r.Said, "bridge: 2 due for kafka are left: its broker cannot be reached: ") {
		t.Errorf("it does not say why: %s", r.Said)
	}
}

// TestDrainTimeout: a target that does not answer costs no more than --timeout,
// and what is left of it comes back when its leases end.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := w.nats.Connect(t)
	// A subscriber of core NATS gets the message and answers nothing.
	if _, err := silent.SubscribeSync("silent.x"); err != nil {
		t.Fatal(err)
	}
	if err := silent.Flush(); err != nil {
		t.Fatal(err)
	}
	if r := Run(t, w.env, "", "schedule", "--target", "nats://silent.x", "--delay", "0s", "--id", "s", "x"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	w.drained(t, Env{"SHUTDOWN_TIMEOUT": "300ms"}, 1, "--timeout", "1s").want("incomplete", map[string]int{"delivered": 0, "left.due": 0, "left.in_flight": 1})
	w.awaitState(t, "s", "in_flight")
}

// TestDrainWithoutRedis ends soon, and says so.
func TestDrainWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	binary(t) // its build must not take of the command's time
	w.redis.Stop()
	if r := Run(t, w.env, "", "drain"); r.Code != 1 || !strings.Contains(r.Stderr, "BRIDGE_REDIS_URL") {
		t.Errorf("%+v", r)
	}
}

// TestDrainGivesUpWhatNoBrokerTakes: a failed attempt is retried later and is no
// failure of the drain; neither is a dead letter.
func TestDrainGivesUpWhatNoBrokerTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []string{"a", "b"} {
		if r := Run(t, w.env, "", "schedule", "--target", "nats://nowhere."+id, "--delay", "0s", "--id", id, "x"); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	w.drained(t, Env{"RETRY_BASE": "1m"}, 0).want("drained", map[string]int{"retried": 2, "dead": 0, "left.due": 0, "left.later": 2})
	if r := Run(t, w.env, "", "schedule", "--target", "nats://nowhere.c", "--delay", "0s", "--id", "c", "x"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	w.drained(t, Env{"MAX_ATTEMPTS": "1"}, 0).want("drained", map[string]int{"retried": 0, "dead": 1, "left.later": 2})
}

// TestDrainStopsInTime: at a signal, and when --timeout is over.
func TestDrainStopsInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Add(time.Hour)
	w.fillFrom(t, 8, 0, 4, func(int) time.Time { return at })

	p := Start(t, w.env, "drain", "-o", "json", "--within", "2h", "--timeout", "3h")
	// It waits once it has connected; a signal ends it in an orderly way.
	if !servers.Eventually(func() bool { return w.nats.Server.NumClients() > 2 }) {
		t.Fatal("the drain did not connect")
	}
	p.Signal(syscall.SIGTERM)
	drainOf(t, p, 0).want("stopped", map[string]int{"delivered": 0, "left.later": 4})

	// What is not due when the time is over is not left behind.
	w.drained(t, nil, 0, "--within", "500ms", "--timeout", "1s").want("drained", map[string]int{"left.later": 4})
}

// TestDrainIngests takes in what waits at a stream, delivers what of it is due and
// keeps the rest; messages that a dead process had in hand at the stream are waited for.
func TestDrainIngests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drained(t, nil, 0, "--ingest").want("drained", map[string]int{"delivered": 0}) // makes the stream
	const n = 500
	for i := range n {
		delay := "0s"
		if i%5 == 0 {
			delay = "1h"
		}
		publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.x", "Bridge-Delay: "+delay, fmt.Sprint("Bridge-Id: i-", i))
	}
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.x", "Bridge-Delay: 5")
	w.drained(t, nil, 0).want("drained", map[string]int{"delivered": 0, "left.later": 0}) // without --ingest they stay
	w.drained(t, nil, 0, "--ingest").want("drained", map[string]int{
		"taken_in.scheduled": n, "taken_in.rejected": 1, "delivered": n * 4 / 5, "left.later": n / 5, "left.at_sources.nats": 0,
	})
	awaitCopies(t, w.table, n*4/5)
}

// TestDrainIngestsFromKafka does so with topics, one of which is missing, and ends
// as a member of a group that others are in, too.
func TestDrainIngestsFromKafka(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 3)
	env := Env{"KAFKA_INGEST_TOPICS": w.in + "," + w.in + "-missing"}
	w.drained(t, env, 0, "--ingest").want("drained", map[string]int{"delivered": 0, "left.at_sources.kafka": 0})
	const n = 300
	var records []*kgo.Record
	for i := range n {
		r := request("x", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 0s", fmt.Sprint("Bridge-Id: k-", i))
		r.Partition = int32(i % 3)
		records = append(records, r)
	}
	w.send(t, records...)
	w.drained(t, env, 0, "--ingest").want("drained", map[string]int{"taken_in.scheduled": n, "delivered": n, "left.due": 0, "left.at_sources.kafka": 0})
	w.drained(t, env, 0, "--ingest").want("drained", map[string]int{"delivered": 0})
}

// TestDrainBesideServe delivers nothing twice and leaves nothing to nobody.
func TestDrainBesideServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 3_000
	w.fillFrom(t, 8, 0, n, due)
	w.serve(t, nil)
	w.drained(t, nil, 0).want("drained", map[string]int{"left.due": 0})
	copies := awaitCopies(t, w.table, n)
	if i := slices.Max(slices.Collect(func(yield func(int) bool) {
		for _, times := range copies {
			if !yield(times) {
				return
			}
		}
	})); i != 1 {
		t.Errorf("something arrived %d times", i)
	}
	w.awaitEmpty(t)
}
