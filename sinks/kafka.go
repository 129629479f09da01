package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/sasl"

	"delaybridge"
)

// KafkaConfig holds the settings of Kafka.
type KafkaConfig struct {
	// Brokers are the addresses, host:port, to ask for the cluster's layout first.
	// One that answers is enough. Required.
	Brokers []string
	// ClientID is how the brokers' logs and quotas know us. Defaults to "bridge".
	ClientID string
	// TLS is how to encrypt; the server's name is filled in for each broker.
	// Defaults to no encryption.
	TLS *tls.Config
	// SASL is how to authenticate. Defaults to no authentication.
	SASL sasl.Mechanism
	// Dial opens a connection. Defaults to net.Dialer's DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// PublishTimeout is the whole budget of one Publish. Defaults to 10 s.
	PublishTimeout time.Duration
	// BatchBytes is how much goes into one record batch, which has to stay under
	// the topics' max.message.bytes. A message that is larger goes alone, and the
	// broker decides; batches that a topic finds too large are halved, so that a
	// value that is too high for some topics costs time only. Defaults to 1,000,000.
	BatchBytes int
	// Requests is how many requests may be unanswered at a time, each on a
	// connection of its own. Defaults to 64.
	Requests int
	// RequestsPerTopic is how many of them may be for one topic, so that a topic
	// that does not answer does not take them all. Defaults to 8.
	RequestsPerTopic int
}

// DefaultKafkaConfig returns the defaults; Brokers has none.
func DefaultKafkaConfig() KafkaConfig {
	return KafkaConfig{
		ClientID: "bridge", Dial: (&net.Dialer{}).DialContext,
		PublishTimeout: DefaultPublishTimeout, BatchBytes: 1_000_000, Requests: 64, RequestsPerTopic: 8,
	}
}

// Validate reports the first setting that cannot be used.
func (c KafkaConfig) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("setting Brokers is empty")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("setting Brokers: %w", err)
		}
	}
	switch {
	case c.Dial == nil:
		return errors.New("setting Dial is missing")
	case c.PublishTimeout <= 0:
		return fmt.Errorf("setting PublishTimeout: %v is not positive", c.PublishTimeout)
	case c.BatchBytes <= 0:
		return fmt.Errorf("setting BatchBytes: %d is not positive", c.BatchBytes)
	case c.Requests <= 0:
		return fmt.Errorf("setting Requests: %d is not positive", c.Requests)
	case c.RequestsPerTopic <= 0:
		return fmt.Errorf("setting RequestsPerTopic: %d is not positive", c.RequestsPerTopic)
	}
	return nil
}

// maxRequestBytes is what a broker takes as one request (socket.request.max.bytes,
// 100 MiB unless set): it cuts the connection at anything larger.
const maxRequestBytes = 100<<20 - 64<<10

// requestBytes is how much goes into one request, so that a large batch is not
// unknown as a whole when time runs out in the middle of it.
const requestBytes = 8 << 20

// Kafka publishes to Kafka. A message is confirmed by all in-sync replicas. It
// is safe for concurrent use.
//
// It speaks the produce protocol on connections of its own and not through
// kafka.Writer or kafka.Transport, which do not tell whether a request that
// failed was sent, go on with what was given up, and answer from a layout of the
// cluster that is seconds old.
type Kafka struct {
	cfg     KafkaConfig
	cluster *kafkaCluster
}

var _ delaybridge.Sink = (*Kafka)(nil)

// NewKafka returns a sink; nothing is connected before the first Publish.
func NewKafka(cfg KafkaConfig) (*Kafka, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sinks.KafkaConfig: %w", err)
	}
	return &Kafka{cfg: cfg, cluster: newKafkaCluster(cfg)}, nil
}

// Close closes the idle connections. It is to be called after the last Publish.
func (k *Kafka) Close() { k.cluster.close() }

// Ping asks any broker for the cluster's layout and returns nil if one answers.
func (k *Kafka) Ping(ctx context.Context) error {
	_, err := k.cluster.fetch(ctx, nil)
	return err
}

// Publish implements delaybridge.Sink.
func (k *Kafka) Publish(ctx context.Context, batch []delaybridge.Claim) []error {
	p := &kafkaPublish{
		Kafka: k, caller: ctx, outcomes: newOutcomes(len(batch)),
		batch: batch, headers: make([][]protocol.Header, len(batch)), sizes: make([]int, len(batch)),
	}
	run := func(ctx context.Context) {
		// The work ends a little earlier, so that it can still say what became of
		// it.
		ctx, cancel := context.WithTimeout(ctx, k.cfg.PublishTimeout-min(k.cfg.PublishTimeout/10, 500*time.Millisecond))
		defer cancel()
		p.run(ctx)
	}
	return p.await(ctx, k.cfg.PublishTimeout, run, func() (sentErr, unsentErr error) {
		return fmt.Errorf("Kafka did not confirm within %v", k.cfg.PublishTimeout),
			delaybridge.Transient(fmt.Errorf("not sent to Kafka within %v", k.cfg.PublishTimeout))
	})
}

// kafkaPublish is one call of Publish.
type kafkaPublish struct {
	*Kafka
	*outcomes
	caller  context.Context
	batch   []delaybridge.Claim
	headers [][]protocol.Header
	sizes   []int
}

// run carries out the batch: each topic, and each broker that leads some of its
// partitions, by requests of its own, so that none waits for another.
func (p *kafkaPublish) run(ctx context.Context) {
	byTopic := map[string][]int{}
	for i := range p.batch {
		c := &p.batch[i]
		if _, err := delaybridge.ParseTarget(c.Target.String()); err != nil {
			p.settle(i, delaybridge.Permanent(fmt.Errorf("target: %w", err)))
			continue
		}
		p.headers[i] = kafkaHeaders(c)
		if p.sizes[i] = recordSize(c, p.headers[i]); p.sizes[i] > maxRequestBytes {
			p.settle(i, delaybridge.Permanent(fmt.Errorf("%d bytes are more than a Kafka broker takes", p.sizes[i])))
			continue
		}
		byTopic[c.Target.Name] = append(byTopic[c.Target.Name], i)
	}
	var names []string
	for name := range byTopic {
		names = append(names, name)
	}
	layout, err := p.cluster.layout(ctx, names)
	if err != nil {
		for _, part := range byTopic {
			p.unsent(part, delaybridge.Unavailable(err))
		}
		return
	}
	var wg sync.WaitGroup
	for name, part := range byTopic {
		wg.Go(func() { p.route(ctx, layout, name, part, 0) })
	}
	wg.Wait()
}

// unsent settles messages that were not sent, unless it was the caller who has
// ended the publish.
func (p *kafkaPublish) unsent(part []int, err error) {
	if p.caller.Err() != nil {
		return
	}
	for _, i := range part {
		p.settle(i, err)
	}
}

// route sends messages of one topic to the leaders of their partitions. tries
// counts the times that it was tried in vain, with a layout that was out of date.
func (p *kafkaPublish) route(ctx context.Context, layout *kafkaLayout, name string, part []int, tries int) {
	topic := layout.topics[name]
	if topic.err != nil {
		p.unsent(part, topic.err)
		return
	}
	byLeader := map[int32][]routed{}
	for _, i := range part {
		partition := topic.partitionOf(&p.batch[i])
		leader, ok := topic.leaders[partition]
		if !ok {
			p.unsent([]int{i}, delaybridge.Transient(fmt.Errorf("partition %d of topic %q has no leader", partition, name)))
			continue
		}
		byLeader[leader] = append(byLeader[leader], routed{message: i, partition: int32(partition)})
	}
	var wg sync.WaitGroup
	for leader, messages := range byLeader {
		wg.Go(func() {
			d := kafkaDelivery{p: p, layout: layout, topic: name, leader: leader, tries: tries}
			d.run(ctx, messages)
		})
	}
	wg.Wait()
}

// routed is a message with the partition that it goes to.
type routed struct {
	message   int
	partition int32
}

// kafkaDelivery sends messages of one topic to one broker.
type kafkaDelivery struct {
	p      *kafkaPublish
	layout *kafkaLayout
	topic  string
	leader int32
	tries  int
}

func (d *kafkaDelivery) run(ctx context.Context, messages []routed) {
	ofTopic, ofAll := d.p.cluster.slots(d.topic), d.p.cluster.requests
	if !d.p.cluster.take(ctx, ofTopic) {
		d.p.unsent(indexes(messages), d.tooSlow())
		return
	}
	if !d.p.cluster.take(ctx, ofAll) {
		<-ofTopic
		// So many are not one topic's trouble.
		d.p.unsent(indexes(messages), delaybridge.Unavailable(errors.New("Kafka has not answered what was sent before")))
		return
	}
	var misrouted []routed
	var cause error
	for _, request := range d.requests(messages) {
		back, err := d.produce(ctx, request)
		if err != nil {
			misrouted, cause = append(misrouted, back...), err
		}
	}
	<-ofAll
	<-ofTopic
	if len(misrouted) > 0 {
		d.reroute(ctx, indexes(misrouted), cause)
	}
}

// requests divides messages so that neither a record batch nor a request gets
// too large.
func (d *kafkaDelivery) requests(messages []routed) [][]routed {
	var out [][]routed
	var current []routed
	batches, total := map[int32]int{}, 0
	for _, m := range messages {
		size := d.p.sizes[m.message]
		if n := batches[m.partition]; len(current) > 0 && (n > 0 && n+size > d.p.cfg.BatchBytes || total+size > requestBytes) {
			out = append(out, current)
			current, total = nil, 0
			clear(batches)
		}
		current = append(current, m)
		batches[m.partition] += size
		total += size
	}
	return append(out, current)
}

// produce sends one request and settles its messages. It returns those that were
// not sent, or not taken, for want of the partition's leader, with the reason.
func (d *kafkaDelivery) produce(ctx context.Context, messages []routed) ([]routed, error) {
	if !d.p.cluster.hasTime(ctx) {
		d.p.unsent(indexes(messages), d.tooSlow())
		return nil, nil
	}
	conn, err := d.p.cluster.connect(ctx, d.layout.brokers[d.leader])
	if err != nil {
		return messages, err
	}
	byPartition := map[int32][]routed{}
	for _, m := range messages {
		if !d.p.send(m.message) {
			d.p.cluster.release(conn)
			return nil, nil // the time is up
		}
		byPartition[m.partition] = append(byPartition[m.partition], m)
	}
	res, delivered, err := conn.roundTrip(ctx, d.request(ctx, byPartition))
	if err != nil {
		conn.close()
		if !delivered {
			d.recall(messages)
			return messages, err
		}
		d.p.cluster.forget(d.topic)
		for _, m := range messages {
			d.p.settle(m.message, fmt.Errorf("Kafka did not confirm: %w", err))
		}
		return nil, nil
	}
	d.p.cluster.release(conn)

	answers := map[int32]produce.ResponsePartition{}
	for _, topic := range res.(*produce.Response).Topics {
		for _, a := range topic.Partitions {
			answers[a.Partition] = a
		}
	}
	var misrouted []routed
	var cause error
	for partition, part := range byPartition {
		a, ok := answers[partition]
		code := kafka.Error(a.ErrorCode)
		switch {
		case !ok:
			for _, m := range part {
				d.p.settle(m.message, errors.New("the broker's answer leaves the message out"))
			}
		case isMisrouted(code):
			d.recall(part)
			misrouted, cause = append(misrouted, part...), produceError(code, a.ErrorMessage)
		case isOfRecord(code) && len(part) > 1:
			// One record is at fault, or only their sum: the others are not to
			// suffer for it.
			d.recall(part)
			for _, half := range [][]routed{part[:len(part)/2], part[len(part)/2:]} {
				back, err := d.produce(ctx, half)
				if err != nil {
					misrouted, cause = append(misrouted, back...), err
				}
			}
		default:
			var err error
			if code != 0 {
				err = produceError(code, a.ErrorMessage)
			}
			for _, m := range part {
				d.p.settle(m.message, err)
			}
		}
	}
	return misrouted, cause
}

func (d *kafkaDelivery) recall(messages []routed) {
	for _, m := range messages {
		d.p.recall(m.message)
	}
}

// request makes the produce request. Its acks are never anything but all.
func (d *kafkaDelivery) request(ctx context.Context, byPartition map[int32][]routed) *produce.Request {
	partitions := make([]produce.RequestPartition, 0, len(byPartition))
	for partition, part := range byPartition {
		records := make([]protocol.Record, len(part))
		for j, m := range part {
			records[j] = kafkaRecord(&d.p.batch[m.message], d.p.headers[m.message])
		}
		partitions = append(partitions, produce.RequestPartition{
			Partition: partition,
			RecordSet: protocol.RecordSet{Records: protocol.NewRecordReader(records...)},
		})
	}
	deadline, _ := ctx.Deadline()
	return &produce.Request{
		Acks: int16(kafka.RequireAll),
		// The broker is to give up waiting for its replicas, and to say so, before
		// we give up waiting for the broker.
		Timeout: int32(max(time.Until(deadline)*9/10, time.Millisecond) / time.Millisecond),
		Topics:  []produce.RequestTopic{{Topic: d.topic, Partitions: partitions}},
	}
}

// tooSlow is what becomes of messages whose turn did not come.
func (d *kafkaDelivery) tooSlow() error {
	return delaybridge.Transient(fmt.Errorf("topic %q has not answered what was sent before", d.topic))
}

// rerouteTries is how often a message is routed anew, over 1.5 s in all.
const rerouteTries = 4

// reroute asks the cluster again who leads the partitions of messages that are
// not sent, and sends them there. If nobody can be asked, Kafka is unavailable;
// a leader that stays out of reach while others answer is its topics' trouble.
func (d *kafkaDelivery) reroute(ctx context.Context, part []int, cause error) {
	cause = fmt.Errorf("topic %q: %w", d.topic, cause)
	if d.tries > 0 {
		// A new leader is chosen within moments, and a moment later knows that
		// it is the leader.
		select {
		case <-time.After(50 * time.Millisecond << d.tries):
		case <-ctx.Done():
		}
	}
	inTime := d.p.cluster.hasTime(ctx)
	d.p.cluster.forget(d.topic)
	layout, err := d.p.cluster.layout(ctx, []string{d.topic})
	if err != nil {
		cause = fmt.Errorf("%w (%w)", cause, err)
	}
	unreached := errors.Is(cause, errNotConnected)
	switch {
	case err == nil && d.tries < rerouteTries:
		d.p.route(ctx, layout, d.topic, part, d.tries+1)
	case err == nil && unreached && len(layout.brokers) == 1, err != nil && (unreached || inTime):
		d.p.unsent(part, delaybridge.Unavailable(cause))
	default:
		d.p.unsent(part, delaybridge.Transient(cause))
	}
}

func indexes(messages []routed) []int {
	return slices.Collect(func(yield func(int) bool) {
		for _, m := range messages {
			if !yield(m.message) {
				return
			}
		}
	})
}
