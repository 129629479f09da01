package sinks_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/test/servers"
)

// publishOne publishes one message and returns its outcome.
func publishOne(t *testing.T, s delaybridge.Sink, topic, id string) error {
	t.Helper()
	return s.Publish(t.Context(), []delaybridge.Claim{kafkaClaim(topic, id)})[0]
}

// ids returns how often each id has arrived.
func ids(t *testing.T, k *servers.Kafka, topic string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, r := range readTopic(t, k, topic) {
		out[deliveredRecord(t, r).Bridge["Bridge-Id"]]++
	}
	return out
}

// failProduce makes the broker answer every produce request for a topic with a
// code, without storing anything.
func failProduce(k *servers.Kafka, topic string, code int16) {
	k.Fake().ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.ProduceRequest)
		if req.Topics[0].Topic != topic {
			return nil, nil, false
		}
		k.Fake().KeepControl()
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

func TestKafkaClassifiesEveryCode(t *testing.T) {
	t.Parallel()
	classes := map[int16]string{
		// It may be stored.
		-1: "unknown", 7: "unknown", 13: "unknown", 20: "unknown",
		// It will never be taken.
		10: "permanent", 17: "permanent", 18: "permanent", 29: "permanent", 32: "permanent", 44: "permanent", 87: "permanent",
	}
	k := servers.NewKfake(t)
	sink := newKafkaSink(t, k.Brokers, "")
	// All codes in one batch, each on a topic of its own.
	var batch []delaybridge.Claim
	var codes []int16
	for code := int16(-1); code <= 130; code++ {
		if code != 0 {
			codes = append(codes, code)
			topic := k.Topic(t, 1)
			failProduce(k, topic, code)
			batch = append(batch, kafkaClaim(topic, fmt.Sprint(code)))
		}
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		class := classes[codes[i]]
		if class == "" {
			class = "transient"
		}
		want(t, fmt.Sprintf("code %d (%v)", codes[i], kafka.Error(codes[i])), err, class, "")
		if !errors.Is(err, kafka.Error(codes[i])) {
			t.Errorf("code %d is not told: %v", codes[i], err)
		}
	}
}

func TestKafkaInjectedErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sentence string
		err      *kerr.Error
		count    int // 0: once
		class    string
		stored   int
	}{
		{"stored, but not in time by all replicas", kerr.RequestTimedOut, 0, "unknown", 1},
		{"stored, and then too few replicas", kerr.NotEnoughReplicasAfterAppend, 0, "unknown", 1},
		{"too few replicas", kerr.NotEnoughReplicas, 0, "transient", 0},
		{"the leader has moved a moment ago", kerr.NotLeaderForPartition, 0, "", 1},
		{"the leader has moved and nobody knows where", kerr.NotLeaderForPartition, -1, "transient", 0},
		{"the leader is being chosen", kerr.LeaderNotAvailable, 0, "", 1},
		{"the disk is broken", kerr.KafkaStorageError, 0, "transient", 0},
		{"not authorised", kerr.TopicAuthorizationFailed, -1, "permanent", 0},
		{"the broker fails in an unforeseen way", kerr.UnknownServerError, 0, "unknown", 0},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			k := servers.NewKfake(t)
			topic := k.Topic(t, 1)
			sink := newKafkaSink(t, k.Brokers, "")
			k.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: c.err, Count: c.count})
			want(t, c.sentence, publishOne(t, sink, topic, "a"), c.class, "")
			if n := ids(t, k, topic)["a"]; n != c.stored {
				t.Errorf("the topic holds it %d times, want %d", n, c.stored)
			}
		})
	}
}

func TestKafkaAlwaysAsksForAllReplicas(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 3)
	var requests atomic.Int64
	k.Fake().ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.ProduceRequest)
		requests.Add(1)
		if req.Acks != -1 {
			t.Errorf("acks is %d", req.Acks)
		}
		if req.TimeoutMillis <= 0 || req.TimeoutMillis >= 10_000 {
			t.Errorf("the broker has %d ms, which is not within the publish timeout", req.TimeoutMillis)
		}
		return nil, nil, false
	})
	k.Fake().ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if kreq.(*kmsg.MetadataRequest).AllowAutoTopicCreation {
			t.Error("a question about a topic may create it")
		}
		return nil, nil, false
	})
	if err := publishOne(t, newKafkaSink(t, k.Brokers, ""), topic, "a"); err != nil {
		t.Fatal(err)
	}
	if requests.Load() == 0 {
		t.Error("no request was seen")
	}
}

// TestKafkaConnectionCut cuts the connection just before a request reaches the
// broker and just after it was carried out.
//
// B40 (segmentio/kafka-go#1352, #140): EOF was not tried again.
func TestKafkaConnectionCut(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		k.Fake().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, errors.New("cut"), true
		})
		sink := newKafkaSink(t, k.Brokers, "")
		// The request is written, and that it was not carried out cannot be told.
		want(t, "cut", publishOne(t, sink, topic, "a"), "unknown", "EOF")
		want(t, "the next", publishOne(t, sink, topic, "b"), "", "")
	})
	t.Run("after", func(t *testing.T) {
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		var arm atomic.Bool
		sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return &cutConn{Conn: nc, before: func() bool {
					return arm.Load() && ids(t, k, topic)["a"] > 0
				}}, err
			}
		})
		arm.Store(true)
		want(t, "cut", publishOne(t, sink, topic, "a"), "unknown", "EOF")
		if n := ids(t, k, topic)["a"]; n != 1 {
			t.Errorf("the topic holds it %d times: it was sent again behind our back", n)
		}
	})
	t.Run("in the middle of the request", func(t *testing.T) {
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		var cut atomic.Int64
		sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return &shortConn{Conn: nc, cut: &cut}, err
			}
		})
		c := kafkaClaim(topic, "a")
		c.Payload = bytes.Repeat([]byte("x"), 500_000)
		// Such a request is as good as not sent, and is sent anew.
		want(t, "cut once", sink.Publish(t.Context(), []delaybridge.Claim{c})[0], "", "")
		if n := ids(t, k, topic)["a"]; n != 1 || cut.Load() != 1 {
			t.Errorf("the topic holds it %d times after %d cuts", n, cut.Load())
		}
	})
}

// cutConn loses what the broker answers as soon as before is true.
type cutConn struct {
	net.Conn
	before func() bool
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.before() {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// shortConn breaks once, after 200,000 bytes.
type shortConn struct {
	net.Conn
	cut     *atomic.Int64
	written int
}

func (c *shortConn) Write(b []byte) (int, error) {
	if c.written += len(b); c.written > 200_000 && c.cut.CompareAndSwap(0, 1) {
		n, _ := c.Conn.Write(b[:len(b)/2])
		_ = c.Close()
		return n, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func TestKafkaTopicThatIsMissing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"kfake", "Kafka"} {
		t.Run(kind, func(t *testing.T) {
			k := servers.SharedKafka(t)
			if kind == "kfake" {
				k = servers.NewKfake(t)
			}
			sink := newKafkaSink(t, k.Brokers, "")
			name := servers.TopicName(t)
			want(t, "missing", publishOne(t, sink, name, "a"), "transient", "topic")
			k.CreateTopic(t, name, 3)
			// No memory of the cluster stands in the way of the first retry.
			want(t, "created", publishOne(t, sink, name, "b"), "", "")
			k.DeleteTopic(t, name)
			want(t, "deleted", publishOne(t, sink, name, "c"), "transient", "")
			k.CreateTopic(t, name, 1)
			want(t, "created again", publishOne(t, sink, name, "d"), "", "")
			if got := ids(t, k, name); got["d"] != 1 || len(got) != 1 {
				t.Errorf("arrived: %v", got)
			}
		})
	}
}

func TestKafkaDeadTopicHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t)
	dead, live := k.Topic(t, 1), k.Topic(t, 1)
	k.Fake().ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if kreq.(*kmsg.ProduceRequest).Topics[0].Topic != dead {
			return nil, nil, false
		}
		k.Fake().KeepControl()
		return nil, nil, true // never answered
	})
	const slots = 2
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.PublishTimeout, c.RequestsPerTopic = 3*time.Second, slots
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	classes := map[string]int{}
	for i := range slots + 3 {
		wg.Go(func() {
			errs := sink.Publish(t.Context(), []delaybridge.Claim{
				kafkaClaim(live, fmt.Sprint("before", i)), kafkaClaim(dead, fmt.Sprint(i)), kafkaClaim(live, fmt.Sprint("behind", i)),
			})
			want(t, "before", errs[0], "", "")
			want(t, "behind", errs[2], "", "")
			mu.Lock()
			defer mu.Unlock()
			if errs[1] == nil {
				t.Error("the dead topic has confirmed")
				return
			}
			classes[delaybridge.ClassOf(errs[1]).String()]++
		})
	}
	// All the while the living topic takes what it is given.
	stop := make(chan struct{})
	go func() { wg.Wait(); close(stop) }()
	for n := 0; ; n++ {
		select {
		case <-stop:
			if n < 3 {
				t.Errorf("the living topic has taken %d batches in the meantime", n)
			}
			if classes["unknown"] != slots || classes["transient"] != 3 {
				t.Errorf("messages for the dead topic: %v, want %d unknown and 3 that were not sent", classes, slots)
			}
			return
		default:
			want(t, "alone", publishOne(t, sink, live, fmt.Sprint("alone", n)), "", "")
		}
	}
}

func TestKafkaThatAnswersNothing(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t)
	topics := []string{k.Topic(t, 1), k.Topic(t, 1)}
	arrived := make(chan struct{}, 10)
	k.Fake().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.Fake().KeepControl()
		arrived <- struct{}{}
		return nil, nil, true
	})
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.Requests, c.PublishTimeout = 1, 2*time.Second
	})
	first := make(chan error)
	go func() { first <- publishOne(t, sink, topics[0], "a") }()
	<-arrived
	// What has no connection to go out on is not counted as an attempt.
	want(t, "while all requests are taken", publishOne(t, sink, topics[1], "b"), "unavailable", "has not answered")
	want(t, "sent", <-first, "unknown", "did not confirm")
}

// TestKafkaDividesBatches: what one batch cannot hold goes in several, and what
// one record spoils is spoilt for that record only.
func TestKafkaDividesBatches(t *testing.T) {
	for _, kind := range []string{"kfake", "Kafka"} {
		t.Run(kind, func(t *testing.T) {
			k := servers.SharedKafka(t)
			if kind == "kfake" {
				k = servers.NewKfake(t)
			}
			sink := newKafkaSink(t, k.Brokers, "")
			check := func(topic string, batch []delaybridge.Claim, bad map[string]bool) {
				t.Helper()
				errs := sink.Publish(t.Context(), batch)
				got := ids(t, k, topic)
				for i, err := range errs {
					id := batch[i].ID
					if bad[id] {
						want(t, id, err, "permanent", "Kafka")
					} else {
						want(t, id, err, "", "")
					}
					if n := got[id]; n != 1 && !bad[id] || n != 0 && bad[id] {
						t.Errorf("%s arrived %d times", id, n)
					}
				}
			}

			if kind == "kfake" {
				k.Fake().ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
					for _, p := range kreq.(*kmsg.ProduceRequest).Topics[0].Partitions {
						if n := len(p.Records); n > 1_048_588 {
							t.Errorf("a batch of %d bytes is more than a topic takes by default", n)
						}
					}
					return nil, nil, false
				})
			}
			var large []delaybridge.Claim
			topic := k.Topic(t, 2)
			for i := range 600 {
				c := kafkaClaim(topic, fmt.Sprint("large", i))
				c.Payload = bytes.Repeat([]byte("x"), 10_000)
				large = append(large, c)
			}
			check(topic, large, nil)

			var some []delaybridge.Claim
			topic = k.Topic(t, 1, "max.message.bytes=3000")
			bad := map[string]bool{"some7": true, "some8": true, "some99": true}
			for i := range 100 {
				c := kafkaClaim(topic, fmt.Sprint("some", i))
				c.Payload = bytes.Repeat([]byte("x"), 200)
				if bad[c.ID] {
					c.Payload = bytes.Repeat([]byte("x"), 5000)
				}
				some = append(some, c)
			}
			check(topic, some, bad)

			if !k.Real {
				return // kfake takes records without keys for compacted topics
			}
			topic = k.Topic(t, 1, "cleanup.policy=compact")
			var keyed []delaybridge.Claim
			bad = map[string]bool{"keyed3": true, "keyed10": true}
			for i := range 20 {
				c := kafkaClaim(topic, fmt.Sprint("keyed", i))
				if c.Key = []byte(c.ID); bad[c.ID] {
					c.Key = nil
				}
				keyed = append(keyed, c)
			}
			check(topic, keyed, bad)
		})
	}
}

func TestKafkaLargestMessage(t *testing.T) {
	k := servers.SharedKafka(t)
	// A topic may take more than the broker's default; the topic decides.
	topic := k.Topic(t, 1, "max.message.bytes=4000000")
	c := kafkaClaim(topic, "large")
	c.Payload = bytes.Repeat([]byte("x"), 3_900_000)
	small := kafkaClaim(topic, "small")
	for i, err := range newKafkaSink(t, k.Brokers, "").Publish(t.Context(), []delaybridge.Claim{small, c, small}) {
		want(t, fmt.Sprint("message ", i), err, "", "")
	}
}

func TestKafkaLeaderMoves(t *testing.T) {
	k := servers.NewKfake(t, kfake.NumBrokers(3))
	topic := k.Topic(t, 1)
	sink := newKafkaSink(t, k.Brokers, "")
	for i := range 9 {
		if err := k.Fake().MoveTopicPartition(topic, 0, int32(i%3)); err != nil {
			t.Fatal(err)
		}
		// What the sink remembers is wrong now, and it costs no attempt.
		want(t, fmt.Sprint("after move ", i), publishOne(t, sink, topic, fmt.Sprint(i)), "", "")
	}
	if got := ids(t, k, topic); len(got) != 9 {
		t.Errorf("arrived: %v", got)
	}
}

func TestKafkaPartitionWithoutLeader(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 2)
	host, port, err := net.SplitHostPort(k.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	var chosen atomic.Bool
	k.Fake().ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if chosen.Load() {
			return nil, nil, false
		}
		k.Fake().KeepControl()
		resp := kreq.ResponseKind().(*kmsg.MetadataResponse)
		broker := kmsg.NewMetadataResponseBroker()
		broker.Host = host
		_, _ = fmt.Sscan(port, &broker.Port)
		resp.Brokers = append(resp.Brokers, broker)
		about := kmsg.NewMetadataResponseTopic()
		about.Topic = &topic
		for i, leader := range []int32{broker.NodeID, -1} {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader = int32(i), leader
			if leader < 0 {
				p.ErrorCode = kerr.LeaderNotAvailable.Code
			}
			about.Partitions = append(about.Partitions, p)
		}
		resp.Topics = append(resp.Topics, about)
		return resp, nil, true
	})
	sink := newKafkaSink(t, k.Brokers, "")
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	var batch []delaybridge.Claim
	for i := range 20 {
		c := kafkaClaim(topic, fmt.Sprint("key", i))
		c.Key = []byte(c.ID)
		batch = append(batch, c, kafkaClaim(topic, fmt.Sprint("null", i)))
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		class := ""
		if key := batch[i].Key; key != nil && java.Partition(&kgo.Record{Key: key}, 2) == 1 {
			class = "transient"
		}
		want(t, batch[i].ID, err, class, "no leader")
	}
	// The first retry finds the leader that has been chosen since.
	chosen.Store(true)
	for i, err := range sink.Publish(t.Context(), batch) {
		want(t, batch[i].ID+" again", err, "", "")
	}
}

func TestKafkaOneBrokerOfThreeIsAway(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t, kfake.NumBrokers(3))
	topics := make([]string, 3)
	for i := range topics {
		topics[i] = k.Topic(t, 1)
		if err := k.Fake().MoveTopicPartition(topics[i], 0, int32(i)); err != nil {
			t.Fatal(err)
		}
	}
	var away atomic.Pointer[map[string]bool]
	away.Store(&map[string]bool{})
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if (*away.Load())[addr] {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused")}
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	away.Store(&map[string]bool{k.Brokers[1]: true})
	batch := []delaybridge.Claim{kafkaClaim(topics[0], "a"), kafkaClaim(topics[1], "b"), kafkaClaim(topics[2], "c")}
	errs := sink.Publish(t.Context(), batch)
	want(t, "led by a broker that is there", errs[0], "", "")
	want(t, "led by the broker that is away, while others are there", errs[1], "transient", "refused")
	want(t, "led by another broker that is there", errs[2], "", "")

	// The partition gets another leader.
	if err := k.Fake().MoveTopicPartition(topics[1], 0, 2); err != nil {
		t.Fatal(err)
	}
	want(t, "led by another", publishOne(t, sink, topics[1], "d"), "", "")
}

func TestKafkaIdleConnectionsThatTheBrokerHasClosed(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 4)
	var open atomic.Int64
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			return &countedConn{Conn: nc, open: &open}, nil
		}
	})
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				want(t, "before the restart", publishOne(t, sink, topic, fmt.Sprintf("%d-%d", round, i)), "", "")
			})
		}
		wg.Wait()
		k.Stop()
		// That they are closed is noticed before they are needed.
		if !servers.Eventually(func() bool { return open.Load() == 0 }) {
			t.Errorf("%d connections to nobody are kept", open.Load())
		}
		k.Start(t)
	}
	want(t, "after the last restart", publishOne(t, sink, topic, "last"), "", "")
}

func TestKafkaNobodyAnswers(t *testing.T) {
	port := servers.FreePort(t)
	sink := newKafkaSink(t, []string{fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("localhost:%d", port)}, "")
	want(t, "refused", publishOne(t, sink, "topic", "a"), "unavailable", "refused")
	if err := sink.Ping(t.Context()); err == nil {
		t.Error("Ping of nobody succeeds")
	}
	k := servers.NewKfake(t)
	if err := newKafkaSink(t, k.Brokers, "").Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
	// The first of the configured brokers need not be there.
	sink = newKafkaSink(t, append([]string{fmt.Sprintf("127.0.0.1:%d", port)}, k.Brokers...), "")
	topic := k.Topic(t, 1)
	for i := range 5 {
		want(t, "one of two", publishOne(t, sink, topic, fmt.Sprint(i)), "", "")
	}
}

func TestKafkaTargetIsChecked(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 1)
	batch := []delaybridge.Claim{kafkaClaim("__consumer_offsets", "a"), kafkaClaim("no such name", "b"), kafkaClaim("", "c"), kafkaClaim(topic, "d")}
	errs := newKafkaSink(t, k.Brokers, "").Publish(t.Context(), batch)
	for i := range 3 {
		want(t, batch[i].Target.Name, errs[i], "permanent", "topic")
	}
	want(t, "a good one among them", errs[3], "", "")
}

// B45 (elastic/docs-content#2587, apache/kafka#18106): a time ahead is refused, an old one is retention's.
func TestKafkaTimeIsThatOfSending(t *testing.T) {
	k := servers.SharedKafka(t)
	topic := k.Topic(t, 1)
	before := time.Now().Add(-time.Second)
	// Scheduled and due years away.
	if err := publishOne(t, newKafkaSink(t, k.Brokers, ""), topic, "a"); err != nil {
		t.Fatal(err)
	}
	for _, r := range readTopic(t, k, topic) {
		if r.Timestamp.Before(before) || r.Timestamp.After(time.Now().Add(time.Second)) {
			t.Errorf("the record's time is %v", r.Timestamp)
		}
	}
}

func TestKafkaSecurity(t *testing.T) {
	t.Parallel()
	server, client := certificates(t)
	sha256, err := scram.Mechanism(scram.SHA256, "user", "secret")
	if err != nil {
		t.Fatal(err)
	}
	sha512, err := scram.Mechanism(scram.SHA512, "user", "secret")
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := scram.Mechanism(scram.SHA256, "user", "wrong")
	if err != nil {
		t.Fatal(err)
	}
	open := servers.NewKfake(t)
	closed := servers.NewKfake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "secret"),
		kfake.Superuser("SCRAM-SHA-256", "user", "secret"), kfake.Superuser("SCRAM-SHA-512", "user", "secret"))
	for _, k := range []*servers.Kafka{open, closed} {
		if err := k.Fake().CreateTopic("t", 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	encrypted, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "user", "secret"), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(encrypted.Close)
	for _, c := range []struct {
		sentence string
		brokers  []string
		tls      *tls.Config
		sasl     sasl.Mechanism
		class    string
		part     string
	}{
		{"PLAIN", closed.Brokers, nil, plain.Mechanism{Username: "user", Password: "secret"}, "", ""},
		{"SCRAM-SHA-256", closed.Brokers, nil, sha256, "", ""},
		{"SCRAM-SHA-512", closed.Brokers, nil, sha512, "", ""},
		{"no authentication where it is needed", closed.Brokers, nil, nil, "unavailable", ""},
		{"a wrong password", closed.Brokers, nil, wrong, "unavailable", "SCRAM-SHA-256"},
		{"a wrong password, PLAIN", closed.Brokers, nil, plain.Mechanism{Username: "user", Password: "wrong"}, "unavailable", "PLAIN"},
		{"TLS and PLAIN", encrypted.ListenAddrs(), client, plain.Mechanism{Username: "user", Password: "secret"}, "", ""},
		{"TLS with an authority that is not known", encrypted.ListenAddrs(), &tls.Config{}, nil, "unavailable", "certificate"},
		{"no TLS where it is needed", encrypted.ListenAddrs(), nil, nil, "unavailable", ""},
		{"TLS where there is none", open.Brokers, client, nil, "unavailable", "TLS"},
	} {
		sink := newKafkaSink(t, c.brokers, "", func(cfg *sinks.KafkaConfig) {
			cfg.TLS, cfg.SASL, cfg.PublishTimeout = c.tls, c.sasl, 8*time.Second
		})
		for range 2 {
			err := publishOne(t, sink, "t", "a")
			want(t, c.sentence, err, c.class, c.part)
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error tells the password: %v", c.sentence, err)
			}
			if c.class != "" {
				break
			}
		}
	}
}

// TestKafkaAuthenticatesAnew: a broker ends connections that were authenticated
// too long ago, and no request is to meet that.
func TestKafkaAuthenticatesAnew(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "secret"),
		kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "1000"}))
	if err := k.Fake().CreateTopic("t", 1, nil); err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.SASL = plain.Mechanism{Username: "user", Password: "secret"}
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	if !servers.Eventually(func() bool {
		want(t, "publish", publishOne(t, sink, "t", "a"), "", "")
		return dials.Load() >= 4 || t.Failed()
	}) {
		t.Error("no connection was replaced")
	}
}

// TestKafkaManyTopics: a batch for more topics than may have requests.
func TestKafkaManyTopics(t *testing.T) {
	k := servers.NewKfake(t)
	var now, most atomic.Int64
	sink := newKafkaSink(t, k.Brokers, "", func(c *sinks.KafkaConfig) {
		c.Requests = 3
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			return &countedConn{Conn: nc, open: &now}, err
		}
	})
	var batch []delaybridge.Claim
	for i := range 40 {
		topic := fmt.Sprint("many-", i)
		if err := k.Fake().CreateTopic(topic, 1, nil); err != nil {
			t.Fatal(err)
		}
		batch = append(batch, kafkaClaim(topic, fmt.Sprint(i)))
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		want(t, batch[i].ID, err, "", "")
	}
	if n := most.Load(); n > 3 {
		t.Errorf("%d connections at a time for 3 requests", n)
	}
}

type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// certificates returns how a server for 127.0.0.1 and its client encrypt.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: roots}
}

func TestKafkaLeavesNothingRunning(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 4)
	sink := newKafkaSink(t, k.Brokers, "")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { want(t, "publish", publishOne(t, sink, topic, fmt.Sprint(i)), "", "") })
	}
	wg.Wait()
	sink.Close()
	ours := func() string {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for _, g := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(g, "sinks.(*kafka") {
				return g
			}
		}
		return ""
	}
	if !servers.Eventually(func() bool { return ours() == "" }) {
		t.Errorf("still running:\n%s", ours())
	}
}

func TestKafkaConfigValidate(t *testing.T) {
	good := sinks.DefaultKafkaConfig()
	good.Brokers = []string{"localhost:9092"}
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for field, change := range map[string]func(*sinks.KafkaConfig){
		"Brokers":          func(c *sinks.KafkaConfig) { c.Brokers = []string{"localhost"} },
		"Dial":             func(c *sinks.KafkaConfig) { c.Dial = nil },
		"PublishTimeout":   func(c *sinks.KafkaConfig) { c.PublishTimeout = -1 },
		"BatchBytes":       func(c *sinks.KafkaConfig) { c.BatchBytes = 0 },
		"Requests":         func(c *sinks.KafkaConfig) { c.Requests = 0 },
		"RequestsPerTopic": func(c *sinks.KafkaConfig) { c.RequestsPerTopic = 0 },
	} {
		cfg := good
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
