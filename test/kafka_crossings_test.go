package test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// nullable are the three things that a key or a value can be.
var nullable = map[string][]byte{"null": nil, "empty": {}, "present": []byte("p\x00\xff")}

// eachCombination runs f for the nine combinations of key and value.
func eachCombination(f func(name string, key, value []byte)) {
	for k, key := range nullable {
		for v, value := range nullable {
			f(k+"."+v, key, value)
		}
	}
}

// awkward are headers that a careless bridge spoils: repeated ones with others
// between, null and empty values, bytes that are no text, names that NATS does
// not take, names that differ by case only.
func awkward(name string) []kgo.RecordHeader {
	return []kgo.RecordHeader{
		{Key: "case", Value: []byte(name)},
		{Key: "trace", Value: []byte("one")},
		{Key: "null", Value: nil},
		{Key: "Trace", Value: []byte("other")},
		{Key: "trace", Value: []byte("two")},
		{Key: "empty", Value: []byte{}},
		{Key: "mixed", Value: []byte("text")},
		{Key: "mixed", Value: nil},
		{Key: "mixed", Value: []byte{}},
		{Key: "binary", Value: []byte("\xff\x00\r\n")},
		{Key: "a name: of ours", Value: []byte(" blank edges ")},
		{Key: "", Value: []byte("no name")},
		{Key: "trace", Value: []byte("one")},
	}
}

// TestKafkaToKafkaKeepsAll holds key, value and headers to what the producer
// wrote, for every combination of null, empty and present.
func TestKafkaToKafkaKeepsAll(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	w.run(t, nil)
	eachCombination(func(name string, key, value []byte) {
		w.send(t, &kgo.Record{Key: key, Value: value, Headers: append(awkward(name),
			kgo.RecordHeader{Key: "bridge-target", Value: []byte("kafka://" + w.out)},
			kgo.RecordHeader{Key: "BRIDGE-DELAY", Value: []byte("100ms")},
			kgo.RecordHeader{Key: "Nats-Rollup", Value: []byte("all")})})
	})
	w.checkCombinations(t, w.watch(t, w.out), func(name string, r arrivedRecord) {
		if got := passed(r.Record); !reflect.DeepEqual(got, awkward(name)) {
			t.Errorf("%s: headers came as\n%q, sent as\n%q", name, got, awkward(name))
		}
	})
}

// TestKafkaToNATSKeepsAll reads what Kafka's records became on NATS, and sends
// it back to Kafka by a second bridge, which shares nothing with the first.
func TestKafkaToNATSKeepsAll(t *testing.T) {
	t.Parallel()
	w := withKafka(t, newWorld(t), 1)
	w.serve(t, nil)
	w.serve(t, Env{
		"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_INGEST_TOPICS": "none-such", "KAFKA_INGEST_GROUP": servers.TopicName(t),
		"NATS_INGEST_STREAM": "ORDERS", "NATS_INGEST_SUBJECTS": "orders.>",
		"ROUTES": "nats://orders.> -> kafka://" + w.out + " delay=100ms",
	})
	eachCombination(func(name string, key, value []byte) {
		w.send(t, &kgo.Record{Key: key, Value: value, Headers: append(awkward(name),
			kgo.RecordHeader{Key: "Bridge-Target", Value: []byte("nats://orders." + name)},
			kgo.RecordHeader{Key: "Bridge-Delay", Value: []byte("100ms")})})
	})

	w.checkCombinations(t, w.watch(t, w.out), func(name string, r arrivedRecord) {
		// NATS keeps an order within a name only.
		if got, want := byName(passed(r.Record)), byName(awkward(name)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: headers came back as\n%q, sent as\n%q", name, got, want)
		}
	})
	for _, a := range w.table.Arrivals() {
		name := strings.TrimPrefix(a.Subject, "orders.")
		k, v, _ := strings.Cut(name, ".")
		key, given := a.Header["Bridge-Key"]
		encoded, err := base64.StdEncoding.DecodeString(a.Header.Get("Bridge-Key-Base64"))
		switch {
		case k == "null" && !given && a.Header.Get("Bridge-Key-Base64") == "":
		case k == "empty" && slices.Equal(key, []string{""}):
		case k == "present" && err == nil && string(encoded) == string(nullable[k]):
		default:
			t.Errorf("%s: the key is Bridge-Key %q, Bridge-Key-Base64 %q", name, key, a.Header["Bridge-Key-Base64"])
		}
		if a.Payload != string(nullable[v]) || (a.Header.Get("Bridge-Tombstone") == "true") != (v == "null") {
			t.Errorf("%s: the payload is %q, Bridge-Tombstone %q", name, a.Payload, a.Header.Get("Bridge-Tombstone"))
		}
		for header, want := range map[string][]string{"case": {name}, "trace": {"one", "two", "one"}, "Trace": {"other"}, "empty": {""}} {
			if got := a.Header[header]; !slices.Equal(got, want) {
				t.Errorf("%s: header %s is %q", name, header, got)
			}
		}
		var raw [][2][]byte
		if err := json.Unmarshal([]byte(a.Header.Get("Bridge-Raw-Headers")), &raw); err != nil {
			t.Errorf("%s: Bridge-Raw-Headers: %v", name, err)
		}
		var got []kgo.RecordHeader
		for _, h := range raw {
			got = append(got, kgo.RecordHeader{Key: string(h[0]), Value: h[1]})
		}
		want := slices.DeleteFunc(awkward(name), func(h kgo.RecordHeader) bool { return a.Header[h.Key] != nil })
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: Bridge-Raw-Headers holds\n%q, want\n%q", name, got, want)
		}
	}
}

// TestNATSToKafkaKeepsAll has a NATS producer say in headers what NATS cannot
// express itself.
func TestNATSToKafkaKeepsAll(t *testing.T) {
	t.Parallel()
	w := withKafka(t, newWorld(t), 1)
	w.serve(t, nil)
	raw := []kgo.RecordHeader{{Key: "null", Value: nil}, {Key: "a name", Value: []byte("\xff")}, {Key: "null", Value: []byte{}}}
	list := make([][2][]byte, len(raw))
	for i, h := range raw {
		list[i] = [2][]byte{[]byte(h.Key), h.Value}
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	eachCombination(func(name string, key, value []byte) {
		m := &nats.Msg{Subject: "bridge.schedule", Data: value, Header: nats.Header{
			"Bridge-Target": {"kafka://" + w.out}, "Bridge-Delay": {"100ms"}, "Bridge-Raw-Headers": {string(text)},
			"case": {name}, "trace": {"one", "two", "one"}, "Trace": {"other"}, "empty": {""},
		}}
		switch {
		case key != nil && len(key) == 0:
			m.Header["Bridge-Key"] = []string{""}
		case key != nil:
			m.Header["Bridge-Key-Base64"] = []string{base64.StdEncoding.EncodeToString(key)}
		}
		if value == nil {
			m.Header["Bridge-Tombstone"] = []string{"true"}
		}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	})
	w.checkCombinations(t, w.watch(t, w.out), func(name string, r arrivedRecord) {
		want := byName(append([]kgo.RecordHeader{
			{Key: "case", Value: []byte(name)}, {Key: "trace", Value: []byte("one")}, {Key: "trace", Value: []byte("two")},
			{Key: "trace", Value: []byte("one")}, {Key: "Trace", Value: []byte("other")}, {Key: "empty", Value: []byte{}},
		}, raw...))
		if got := byName(passed(r.Record)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: headers came as\n%q, sent as\n%q", name, got, want)
		}
	})
}

// checkCombinations waits for the nine, and holds each to its key and value.
func (w *kafkaWorld) checkCombinations(t *testing.T, log *topicLog, check func(name string, r arrivedRecord)) {
	t.Helper()
	log.awaitCount(t, len(nullable)*len(nullable))
	w.awaitEmpty(t)
	seen := map[string]int{}
	for _, r := range log.all() {
		name := header(r.Record, "case")
		k, v, _ := strings.Cut(name, ".")
		seen[name]++
		if !same(r.Key, nullable[k]) || !same(r.Value, nullable[v]) {
			t.Errorf("%s came with %s and %s", name, describe("key", r.Key), describe("value", r.Value))
		}
		check(name, r)
	}
	if len(seen) != len(nullable)*len(nullable) || len(log.all()) != len(seen) {
		t.Errorf("these arrived: %v", seen)
	}
}

func describe(what string, b []byte) string {
	if b == nil {
		return "a null " + what
	}
	return fmt.Sprintf("%s %q", what, b)
}

// byName returns the values of headers by name, in order.
func byName(headers []kgo.RecordHeader) map[string][][]byte {
	m := map[string][][]byte{}
	for _, h := range headers {
		m[h.Key] = append(m[h.Key], h.Value)
	}
	return m
}
