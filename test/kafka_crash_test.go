package test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	kafkaMessages = flag.Int("kafka.messages", 3000, "how many messages TestKafkaCrashLosesNothing sends")
	kafkaRate     = flag.Int("kafka.rate", 0, "how many of them it sends a second; 0 sends them within 6 s")
)

// TestKafkaCrashLosesNothing sends messages with random delays from Kafka to
// Kafka through three processes. One is killed while messages come in and go
// out, one is told to stop; the third has to see to what they leave behind.
//
//	go test -run KafkaCrash ./test -v -args -kafka.messages 20000
func TestKafkaCrashLosesNothing(t *testing.T) {
	t.Parallel()
	const partitions, spread = 6, 10 * time.Second
	messages := *kafkaMessages
	rate := *kafkaRate
	if rate == 0 {
		rate = max(messages/6, 1)
	}
	w := newKafkaWorld(t, partitions)
	// The broker's own time of arrival is what "early" is measured by.
	w.out = w.kafka.Topic(t, partitions, "message.timestamp.type=LogAppendTime")
	// A short lease brings back soon what the killed process held.
	env := Env{"LEASE": "4s", "PUBLISH_TIMEOUT": "2s"}
	w.run(t, env)
	killed, stopped := w.run(t, env), w.run(t, env)
	log := w.watch(t, w.out)

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	due := make([]time.Time, messages)
	sent := make(chan error, 1)
	began := time.Now()
	go func() {
		defer close(sent)
		failed := make(chan error, messages)
		for i := range messages {
			if ahead := time.Until(began.Add(time.Second * time.Duration(i) / time.Duration(rate))); ahead > 0 {
				time.Sleep(ahead)
			}
			delay := time.Duration(random.Int64N(int64(spread/time.Millisecond))) * time.Millisecond
			r := request(strconv.Itoa(i), "Bridge-Target: kafka://"+w.out, "Bridge-Delay: "+delay.String())
			r.Topic, r.Partition, r.Timestamp = w.in, int32(random.IntN(partitions)), time.Now().Truncate(time.Millisecond)
			r.Key = []byte(fmt.Sprint("key-", i))
			due[i] = r.Timestamp.Add(delay)
			w.producer.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed <- err
				}
			})
		}
		if err := w.producer.Flush(context.Background()); err != nil {
			sent <- err
		}
		select {
		case err := <-failed:
			sent <- err
		default:
		}
	}()

	log.awaitCount(t, messages/5)
	killed.Kill()
	atKill := len(log.all())
	log.awaitCount(t, messages/2)
	stopped.Signal(syscall.SIGTERM)
	atTerm := len(log.all())
	if code := stopped.Exit(t); code != 0 {
		t.Errorf("the stopped process ended with code %d", code)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !log.until(func(all []arrivedRecord) bool { return len(all) >= messages && distinct(all) == messages }) {
		t.Errorf("%d of %d messages arrived", distinct(log.all()), messages)
	}
	w.awaitEmpty(t)

	copies := map[string]int{}
	var late []time.Duration
	duplicates := 0
	for _, r := range log.all() {
		i, err := strconv.Atoi(string(r.Value))
		if err != nil || i < 0 || i >= messages || string(r.Key) != fmt.Sprint("key-", i) {
			t.Fatalf("%q arrived with key %q", r.Value, r.Key)
		}
		if claimed := headerTime(t, r.Record, "Bridge-Due-At"); !claimed.Equal(due[i]) {
			t.Errorf("%d says it was due at %v, not %v", i, claimed, due[i])
		}
		if w.kafka.Real && r.Attrs.TimestampType() != 1 { // kfake keeps the producer's
			t.Fatalf("the time of %d is not the broker's", i)
		}
		if early := due[i].Sub(r.Timestamp); early > 0 {
			t.Errorf("%d arrived %v early", i, early)
		}
		if copies[string(r.Value)]++; copies[string(r.Value)] > 1 {
			duplicates++
			if header(r.Record, "Bridge-Attempt") == "1" {
				t.Errorf("copy %d of %d says that it is the first attempt", copies[string(r.Value)], i)
			}
			continue
		}
		late = append(late, r.at.Sub(due[i]))
	}
	slices.Sort(late)
	t.Logf("seed %d, Apache Kafka: %v; %d messages, %d lost, %d duplicates; killed one process after %d arrivals, stopped one after %d; "+
		"lateness at the consumer p50 %v, p99 %v, max %v", seed, w.kafka.Real, messages, messages-len(copies), duplicates,
		atKill, atTerm, percentile(late, 50), percentile(late, 99), percentile(late, 100))
	t.Log(histogram(late))
}

func distinct(records []arrivedRecord) int {
	values := map[string]bool{}
	for _, r := range records {
		values[string(r.Value)] = true
	}
	return len(values)
}

// histogram says how many of sorted durations are below some bounds.
func histogram(sorted []time.Duration) string {
	var b strings.Builder
	for _, bound := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second} {
		n, _ := slices.BinarySearch(sorted, bound)
		fmt.Fprintf(&b, "below %v: %d; ", bound, n)
	}
	return strings.TrimSuffix(b.String(), "; ")
}
