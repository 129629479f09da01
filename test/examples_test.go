package test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// example builds and starts one of the programs under examples.
func example(t *testing.T, name string, args ...string) *Process {
	t.Helper()
	path := filepath.Join(t.TempDir(), "example")
	if out, err := exec.Command("go", "build", "-o", path, "delaybridge/test/examples/"+name).CombinedOutput(); err != nil {
		t.Fatalf("build example %s: %v\n%s", name, err, out)
	}
	return start(t, path, Env{}, args...)
}

// ran runs an example to its end, which has to be a good one.
func ran(t *testing.T, name string, args ...string) {
	t.Helper()
	if p := example(t, name, args...); p.Exit(t) != 0 {
		t.Fatalf("%s failed: %s", name, p.Output())
	}
}

// TestExamplesForNATS runs the producer and the consumer through the bridge.
func TestExamplesForNATS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)
	consumer := example(t, "nats/consumer", "-server", w.nats.URL)
	consumer.Await(t, "reading orders.>")

	ran(t, "nats/producer", "-server", w.nats.URL, "-delay", "1h", "-id", "order-8", `{"order":8}`)
	w.awaitState(t, "order-8", "pending")
	ran(t, "nats/producer", "-server", w.nats.URL, "-cancel", "-id", "order-8")
	w.awaitState(t, "order-8", "cancelled")

	ran(t, "nats/producer", "-server", w.nats.URL, "-delay", "1s", "-id", "order-7", `{"order":7}`)
	consumer.Await(t, "handled order-7, attempt 1, due ")
	consumer.Await(t, `: {"order":7}`)

	// A copy, as a crash may leave one, that the stream does not know as such.
	a := w.table.Await(t, "order-7")
	publish(t, w.js, "orders.timeout", a.Payload,
		"Bridge-Id: order-7", "Bridge-Scheduled-At: "+a.Header.Get("Bridge-Scheduled-At"), "Bridge-Attempt: 2")
	consumer.Await(t, "dropped order-7, attempt 2: handled before")
	// The next schedule of the same id is a message of its own.
	ran(t, "nats/producer", "-server", w.nats.URL, "-delay", "0s", "-id", "order-7", `{"order":"7 again"}`)
	consumer.Await(t, `: {"order":"7 again"}`)
}

// TestExamplesForKafka runs the producer and the consumer through the bridge.
func TestExamplesForKafka(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	Serve(t, w.env)
	brokers := w.env["KAFKA_BROKERS"]
	consumer := example(t, "kafka/consumer", "-brokers", brokers, "-topic", w.out, "-group", servers.TopicName(t))
	ran(t, "kafka/producer", "-brokers", brokers, "-topic", w.in, "-target", "kafka://"+w.out, "-delay", "1s", "-id", "order-7", "-key", "order-7", `{"order":7}`)
	consumer.Await(t, "handled order-7, attempt 1, due ")
	consumer.Await(t, `: {"order":7}`)

	// A copy, as a crash may leave one.
	first := w.watch(t, w.out).awaitCount(t, 1)[0]
	copied := &kgo.Record{Topic: w.out, Key: first.Key, Value: first.Value}
	for _, h := range first.Headers {
		if h.Key == "Bridge-Attempt" {
			h.Value = []byte("2")
		}
		copied.Headers = append(copied.Headers, h)
	}
	w.send(t, copied)
	consumer.Await(t, "dropped order-7, attempt 2: handled before")
}
