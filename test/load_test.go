package test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge"
)

// produce starts producers on both brokers. They send until ctx ends, and then
// go on until what they have begun is accepted.
func (w *chaosWorld) produce(ctx context.Context) {
	for n := range 4 {
		p := &chaosProducer{
			w: w, name: fmt.Sprint("p", n), random: rand.New(rand.NewPCG(w.seed, 1000+uint64(n))), via: "nats",
			publish: w.publishNATS,
		}
		if n%2 == 1 {
			p.via, p.publish = "kafka", w.publishKafka
		}
		w.producers.Go(func() { p.run(ctx) })
	}
}

// sending is one message that a producer sends.
type sending struct {
	id, payload string
	headers     map[string]string
}

// publisher sends until the broker has the message. It returns its position,
// and how often it was tried.
type publisher func(key string, s sending) (position string, tries int, err error)

type chaosProducer struct {
	w       *chaosWorld
	name    string
	via     string
	random  *rand.Rand
	publish publisher
	n       int
}

func (p *chaosProducer) run(ctx context.Context) {
	for pause(ctx, between(p.random, 0, 2*chaosEach)) {
		p.n++
		id := fmt.Sprintf("%s-%d", p.name, p.n)
		delay := between(p.random, 0, 8*time.Second).Truncate(time.Millisecond)
		switch n := p.random.IntN(100); {
		case n < 70:
			p.schedule(asked{id: id, kind: kindPlain, delay: delay})
		case n < 78:
			if p.schedule(asked{id: id, version: 1, kind: kindReplaced, delay: 2*time.Second + delay*3/4}) {
				pause(ctx, between(p.random, 0, 300*time.Millisecond))
				p.schedule(asked{id: id, version: 2, kind: kindReplaced, delay: delay})
			}
		case n < 85:
			if p.schedule(asked{id: id, kind: kindCancelled, delay: 3*time.Second + delay/2}) {
				pause(ctx, between(p.random, 0, 300*time.Millisecond))
				p.cancel(id)
			}
		case n < 89:
			if p.schedule(asked{id: id, kind: kindCancelledByHand, delay: 4*time.Second + delay/2}) {
				w := p.w
				w.producers.Go(func() { w.cancelByHand(id) })
			}
		case n < 93:
			p.schedule(asked{id: id, kind: kindBad, delay: delay})
		case n < 96:
			p.schedule(asked{id: id, kind: kindNowhere, delay: delay})
		default:
			p.schedule(asked{id: id, kind: kindFar, delay: time.Hour})
		}
	}
}

// schedule sends one request and notes it once it is accepted.
func (p *chaosProducer) schedule(r asked) bool {
	s := sending{id: fmt.Sprintf("%s/%d", r.id, r.version), payload: fmt.Sprintf("%s %d", r.id, r.version)}
	r.target = []string{"nats://orders.x", "kafka://" + p.w.out}[p.random.IntN(2)]
	if r.kind == kindNowhere {
		r.target = []string{"nats://nowhere.x", "kafka://" + p.w.out + "-missing"}[p.random.IntN(2)]
	}
	s.headers = map[string]string{"Bridge-Target": r.target, "Bridge-Delay": r.delay.String(), "Bridge-Id": r.id, "X-Id": r.id}
	if r.kind == kindBad {
		s.headers["Bridge-Delay"] = "5"
	}
	r.via, r.sent = p.via, time.Now()
	var err error
	if r.position, r.tries, err = p.publish(r.id, s); err != nil {
		p.w.t.Errorf("%s: %v", r.id, err)
		return false
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.ledger.requests = append(p.w.ledger.requests, r)
	return true
}

// cancel takes a message back by another, and waits to see whether it came in
// time.
func (p *chaosProducer) cancel(id string) {
	s := sending{id: id + "/cancel", headers: map[string]string{"Bridge-Op": "cancel", "Bridge-Id": id}}
	if _, _, err := p.publish(id, s); err != nil {
		p.w.t.Errorf("cancel %s: %v", id, err)
		return
	}
	w := p.w
	w.mu.Lock()
	w.ledger.cancels[id] = cancelled{}
	w.mu.Unlock()
	w.producers.Go(func() {
		for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			s, err := w.queue.Get(context.Background(), id)
			if err != nil || s.State == delaybridge.StatePending || s.State == delaybridge.StateInFlight {
				continue
			}
			if s.State == delaybridge.StateCancelled {
				w.mu.Lock()
				w.ledger.cancels[id] = cancelled{time.Now()}
				w.mu.Unlock()
			}
			return
		}
	})
}

// cancelByHand takes a message back by the command, once the bridge has it.
func (w *chaosWorld) cancelByHand(id string) {
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			return // it is left alone
		}
		if s, err := w.queue.Get(context.Background(), id); err == nil && s.State == delaybridge.StatePending {
			break
		}
	}
	for range 5 {
		r := Run(w.t, Env{"REDIS_URL": "unix://" + w.redis.Dir + "/redis.sock?db=0"}, "", "cancel", id, "-o", "json")
		// An answer that was lost leaves it cancelled before the next try.
		if r.Code == 0 || strings.Contains(r.Stdout, `"cancelled"`) {
			w.mu.Lock()
			w.ledger.cancels[id] = cancelled{time.Now()}
			w.mu.Unlock()
			return
		}
		if strings.Contains(r.Stdout, `"state"`) {
			return // too late, and it said so
		}
	}
}

// publishNATS publishes again with the same Nats-Msg-Id until it is confirmed.
// JetStream forgets, when it starts again, the ids of messages that are taken
// from a work queue: then a second try is a message of its own.
func (w *chaosWorld) publishNATS(_ string, s sending) (position string, tries int, err error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		m := nats.NewMsg("bridge.schedule")
		m.Data = []byte(s.payload)
		for name, value := range s.headers {
			m.Header.Set(name, value)
		}
		m.Header.Set("Nats-Msg-Id", s.id)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		var ack *jetstream.PubAck
		tries++
		ack, err = w.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			return fmt.Sprintf("nats:BRIDGE_SCHEDULE:%d", ack.Sequence), tries, nil
		}
	}
	return "", tries, err
}

// publishKafka produces once: the client tries again by itself, and the broker
// drops what it has already. One id goes to one partition, where it has an order.
func (w *chaosWorld) publishKafka(key string, s sending) (position string, tries int, err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	r := &kgo.Record{Topic: w.in, Partition: int32(h.Sum32() % chaosPartitions), Value: []byte(s.payload)}
	for name, value := range s.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.producer.ProduceSync(ctx, r).FirstErr(); err != nil {
		return "", 1, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offsets[int(r.Partition)] = max(w.offsets[int(r.Partition)], r.Offset+1)
	return fmt.Sprintf("kafka:%s:%d:%d", w.in, r.Partition, r.Offset), 1, nil
}

// consumeKafka reads the target topic until the test ends.
func (w *chaosWorld) consumeKafka() {
	reader := w.client(kgo.ConsumeTopics(w.out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(250*time.Millisecond))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			fetches := reader.PollFetches(ctx)
			at := time.Now()
			w.mu.Lock()
			fetches.EachRecord(func(r *kgo.Record) {
				if string(r.Value) == endMark {
					w.marked[r.Partition] = true
					return
				}
				w.ledger.deliveries = append(w.ledger.deliveries, newDelivered(func(name string) string {
					for _, h := range r.Headers {
						if strings.EqualFold(h.Key, name) {
							return string(h.Value)
						}
					}
					return ""
				}, r.Value, r.Timestamp, at))
			})
			w.mu.Unlock()
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// endMark is the last record of each partition.
const endMark = "the end"

// consumeRest takes the rest of both targets into the ledger.
func (w *chaosWorld) consumeRest() {
	t := w.t
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for p := range int32(chaosPartitions) {
		if err := w.producer.ProduceSync(ctx, &kgo.Record{Topic: w.out, Partition: p, Value: []byte(endMark)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for read := 0; read < chaosPartitions; time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the target topic could not be read to its end")
		}
		w.mu.Lock()
		read = len(w.marked)
		w.mu.Unlock()
	}

	s, err := w.js.Stream(ctx, "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	end := s.CachedInfo().State.LastSeq
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	type publish struct {
		id               string
		version, attempt int
	}
	stored := map[publish]int{}
	for last := uint64(0); last < end; {
		batch, err := consumer.Fetch(1000, jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			last = meta.Sequence.Stream
			d := newDelivered(m.Headers().Get, m.Data(), meta.Timestamp, time.Time{})
			stored[publish{d.id, d.version, d.attempt}]++
			w.ledger.deliveries = append(w.ledger.deliveries, d)
		}
		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatalf("the target stream could not be read beyond %d of %d", last, end)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.raw {
		p := publish{d.id, d.version, d.attempt}
		if stored[p]--; stored[p] < 0 {
			d.dropped = true
			w.ledger.deliveries = append(w.ledger.deliveries, d)
		} else if d.seen.Before(d.due) {
			t.Errorf("%s was seen at %v, early: it was due at %v", d.id, d.seen, d.due)
		}
	}
}
