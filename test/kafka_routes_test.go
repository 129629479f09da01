package test

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// TestRoutes delays the plain messages of producers that know nothing of a
// bridge, by configuration alone, in every direction at once.
func TestRoutes(t *testing.T) {
	t.Parallel()
	w := withKafka(t, newWorld(t), 1)
	plain, keyed, json, toNATS := w.kafka.Topic(t, 2), w.kafka.Topic(t, 1), w.kafka.Topic(t, 1), w.kafka.Topic(t, 1)
	bySubject := w.kafka.Topic(t, 1)
	// The bridge has to find the stream of a route, and to add to its own what no
	// stream holds.
	stream(t, w.js, "LATER", "later.>")
	w.serve(t, Env{"ROUTES": strings.Join([]string{
		"kafka://" + plain + " -> kafka://" + w.out + " delay=1s",
		"kafka://" + keyed + " -> nats://orders.keyed delay=700ms expires_after=1h",
		"kafka://" + json + " format=json delay=300ms",
		"kafka://" + toNATS + " -> nats://orders.plain delay=0s",
		"nats://later.1s.> -> nats://orders.later delay=1s",
		"nats://later.now.* -> kafka://" + bySubject + " delay=0s",
		"nats://bridge.> -> nats://orders.default delay=250ms",
		"nats://soon.* -> nats://orders.soon delay=400ms",
	}, "; ")})
	out := w.watch(t, w.out, bySubject)

	type row struct {
		value string
		delay time.Duration
		where string // topic or subject
	}
	var rows []row
	expect := func(value string, delay time.Duration, where string) string {
		rows = append(rows, row{value, delay, where})
		return value
	}
	sendTo := func(topic string, r *kgo.Record) {
		r.Topic = topic
		w.send(t, r)
	}
	sendTo(plain, request(expect("plain", time.Second, w.out)))
	sendTo(plain, &kgo.Record{Partition: 1, Value: []byte(expect("another partition", time.Second, w.out)), Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte("one")}}})
	sendTo(plain, request(expect("own delay", 200*time.Millisecond, w.out), "Bridge-Delay: 200ms"))
	sendTo(plain, request(expect("own target", time.Second, "orders.own"), "Bridge-Target: nats://orders.own"))
	sendTo(plain, request(expect("own time", 0, w.out), "Bridge-Deliver-At: "+time.Now().Add(-time.Minute).Format(time.RFC3339)))
	sendTo(keyed, &kgo.Record{Key: []byte("k-7"), Value: []byte(expect("keyed", 700*time.Millisecond, "orders.keyed"))})
	sendTo(json, request(`{"target":"kafka://`+w.out+`","payload":"`+expect("enveloped", 300*time.Millisecond, w.out)+`","key":"k"}`))
	sendTo(json, request(`{"target":"nats://orders.json","delay":"100ms","payload":"`+expect("enveloped, own delay", 100*time.Millisecond, "orders.json")+`"}`))
	sendTo(toNATS, request(expect("at once", 0, "orders.plain")))
	sendTo("", request(expect("by headers", 300*time.Millisecond, "orders.headers"), "Bridge-Target: nats://orders.headers", "Bridge-Delay: 300ms"))
	publish(t, w.js, "later.1s.a.b", expect("wildcard", time.Second, "orders.later"))
	publish(t, w.js, "later.now.x", expect("another wildcard", 0, bySubject))
	publish(t, w.js, "later.1s.c", expect("wildcard, own delay", 100*time.Millisecond, "orders.later"), "Bridge-Delay: 100ms")
	for _, subject := range []string{"soon.x", "bridge.other"} {
		awaitSubject(t, w, subject)
	}
	publish(t, w.js, "bridge.schedule", expect("default of the schedule subject", 250*time.Millisecond, "orders.default"))
	publish(t, w.js, "bridge.other", expect("covered by a wildcard", 250*time.Millisecond, "orders.default"))
	publish(t, w.js, "bridge.schedule", expect("headers over defaults", 50*time.Millisecond, "orders.headers"), "Bridge-Delay: 50ms", "Bridge-Target: nats://orders.headers")
	publish(t, w.js, "soon.x", expect("of the bridge's own stream", 400*time.Millisecond, "orders.soon"))

	for _, row := range rows {
		t.Run(row.value, func(t *testing.T) {
			var where string
			var due, scheduled time.Time
			var at time.Time
			if strings.HasPrefix(row.where, "orders.") {
				var a Arrival
				if !servers.Eventually(func() bool { return find(w.table, row.value, &a) }) {
					t.Fatalf("it did not arrive; what did on NATS:%s", w.table.describe())
				}
				var err error
				if scheduled, err = time.Parse(time.RFC3339, a.Header.Get("Bridge-Scheduled-At")); err != nil {
					t.Fatal(err)
				}
				where, due, at = a.Subject, a.Due(t), a.At
				if key := a.Header.Get("Bridge-Key"); row.value == "keyed" && key != "k-7" {
					t.Errorf("the key is %q", key)
				}
			} else {
				r := out.await(t, row.value)
				where, due, scheduled, at = r.Topic, headerTime(t, r.Record, "Bridge-Due-At"), headerTime(t, r.Record, "Bridge-Scheduled-At"), r.at
				if row.value == "another partition" && header(r.Record, "trace") != "one" {
					t.Errorf("its header came as %q", r.Headers)
				}
				if row.value == "enveloped" && string(r.Key) != "k" {
					t.Errorf("its key is %q", r.Key)
				}
			}
			if where != row.where {
				t.Errorf("it arrived on %s, not on %s", where, row.where)
			}
			if delay := due.Sub(scheduled); delay != row.delay && row.value != "own time" {
				t.Errorf("it was delayed by %v, not %v", delay, row.delay)
			}
			if at.Before(due) {
				t.Errorf("it arrived %v early", due.Sub(at))
			}
		})
	}
	w.awaitEmpty(t)
	if n := len(out.all()) + len(w.table.Arrivals()); n != len(rows) {
		t.Errorf("%d messages arrived, not %d", n, len(rows))
	}
}

// find looks for a payload among the arrivals.
func find(table *Timetable, payload string, found *Arrival) bool {
	for _, a := range table.Arrivals() {
		if a.Payload == payload {
			*found = a
			return true
		}
	}
	return false
}

// awaitSubject waits until a stream holds a subject.
func awaitSubject(t *testing.T, w *kafkaWorld, subject string) {
	t.Helper()
	if !servers.Eventually(func() bool {
		_, err := w.js.StreamNameBySubject(t.Context(), subject)
		return err == nil
	}) {
		t.Fatalf("no stream holds %s", subject)
	}
}

// TestRoutesThatCannotBe holds every wrong route to one line that names the
// variable, and to exit code 2, before anything is connected to.
func TestRoutesThatCannotBe(t *testing.T) {
	t.Parallel()
	env := Env{"REDIS_URL": "redis://127.0.0.1:1/0", "NATS_URL": "nats://127.0.0.1:1", "KAFKA_BROKERS": "127.0.0.1:1"}
	for _, row := range []struct {
		about string
		env   Env
		says  []string
	}{
		{"a topic leads to itself", Env{"ROUTES": "kafka://a -> kafka://a delay=1s"}, []string{"BRIDGE_ROUTES", "kafka://a", "come back"}},
		{"a subject leads to itself", Env{"ROUTES": "nats://a.> -> nats://a.b delay=1s"}, []string{"BRIDGE_ROUTES", "nats://a.>", "come back"}},
		{"by core NATS, too", Env{"ROUTES": "nats://a.* -> nats-core://a.b delay=1s"}, []string{"BRIDGE_ROUTES", "come back"}},
		{"two routes in a circle", Env{"ROUTES": "kafka://a -> nats://b delay=1s; nats://b -> kafka://a delay=1s"}, []string{"BRIDGE_ROUTES", "come back"}},
		{"a route that leads into another", Env{"ROUTES": "kafka://a -> kafka://b delay=1s; kafka://b -> kafka://c delay=1s"}, []string{"BRIDGE_ROUTES", "kafka://b", "come back"}},
		{"to the topic to schedule on", Env{"ROUTES": "nats://a -> kafka://bridge.schedule"}, []string{"BRIDGE_ROUTES", "kafka://bridge.schedule", "come back"}},
		{"to the subject to schedule on", Env{"ROUTES": "kafka://a -> nats://bridge.schedule"}, []string{"BRIDGE_ROUTES", "nats://bridge.schedule", "come back"}},
		{"to one of the topics to schedule on", Env{"ROUTES": "kafka://a -> kafka://own", "KAFKA_INGEST_TOPICS": "other,own"}, []string{"BRIDGE_ROUTES", "kafka://own"}},
		{"a topic twice", Env{"ROUTES": "kafka://a -> kafka://b delay=1s; kafka://a -> kafka://c delay=1s"}, []string{"BRIDGE_ROUTES", "kafka://a", "overlaps"}},
		{"subjects that overlap", Env{"ROUTES": "nats://a.*.c -> nats://x delay=1s; nats://a.b.> -> nats://y delay=1s"}, []string{"BRIDGE_ROUTES", "overlaps", "nats://a.*.c"}},
		{"a route that crosses the subjects to schedule on", Env{"ROUTES": "nats://a.*.c -> nats://x delay=1s", "NATS_INGEST_SUBJECTS": "a.b.*"}, []string{"BRIDGE_ROUTES", "nats://a.*.c", "overlaps", "nats://a.b.*"}},
		{"subjects to schedule on that cross", Env{"NATS_INGEST_SUBJECTS": "a.*.c,a.b.*"}, []string{"BRIDGE_NATS_INGEST_SUBJECTS", "a.b.*", "overlaps"}},
		{"no unit", Env{"ROUTES": "kafka://a -> kafka://b delay=5"}, []string{"BRIDGE_ROUTES", "delay=5", "unit"}},
		{"too far ahead", Env{"ROUTES": "kafka://a -> kafka://b delay=8d"}, []string{"BRIDGE_ROUTES", "BRIDGE_MAX_DELAY"}},
		{"no sink", Env{"ROUTES": "a -> kafka://b delay=5s"}, []string{"BRIDGE_ROUTES", "source a"}},
		{"an unknown sink", Env{"ROUTES": "kafka://a -> amqp://b delay=5s"}, []string{"BRIDGE_ROUTES", "amqp"}},
		{"a Kafka source with a wildcard", Env{"ROUTES": "kafka://a.* -> kafka://b delay=5s"}, []string{"BRIDGE_ROUTES", "no wildcards"}},
		{"a target with a wildcard", Env{"ROUTES": "kafka://a -> nats://b.* delay=5s"}, []string{"BRIDGE_ROUTES", "nats://b.*"}},
		{"an unknown option", Env{"ROUTES": "kafka://a -> kafka://b after=5s"}, []string{"BRIDGE_ROUTES", `"after"`}},
		{"commas between", Env{"ROUTES": "kafka://a -> kafka://b delay=5s, kafka://c -> kafka://d delay=5s"}, []string{"BRIDGE_ROUTES", ";"}},
		{"the reject target is a route's source", Env{"ROUTES": "kafka://a -> kafka://b delay=5s", "REJECT_TARGET": "kafka://a"}, []string{"BRIDGE_REJECT_TARGET"}},
		{"the dead target is a route's source", Env{"ROUTES": "nats://a.> -> kafka://b delay=5s", "DEAD_TARGET": "nats://a.dead"}, []string{"BRIDGE_DEAD_TARGET"}},
		{"a Kafka source without Kafka", Env{"ROUTES": "kafka://a -> nats://b delay=5s", "KAFKA_BROKERS": ""}, []string{"BRIDGE_ROUTES", "BRIDGE_KAFKA_BROKERS"}},
		{"a NATS source without NATS", Env{"ROUTES": "nats://a -> kafka://b delay=5s", "NATS_URL": ""}, []string{"BRIDGE_ROUTES", "BRIDGE_NATS_URL"}},
	} {
		t.Run(row.about, func(t *testing.T) {
			r := Run(t, env.With(row.env), "", "serve")
			line := strings.TrimSuffix(r.Stderr, "\n")
			if r.Code != 2 || r.Stdout != "" || strings.Contains(line, "\n") || !strings.HasPrefix(line, "bridge: ") {
				t.Errorf("exit code %d, stdout %q, stderr\n%s", r.Code, r.Stdout, r.Stderr)
			}
			for _, says := range row.says {
				if !strings.Contains(line, says) {
					t.Errorf("%q is not in: %s", says, line)
				}
			}
			if t.Failed() {
				return
			}
			t.Log(line)
		})
	}
}

// TestTargetsOfOthers warns of a target that this process cannot publish to,
// which is no error: another process may.
func TestTargetsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, Env{"ROUTES": "nats://later.> -> kafka://orders delay=1s", "DEAD_TARGET": "kafka://dead"})
	for _, says := range []string{
		"BRIDGE_ROUTES has the target kafka://orders, and BRIDGE_KAFKA_BROKERS is empty",
		"BRIDGE_DEAD_TARGET has the target kafka://dead, and BRIDGE_KAFKA_BROKERS is empty",
	} {
		if !strings.Contains(p.Output(), says) {
			t.Errorf("it does not say %q, but\n%s", says, p.Output())
		}
	}
}
