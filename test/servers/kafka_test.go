package servers_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// TestKafka runs on what NewKafka gives, and on kfake in any case.
func TestKafka(t *testing.T) {
	t.Run("NewKafka", func(t *testing.T) { testKafka(t, servers.NewKafka(t)) })
	t.Run("kfake", func(t *testing.T) { testKafka(t, servers.NewKfake(t)) })
}

func testKafka(t *testing.T, k *servers.Kafka) {
	t.Logf("Apache Kafka: %v, brokers %v", k.Real, k.Brokers)

	t.Run("kafka-go writes and reads", func(t *testing.T) {
		topic := k.Topic(t, 1)
		w := &kafka.Writer{Addr: kafka.TCP(k.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchSize: 1}
		defer func() { _ = w.Close() }()
		if err := w.WriteMessages(t.Context(), kafka.Message{Key: []byte("k"), Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: k.Brokers, GroupID: topic, Topic: topic, MaxWait: 100 * time.Millisecond})
		defer func() { _ = r.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := r.FetchMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Key) != "k" || string(m.Value) != "v" || m.Offset != 0 {
			t.Errorf("read %q %q at %d", m.Key, m.Value, m.Offset)
		}
		if err := r.CommitMessages(ctx, m); err != nil {
			t.Fatal(err)
		}
		if got := k.Committed(t, topic, topic, 0); got != 1 {
			t.Errorf("committed %d, want 1", got)
		}
	})

	t.Run("a transaction is read once it is committed, and never when it is aborted", func(t *testing.T) {
		topic := k.Topic(t, 1)
		c := k.Client(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
		for value, end := range map[string]kgo.TransactionEndTry{"aborted": kgo.TryAbort, "committed": kgo.TryCommit} {
			if err := c.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			if err := c.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := c.EndTransaction(t.Context(), end); err != nil {
				t.Fatal(err)
			}
		}
		got := read(t, k, topic, 1)
		if len(got) != 1 || string(got[0].Value) != "committed" {
			t.Errorf("read %v", got)
		}
	})

	t.Run("what was written is there after a stop, and after a crash", func(t *testing.T) {
		topic := k.Topic(t, 2)
		c := k.Client(t, kgo.DefaultProduceTopic(topic))
		for i, end := range []func(){k.Stop, k.Kill} {
			if err := c.ProduceSync(t.Context(), &kgo.Record{Partition: int32(i)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			end()
			k.Start(t)
		}
		if got := read(t, k, topic, 2); len(got) != 2 {
			t.Errorf("read %v", got)
		}
		k.DeleteRecords(t, topic, 0, 1)
		k.AddPartitions(t, topic, 3)
		k.DeleteTopic(t, topic)
	})
}

// read reads n committed records of a topic.
func read(t *testing.T, k *servers.Kafka, topic string, n int) []*kgo.Record {
	t.Helper()
	c := k.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []*kgo.Record
	for len(got) < n {
		f := c.PollFetches(ctx)
		if err := f.Err0(); errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("read %d of %d records in time", len(got), n)
		}
		got = append(got, f.Records()...)
	}
	return got
}

// TestKafkaEndsWithItsTest starts this test binary anew, kills it while it has
// a shared broker, and looks whether the broker is gone.
func TestKafkaEndsWithItsTest(t *testing.T) {
	const role = "DELAYBRIDGE_TEST_KILLED"
	if os.Getenv(role) != "" {
		k := servers.SharedKafka(t)
		if _, err := os.Stdout.WriteString("brokers " + strings.Join(k.Brokers, ",") + "\n"); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKafkaEndsWithItsTest$", "-test.v")
	cmd.Env = append(os.Environ(), role+"=1", "TMPDIR="+t.TempDir())
	out := &firstMatch{prefix: "brokers ", found: make(chan string, 1)}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var broker string
	select {
	case broker = <-out.found:
	case <-time.After(60 * time.Second):
		t.Fatalf("no broker was up in time:\n%s", out.all.String())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if !servers.Eventually(func() bool {
		c, err := kafka.DialContext(t.Context(), "tcp", broker)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}) {
		t.Errorf("the broker at %s outlived its test", broker)
	}
}

// firstMatch finds the first line that begins with prefix in what is written to it.
type firstMatch struct {
	prefix string
	found  chan string
	all    bytes.Buffer
	done   bool
}

func (w *firstMatch) Write(p []byte) (int, error) {
	w.all.Write(p)
	for line := range strings.Lines(w.all.String()) {
		if rest, ok := strings.CutPrefix(line, w.prefix); ok && strings.HasSuffix(line, "\n") && !w.done {
			w.done = true
			w.found <- strings.TrimSpace(rest)
		}
	}
	return len(p), nil
}
