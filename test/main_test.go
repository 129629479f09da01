package test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9/logging"

	"delaybridge/test/servers"
)

func TestMain(m *testing.M) {
	logging.Disable() // of the tests' own clients, while a test has their Redis down
	flag.Parse()
	// Tests of whole processes wait most of the time, so that more of them than
	// there are processors can share these.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(runtime.GOMAXPROCS(0) + 3))
	}
	// What a test waits for is not to include this, which takes a minute where
	// nothing is built yet.
	if flag.Lookup("test.list").Value.String() == "" {
		built.make()
	}
	code := m.Run()
	removeBinary()
	os.Exit(code)
}

// world is a Redis, a NATS server with a stream for targets, and what watches it.
type world struct {
	redis *servers.Redis
	nats  *servers.NATS
	js    jetstream.JetStream
	env   Env
	// table watches orders.>, which the stream ORDERS holds.
	table *Timetable
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t)}
	w.js = w.nats.JetStream(t)
	w.env = Env{"REDIS_URL": w.redis.URL, "NATS_URL": w.nats.URL}
	stream(t, w.js, "ORDERS", "orders.>")
	w.table = NewTimetable(t, w.nats.Connect(t), "orders.>")
	return w
}

func stream(t *testing.T, js jetstream.JetStream, name string, subjects ...string) {
	t.Helper()
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
		t.Fatalf("make stream %s: %v", name, err)
	}
}

// publish sends a request as any NATS client would, and returns the earliest
// moment at which the delay can have begun.
func publish(t *testing.T, js jetstream.JetStream, subject, payload string, headers ...string) time.Time {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(payload)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		m.Header.Add(name, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sent := time.Now()
	if _, err := js.PublishMsg(ctx, m); err != nil {
		t.Fatalf("publish on %s: %v", subject, err)
	}
	return sent
}

// awaitStream waits until a bridge has made the stream that it reads from.
func (w *world) awaitStream(t *testing.T) {
	t.Helper()
	if !servers.Eventually(func() bool {
		_, err := w.js.Stream(context.Background(), "BRIDGE_SCHEDULE")
		return err == nil
	}) {
		t.Fatal("the bridge made no stream BRIDGE_SCHEDULE")
	}
}

// serve starts a bridge and waits until messages can be sent to it.
func (w *world) serve(t *testing.T, more Env) *Process {
	t.Helper()
	p := Serve(t, w.env.With(more))
	w.awaitStream(t)
	return p
}

// awaitState waits until the bridge knows an id in that state.
func (w *world) awaitState(t *testing.T, id, state string) {
	t.Helper()
	var last Ran
	if !servers.Eventually(func() bool {
		last = Run(t, w.env, "", "get", id, "-o", "json")
		return last.Code == 0 && decode(t, last.Stdout)["state"] == state
	}) {
		t.Fatalf("%s is not %s: %+v", id, state, last)
	}
}

// awaitStored waits until the bridge has taken an id in. It may be on its way
// already, or delivered, where the machine is slower than its delay is long.
func (w *world) awaitStored(t *testing.T, id string) {
	t.Helper()
	var last Ran
	if !servers.Eventually(func() bool {
		last = Run(t, w.env, "", "get", id, "-o", "json")
		return last.Code == 0 && slices.Contains([]any{"pending", "in_flight", "delivered"}, decode(t, last.Stdout)["state"])
	}) {
		t.Fatalf("%s is not known: %+v", id, last)
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// keyspace returns the keys that hold anything but tombstones and what the
// queue notes about itself.
func (w *world) keyspace(t *testing.T) []string {
	t.Helper()
	keys, err := w.redis.Client(t).Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, k := range keys {
		if !strings.HasSuffix(k, ":done:a") && !strings.HasSuffix(k, ":done:b") && k != "bridge:meta" {
			left = append(left, k)
		}
	}
	return left
}

// awaitEmpty waits until nothing is left in Redis but tombstones and meta.
func (w *world) awaitEmpty(t *testing.T) {
	t.Helper()
	var left []string
	if !servers.Eventually(func() bool { left = w.keyspace(t); return len(left) == 0 }) {
		t.Errorf("Redis still holds %s", fmt.Sprint(left))
	}
}
