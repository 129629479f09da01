package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge/test/servers"
)

const kafkaPartitions = 4

// kafkaBroker is a broker with the topics "in" and "out".
type kafkaBroker struct {
	brokers []string
	client  *kgo.Client
	close   func()
}

// startKfake starts the in-process broker in a process of its own.
func startKfake() (*kafkaBroker, error) {
	p, err := startSelf("kfake", "in", "out")
	if err != nil {
		return nil, err
	}
	line, err := p.await("listening ")
	if err != nil {
		return nil, err
	}
	return newKafkaBroker(strings.Split(strings.TrimPrefix(line, "listening "), ","), p.kill)
}

// startKafka starts Apache Kafka, as the tests of the bridge do, and makes the
// topics. ok is false where it cannot be had.
func startKafka(ctx context.Context) (k *kafkaBroker, err error) {
	if err := os.Setenv(servers.KafkaEnv, "real"); err != nil {
		return nil, err
	}
	t := &holder{}
	var real *servers.Kafka
	if err := t.run(func() { real = servers.NewKafka(t) }); err != nil {
		t.cleanUp()
		return nil, err
	}
	if k, err = newKafkaBroker(real.Brokers, t.cleanUp); err != nil {
		return nil, err
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.TimeoutMillis = 10_000
	for _, name := range []string{"in", "out"} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, kafkaPartitions, 1
		request.Topics = append(request.Topics, topic)
	}
	response, err := request.RequestWith(ctx, k.client)
	if err != nil {
		return k, err
	}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return k, err
		}
	}
	return k, nil
}

func newKafkaBroker(brokers []string, end func()) (*kafkaBroker, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MaxBufferedRecords(20_000))
	if err != nil {
		end()
		return nil, err
	}
	return &kafkaBroker{brokers: brokers, client: client, close: func() { client.Close(); end() }}, nil
}

// fill produces n schedule messages to the source topic.
func (k *kafkaBroker) fill(ctx context.Context, p *plan, target, delay string) error {
	var once sync.Once
	var failed error
	payload := p.payload()
	for range p.n {
		k.client.Produce(ctx, &kgo.Record{Topic: "in", Value: payload, Headers: []kgo.RecordHeader{
			{Key: "Bridge-Target", Value: []byte(target)}, {Key: "Bridge-Delay", Value: []byte(delay)},
		}}, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	if err := k.client.Flush(ctx); err != nil {
		return err
	}
	return failed
}

// count is how many records the target topic has.
func (k *kafkaBroker) count(ctx context.Context) (n int64, err error) {
	request := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = "out"
	for p := range int32(kafkaPartitions) {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp = p, -1
		t.Partitions = append(t.Partitions, part)
	}
	request.Topics = append(request.Topics, t)
	for _, shard := range k.client.RequestSharded(ctx, request) {
		if shard.Err != nil {
			return 0, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return 0, err
				}
				n += p.Offset
			}
		}
	}
	return n, nil
}

// awaitRate waits until the target topic has n records, and returns how many came
// in a second from the first that was seen.
func (k *kafkaBroker) awaitRate(ctx context.Context, n int) (float64, error) {
	const patience = 40 * time.Second
	var from time.Time
	var first, last int64
	for moved := time.Now(); ; {
		have, err := k.count(ctx)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if have > 0 && from.IsZero() {
			from, first = now, have
		}
		if have >= int64(n) {
			return float64(have-first) / max(now.Sub(from).Seconds(), 1e-3), nil
		}
		if have != last {
			last, moved = have, now
		}
		if now.Sub(moved) > patience {
			return 0, fmt.Errorf("%d of %d records have arrived, and no more for %v", have, n, patience)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// holder stands for a test where a helper of the tests starts a server.
type holder struct {
	testing.TB

	mu      sync.Mutex
	cleanup []func()
	failed  error
}

// run runs what may fail as a test does.
func (h *holder) run(f func()) error {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
	return h.failed
}

// What helpers of tests call.

func (h *holder) Helper()                    {}
func (h *holder) Name() string               { return "bench" }
func (h *holder) Failed() bool               { return h.failed != nil }
func (h *holder) Logf(f string, args ...any) { fmt.Fprintf(os.Stderr, f+"\n", args...) }
func (h *holder) Log(args ...any)            { fmt.Fprintln(os.Stderr, args...) }

func (h *holder) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanup = append(h.cleanup, f)
}

func (h *holder) cleanUp() {
	for i := len(h.cleanup) - 1; i >= 0; i-- {
		h.cleanup[i]()
	}
	h.cleanup = nil
}

func (h *holder) Fatalf(f string, args ...any) { h.fail(fmt.Errorf(f, args...)) }
func (h *holder) Fatal(args ...any)            { h.fail(fmt.Errorf("%s", fmt.Sprint(args...))) }

// fail ends the goroutine of run.
func (h *holder) fail(err error) {
	h.failed = err
	runtime.Goexit()
}
